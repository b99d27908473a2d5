"""An engine for tests that needs no model: it answers with scripted words, in whatever order and manner it is told."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from negolab.policies.base import Failed
from negolab.policies.engine import Completion, Done, Prompt


class FakeEngine:
    """Answers each prompt with ``speak(prompt)``. ``threads``: from threads of its own, late and in any order."""

    def __init__(
        self, speak: Callable[[Prompt], Completion | Failed | BaseException], *, threads: bool = False, window: int = 8
    ) -> None:
        self._speak, self._threads, self.window = speak, threads, window
        self._waiting: list[tuple[Prompt, Done]] = []
        self.asked: list[Prompt] = []
        self.batches: list[int] = []
        self.closed = 0
        self.recalled: list[tuple[int, int]] = []
        self.forgotten: list[tuple[int, int]] = []

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        self.asked += prompts
        if not self._threads:
            self._waiting += [(prompt, done) for prompt in prompts]
            return
        for prompt in prompts:
            threading.Thread(target=self._late, args=(prompt, done), daemon=True).start()

    def _late(self, prompt: Prompt, done: Done) -> None:
        time.sleep(random.Random(prompt.seed).random() / 100)
        done(prompt, self._speak(prompt))

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.batches.append(len(waiting))
        for prompt, done in waiting:
            done(prompt, self._speak(prompt))

    def recall(self, prompt: Prompt, text: str | None, ids: Sequence[int] | None) -> None:
        self.recalled.append(prompt.conversation)

    def forget(self, conversation: tuple[int, int]) -> None:
        self.forgotten.append(conversation)

    def describe(self) -> dict[str, Any]:
        return {"model": "fake"}

    def check(self, conversations: Sequence[Any], max_tokens: int) -> list[str]:
        return []

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1
