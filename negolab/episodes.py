"""Episodes as records: one JSON line each, complete enough to be replayed without any model.

A line ends with the CRC-32 of what stands before it, so that a damaged record is found rather than averaged. ``replay``
parses every stored reply again, plays it through a fresh environment, applies the guard again and recomputes the
reward; ``Episode`` values that come back equal are what every table is made from.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import orjson

from negolab.catalog import Product
from negolab.environment.base import SELLER, Calls, Environment, Move, Outcome, Request, Sale, Turn, Violation
from negolab.games import Game, game_of
from negolab.scenario import Scenario
from negolab.seeds import mix

_CRC_TAIL = len(b',"crc":"00000000"}')
_columns, _violation, _fallback = itemgetter(slice(6)), itemgetter(6), itemgetter(8)  # of a Turn

REASKS = 5
"""How often the opponent guard asks a seat again before it plays the fallback."""
TURN_COLUMNS = ("turn", "seat", "buyer", "verb", "offers", "text", "extra")
"""A stored turn is an array of these; ``extra`` is left out when it would be empty. Seat 0 is the seller, ``buyer`` the
channel, ``offers`` are pairs of item and cents. ``extra`` may hold violation, detail, fallback, refused (what the guard
turned down), finish, tokens ([prompt, completion]), prompt_sha256, reasoning (a thinking block, cut from ``text``), ids
and logprobs (the sampled tokens)."""


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    scenario: Scenario
    players: tuple[str, ...]
    """Policy names by seat: the seller's, then each buyer's."""
    turns: list[Turn]
    notes: dict[int, dict[str, Any]]
    """By position in ``turns``, what ``TURN_COLUMNS`` names beside the turn itself, where there is any."""
    outcome: Outcome
    reward: float
    prompt_ids: dict[int, Sequence[int]] = field(default_factory=dict, compare=False)
    """By position in ``turns``: the tokens that a reply's ``ids`` continue. For training, straight from play; neither
    stored nor compared."""

    def to_line(self) -> bytes:
        """The stored line, without a newline."""
        turns: list[Any] = list(map(_columns, self.turns))
        for position in self._special():
            turn, extra = self.turns[position], dict(self.notes.get(position, ()))
            if turn.violation is not None:
                extra["violation"], extra["detail"] = turn.violation, turn.detail
            if turn.fallback:
                extra["fallback"] = True
            turns[position] = (*turn[:6], extra)
        kind, reason, seat, sales = self.outcome
        body = orjson.dumps(
            {
                "episode": self.scenario.episode,
                "scenario": self.scenario.to_json(),
                "players": self.players,
                "turns": turns,
                # Spelled out: a named tuple's own _asdict takes a third of the time of all else here.
                "outcome": {"kind": kind, "reason": reason, "seat": seat, "sales": [tuple(sale) for sale in sales]},
                "reward": self.reward,
            }
        )
        return b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body))

    def _special(self) -> set[int]:
        """Positions of the turns that have an ``extra``."""
        turns, found = self.turns, set(self.notes)
        # Two passes without a line of Python each: hardly any turn is special.
        if any(map(_fallback, turns)) or len(turns) != [*map(_violation, turns)].count(None):
            found.update(i for i, t in enumerate(turns) if t.violation is not None or t.fallback)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any], products: Mapping[str, Product]) -> "Episode":
        """Read a parsed line. Raises ``KeyError``/``TypeError``/``ValueError`` for a record that is not an episode."""
        turns, notes = [], {}
        for position, row in enumerate(data["turns"]):
            extra = dict(row[6]) if len(row) > 6 else {}
            turn, seat, buyer, verb, pairs, text = row[:6]
            offers = tuple([(item, cents) for item, cents in pairs])
            found, detail = extra.pop("violation", None), extra.pop("detail", "")
            turns.append(Turn(turn, seat, buyer, verb, offers, text, found, detail, extra.pop("fallback", False)))
            if extra:
                notes[position] = extra
        return cls(
            scenario=Scenario.from_json(data["episode"], data["scenario"], products),
            players=tuple(data["players"]),
            turns=turns,
            notes=notes,
            outcome=Outcome(**{**data["outcome"], "sales": tuple(Sale(*sale) for sale in data["outcome"]["sales"])}),
            reward=float(data["reward"]),
        )


def parse_line(line: bytes) -> dict[str, Any]:
    """Check a stored line's CRC and parse it. Raises ``ValueError`` saying what is wrong."""
    if len(line) <= _CRC_TAIL or line[-_CRC_TAIL:-10] != b',"crc":"' or line[-2:] != b'"}':
        raise ValueError("the line is cut short or is not an episode")
    if b"%08x" % zlib.crc32(line[:-_CRC_TAIL] + b"}") != line[-10:-2]:
        raise ValueError("the line's checksum does not match: it was changed after it was written")
    data = orjson.loads(line)
    if not isinstance(data, dict) or type(data.get("episode")) is not int:
        raise ValueError("the line holds no episode number")
    return data


