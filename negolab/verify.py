"""Trust, checked: every stored number is computed again from the stored replies, without any model.

Scripted players cost nothing to ask, so where a run was made by them and by this very code they are asked again as
well, and must give the stored replies to the byte. Other players' words can only be held against the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from negolab.episodes import Episode, replay
from negolab.errors import NegolabError
from negolab.metrics import Summary
from negolab.policies.base import Policy
from negolab.policies.registry import SELLERS, make_buyers, make_seller
from negolab.report import metrics_csv
from negolab.rollout import play
from negolab.scenario import Regime, Scenario, Schedule
from negolab.store import DAMAGED, METRICS_CSV, Run, code_sha256, place_problem


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


class Names(NamedTuple):
    """Who plays, by the manifest."""

    seller: str
    buyers: Mapping[str, str]
    """By buyer type."""

    def by_seat(self, scenario: Scenario) -> tuple[str, ...]:
        """As an episode's ``players`` must read."""
        return (self.seller, *[self.buyers[kind] for kind in scenario.buyer_types])


def names_of(players: Mapping[str, Any]) -> Names:
    """The names in a manifest's ``players``."""
    return Names(players["seller"]["name"], {kind: buyer["name"] for kind, buyer in players["buyers"].items()})


def check_record(raw: bytes, episode: Episode, *, schedule: Schedule, names: Names) -> list[str]:
    """What is wrong with a stored record: its market against the run's draw, its players, its replay, its writing.

    ``raw`` is the stored line without its newline; ``episode`` what was read from it, its number one of the run's.
    """
    expected = schedule[episode.scenario.episode]
    if expected != episode.scenario:
        parts = [f for f in Scenario._fields if getattr(expected, f) != getattr(episode.scenario, f)]
        return [f"the stored market is not the one that the run's seed draws ({', '.join(parts)} differ)"]
    found = []
    if episode.players != names.by_seat(expected):
        found.append(f"players are {', '.join(episode.players)}; the run's are {', '.join(names.by_seat(expected))}")
    found += replay(episode)
    if not found and episode.to_line() != raw:
        found.append("the record holds more, or other kinds of values, than an episode does")
    return found


class Scripted:
    """Scripted players of a run: asked again, they must say the same."""

    def __init__(self, seller: Policy, buyers: Mapping[str, Policy]) -> None:
        self._seller, self._buyers = seller, buyers

    def line(self, scenario: Scenario) -> bytes:
        """The record of this market as these players make it."""
        return next(play([scenario], self._seller, self._buyers)).to_line()

    def check(self, raw: bytes, episode: Episode, *, schedule: Schedule, names: Names) -> list[str]:
        """``check_record``, and the players asked again."""
        number = episode.scenario.episode
        if self.line(schedule[number]) == raw:  # then all the rest holds as well
            return []
        return check_record(raw, episode, schedule=schedule, names=names) or [_OTHER_WORDS]


_OTHER_WORDS = "the scripted players, asked again, do not say what is stored"


def verify(folder: str | Path) -> Report:
    """Check a run folder. Raises ``NegolabError`` when it is not a run folder or its manifest cannot be read."""
    run = Run(folder)
    report = Report(run.n)
    try:
        schedule, names = _expected(run)
    except (KeyError, TypeError, ValueError, AttributeError, NegolabError) as error:
        report.problems.append(f"the manifest's settings cannot be used ({type(error).__name__}: {error})")
        return report
    if len(schedule) != run.n:
        report.problems.append(f"the manifest's settings make {len(schedule)} episodes, it says {run.n}")
        return report
    scripted = _scripted(run, schedule, report)
    summary = Summary()
    seen, last, ordered = bytearray(run.n), -1, True
    for number, line in enumerate(run.lines(), 1):
        if line.data is None:
            report.problems.append(f"line {number}: {line.problem}")
            continue
        problem = place_problem(line.data["episode"], seen)
        try:
            episode = Episode.from_json(line.data, run.products)
            found = [problem] if problem else check_record(line.raw[:-1], episode, schedule=schedule, names=names)
        except Exception as error:  # whatever a forged record breaks, it is the record that is wrong
            report.problems.append(
                f"line {number}: not an episode that can be replayed ({type(error).__name__}: {error})"
            )
            continue
        if found:
            report.problems += [f"line {number}, episode {episode.scenario.episode}: {problem}" for problem in found]
            continue
        report.verified += 1
        ordered, last = ordered and episode.scenario.episode > last, episode.scenario.episode
        summary.add(episode)
        if scripted is not None and scripted.line(episode.scenario) != line.raw[:-1]:
            report.problems.append(f"line {number}, episode {episode.scenario.episode}: {_OTHER_WORDS}")
    missing = seen.count(0)
    if missing:
        report.problems.append(f"{missing} of {run.n} episodes are missing; run the evaluation again to play them")
    if report.verified == run.n:
        if not ordered:
            report.problems.append("the episodes are not in order, as a finished run's are: lines were moved")
        _check_metrics(run, summary, report)
    aside = run.folder / DAMAGED
    if aside.exists() and aside.stat().st_size > 0:
        report.notes.append(f"records once found damaged lie in {DAMAGED}; their episodes were owed again")
    if run.manifest.get("code_sha256") != code_sha256():
        report.notes.append("the run was made by another version of the code than the one that verifies it")
    return report


def _expected(run: Run) -> tuple[Schedule, Names]:
    """The markets as the manifest's settings draw them, and who plays."""
    settings = run.manifest["settings"]
    drawn = Regime.from_json(settings["regime"])
    products = list(run.products.values())
    schedule = Schedule(drawn, products, seed=settings["seed"], per_product=settings["per_product"])
    names = names_of(run.manifest["players"])
    missing = set(drawn.buyer_types) - set(names.buyers)
    if missing:
        raise ValueError(f"no player for buyer type {min(missing)}")
    return schedule, names


def _scripted(run: Run, schedule: Schedule, report: Report) -> Scripted | None:
    """None where the players are not scripted ones, or other code made the run."""
    players, name = run.manifest["players"], run.manifest["settings"].get("seller")
    modelled = any("engine" in buyer for buyer in players["buyers"].values())
    if name not in SELLERS or modelled or run.manifest.get("code_sha256") != code_sha256():
        return None
    seller, buyers = make_seller(name, schedule), make_buyers(schedule.regime.buyer_types)
    mine = {"seller": seller.describe(), "buyers": {kind: buyer.describe() for kind, buyer in buyers.items()}}
    if orjson.loads(orjson.dumps(mine)) != players:
        report.problems.append("the manifest's players are not the scripted players that its settings name")
        return None
    return Scripted(seller, buyers)


def _check_metrics(run: Run, summary: Summary, report: Report) -> None:
    path = run.folder / METRICS_CSV
    if not path.is_file():
        report.problems.append(f"{METRICS_CSV} is missing; run the evaluation again to write it")
    elif path.read_bytes() != metrics_csv(summary.estimates()).encode():
        report.problems.append(
            f"{METRICS_CSV} does not follow from the episodes; run the evaluation again to write it anew"
        )
