"""Scripted players of the bilateral game (2604.09855): a regulated seller with four personas, and four buyers.

They are stand-ins that make the game playable and trainable on a CPU, not models of any language model. The seller is
built so that the paper's four phases have a cause each:

* It splits the difference between its ask and the buyer's bid, so a low opening pays (aggressive anchoring).
* A bid far below its cost is no offer to it: it holds its ask, and after some of them it leaves (deadlock).
* It moves in proportion to the buyer's own movement, so bids that rise a little at a time pay (rational concession).
* Each new kind of reason in the buyer's Talk makes it bear lower bids and move without being moved to (persuasion).

It knows its cost, the list price and what was said; never the budget. It never asks or accepts below cost, so it never
needs the guard. Calibrated by ``tests/benchmarks/calibrate_bilateral.py`` to what is known of the paper's numbers: 0.2
to 0.3 for a naive buyer, and for the trained one 0.77 at a deal rate of 0.92 and a bargained ratio of 0.84.

All that varies comes from the request's seeds; nobody keeps a state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import BUYER, SELLER, BilateralView, Request
from negolab.errors import NegolabError
from negolab.parser.lines import render_buyer
from negolab.policies.base import Reply
from negolab.policies.bilateral_talk import (
    BUYER_ACCEPTS,
    BUYER_QUITS,
    BUYER_REASONS,
    BUYER_REFUSES,
    PLAIN_OFFERS,
    SELLER_TALK,
    reasons,
)
from negolab.policies.scripted_buyers import plausible
from negolab.scenario import PERSONAS
from negolab.seeds import uniform

VERSION = 1
"""Counts up whenever a rule or parameter changes what a player says."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How one persona of the scripted seller bargains. Shares are of list price minus cost unless said otherwise."""

    start: tuple[float, float] = (0.92, 1.0)
    """Range of the first ask, as a fraction of the list price."""
    margin: tuple[float, float] = (0.02, 0.07)
    """Range of the least profit it is content with."""
    patience: tuple[float, ...] = (0.30, 0.25, 0.20, 0.15, 0.10, 0.0)
    """Profit above its least one at which it takes a bid, by turn; the last one holds from then on."""
    split: float = 0.95
    """How far an ask moves towards the middle between ask and bid when the buyer has moved as well."""
    unmoved: float = 0.20
    """The part of that which is left when the buyer has stood still."""
    insulted_below: float = 0.72
    """Bids below this fraction of the cost are no offer."""
    soothed: float = 0.07
    """How much a new kind of reason lowers ``insulted_below``."""
    persuaded: float = 0.12
    """How much a new kind of reason adds to ``unmoved``."""
    leaves_after: int = 2
    """After so many bids that were no offer it may leave ..."""
    leave_rate: float = 0.5
    """... with this probability at each further one."""


TEMPERS: Mapping[str, Temper] = {
    "neutral": Temper(),
    "begging": Temper(
        start=(0.94, 1.0),
        margin=(0.04, 0.14),
        split=0.55,
        unmoved=0.25,
        insulted_below=0.60,
        leaves_after=6,
    ),
    "insulting": Temper(
        start=(0.96, 1.0),
        margin=(0.04, 0.14),
        split=0.75,
        unmoved=0.05,
        insulted_below=0.82,
        soothed=0.05,
        persuaded=0.06,
        leaves_after=2,
    ),
    "unyielding": Temper(
        start=(0.98, 1.0),
        margin=(0.10, 0.30),
        patience=(0.80, 0.65, 0.50, 0.35, 0.20, 0.05),
        split=0.40,
        unmoved=0.05,
        insulted_below=0.80,
        persuaded=0.05,
        leaves_after=3,
    ),
}
"""By persona."""


def _price(cents: float, least: int) -> int:
    """An amount that people would name, at or above ``least``."""
    named = plausible(int(cents))
    return max(named, least)


class _Player:
    """What all have in common: the loop over requests."""

    name = ""

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        return [Reply(self._answer(request)) for request in requests]

    def _answer(self, request: Request) -> str:
        view = request.view
        if not isinstance(view, BilateralView) or (view.seat == SELLER) != (self.side == SELLER):
            raise NegolabError(f"player {self.name} plays the {_SIDES[self.side]} of the bilateral game, and only that")
        verb, price, talk, thought = self._move(view, request.seed, request.seat_seed)
        return render_buyer(verb, price, talk, thought, view.listing.codename)

    side = SELLER

    def _move(self, view: BilateralView, seed: int, seat_seed: int) -> tuple[str, int | None, str, str]:
        """Verb, cents, Talk and Thought."""
        raise NotImplementedError


