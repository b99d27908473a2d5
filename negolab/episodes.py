"""Episodes as records: one JSON line each, complete enough to be replayed without any model.

A line ends with the CRC-32 of what stands before it, so that a damaged record is found rather than averaged. ``replay``
parses every stored reply again, plays it through a fresh environment, applies the guard again and recomputes the
reward; ``Episode`` values that come back equal are what every table is made from.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from negolab.catalog import Product
from negolab.environment.base import SELLER, Move, Outcome, Violation
from negolab.environment.market import Market
from negolab.parser.lines import parse_buyer, parse_seller
from negolab.reward import seller_reward
from negolab.scenario import Scenario

_CRC_TAIL = len(b',"crc":"00000000"}')


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    scenario: Scenario
    players: tuple[str, ...]
    """Policy names by seat: the seller's, then each buyer's."""
    turns: list[dict[str, Any]]
    """In order: turn, seat, buyer (the channel), verb, price (cents), text; where they apply also violation, detail,
    fallback, refused (the guard's), finish, tokens, prompt_sha256."""
    outcome: Outcome
    reward: float

    def to_line(self) -> bytes:
        """The stored line, without a newline."""
        outcome = self.outcome
        body = orjson.dumps(
            {
                "index": self.scenario.index,
                "scenario": self.scenario.to_json(),
                "players": self.players,
                "turns": self.turns,
                "outcome": {
                    "kind": outcome.kind,
                    "reason": outcome.reason,
                    "price": outcome.price,
                    "buyer": outcome.buyer,
                    "seat": outcome.seat,
                },
                "reward": self.reward,
            }
        )
        return b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body))

    @classmethod
    def from_json(cls, data: Mapping[str, Any], products: Mapping[str, Product]) -> "Episode":
        """Read a parsed line. Raises ``KeyError``/``TypeError``/``ValueError`` for a record that is not an episode."""
        product = products[data["scenario"]["codename"]]
        return cls(
            scenario=Scenario.from_json(data["index"], data["scenario"], product),
            players=tuple(data["players"]),
            turns=data["turns"],
            outcome=Outcome(**data["outcome"]),
            reward=float(data["reward"]),
        )


def parse_line(line: bytes) -> dict[str, Any]:
    """Check a stored line's CRC and parse it. Raises ``ValueError`` saying what is wrong."""
    if len(line) <= _CRC_TAIL or line[-_CRC_TAIL : -10] != b',"crc":"' or line[-2:] != b'"}':
        raise ValueError("the line is cut short or is not an episode")
    if b"%08x" % zlib.crc32(line[:-_CRC_TAIL] + b"}") != line[-10:-2]:
        raise ValueError("the line's checksum does not match: it was changed after it was written")
    data = orjson.loads(line)
    if not isinstance(data, dict) or type(data.get("index")) is not int:
        raise ValueError("the line holds no episode index")
    return data


def replay(episode: Episode) -> list[str]:
    """Play the stored replies again. Empty when turns, outcome and reward come out as stored, else what differs."""
    env = Market(episode.scenario)
    codename = episode.scenario.product.listing.codename
    at, turns = 0, episode.turns
    while env.outcome is None:
        answers: dict[int, Move | Violation] = {}
        for request in env.requests():
            if at + len(answers) >= len(turns):
                return [f"the record stops after turn {len(turns)} although the episode goes on"]
            record = turns[at + len(answers)]
            if record["seat"] != request.seat:
                return [f"turn {at + len(answers)}: seat {record['seat']} spoke, seat {request.seat} was asked"]
            read = _reread(env, record, codename)
            if isinstance(read, str):
                return [f"turn {at + len(answers)}: {read}"]
            answers[request.seat] = read
        for turn in env.submit(answers):
            stored = turns[at]
            now = (turn.turn, turn.buyer, turn.verb, turn.price, turn.violation)
            was = (stored["turn"], stored["buyer"], stored["verb"], stored["price"], stored.get("violation"))
            if now != was:
                return [f"turn {at}: replays as {now}, stored as {was}"]
            at += 1
    found = []
    if at != len(turns):
        found.append(f"{len(turns) - at} turns are recorded after the end")
    if env.outcome != episode.outcome:
        found.append(f"outcome replays as {tuple(env.outcome)}, stored as {tuple(episode.outcome)}")
    product = episode.scenario.product
    reward = seller_reward(env.outcome, list_cents=product.listing.list_cents, cost_cents=product.cost_cents)
    if reward != episode.reward:
        found.append(f"reward replays as {reward!r}, stored as {episode.reward!r}")
    return found


def _reread(env: Market, record: Mapping[str, Any], codename: str) -> Move | Violation | str:
    """Parse one stored turn again, the guard's refusals included; a string says why it cannot have happened so."""
    seat = record["seat"]
    if seat == SELLER:
        return parse_seller(record["text"], codename, finish_reason=record.get("finish", "stop"))
    for refused in record.get("refused", ()):
        again = parse_buyer(refused["text"], codename, finish_reason=refused.get("finish", "stop"))
        found = again if isinstance(again, Violation) else env.check(seat, again)
        if found is None or found.kind != refused["kind"]:
            return f"a reply refused as {refused['kind']} is now {found.kind if found else 'legal'}"
    if record.get("fallback"):
        return env.fallback(seat)._replace(text=record["text"])
    return parse_buyer(record["text"], codename, finish_reason=record.get("finish", "stop"))
