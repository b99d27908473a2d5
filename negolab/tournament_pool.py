"""Scripted runs of a tournament, played by one pool of processes or one Ray cluster, each stored in its own folder."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from types import TracebackType

from negolab.cluster import joined
from negolab.evaluate import summarise_run
from negolab.plan import Plan
from negolab.report import metrics_csv
from negolab.rollout import play
from negolab.shares import Batch
from negolab.store import EPISODES, METRICS_CSV, Run, scan
from negolab.verify import Scripted, names_of
from negolab.workers import spread
from negolab.writer import RunWriter

Say = Callable[[str], object]

_Given = tuple[Sequence[Plan], Sequence[int]]
"""Plans of all runs, and where each begins in the sequence of all negotiations."""
_CHUNK = 100
"""Negotiations of scripted traders that a worker is given at once: some hundredths of a second."""


class Bar:
    """One line of progress for the whole tournament; nothing where standard error is no terminal. A watcher of
    ``evaluate``, and a context manager."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit=" negotiations", disable=None, mininterval=0.5, smoothing=0.05)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def were_there(self, count: int) -> None:
        """So many had been played before this start."""
        if not self._bar.disable:
            self._bar.initial += count  # they do not count for the speed
            self._bar.update(count)

    def begin(self, made: Plan, folder: Path) -> None:
        """See ``evaluate.Watcher``."""
        self._bar.set_description(made.who, refresh=False)
        path = folder / EPISODES
        self.were_there(sum(line.data is not None for line in scan(path)) if path.exists() else 0)

    def add(self, lines: Sequence[bytes]) -> None:
        """See ``evaluate.Watcher``."""
        self._bar.update(len(lines))

    def end(self) -> None:
        """See ``evaluate.Watcher``."""


def play_together(
    folders: Sequence[Path], plans: Sequence[Plan], bar: Bar, workers: int | None, ray: str | None, say: Say
) -> None:
    """Play what is owed of runs whose players are all scripted, as one sequence of negotiations, and finish each run.

    Raises ``NegolabError`` for a lost worker or a folder that cannot be written; what was finished is kept.
    """
    # Where each run begins in the sequence.
    first = [0, *accumulate(len(made.schedule) for made in plans)]
    opened = closing(_Open(folders, plans, first, bar, say))
    with opened as runs, closing(_results((tuple(plans), first), runs.owed(), workers, ray, say)) as results:
        for batch in results:
            runs.store(batch)


def _results(
    given: _Given, tasks: Iterator[list[int]], workers: int | None, ray: str | None, say: Say
) -> Generator[Batch, None, None]:
    if ray is not None:
        with joined(ray, workers) as cluster:
            yield from cluster.spread(_setup, given, tasks, lambda batch: batch.numbers, say)
    elif workers == 1:
        yield from chain.from_iterable(map(_setup(given), tasks))
    else:
        yield from spread(_setup, given, tasks, workers or 1)


class _Open:
    """The scripted runs' folders: which negotiations are owed, and where results go."""

    def __init__(
        self, folders: Sequence[Path], plans: Sequence[Plan], first: Sequence[int], bar: Bar, say: Say
    ) -> None:
        self._folders, self._plans, self._first, self._bar, self._say = folders, plans, first, bar, say
        self._writers: dict[int, RunWriter] = {}
        self._stacks: dict[int, ExitStack] = {}

    def owed(self) -> Iterator[list[int]]:
        """Chunks of owed negotiations, none across two runs. A run's folder is opened when its turn comes."""
        for at in range(len(self._folders)):
            writer = self._enter(at)
            if not writer.n_owed:
                self._finish(at)
                continue
            # A list: while chunks are handed out the first results come in, and may close the run.
            todo = iter(list(writer.owed()))
            for chunk in iter(lambda: list(islice(todo, _CHUNK)), []):  # noqa: B023
                yield [self._first[at] + episode for episode in chunk]

    def store(self, batch: Batch) -> None:
        """Write what has come. Finished runs are closed."""
        at = bisect_right(self._first, batch.numbers[0]) - 1
        writer = self._writers[at]
        writer.append([number - self._first[at] for number in batch.numbers], batch.lines)
        self._bar.add(batch.lines)
        if not writer.n_owed:
            self._finish(at)

    def _enter(self, at: int) -> RunWriter:
        made = self._plans[at]
        manifest = made.manifest()
        cast = made.cast()
        check = partial(
            Scripted(cast.seller, cast.buyers).check, schedule=made.schedule, names=names_of(manifest["players"])
        )
        stack = self._stacks[at] = ExitStack()
        writer = stack.enter_context(RunWriter(self._folders[at], manifest, made.schedule.units, check))
        self._writers[at] = writer
        for line in writer.set_aside[:5]:
            self._say(f"{self._folders[at]}: set aside and played again: {line}")
        self._bar.were_there(writer.n_done)
        return writer

    def _finish(self, at: int) -> None:
        writer = self._writers.pop(at)
        with self._stacks.pop(at):
            writer.finish()
            writer.write_text(METRICS_CSV, metrics_csv(summarise_run(Run(writer.folder))))

    def close(self) -> None:
        """Close all that are open."""
        with ExitStack() as stack:
            for one in self._stacks.values():
                stack.enter_context(one)
        self._stacks.clear()
        self._writers.clear()


def _setup(given: _Given) -> Callable[[list[int]], Iterator[Batch]]:
    """A worker's function from owed negotiations, numbered through all runs, to their records."""
    plans, first = given

    def work(numbers: list[int]) -> Iterator[Batch]:
        at = bisect_right(first, numbers[0]) - 1
        made, start = plans[at], first[at]
        cast = made.cast()
        ended = list(play((made.schedule[number - start] for number in numbers), cast.seller, cast.buyers))
        yield Batch([start + e.scenario.episode for e in ended], [e.to_line() for e in ended], [])

    return work
