"""The learner on held-out markets while it is trained: one ordinary run folder for each evaluation and regime.

``evals/step-000010/NAME`` is a run folder like those of ``negolab evaluate``: append-only, resumable, read by
``negolab show``. ``eval.csv`` holds its estimates, a row for each metric.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from negolab.episodes import Episode
from negolab.metrics import Summary
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


def evaluate(
    task: Task, learner: Policy, folder: Path, step: int, training: str, processes: Processes = ALONE
) -> list[dict[str, Any]]:
    """Play what is owed of an evaluation after ``step`` steps; returns its rows of ``eval.csv``.

    ``training``: the hash of the training run's manifest, which says what the learner is. Of several ``processes``
    each plays its share, and the first one writes when all are done. Raises ``NegolabError`` where the folder cannot
    be written.
    """
    rows: list[dict[str, Any]] = []
    for name, schedule in task.evaluations().items():
        place = folder / FOLDER / f"step-{step:06d}" / name
        manifest = task.manifest(name, learner)
        settings = {**manifest["settings"], "training": training, "trained_steps": step}
        manifest = seal({**manifest, "settings": settings})
        with RunWriter(place, manifest, schedule.products) if processes.main else nullcontext() as writer:
            owed = processes.from_main(partial(_owed, writer))
            mine = [schedule[number] for number in owed[processes.rank :: processes.world]]
            played: Iterable[Episode] = task.play(mine, learner)
            if processes.world > 1:
                played = processes.gathered(list(played))
            if writer is None:
                continue
            for episode in played:
                writer.append([episode.scenario.episode], [episode.to_line()])
            writer.finish()
            found = _estimates(task, place)
            writer.write_text(METRICS_CSV, metrics_csv(found))
        rows += [{"step": step, "regime": name, "metric": metric, **e._asdict()} for metric, e in found.items()]
    return rows


def _owed(writer: RunWriter | None) -> list[int]:
    return [] if writer is None else list(writer.owed())


def cut(folder: Path, step: int) -> None:
    """Remove the evaluations after ``step`` or more steps: they will be played again, maybe by other code."""
    for place in (folder / FOLDER).glob("step-*"):
        if place.name.removeprefix("step-").isdigit() and int(place.name.removeprefix("step-")) >= step:
            shutil.rmtree(place, ignore_errors=True)


def _estimates(task: Task, place: Path) -> Mapping[str, Estimate]:
    summary = Summary(task.metrics)
    for episode in Run(place).episodes(complete=True):
        summary.add(episode)
    return summary.estimates()
