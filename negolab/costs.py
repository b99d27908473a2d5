"""What language models used and what that costs: tokens from a run's account, prices from its user.

A finished run's account is ``usage.json``; while it is under way its journals are, and they are read here as they grow.
Cached tokens are part of the prompt's and cost ``price_cached`` where that is given. A price that nobody gave is not
guessed: the cost is then unknown (None), as it is where a server did not count its tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from negolab.errors import NegolabError
from negolab.policies.journal import PATTERN, USAGE
from negolab.policies.spec import ModelSpec

_MILLION = 1_000_000


class Usage(NamedTuple):
    """Replies, their tokens and seconds. ``seconds`` adds up what each reply took, so that replies made at the same
    time count several times."""

    replies: int = 0
    prompt_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    tries: int = 0
    seconds: float = 0.0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*map(operator.add, self, other))

    @property
    def counted(self) -> bool:
        """Whether there are token counts: a server that sends none leaves all at zero."""
        return self.replies == 0 or self.prompt_tokens > 0


def total(used: Iterable[Usage]) -> Usage:
    """All together."""
    found = Usage()
    for one in used:
        found = found.plus(one)
    return found


def cost(used: Usage, model: ModelSpec) -> float | None:
    """Dollars. None where a price or the token counts are missing; 0 where nothing was used."""
    if model.price_input is None or model.price_output is None or not used.counted:
        return None
    cached = min(used.cached_tokens, used.prompt_tokens)
    price_cached = model.price_input if model.price_cached is None else model.price_cached
    paid = (used.prompt_tokens - cached) * model.price_input + cached * price_cached
    return (paid + used.completion_tokens * model.price_output) / _MILLION


class Account(NamedTuple):
    """What one run used, and its cost."""

    by_player: Mapping[str, Usage]
    dollars: float | None
    """None where the cost of some player that was used is unknown, and where no model played."""

    @property
    def used(self) -> Usage:
        """All players together."""
        return total(self.by_player.values())


class Meter:
    """A run's account, read again and again while the run goes on; cheap when nothing came. Not for several threads."""

    def __init__(self, folder: str | Path, models: Mapping[str, ModelSpec]) -> None:
        """``models``: the run's language models by the names they play under."""
        self._folder, self._models = Path(folder), dict(models)
        self._read: dict[Path, int] = {}  # bytes of each journal that are counted
        self._names: dict[Path, str] = {}  # by journal, what it calls itself
        self._used, self._reached = _settled(self._folder)

    def account(self) -> Account:
        """Everything up to now. Files that are not there, or cannot be read, count nothing."""
        with suppress(OSError):
            paths = sorted(self._folder.glob(PATTERN))
            if not paths and not self._read:  # perhaps it has settled since
                self._used, self._reached = _settled(self._folder)
            for path in paths:
                self._follow(path)
        return Account(dict(self._used), self._cost(self._used))

    def _follow(self, path: Path) -> None:
        """Count what was added to a journal. A line that is being written is read next time."""
        offset = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            new = file.read()
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            self._count(path, offset, line)
            offset += len(line)
        self._read[path] = offset

    def _count(self, path: Path, offset: int, line: bytes) -> None:
        try:
            data = orjson.loads(line)
        except ValueError:
            return
        if not isinstance(data, dict):
            return
        if isinstance(data.get("journal"), str):
            self._names[path] = data["journal"]
        elif {"key", "player"} <= data.keys():
            player = str(data["player"])
            if offset >= self._reached.get((player, self._names.get(path, path.name)), 0):
                one = Usage(1, *[data.get(name) or 0 for name in Usage._fields[1:]])
                self._used[player] = self._used.get(player, Usage()).plus(one)

    def _cost(self, used: Mapping[str, Usage]) -> float | None:
        if not self._models:
            return None
        spent = 0.0
        for name, one in used.items():
            dollars = cost(one, self._models[name]) if name in self._models else None
            if dollars is None:
                return None
            spent += dollars
        priced = all(cost(Usage(), model) is not None for model in self._models.values())
        return spent if priced else None


def _settled(folder: Path) -> tuple[dict[str, Usage], dict[tuple[str, str], int]]:
    """The account of what was settled, and how many bytes of each journal are in it, by player and journal."""
    try:
        data: Any = orjson.loads((folder / USAGE).read_bytes())
        used = {name: Usage(*[counts[key] for key in Usage._fields]) for name, counts in data.items()}
        reached = {(name, j): int(n) for name, counts in data.items() for j, n in counts.get("journals", {}).items()}
    except OSError:
        return {}, {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, {}  # an account that somebody edited says nothing; the run itself is sound without it
    return used, reached


def account_of(folder: str | Path, models: Mapping[str, ModelSpec]) -> Account:
    """What the run in ``folder`` has used so far; see ``Meter``."""
    return Meter(folder, models).account()


def check_priced(models: Mapping[str, ModelSpec], limit: float) -> None:
    """Raises ``NegolabError`` where a sum of dollars cannot be kept to because a model has no prices."""
    if not models:
        raise NegolabError(f"--max-cost {limit:g} is for language models, and none plays here")
    for name, model in models.items():
        if cost(Usage(), model) is None:
            raise NegolabError(
                f"--max-cost {limit:g} needs the prices of {name}: give price_input and price_output, dollars per "
                "million tokens"
            )


def affordable(owed: Iterable[int], meter: Meter, limit: float) -> Iterator[int]:
    """The owed episodes until ``limit`` dollars are spent; those under way are then still played to their end."""
    for episode in owed:
        spent = meter.account().dollars
        if spent is not None and spent >= limit:
            return
        yield episode


def dollars(value: float | None) -> str:
    """An amount for people: ``$1.23``, four digits below ten cents, ``n/a`` where it is unknown."""
    if value is None:
        return "n/a"
    return f"${value:,.4f}" if 0 < abs(value) < 0.1 else f"${value:,.2f}"


def tokens(count: int) -> str:
    """A count for people: ``950``, ``12.3k``, ``4.56M``."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / _MILLION:.2f}M"


def summary_lines(account: Account, episodes: int) -> list[str]:
    """What a run used, for the end of its output; empty where no model played."""
    lines = []
    for name, used in sorted(account.by_player.items()):
        if not used.counted:
            lines.append(f"{name}: {used.replies} replies, tokens not counted by the server")
            continue
        lines.append(
            f"{name}: {used.replies} replies, {used.prompt_tokens} prompt tokens ({used.cached_tokens} cached), "
            f"{used.completion_tokens} sampled tokens, {used.seconds:.1f} seconds of replies"
        )
    if account.by_player:
        each = account.dollars
        rate = "" if not each else f", {episodes / each:,.1f} episodes per dollar"
        lines.append(f"cost: {dollars(each)}{rate}" + ("" if each is not None else " (prices not given)"))
    return lines
