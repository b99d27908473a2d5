"""What stands between a player and a model: prompts in, completions out, in any order.

An ``Engine`` holds one model or one server. Players that differ in sampling or adapter share it, and what they ask in
the same moment is generated in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from negolab.policies.base import Failed
from negolab.prompts.multi_buyer import Message


class Sampling(NamedTuple):
    """How a reply is drawn."""

    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """0: no limit."""
    max_tokens: int
    thinking: bool | None
    """None: whatever the chat template does by itself."""


class Prompt(NamedTuple):
    """One reply wanted."""

    conversation: tuple[int, int]
    """Episode and seat: prompts of one conversation extend each other."""
    messages: Sequence[Message]
    seed: int
    """64 random bits of this reply's own."""
    sampling: Sampling
    adapter: str
    """LoRA adapter to use; empty: the base model."""
    native: bool = False
    """Whether the trade game's tools go to the server as native tools instead of as a block of code."""


class Completion(NamedTuple):
    """A reply as the engine got it."""

    text: str | None
    """Without a thinking block."""
    finish_reason: str
    """One of ``policies.base.FINISHES``."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """How many of the prompt's tokens had not to be computed again."""
    reasoning: str | None = None
    ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    prompt_ids: Sequence[int] | None = None
    seconds: float | None = None
    """From the request to the reply, tries included."""
    tries: int = 1


Done = Callable[[Prompt, "Completion | Failed | BaseException"], None]


class TextEngine(Protocol):
    """An engine that players can be made on; see ``policies.base.Engine``."""

    window: int
    """Episodes that keep it busy."""

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        """Ask for replies; ``done`` is called once per prompt, from any thread, also in ``run``."""
        ...

    def run(self) -> None:
        """See ``policies.base.Engine``."""
        ...

    def recall(self, prompt: Prompt, text: str | None, ids: Sequence[int] | None) -> None:
        """The reply to ``prompt`` was found in a journal: later prompts of the conversation hold its tokens, as they
        would have had it just been given. Nothing to do for engines that keep no tokens."""
        ...

    def forget(self, conversation: tuple[int, int]) -> None:
        """The conversation is over."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data for a manifest: what model this is, without paths and addresses."""
        ...

    def check(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str]:
        """Before anything heavy: can conversations that begin like these be answered? Returns sentences for the user.
        Raises ``NegolabError`` where they cannot."""
        ...

    def report(self) -> dict[str, Any]:
        """Counters since it was made, for people: tokens computed and reused, tries, seconds."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


def split_reasoning(text: str, opened: bool) -> tuple[str | None, str]:
    """Cut a leading thinking block: the block (None where there is none) and the reply behind it.

    ``opened``: the chat template's own prompt ended by opening the block. A block that is never closed leaves an empty
    reply.
    """
    body = text.lstrip()
    if body.startswith("<think>"):
        body = body[len("<think>") :]
    elif not opened:
        return None, text
    thought, closed, rest = body.partition("</think>")
    return thought.strip(), rest.lstrip() if closed else ""
