"""The main experiment: one seller on the markets of a split, stored, resumable, summarised (sections 5 and 6).

Everything that can be checked is checked before the run folder appears. With several workers each process draws and
plays its own share of the owed episodes; only the parent writes. A finished run is the same to the byte for any number
of workers, and after any crash and resume, as long as the players are deterministic (all scripted ones are).
"""

import os
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from negolab import costs
from negolab.catalog import SAMPLE, Catalog, load_catalog
from negolab.cluster import Cluster, joined
from negolab.errors import NegolabError
from negolab.metrics import Summary
from negolab.policies.cast import Cast, make_cast
from negolab.policies.journal import settle
from negolab.policies.registry import SELLERS
from negolab.policies.spec import ModelSpec
from negolab.report import metrics_csv
from negolab.rollout import ticks
from negolab.scenario import Schedule, regime
from negolab.statistics import Estimate
from negolab.store import DAMAGED, EPISODES, METRICS_CSV, PID, Run, new_manifest
from negolab.verify import Scripted, check_record, names_of
from negolab.workers import spread
from negolab.writer import RunWriter

__all__ = ["Plan", "Settings", "Watcher", "evaluate", "metrics_csv", "plan", "summarise_run"]

_CHUNK = 64
"""Episodes that a worker plays before it reports: small enough that a kill loses little, large enough to batch."""
_CHUNK_OWN = 8
"""The same for players of the user's own, which may be slow or fail: a lost worker loses less."""
_WINDOWS = 4
"""The same for language models, in windows of open episodes: at a chunk's end their batches run thin."""
_SLOW = 0.05
"""Seconds for one tick above which players count as slow; scripted ones take about a thousandth."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides a run's episodes. Two runs with equal settings, data and code are equal to the byte."""

    seller: str | ModelSpec
    """The selling policy: a name (see ``policies.registry.make_seller``) or a language model."""
    regime: str = "in_distribution"
    """Name of the regime."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Overridden regime knobs (``Regime``'s fields)."""
    split: str = "test"
    """``train``, ``test``, ``all``, or the path of a JSON list of codenames."""
    per_product: int = 2
    """Episodes for each product (the paper's group size at evaluation)."""
    products: int | None = None
    """Play only the split's first so many products; None: all."""
    seed: int = 0
    buyers: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Language models by buyer type; ``"*"`` stands for every type not named. Types without one are scripted."""


@dataclass(slots=True)
class Plan:
    """Checked settings with everything they name loaded."""

    settings: Settings
    catalog: Catalog
    schedule: Schedule
    max_cost: float | None = None
    """No further episode is begun once the run has used so many dollars; None: no limit."""
    _cast: Cast | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> tuple[Settings, Catalog, Schedule, float | None]:
        return self.settings, self.catalog, self.schedule, self.max_cost  # players are made anew in every process

    def __setstate__(self, state: tuple[Settings, Catalog, Schedule, float | None]) -> None:
        self.settings, self.catalog, self.schedule, self.max_cost = state
        self._cast = None

    @property
    def warnings(self) -> list[str]:
        """What a user should know before trusting the numbers."""
        left_out = [f"left out: {problem}" for problem in self.catalog.problems]
        asked, there = self.settings.products, len(self.schedule.products)
        short = [f"the split has {there} products, not {asked}"] if asked is not None and there < asked else []
        return [*self.catalog.notes, *left_out, *short, *self.schedule.regime.warnings]

    def cast(self) -> Cast:
        """The players. Language models are named and checked, but load only when they are first asked."""
        if self._cast is None:
            self._cast = make_cast(self.settings.seller, self.settings.buyers, self.schedule)
        return self._cast

    @property
    def models(self) -> dict[str, ModelSpec]:
        """The language models by the names they play under."""
        return {model.name: model.spec for model in self.cast().models}

    @property
    def scripted(self) -> bool:
        """Whether all players are this package's scripted ones, who can be asked again."""
        return self.settings.seller in SELLERS and not self.settings.buyers

    @property
    def who(self) -> str:
        """Who plays against whom, and what kind of players they are."""
        cast = self.cast()
        modelled = [kind for kind, buyer in cast.buyers.items() if buyer in cast.models]
        own = "scripted" if self.settings.seller in SELLERS else "your own"
        seller = "language model" if cast.seller in cast.models else own
        name = self.settings.seller if own == "your own" and seller == own else cast.seller.name
        names = ", ".join(dict.fromkeys(cast.buyers[kind].name for kind in modelled))
        if not modelled:
            return f"{name} ({seller}) against scripted buyers"
        mixed = " and scripted ones" if len(modelled) < len(cast.buyers) else ""
        return f"{name} ({seller}) against {names} (language model){mixed} as buyers"

    def manifest(self) -> dict[str, Any]:
        """The run's manifest."""
        seller, buyers = self.cast().seller, self.cast().buyers
        settings = {**asdict(self.settings), "regime": self.schedule.regime.to_json()}
        del settings["knobs"], settings["buyers"]  # contained in the regime and the players
        if isinstance(self.settings.seller, ModelSpec):
            settings["seller"] = f"{self.settings.seller.engine}:{self.settings.seller.label}"
        settings["products"] = len(self.schedule.products)
        if self.settings.split != "all" and self.settings.split not in self.catalog.splits:
            settings["split"] = "file"  # not its path: the products themselves are part of the run
        players = {"seller": seller.describe(), "buyers": {kind: p.describe() for kind, p in buyers.items()}}
        data = {
            # A folder's name as text in every locale: what is not UTF-8 could not be stored.
            "name": os.fsencode(self.catalog.name).decode("utf-8", "replace"),
            "sha256": self.catalog.data_sha256,
            "codenames": self.catalog.rule,
            "fingerprint": self.catalog.fingerprint,
        }
        return new_manifest(settings, players, data, self.schedule.products, len(self.schedule))


def plan(settings: Settings, data: str | Path | Catalog = SAMPLE) -> Plan:
    """Load what the settings name and check them. Raises ``NegolabError`` for the first thing that is wrong."""
    knobs = {k: v for k, v in settings.knobs.items() if v is not None}
    chosen = regime(settings.regime, **knobs)
    if settings.products is not None and (type(settings.products) is not int or settings.products < 1):
        raise NegolabError(f"products is {settings.products!r}; allowed: a whole number from 1, or nothing for all")
    catalog = data if isinstance(data, Catalog) else load_catalog(data)
    products = catalog.split(settings.split)[: settings.products]
    schedule = Schedule(chosen, products, seed=settings.seed, per_product=settings.per_product)
    made = Plan(settings, catalog, schedule)
    made.cast()  # an unknown player is an error now, not after the folder exists
    return made


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
    data: str | Path | Catalog = SAMPLE,
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
        RunWriter(out, manifest, made.schedule.products, check) as writer,
    ):
        if say is not None:
            for line in _told(writer.set_aside):
                say(line)
        with closing(_fresh(made, writer, workers or 1, cluster, say or _nobody)) as fresh:
            if watch is not None:
                watch.begin(made, writer.folder)
            try:
                for episode, reason in _write_all(writer, fresh, len(made.schedule), progress, watch):
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


def _fresh(
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


def summarise_run(run: Run) -> dict[str, Estimate]:
    """Metrics of a complete run, read back from its episodes. Raises ``DamagedRun`` where one cannot be trusted."""
    summary = Summary()
    for episode in run.episodes(complete=True):
        summary.add(episode)
    return summary.estimates()
