"""The main experiment: one seller on the markets of a split, stored, resumable, summarised (sections 5 and 6).

Everything that can be checked is checked before the run folder appears. A finished run is the same to the byte for any
number of workers, and after any crash and resume, as long as the players are deterministic (all scripted ones are).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

from negolab import costs
from negolab.catalog import SAMPLE, Catalog
from negolab.cluster import Cluster, joined
from negolab.clusters import ClusterCatalog
from negolab.errors import NegolabError
from negolab.metrics import Summary, metrics_of
from negolab.plan import Plan, Settings, plan
from negolab.policies.journal import settle
from negolab.report import metrics_csv
from negolab.shares import Batch, fresh
from negolab.statistics import Estimate
from negolab.store import DAMAGED, EPISODES, METRICS_CSV, Run
from negolab.verify import Scripted, check_record, names_of
from negolab.writer import RunWriter

__all__ = ["Plan", "Settings", "Watcher", "evaluate", "metrics_csv", "plan", "summarise_run"]


class Watcher(Protocol):
    """Somebody who looks on while a run is played."""

    def begin(self, made: Plan, folder: Path) -> None:
        """The folder is open; what it holds of an earlier start is sound."""
        ...

    def add(self, lines: list[bytes]) -> None:
        """These records were stored."""
        ...

    def end(self) -> None:
        """Nothing more will come, whether all is finished or not."""
        ...


def evaluate(
    settings: Settings | Plan,
    out: str | Path,
    data: str | Path | Catalog | ClusterCatalog = SAMPLE,
    *,
    workers: int | None = 1,
    ray: str | None = None,
    progress: bool | None = None,
    say: Callable[[str], object] | None = None,
    watch: Watcher | None = None,
    max_cost: float | None = None,
) -> dict[str, Estimate]:
    """Run or resume an evaluation in ``out`` and write its metrics; returns them.

    ``settings`` may be a plan that was made of them already (``data`` is then not read again). ``progress``: show a
    bar; None: only on a terminal; ``watch`` is told instead, if given. ``say`` gets a line for each record found
    damaged and set aside, and what language models have to say of themselves (chat template, context, memory).
    ``max_cost``: dollars after which no further episode is begun.
    Raises ``NegolabError`` for anything its user can mend, leaving what was finished in place.
    """
    if (workers is not None or ray is None) and (type(workers) is not int or not 1 <= workers <= 256):
        raise NegolabError(f"workers is {workers!r}; allowed: a whole number from 1 to 256, or with ray nothing")
    made = settings if isinstance(settings, Plan) else plan(settings, data)
    if max_cost is not None:
        costs.check_priced(made.models, max_cost)
        made.max_cost = max_cost
    manifest = made.manifest()
    # Only scripted players are asked again on a resume: others may answer differently, or cost money.
    judge = Scripted(made.cast().seller, made.cast().buyers).check if made.scripted else check_record
    check = partial(judge, schedule=made.schedule, names=names_of(manifest["players"]))
    with (
        closing(made.cast()) as cast,
        _joined(made, ray, workers) as cluster,
        _checked(made, Path(out), say or _nobody),
        RunWriter(out, manifest, made.schedule.units, check) as writer,
    ):
        if say is not None:
            for line in _told(writer.set_aside):
                say(line)
        with closing(fresh(made, writer, workers or 1, cluster, say or _nobody)) as batches:
            if watch is not None:
                watch.begin(made, writer.folder)
            try:
                for episode, reason in _write_all(writer, batches, len(made.schedule), progress, watch):
                    cast.dropped(episode, reason)
            finally:
                if watch is not None:
                    watch.end()
        if writer.n_owed:
            _check_spent(made, writer)
            raise NegolabError(
                f"{writer.n_owed} of {len(made.schedule)} episodes could not be played ({cast.why}); what was "
                "finished is kept, run the same command again to go on"
            )
        writer.finish()
        settle(writer.folder)
        found = summarise_run(Run(out))
        writer.write_text(METRICS_CSV, metrics_csv(found))
    return found


@contextmanager
def _checked(made: Plan, out: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the models against the run before its folder appears, unless that holds all episodes: printing a finished
    run again needs no server."""
    try:
        with (out / EPISODES).open("rb") as file:
            finished = sum(1 for _ in file) >= len(made.schedule)
    except OSError:
        finished = False
    for line in [] if finished else made.cast().check(made.schedule):
        say(line)
    yield


def _check_spent(made: Plan, writer: RunWriter) -> None:
    """Say so where it was the cost that ended the run."""
    if made.max_cost is not None:
        spent = costs.account_of(writer.folder, made.models).dollars
        if spent is not None and spent >= made.max_cost:
            raise NegolabError(
                f"stopped at --max-cost {made.max_cost:g}: {costs.dollars(spent)} used, {writer.n_owed} of "
                f"{len(made.schedule)} episodes are owed; the same command with a larger sum goes on"
            )


def _told(set_aside: list[str], most: int = 5) -> Iterator[str]:
    for line in set_aside[:most]:
        yield f"set aside to {DAMAGED} and played again: {line}"
    if len(set_aside) > most:
        yield f"and {len(set_aside) - most} more lines like these"


def _write_all(
    writer: RunWriter, batches: Iterable[Batch], total: int, progress: bool | None, watch: Watcher | None
) -> Iterator[tuple[int, str]]:
    """Store what comes; yields the episodes that could not be played."""
    from tqdm import tqdm

    disable = True if watch is not None else None if progress is None else not progress
    with tqdm(total=total, initial=writer.n_done, unit="episode", disable=disable, mininterval=0.5) as bar:
        for numbers, lines, dropped, _ in batches:
            writer.append(numbers, lines)
            bar.update(len(numbers))
            if watch is not None:
                watch.add(lines)
            yield from dropped


def _nobody(line: str) -> None:
    """Who is told when nobody wants to be."""


def _joined(made: Plan, ray: str | None, workers: int | None) -> AbstractContextManager[Cluster | None]:
    return nullcontext() if ray is None else joined(ray, workers, [model.spec for model in made.cast().models])


def summarise_run(run: Run) -> dict[str, Estimate]:
    """Metrics of a complete run, read back from its episodes. Raises ``DamagedRun`` where one cannot be trusted."""
    summary = Summary(metrics_of(*run.game))
    for episode in run.episodes(complete=True):
        summary.add(episode)
    return summary.estimates()
