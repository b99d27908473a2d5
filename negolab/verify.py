"""Trust, checked: every stored number is computed again from the stored replies, without any model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negolab.episodes import Episode, replay
from negolab.errors import DamagedRun, NegolabError
from negolab.evaluate import metrics_csv
from negolab.metrics import Summary
from negolab.scenario import Regime, Schedule
from negolab.store import DAMAGED, METRICS_CSV, Run, code_sha256


@dataclass(slots=True)
class Report:
    """What ``verify`` found."""

    owed: int
    """Episodes the run should hold."""
    verified: int = 0
    """Episodes that replay to their stored turns, outcome and reward."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is missing, damaged or different."""
        return not self.problems and self.verified == self.owed


def verify(folder: str | Path) -> Report:
    """Check a run folder. Raises ``NegolabError`` when it is not a run folder or its manifest cannot be read."""
    run = Run(folder)
    report = Report(run.n)
    schedule = _schedule(run, report)
    summary = Summary()
    seen: set[int] = set()
    for number, line in enumerate(run.lines(), 1):
        if line.data is None:
            report.problems.append(f"line {number}: {line.problem}")
            continue
        try:
            episode = run.read(line.data, number)
            found = _check(episode, schedule, seen, run.n)
        except (DamagedRun, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            report.problems.append(f"line {number}: not an episode that can be replayed ({error})")
            continue
        if found:
            report.problems += [f"line {number}, episode {episode.scenario.episode}: {problem}" for problem in found]
            continue
        report.verified += 1
        summary.add(episode)
    missing = run.n - len(seen)
    if missing:
        report.problems.append(f"{missing} of {run.n} episodes are missing; run the evaluation again to play them")
    _check_metrics(run, summary, report)
    if (run.folder / DAMAGED).exists():
        report.notes.append(f"records once found damaged lie in {DAMAGED}; they were played again")
    if run.manifest.get("code_sha256") != code_sha256():
        report.notes.append("the run was made by another version of the code than the one that verifies it")
    return report


def _schedule(run: Run, report: Report) -> Schedule | None:
    """The markets as the manifest's settings draw them."""
    try:
        settings = run.manifest["settings"]
        drawn = Regime(**{k: _tuples(v) for k, v in settings["regime"].items()})
        schedule = Schedule(
            drawn, list(run.products.values()), seed=settings["seed"], per_product=settings["per_product"]
        )
    except (KeyError, TypeError, NegolabError) as error:
        report.problems.append(f"the manifest's settings cannot be used: {error}")
        return None
    if len(schedule) != run.n:
        report.problems.append(f"the manifest's settings make {len(schedule)} episodes, it says {run.n}")
        return None
    return schedule


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(episode: Episode, schedule: Schedule | None, seen: set[int], n: int) -> list[str]:
    number = episode.scenario.episode
    if not 0 <= number < n:
        return ["not part of this run"]
    if number in seen:
        return ["recorded twice"]
    seen.add(number)
    if schedule is not None and schedule[number] != episode.scenario:
        return ["the stored market is not the one that the run's seed draws"]
    return replay(episode)


def _check_metrics(run: Run, summary: Summary, report: Report) -> None:
    path = run.folder / METRICS_CSV
    if not path.exists():
        if not report.problems:
            report.problems.append(f"{METRICS_CSV} is missing; run the evaluation again to write it")
        return
    if path.read_text(encoding="utf-8") != metrics_csv(summary.estimates()):
        report.problems.append(f"{METRICS_CSV} does not follow from the episodes")
