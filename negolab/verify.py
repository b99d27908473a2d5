"""Trust, checked: every stored number is computed again from the stored replies, without any model.

Scripted players cost nothing to ask, so where they played and this very code made the run they are asked again as well,
and must give the stored replies to the byte. Other players' words can only be held against the rules; of a language
model also the prompt is rendered again, and must be the one that the stored hash names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from negolab.environment.base import ABORTS, SELLER, Request
from negolab.episodes import Episode, replay
from negolab.errors import NegolabError
from negolab.metrics import Summary, metrics_of
from negolab.policies.base import FINISHES, Policy
from negolab.policies.registry import is_scripted, make_buyers, make_seller, make_side
from negolab.prompts import MarketPrompts, sha256_of
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
    models: frozenset[str]
    """Whose replies a language model gives: buyer types, and ``""`` for the seller."""

    def by_seat(self, scenario: Scenario) -> tuple[str, ...]:
        """As an episode's ``players`` must read."""
        return (self.seller, *[self.buyers[kind] for kind in scenario.buyer_types])

    def is_model(self, scenario: Scenario, seat: int) -> bool:
        """Whether a language model plays the seat."""
        return ("" if seat == SELLER else scenario.buyer_types[seat - 1]) in self.models


def names_of(players: Mapping[str, Any]) -> Names:
    """The names in a manifest's ``players``."""
    seller, buyers = players["seller"], players["buyers"]
    models = {kind for kind, player in {"": seller, **buyers}.items() if "engine" in player}
    return Names(seller["name"], {kind: buyer["name"] for kind, buyer in buyers.items()}, frozenset(models))


class Findings(NamedTuple):
    """What was found of one record."""

    problems: list[str]
    """Whatever the code, these cannot be in a sound record."""
    prompts: list[str]
    """Prompt hashes that are not those of the prompts which this code renders for language models."""
    foreign: int
    """The same for other players, who may prompt as they like: how many."""


def check_record(raw: bytes, episode: Episode, *, schedule: Schedule, names: Names) -> list[str]:
    """What is wrong with a stored record of a run that this very code made.

    ``raw`` is the stored line without its newline; ``episode`` what was read from it, its number one of the run's.
    """
    found = examine(raw, episode, schedule=schedule, names=names)
    return found.problems + found.prompts


def examine(
    raw: bytes, episode: Episode, *, schedule: Schedule, names: Names, scripted: Mapping[str, Policy] | None = None
) -> Findings:
    """Hold a record against the run's draw, its players, its replay, and its writing. See ``check_record``.

    ``scripted``: players who are asked again, by buyer type, ``""`` for the seller.
    """
    expected = schedule[episode.scenario.episode]
    if expected != episode.scenario:
        parts = [f for f in Scenario._fields if getattr(expected, f) != getattr(episode.scenario, f)]
        return Findings(
            [f"the stored market is not the one that the run's seed draws ({', '.join(parts)} differ)"], [], 0
        )
    found = []
    if episode.players != names.by_seat(expected):
        found.append(f"players are {', '.join(episode.players)}; the run's are {', '.join(names.by_seat(expected))}")
    replies = _Replies(episode, names, scripted or {})
    if names.models or scripted or any("prompt_sha256" in str(note) for note in episode.notes.values()):
        found += replay(episode, replies.seen)
    else:  # nothing to look at reply by reply, which would cost more than all else
        found += replay(episode)
    found += replies.problems
    if not found and episode.to_line() != raw:
        found.append("the record holds more, or other kinds of values, than an episode does")
    return Findings(found, replies.prompts, replies.foreign)


class _Replies:
    """Looks at the replies of one episode as ``replay`` comes by them."""

    def __init__(self, episode: Episode, names: Names, scripted: Mapping[str, Policy]) -> None:
        self._episode, self._names, self._scripted = episode, names, scripted
        self._rendered: tuple[int, str] = (-1, "")
        self.problems: list[str] = []
        self.prompts: list[str] = []
        self.foreign = 0

    def seen(self, position: int, request: Request) -> None:
        """See ``episodes.Seen``."""
        turn, note = self._episode.turns[position], self._episode.notes.get(position, {})
        refused = note.get("refused", ())
        facts = refused[request.attempt] if request.attempt < len(refused) else {**note, "text": turn.text}
        kind = "" if request.seat == SELLER else self._episode.scenario.buyer_types[request.seat - 1]
        if kind in self._scripted:
            (reply,) = self._scripted[kind].reply([request])
            if reply.text != facts["text"] or facts.keys() - {"refused", "text", "kind", "detail"}:
                self.problems.append(f"turn {position}: {_OTHER_WORDS}")
            return
        model = kind in self._names.models
        self.problems += [f"turn {position}: {problem}" for problem in _odd(facts, model)]
        stored = facts.get("prompt_sha256")
        if stored is None:
            if model:
                self.problems.append(f"turn {position}: a language model's reply without the hash of its prompt")
        elif stored != self._sha256(position, request):
            if model:
                self.prompts.append(f"turn {position}: the stored prompt hash is not that of the prompt this seat had")
            else:
                self.foreign += 1

    def _sha256(self, position: int, request: Request) -> str:
        if self._rendered[0] != position:  # a reply that is refused is asked for again with the same prompt
            self._rendered = position, sha256_of(_prompts().messages(request))
        return self._rendered[1]


