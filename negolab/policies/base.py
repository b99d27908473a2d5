"""What a player is: requests in, replies out, many at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from negolab.environment.base import Request


class Reply(NamedTuple):
    """One reply and what it cost. Token fields stay None for players that have no tokenizer."""

    text: str | None
    finish_reason: str = "stop"
    """``stop``, or ``length`` when the reply was cut at the token limit."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_sha256: str | None = None
    """Hash of the rendered prompt; None for scripted players, which read the view itself."""


class Policy(Protocol):
    """A player. One instance may play many seats of many episodes at once and keeps no state between calls."""

    name: str

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data for a manifest: everything that decides how this player plays."""
        ...
