"""Finished episodes as chat conversations: what every seat was shown and what it answered, word for word.

For supervised training on stored or scripted episodes of any game, and for looking at what a model would have read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from negolab.environment.base import Request
from negolab.episodes import Episode, replay
from negolab.prompts import MarketPrompts
from negolab.prompts.shared import Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """One seat's side of an episode."""

    seat: int
    messages: tuple[Message, ...]
    """System, user and assistant messages; the last one is the seat's last reply."""
    positions: tuple[int, ...]
    """For each assistant message its place in ``Episode.turns``."""


def conversations(episode: Episode, prompts: MarketPrompts | None = None) -> dict[int, Conversation]:
    """The conversation of every seat that spoke, by seat.

    A reply that broke a rule and ended the episode is the last message of its seat; replies that the guard refused are
    not part of any conversation, and what it played in their place is. Raises ``ValueError`` for an episode that does
    not replay.
    """
    last: dict[int, Request] = {}
    positions: dict[int, list[int]] = {}

    def seen(position: int, request: Request) -> None:
        last[request.seat] = request
        if position not in positions.setdefault(request.seat, []):  # a refused reply is told of, too
            positions[request.seat].append(position)

    problems = replay(episode, seen)
    if problems:
        raise ValueError(f"episode {episode.scenario.episode} does not replay: {problems[0]}")
    prompts = prompts or MarketPrompts()
    return {seat: _conversation(episode, prompts, last[seat], positions[seat]) for seat in sorted(last)}


def _conversation(episode: Episode, prompts: MarketPrompts, request: Request, positions: Sequence[int]) -> Conversation:
    messages = prompts.messages(request)
    messages.append({"role": "assistant", "content": episode.turns[positions[-1]].text})
    return Conversation(request.seat, tuple(messages), tuple(positions))
