"""What a player is: requests in, replies out, many at a time.

A plain player answers at once (``reply``). A player whose answers take time, because a model or a server makes them,
can also be ``Streaming``: it is told what is wanted and delivers each reply when it is there, so that no episode waits
for another.
"""

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, runtime_checkable

from negolab.environment.base import ABORTS, Request

FINISHES = ("stop", "length", "content_filter", *ABORTS)
"""What a reply's ``finish_reason`` may be: complete; cut at the token limit; withheld by the provider; never given
because the conversation no longer fits into the model's context, or because nothing came in time."""


class Reply(NamedTuple):
    """One reply and what it cost. Token fields stay None for players that have no tokenizer."""

    text: str | None
    """What the model said, without its thinking block; None where a server sent no content."""
    finish_reason: str = "stop"
    """One of ``FINISHES``."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_sha256: str | None = None
    """Hash of the chat messages the reply answers (``prompts.sha256_of``); None for players that read the view."""
    reasoning: str | None = None
    """The thinking block or the server's reasoning content: kept in the record, shown to nobody."""
    ids: Sequence[int] | None = None
    """The sampled token ids, the end-of-turn token included."""
    logprobs: Sequence[float] | None = None
    """Log-probability of each of ``ids`` under the distribution they were sampled from (after temperature, before any
    truncation by top-p or top-k)."""
    prompt_ids: Sequence[int] | None = None
    """The exact tokens that ``ids`` continue. Kept in memory for training, not stored."""


class Failed(NamedTuple):
    """No reply, through no fault of the player: the episode is left to be played another time."""

    reason: str


Inbox = SimpleQueue[tuple[Request, Reply | Failed | BaseException]]


class Policy(Protocol):
    """A player. One instance may play many seats of many episodes at once and keeps no state that decides a reply."""

    name: str

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data for a manifest: everything that decides how this player plays."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """A ``Policy`` whose replies arrive one by one."""

    window: int
    """Episodes that should be open at once to keep it busy."""
    engine: "Engine"
    """What makes the replies; players that share one are batched together."""

    def start(self, requests: Sequence[Request], inbox: Inbox) -> None:
        """Ask for replies. Each is put into ``inbox`` with its request when it is there, from whatever thread; an
        exception in its place stops the run."""
        ...

    def forget(self, episode: int) -> None:
        """The episode is over: whatever was kept for it can go."""
        ...


class Engine(Protocol):
    """What players wait for."""

    def run(self) -> None:
        """Work in this thread on what was asked for, until something has come of it; nothing to do for engines that
        work elsewhere."""
        ...

    def close(self) -> None:
        """Give everything back. Replies still wanted will not come."""
        ...
