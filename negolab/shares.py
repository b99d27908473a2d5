"""Who plays which of the owed episodes: this process, several, or the workers of a Ray cluster.

Whoever plays reports episodes as they end. Only the process that opened the run folder writes them.
"""

import os
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from negolab import costs
from negolab.cluster import Cluster
from negolab.errors import NegolabError
from negolab.plan import Plan
from negolab.rollout import ticks
from negolab.store import PID
from negolab.workers import spread
from negolab.writer import RunWriter

_CHUNK = 64
"""Episodes that a worker plays before it reports: small enough that a kill loses little, large enough to batch."""
_CHUNK_OWN = 8
"""The same for players of the user's own, which may be slow or fail: a lost worker loses less."""
_WINDOWS = 4
"""The same for language models, in windows of open episodes: at a chunk's end their batches run thin."""
_SLOW = 0.05
"""Seconds for one tick above which players count as slow; scripted ones take about a thousandth."""


class Batch(NamedTuple):
    """What has come of some owed episodes."""

    numbers: list[int]
    """Those that are finished."""
    lines: list[bytes]
    """Their records."""
    dropped: list[tuple[int, str]]
    """Those that could not be played, and why."""
    notes: tuple[str, ...] = ()
    """What the user should know of who played them."""


def fresh(
    made: Plan, writer: RunWriter, workers: int, cluster: Cluster | None, say: Callable[[str], object]
) -> Generator[Batch, None, None]:
    """Play what is owed: here, spread over processes, or over a Ray cluster."""
    owed = writer.owed()
    if cluster is not None:
        workers = cluster.workers
    elif workers == 1:
        yield from _play_here(made, owed, writer.folder)
        return
    size = _chunk(made, writer.n_owed, workers)
    chunks = iter(lambda: list(islice(owed, size)), [])
    given = (made, writer.folder.resolve(), os.getpid())
    if cluster is None:
        yield from spread(_worker, given, chunks, workers)
        return
    told = set()
    for batch in cluster.spread(_worker, given, chunks, _covered, say):
        for line in [line for line in batch.notes if line not in told]:
            told.add(line)
            say(line)
        yield batch


def _covered(batch: Batch) -> list[int]:
    """The episodes that a batch is the last word on."""
    return batch.numbers + [episode for episode, _ in batch.dropped]


def _chunk(made: Plan, owed: int, workers: int) -> int:
    """How many episodes a worker is given at once. Results come as they are there, so it only is a matter of who
    waits for whom: short runs of slow players are shared out, not given to the first worker in one chunk."""
    if made.cast().models:  # the more, the larger the batches: each gets its share, and of long runs a fair part
        windows = [player.window for player in made.cast().models]
        return max(1, min(_WINDOWS * max(windows), -(-owed // workers)))
    return max(1, min(_CHUNK if made.scripted else _CHUNK_OWN, owed // (2 * workers)))


def _play_here(made: Plan, owed: Iterable[int], folder: Path | None) -> Iterator[Batch]:
    """Play the owed episodes in this process, in batches of those that ended together. ``folder``: the run's,
    where models' replies are kept until their episodes are stored, or None where it is out of reach."""
    cast = made.cast()
    if folder is not None:
        cast.keep_replies(folder)
    if made.max_cost is not None:
        if folder is None:
            raise NegolabError("a cost limit needs a run folder that every machine of the Ray cluster can reach")
        owed = costs.affordable(owed, costs.Meter(folder, made.models), made.max_cost)
    batch = Batch([], [], [])
    began = last = time.monotonic()
    slow = False
    told = ticks(
        (made.schedule[i] for i in owed), cast.seller, cast.buyers, dropped=lambda *what: batch.dropped.append(what)
    )
    try:
        for ended in told:
            batch.numbers.extend(episode.scenario.episode for episode in ended)
            batch.lines.extend(episode.to_line() for episode in ended)
            now = time.monotonic()
            # Fast players' episodes are written in batches. Once a player (a model) was slow, every tick's are, before
            # anybody is asked again: the next answer may take minutes, or be interrupted.
            slow, began = slow or now - began > _SLOW, now
            if batch.lines and (slow or len(batch.lines) >= _CHUNK or now - last > 0.2):
                yield batch
                batch, last = Batch([], [], []), now
                began = time.monotonic()
    except GeneratorExit:
        raise
    except BaseException:  # a player that failed, or Ctrl-C: what is finished is kept all the same
        if batch.lines:
            yield batch
        raise
    if any(batch):
        yield batch


def _worker(given: tuple[Plan, Path, int]) -> Callable[[list[int]], Iterator[Batch]]:
    """A worker's function from owed episodes to what comes of them. Given: the plan, the run folder, its writer."""
    made, folder, writer = given
    reached = not made.cast().models or _reaches(folder, writer)
    if reached:
        return lambda owed: _play_here(made, owed, folder)
    note = (
        f"the run folder cannot be reached from {platform.node()}: there, replies are not kept before their episodes "
        "end, and not counted in usage.json"
    )

    def work(owed: list[int]) -> Iterator[Batch]:
        yield Batch([], [], [], (note,))
        yield from _play_here(made, owed, None)

    return work


def _reaches(folder: Path, writer: int) -> bool:
    """Whether this is the folder that the process ``writer`` holds open, and not one of the same name elsewhere."""
    with suppress(OSError, ValueError):
        return (folder / PID).read_text(encoding="utf-8").strip() == str(writer)
    return False