_SIDES = {SELLER: "seller", BUYER: "buyer"}


def _pick(lines: Sequence[str], seed: int, draw: int = 7) -> str:
    return lines[int(uniform(seed, draw) * len(lines))]


class PersonaSeller(_Player):
    """The scripted regulated seller. It behaves as the persona of each game says."""

    side = SELLER
    name = "persona"

    def __init__(self, tempers: Mapping[str, Temper] = TEMPERS) -> None:
        self._tempers = dict(tempers)

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        parameters = {name: asdict(temper) for name, temper in self._tempers.items()}
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": parameters}

    def _move(self, view: BilateralView, seed: int, seat_seed: int) -> tuple[str, int | None, str, str]:
        persona = view.persona
        temper, lines = self._tempers[persona], SELLER_TALK[persona]
        cost, room = view.limit, max(0, view.listing.list_cents - view.limit)
        theirs = [said for said in view.heard if said.seat == BUYER]
        bids = [said.price for said in theirs if said.price is not None]
        bid = bids[-1] if bids else 0
        low, high = temper.margin
        floor = cost + int((low + (high - low) * uniform(seat_seed, 1)) * room)
        given = reasons([said.talk for said in theirs])
        insult = (temper.insulted_below - temper.soothed * given) * cost
        insults = sum(price < insult for price in bids)
        patience = temper.patience
        wanted = floor + patience[min(view.turn, len(patience)) - 1] * room
        ask = self._ask(view, temper, floor, insult, seat_seed)
        last = view.turn == view.max_turns
        if bid >= floor and theirs[-1].verb == "BUY" and (bid >= min(wanted, ask) or last):
            return "DEAL", bid, _pick(lines["deal"], seed), "It pays, and it will hardly get better."
        if insults > temper.leaves_after and bid < insult and uniform(seed, 2) < temper.leave_rate:
            return "QUIT", None, _pick(lines["quit"], seed), "This leads nowhere."
        earlier = [said.price for said in view.heard if said.seat == SELLER and said.price is not None]
        stays = bool(earlier) and ask >= earlier[-1]
        if view.reject and stays and persona in ("insulting", "unyielding") and uniform(seed, 3) < 0.5:
            return "REJECT", None, _pick(lines["reject"], seed), "Not at that price."
        if stays or bid < insult:
            return "SELL", ask, _pick(lines["firm"], seed), "I hold my price; that bid is too low."
        return "SELL", ask, _pick(lines["ask"], seed), "I come down a step, well above my limit."

    def _ask(self, view: BilateralView, temper: Temper, floor: int, insult: float, seat_seed: int) -> int:
        """The next ask in cents, computed from the start: asks follow from the bids alone."""
        low, high = temper.start
        first = max(floor, (low + (high - low) * uniform(seat_seed, 4)) * view.listing.list_cents)
        asks = [said.price for said in view.heard if said.seat == SELLER and said.price is not None]
        if not asks:
            return _price(first, floor)
        ask = asks[-1]
        bids = [said.price for said in view.heard if said.seat == BUYER and said.price is not None]
        bid, before = bids[-1], bids[-2] if len(bids) > 1 else 0
        if bid < insult:
            return ask
        given = reasons([said.talk for said in view.heard if said.seat == BUYER])
        moved = min(1.0, (bid - before) / (0.04 * view.listing.list_cents))
        still = temper.unmoved + temper.persuaded * given
        share = temper.split * max(moved, min(1.0, still))
        middle = (ask + max(bid, insult)) / 2
        return min(ask, _price(ask - share * (ask - max(middle, floor)), floor))


@dataclass(frozen=True, slots=True)
class BuyerStyle:
    """How a scripted buyer of the bilateral game bargains. Fractions are of its budget."""

    name: str
    opening: tuple[float, float]
    """Range of the first bid."""
    step: tuple[float, float]
    """How far a bid rises towards the ask (or the budget, where that is lower), as a fraction of the distance."""
    content: tuple[float, ...]
    """It takes an ask at or below this fraction, by turn; the last one holds from then on."""
    reasons: bool
    """Whether it gives a new kind of reason with every bid."""
    overshoot: float = 0.0
    """Probability, per reply, of taking or bidding whatever is asked although it is over the budget."""
    last_ditch: bool = True
    """Whether it takes any ask within its budget in the last turn."""


