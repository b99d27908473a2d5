"""The learner on held-out markets while it is trained: one ordinary run folder for each evaluation and regime.

``evals/step-000010/NAME`` is a run folder like those of ``negolab evaluate``: append-only, resumable, read by
``negolab show``. ``eval.csv`` holds its estimates, a row for each metric.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from negolab.episodes import Episode
from negolab.metrics import Metric, Summary, metrics_of
from negolab.policies.base import Policy
from negolab.report import metrics_csv
from negolab.statistics import Estimate
from negolab.store import METRICS_CSV, Run, seal
from negolab.trainer.processes import ALONE, Processes
from negolab.trainer.task import Task
from negolab.writer import RunWriter

FOLDER = "evals"
COLUMNS = ("step", "regime", "metric", "mean", "se", "se_clustered", "n")
"""Of ``eval.csv``."""


T = TypeVar("T")


class Playing(Protocol):
    """Calls what plays, and sees to it when that fails."""

    def __call__(self, play: Callable[[], T], /) -> T:
        """What ``play`` returns."""
        ...


def evaluate(
    task: Task,
    learner: Policy,
    folder: Path,
    step: int,
    training: str,
    processes: Processes = ALONE,
    playing: Playing = ALONE.agreed,
) -> list[dict[str, Any]]:
    """Play what is owed of an evaluation after ``step`` steps; returns its rows of ``eval.csv``.

    ``training``: the hash of the training run's manifest, which says what the learner is. Of several ``processes``
    each plays its share, and the first one writes when all are done, and returns rows. Raises ``NegolabError`` where
    the folder cannot be written, and what ``playing`` makes of an episode that cannot be played.
    """
    rows: list[dict[str, Any]] = []
    for name, schedule in task.evaluations().items():
        place = folder / FOLDER / f"step-{step:06d}" / name
        manifest = task.manifest(name, learner)
        settings = {**manifest["settings"], "training": training, "trained_steps": step}
        manifest = seal({**manifest, "settings": settings})
        writer = RunWriter(place, manifest, schedule.units)
        with ExitStack() as opened:
            owed = processes.from_main(partial(_opened, opened, writer))
            mine = [schedule[number] for number in owed[processes.rank :: processes.world]]
            alone = processes.world == 1
            played = playing(partial(_play, task.evaluate(name, mine, learner), writer if alone else None))
            played = played if alone else processes.gathered(played)
            if not processes.main:
                continue
            for episode in played:
                _write(writer, episode)
            writer.finish()
            found, stored = _estimates(place, task.metrics, metrics_of(schedule.regime.game, schedule.regime.protocol))
            writer.write_text(METRICS_CSV, metrics_csv(stored))
        rows += [{"step": step, "regime": name, "metric": metric, **e._asdict()} for metric, e in found.items()]
    return rows


def _opened(stack: ExitStack, writer: RunWriter) -> list[int]:
    """Open the folder until ``stack`` is left; returns which episodes it lacks."""
    stack.enter_context(writer)
    return list(writer.owed())


def _play(episodes: Iterable[Episode], writer: RunWriter | None) -> list[Episode]:
    """Episodes as they end: written at once where this process may, else returned."""
    if writer is None:
        return list(episodes)
    for episode in episodes:
        _write(writer, episode)
    return []


def _write(writer: RunWriter, episode: Episode) -> None:
    writer.append([episode.scenario.episode], [episode.to_line()])


def cut(folder: Path, step: int) -> None:
    """Remove the evaluations after ``step`` or more steps: they will be played again, maybe by other code."""
    for place in (folder / FOLDER).glob("step-*"):
        if place.name.removeprefix("step-").isdigit() and int(place.name.removeprefix("step-")) >= step:
            shutil.rmtree(place, ignore_errors=True)


def _estimates(place: Path, *wanted: Mapping[str, Metric]) -> list[Mapping[str, Estimate]]:
    """The task's estimates for ``eval.csv``, and the game's own, which belong to the run folder: a task that pays
    another seat than the records do calls something else its reward."""
    summaries = [Summary(metrics) for metrics in wanted]
    for episode in Run(place).episodes(complete=True):
        for summary in summaries:
            summary.add(episode)
    return [summary.estimates() for summary in summaries]