@cache
def _prompts() -> MarketPrompts:
    return MarketPrompts()


def _odd(facts: Mapping[str, Any], model: bool) -> list[str]:
    """What no player can have said of a reply."""
    found = []
    finish, ids, logprobs = facts.get("finish", "stop"), facts.get("ids"), facts.get("logprobs")
    if model and finish not in FINISHES:
        found.append(f"the reply's finish reason is {str(finish)[:40]!r}; known: {', '.join(FINISHES)}")
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        found.append(f"{len(logprobs)} log-probabilities of {len(ids)} tokens")
    if finish in ABORTS[1:] and (facts["text"] or ids):
        found.append(f"a reply that is stored never came ({finish})")
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
    same_code = run.manifest.get("code_sha256") == code_sha256()
    scripted = _scripted(run, schedule, report) if same_code else {}
    # Where everybody is scripted the whole record is made anew, to the byte; else every scripted reply is.
    whole = Scripted(scripted.pop(""), scripted) if len(scripted) > len(schedule.regime.buyer_types) else None
    summary, foreign, otherwise = Summary(metrics_of(schedule.regime.game, schedule.regime.protocol)), 0, 0
    seen, last, ordered = bytearray(run.n), -1, True
    for number, line in enumerate(run.lines(), 1):
        if line.data is None:
            report.problems.append(f"line {number}: {line.problem}")
            continue
        problem = place_problem(line.data["episode"], seen)
        try:
            episode = Episode.from_json(line.data, run.products)
            found = Findings([problem], [], 0)
            if not problem:
                again = {} if whole is not None else scripted
                found = examine(line.raw[:-1], episode, schedule=schedule, names=names, scripted=again)
        except Exception as error:  # whatever a forged record breaks, it is the record that is wrong
            report.problems.append(
                f"line {number}: not an episode that can be replayed ({type(error).__name__}: {error})"
            )
            continue
        foreign, otherwise = foreign + found.foreign, otherwise + len(found.prompts)
        problems = found.problems + (found.prompts if same_code else [])
        if problems:
            report.problems += [f"line {number}, episode {episode.scenario.episode}: {problem}" for problem in problems]
            continue
        report.verified += 1
        ordered, last = ordered and episode.scenario.episode > last, episode.scenario.episode
        summary.add(episode)
        if whole is not None and whole.line(episode.scenario) != line.raw[:-1]:
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
    if not same_code:
        report.notes.append("the run was made by another version of the code than the one that verifies it")
        if otherwise:
            report.notes.append(f"{otherwise} prompts are rendered otherwise by this version of the code")
    if foreign:
        report.notes.append(f"{foreign} prompts are of a player's own making: their hashes could not be checked")
    return report


def _expected(run: Run) -> tuple[Schedule, Names]:
    """The markets as the manifest's settings draw them, and who plays."""
    settings = run.manifest["settings"]
    drawn = Regime.from_json(settings["regime"])
    schedule = Schedule(drawn, run.units, seed=settings["seed"], per_product=settings["per_product"])
    names = names_of(run.manifest["players"])
    missing = set(drawn.buyer_types) - set(names.buyers)
    if missing:
        raise ValueError(f"no player for buyer type {min(missing)}")
    return schedule, names


def _scripted(run: Run, schedule: Schedule, report: Report) -> dict[str, Policy]:
    """The scripted players of the run, to be asked again: by buyer type, ``""`` for the seller."""
    players, name = run.manifest["players"], run.manifest["settings"].get("seller")
    if isinstance(name, str) and "engine" not in players["seller"]:
        name = name.removeprefix("learner:")  # of a training run whose learner is a scripted player
    made: dict[str, Policy] = {}
    game = schedule.regime.game
    if game != "market":
        buyers = {kind: b.get("name") for kind, b in players["buyers"].items() if "engine" not in b}
        for kind, side, player in [("", "seller", name), *((kind, "buyer", b) for kind, b in buyers.items())]:
            if is_scripted(side, player, game):
                made[kind] = make_side(game, side, player)
    else:
        protocol = schedule.regime.protocol
        made |= {"": make_seller(name, schedule)} if is_scripted("seller", name, "market", protocol) else {}
        scripted = [kind for kind in schedule.regime.buyer_types if "engine" not in players["buyers"][kind]]
        made |= make_buyers(scripted, protocol)
    stored, regime = {"": players["seller"], **players["buyers"]}, schedule.regime
    # Nobody else may have a scripted seller's name, so settings that name another would only keep it from being asked.
    unnamed = "" not in made and "engine" not in players["seller"]
    claimed = unnamed and is_scripted("seller", players["seller"]["name"], regime.game, regime.protocol)
    asked = made.items()
    if claimed or any(orjson.loads(orjson.dumps(player.describe())) != stored[kind] for kind, player in asked):
        report.problems.append("the manifest's players are not the scripted players that its settings name")
        return {}
    return made


def _check_metrics(run: Run, summary: Summary, report: Report) -> None:
    path = run.folder / METRICS_CSV
    if not path.is_file():
        report.problems.append(f"{METRICS_CSV} is missing; run the evaluation again to write it")
    elif path.read_bytes() != metrics_csv(summary.estimates()).encode():
        report.problems.append(
            f"{METRICS_CSV} does not follow from the episodes; run the evaluation again to write it anew"
        )