BUYER_STYLES: Mapping[str, BuyerStyle] = {
    style.name: style
    for style in (
        BuyerStyle("naive", (0.74, 0.86), (0.25, 0.5), (0.90, 0.95, 1.0), False, overshoot=0.01),
        BuyerStyle("lowballer", (0.15, 0.30), (0.0, 0.03), (0.0,), False, last_ditch=False),
        BuyerStyle("conceder", (0.40, 0.55), (0.3, 0.5), (0.65, 0.75, 0.85, 0.95), False),
        BuyerStyle("patient", (0.32, 0.42), (0.08, 0.16), (0.30, 0.40, 0.45, 0.50, 0.55, 1.0), True),
    )
}
"""By name: how an untrained buyer bargains, the two middle phases, and a trained one's."""


class BilateralBuyer(_Player):
    """A scripted buyer of the bilateral game. Only a style with an ``overshoot`` ever breaks a rule."""

    side = BUYER

    def __init__(self, style: str | BuyerStyle) -> None:
        """Raises ``NegolabError`` for a style that does not exist."""
        if isinstance(style, str):
            if style not in BUYER_STYLES:
                raise NegolabError(f"unknown buyer {style!r}; allowed: {', '.join(BUYER_STYLES)}")
            style = BUYER_STYLES[style]
        self.style = style
        self.name = style.name

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": asdict(self.style)}

    def _move(self, view: BilateralView, seed: int, seat_seed: int) -> tuple[str, int | None, str, str]:
        style, budget = self.style, view.limit
        asks = [said.price for said in view.heard if said.seat == SELLER and said.price is not None]
        bids = [said.price for said in view.heard if said.seat == BUYER and said.price is not None]
        place = uniform(seed, 1)
        if not bids:
            low, high = style.opening
            bid = max(1, plausible(int((low + (high - low) * place) * budget)))
            return "BUY", min(bid, budget), self._talk(view, seed, seat_seed), "I start low and leave myself room."
        ask = asks[-1] if asks else None
        careless = uniform(seed, 2) < style.overshoot
        last = view.turn == view.max_turns
        if ask is not None and (ask <= budget or careless):
            content = style.content[min(view.turn, len(style.content)) - 1] * budget
            if careless or ask <= max(content, bids[-1]) or (last and style.last_ditch):
                return "DEAL", ask, _pick(BUYER_ACCEPTS, seed), "This is good enough, take it."
        if last and style.last_ditch and ask is not None and ask > budget and bids[-1] >= 0.97 * budget:
            return "QUIT", None, _pick(BUYER_QUITS, seed), "There is no price that suits us both."
        if view.reject and view.heard[-1].verb == "SELL" and uniform(seed, 3) < 0.05:
            return "REJECT", None, _pick(BUYER_REFUSES, seed), "Too much; let the seller come down."
        goal = budget if ask is None else min(ask, budget)
        low, high = style.step
        bid = plausible(int(bids[-1] + (low + (high - low) * place) * max(0, goal - bids[-1])))
        bid = min(max(bid, bids[-1]), budget)
        return "BUY", bid, self._talk(view, seed, seat_seed), "I move a little and keep the rest for later."

    def _talk(self, view: BilateralView, seed: int, seat_seed: int) -> str:
        if not self.style.reasons:
            return _pick(PLAIN_OFFERS, seed)
        kinds = list(BUYER_REASONS)
        first = int(uniform(seat_seed, 5) * len(kinds))
        kind = kinds[(first + len(view.own)) % len(kinds)]  # a new kind every time, as long as there is one
        return _pick(BUYER_REASONS[kind], seed)


BILATERAL_SELLERS: tuple[str, ...] = (PersonaSeller.name,)
"""Names of the scripted sellers."""
BILATERAL_BUYERS: tuple[str, ...] = tuple(BUYER_STYLES)
"""Names of the scripted buyers."""


def with_persona(seller: str, personas: Sequence[str] | None) -> tuple[str, Sequence[str] | None]:
    """A persona named as the seller is the scripted seller in games of that persona: its name, and the personas.

    Raises ``NegolabError`` where other personas are asked for at the same time.
    """
    if seller not in PERSONAS:
        return seller, personas
    if personas is not None and tuple(personas) != (seller,):
        raise NegolabError(f"the seller is {seller}, the personas are {', '.join(personas)}; give one of the two")
    return PersonaSeller.name, (seller,)
