"""Training rows: an episode as its learner lived it, in the tokens that were sampled.

A row holds what one seat read and wrote, in order. While the seat's next prompt begins with everything that the row
holds (earlier prompt, sampled reply with the token that ended it), the row goes on: what was said to the seat counts
nothing in the loss, the seat's own tokens do. Where the next prompt begins otherwise (a chat template that rewrites
earlier turns, a reply without its end), a new row forks off. So every sampled token is trained exactly once, behind
exactly the tokens it was sampled behind; nothing is ever tokenised again.

A row ends with the seat's last own token: an episode that ends on the other side's words is not longer for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from negolab.episodes import Episode
from negolab.errors import NegolabError


@dataclass(slots=True)
class Row:
    """One training row. All lists have one entry per token."""

    episode: int
    """Place of the episode in its batch."""
    ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    """Whether the seat sampled the token itself. The first token never is."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of own tokens under the distribution that they were sampled from; 0 for all others."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained(self) -> int:
        """Own tokens."""
        return sum(self.own)


class RowStatistics(NamedTuple):
    """How well the merging went."""

    episodes: int
    """Those in which the seat spoke."""
    turns: int
    """Replies of the seat that have tokens."""
    rows: int
    trained: int
    """Own tokens, each trained once."""
    tokens: int
    """All tokens of all rows."""
    nll: float
    """Sum over own tokens of minus their log-probability when they were sampled."""

    @property
    def rows_per_episode(self) -> float:
        """1 where every episode is one row."""
        return self.rows / self.episodes if self.episodes else 0.0

    @property
    def fork_fraction(self) -> float:
        """Of the replies after a first one, the share that could not go on in their row; 0 on append-only templates."""
        later = self.turns - self.episodes
        return (self.rows - self.episodes) / later if later else 0.0


def rows_of(episode: Episode, seat: int, at: int = 0, *, merge: bool = True) -> list[Row]:
    """The rows of one seat; none where it never spoke. ``at`` becomes their ``episode``.

    ``merge=False`` gives a row for every reply, which has the same gradient under a loss that weighs all tokens alike.
    Raises ``NegolabError`` for replies without tokens, log-probabilities or prompt: their player keeps none.
    """
    rows: list[Row] = []
    for prompt, ids, logprobs in _replies(episode, seat):
        row = rows[-1] if rows and merge else None
        if row is None or len(prompt) < len(row.ids) or list(prompt[: len(row.ids)]) != row.ids:
            row = Row(at)
            rows.append(row)
        new = prompt[len(row.ids) :]
        row.ids += new
        row.own += [False] * len(new)
        row.logprobs += [0.0] * len(new)
        row.ids += ids
        row.own += [True] * len(ids)
        row.logprobs += logprobs
    return rows


def _replies(episode: Episode, seat: int) -> Iterator[tuple[Sequence[int], Sequence[int], Sequence[float]]]:
    """Prompt, sampled ids and log-probabilities of the seat's replies, in order."""
    for position, turn in enumerate(episode.turns):
        if turn.seat != seat or turn.fallback:
            continue
        note = episode.notes.get(position, {})
        ids = note.get("ids")
        if ids is None and turn.violation in _UNSPOKEN:
            continue  # its context was full: there was no reply
        logprobs, prompt = note.get("logprobs"), episode.prompt_ids.get(position)
        if not ids or logprobs is None or len(logprobs) != len(ids) or not prompt:
            raise NegolabError(
                f"episode {episode.scenario.episode}, turn {position}: {episode.players[seat]} keeps no sampled "
                "tokens with their log-probabilities and prompt, so it cannot be trained"
            )
        yield prompt, ids, logprobs


_UNSPOKEN = ("context_limit", "timeout")


def statistics_of(rows: Iterable[Row], episodes: Sequence[Episode], seat: int) -> RowStatistics:
    """What ``RowStatistics`` counts, of the rows that ``episodes`` made."""
    made = list(rows)
    turns = sum(1 for episode in episodes for _ in _replies(episode, seat))
    return RowStatistics(
        len({row.episode for row in made}),
        turns,
        len(made),
        sum(row.trained for row in made),
        sum(map(len, made)),
        -sum(sum(row.logprobs) for row in made),
    )
