"""A language model as a player: requests become chat messages, an engine answers, replies are kept as they come."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from negolab.environment.base import Request, TradeView
from negolab.errors import NegolabError
from negolab.policies.base import Failed, Inbox, Reply
from negolab.policies.engine import Completion, Prompt, Sampling, TextEngine
from negolab.policies.journal import Journal
from negolab.policies.spec import ModelSpec
from negolab.prompts import MarketPrompts, sha256_of


class LanguageModel:
    """One model in one role, on an engine that it may share. See ``policies.base.Policy`` and ``Streaming``."""

    def __init__(self, spec: ModelSpec, engine: TextEngine, prompts: MarketPrompts | None = None) -> None:
        self.name = spec.label
        self.engine = engine
        self.window = engine.window
        self.spec = spec
        self.journal: Journal | None = None
        """Where replies are kept until their episodes are stored, if anywhere."""
        self._prompts = prompts or MarketPrompts()
        self._sampling = Sampling(spec.temperature, spec.top_p, spec.top_k, spec.max_tokens, spec.thinking)
        self._adapter = str(getattr(spec, "adapter", ""))
        self._native = getattr(spec, "tools", "") == "native"
        self._seats: dict[int, set[int]] = {}  # by open episode

    def describe(self) -> dict[str, Any]:
        """Options that decide replies, and what the engine knows of its model."""
        return {**self.spec.deciding(), **self.engine.describe(), "name": self.name}

    def start(self, requests: Sequence[Request], inbox: Inbox) -> None:
        """Ask the engine for what the journal does not hold. Raises ``NegolabError`` where native tools are wanted in a
        game that has none."""
        wanted: list[Prompt] = []
        asked: dict[tuple[int, int], tuple[Request, str]] = {}
        for request in requests:
            if self._native and not isinstance(request.view, TradeView):
                raise NegolabError(f"{self.name}: tools is 'native'; only the trade game is played with tools")
            messages = self._prompts.messages(request)
            sha256 = sha256_of(messages)
            conversation = (request.episode, request.seat)
            self._seats.setdefault(request.episode, set()).add(request.seat)
            prompt = Prompt(conversation, messages, request.seed, self._sampling, self._adapter, self._native)
            known = None if self.journal is None else self.journal.find(request, sha256)
            if known is not None:
                # An engine that keeps a conversation's tokens must see those of this reply as well: what is sampled
                # after it must not depend on whether the run was interrupted.
                self.engine.recall(prompt, known.text, known.ids)
                inbox.put((request, known))
                continue
            asked[conversation] = (request, sha256)
            wanted.append(prompt)

        def done(prompt: Prompt, completion: Completion | Failed | BaseException) -> None:
            request, sha256 = asked[prompt.conversation]
            if not isinstance(completion, Completion):
                inbox.put((request, completion))
                return
            try:
                inbox.put((request, self._kept(request, sha256, completion)))
            except NegolabError as error:  # the disk is full: the run must stop, wherever this thread is
                inbox.put((request, error))

        if wanted:
            self.engine.submit(wanted, done)

    def _kept(self, request: Request, sha256: str, completion: Completion) -> Reply:
        c = completion
        reply = Reply(
            c.text,
            c.finish_reason,
            c.prompt_tokens,
            c.completion_tokens,
            sha256,
            c.reasoning,
            c.ids,
            None if c.logprobs is None else [round(float(value), 6) for value in c.logprobs],
            c.prompt_ids,
        )
        if self.journal is not None:
            facts = {"player": self.name, "cached_tokens": c.cached_tokens, "seconds": c.seconds, "tries": c.tries}
            self.journal.add(request, reply, facts)
        return reply

    def forget(self, episode: int) -> None:
        """Free what the engine holds for the episode's conversations."""
        for seat in self._seats.pop(episode, ()):
            self.engine.forget((episode, seat))

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """All replies, in order. Raises what the engine raises, and ``NegolabError`` for a request that failed."""
        inbox: Inbox = SimpleQueue()
        self.start(requests, inbox)
        found: dict[tuple[int, int], Reply] = {}
        while len(found) < len(requests):
            if inbox.empty():
                self.engine.run()
            request, reply = inbox.get()
            if isinstance(reply, BaseException):
                raise reply
            if isinstance(reply, Failed):
                raise NegolabError(f"{self.name}: {reply.reason}")
            found[request.episode, request.seat] = reply
        return [found[request.episode, request.seat] for request in requests]