Seen = Callable[[int, Request], object]
"""Told of every stored reply: the position of its turn, and what its seat was asked. ``request.attempt`` tells the
replies of one turn apart: those before the last were refused, and the last one is the turn's own unless the guard
played the fallback in its place."""


def replay(episode: Episode, seen: Seen | None = None) -> list[str]:
    """Play the stored replies again. Empty when turns, outcome and reward come out as stored, else what differs.

    ``seen`` is told of the replies, up to the first that does not fit.
    """
    game = game_of(episode.scenario)
    env = game.environment(episode.scenario)
    at, turns = 0, episode.turns
    while env.outcome is None:
        answers: dict[int, Move | Calls | Violation] = {}
        for request in env.requests():
            position = at + len(answers)
            if position >= len(turns) and any(isinstance(read, Violation) for read in answers.values()):
                answers[request.seat] = env.fallback(request.seat)  # said after the end: neither recorded nor heard
                continue
            if position >= len(turns):
                return [f"the record stops after {len(turns)} turns although the episode goes on"]
            if turns[position].seat != request.seat:
                return [f"turn {position}: seat {turns[position].seat} spoke, seat {request.seat} was asked"]
            read = _reread(game, env, episode, position, request, seen)
            if isinstance(read, str):
                return [f"turn {position}: {read}"]
            answers[request.seat] = read
        for turn in env.submit(answers):
            if turn != turns[at]:
                return [f"turn {at}: {_difference(turn, turns[at])}"]
            at += 1
    found = []
    if at != len(turns):
        found.append(f"{len(turns) - at} turns are recorded after the end")
    if env.outcome != episode.outcome:
        found.append(f"outcome: {_difference(env.outcome, episode.outcome)}")
    reward = game.reward(episode.scenario, env.outcome, episode.turns)
    if reward != episode.reward:
        found.append(f"reward replays as {reward!r}, stored as {episode.reward!r}")
    return found


def _difference(now: Turn | Outcome, was: Turn | Outcome) -> str:
    """Which fields came out otherwise than they are stored."""
    fields = zip(now._fields, now, was, strict=True)
    return "; ".join(f"{name} replays as {a!r}, stored as {b!r}" for name, a, b in fields if a != b)


def _reread(
    game: Game, env: Environment, episode: Episode, position: int, request: Request, seen: Seen | None
) -> Move | Calls | Violation | str:
    """Parse one stored turn again, the guard's refusals included; a string says why it cannot have happened so."""
    turn, note = episode.turns[position], episode.notes.get(position, {})
    subject, finish = game.subject(episode.scenario), note.get("finish", "stop")
    parse = game.parse_seller if turn.seat == SELLER else game.parse_buyer
    if turn.seat == game.learner or not game.guarded:
        if seen is not None:
            seen(position, request)
        return parse(turn.text, subject, finish)
    for refused in note.get("refused", ()):
        if seen is not None:
            seen(position, request)
        again = parse(refused["text"], subject, refused.get("finish", "stop"))
        found = again if isinstance(again, Violation) else env.check(turn.seat, again)
        if found is None or found.kind != refused["kind"]:
            return f"a reply refused as {refused['kind']} is now {found.kind if found else 'legal'}"
        attempt = request.attempt + 1
        request = request._replace(seed=mix(request.seed + attempt), attempt=attempt, complaint=found.detail)
    asked = len(note.get("refused", ()))
    if asked > REASKS + 1 or turn.fallback != (asked == REASKS + 1):
        return f"{asked} refused replies before {'a fallback' if turn.fallback else 'an accepted reply'}"
    if turn.fallback:
        return env.fallback(turn.seat)._replace(text=turn.text)
    if seen is not None:
        seen(position, request)
    return parse(turn.text, subject, finish)
