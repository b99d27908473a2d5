"""Scripted players of the trade game (2604.16472), each for either seat.

They are stand-ins that make the game playable and trainable on a CPU, not models of any language model. Each turns some
of the knobs that the paper holds to be behind its results:

* how far from its own limit a trader opens (anchoring), and whether it looks up the item's prices first;
* how much of the way to its limit, or to the best it has been offered, it gives up with each offer, and how quickly
  that tapers off;
* how long it stays at the table, and what it takes: the patient wait for an offer that beats their own next one, the
  accommodating take any gain, and some do not quarrel about a few dollars, which are a large part of a cheap item.

All but ``irrational`` never agree to a price at which they gain nothing, and none ever proposes one. Both sides are
mirror images, so one rule plays both: prices are compared by what they are worth to the trader.

A trader knows what its view tells, its own limit among it, and nothing of the other side's. All that varies comes from
the request's seeds; nobody keeps a state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from negolab.environment.base import SELLER, Call, Request, TradeView
from negolab.errors import NegolabError
from negolab.money import MAX_CENTS
from negolab.parser.tools import render_tools
from negolab.policies.base import Reply
from negolab.policies.scripted_buyers import plausible
from negolab.policies.trader_talk import SIDE_OFFERS, TALK, THOUGHTS
from negolab.seeds import uniform

VERSION = 1
"""Counts up whenever a rule or parameter changes what a trader says."""


@dataclass(frozen=True, slots=True)
class TraderStyle:
    """How one trader bargains, in either seat."""

    name: str
    ask: tuple[float, float]
    """As a seller: range of its first offer, as a multiple of its limit."""
    bid: tuple[float, float]
    """As a buyer: range of its first offer, as a share of its limit or of what is asked, whichever is less."""
    step: float
    """The share of the way to its goal that its second offer goes. The goal is its limit, or the other side's offer
    where that is better."""
    taper: float
    """Each further step's share as a multiple of the one before."""
    final: float
    """The share that its last offer goes at least."""
    margin: float = 0.02
    """How much better than its limit, as a fraction of it, the goal always is."""
    history: tuple[float, float] | None = None
    """It looks up the item's prices first. Its first offer as a seller is then at least the first number times the
    highest of them, as a buyer at most the second times the lowest. None: it does not look."""
    takes_any_gain: bool = False
    """Whether it accepts whatever is better than its limit at once."""
    shrugs: int = 0
    """Cents that it does not quarrel about: it accepts what lies so near to its own next offer."""
    leaves_after: int = 100
    """After so many own turns it may leave where nothing on the table is within its limit ..."""
    leave_rate: float = 0.0
    """... with this probability at each."""
    talk: float = 0.5
    """Probability that an offer comes with a message."""
    extras: float = 0.0
    """Probability that an offer comes with a side offer, which costs and changes nothing."""
    loss_rate: float = 0.0
    """Probability, per offer at which it would lose, of accepting it all the same."""


TRADER_STYLES: Mapping[str, TraderStyle] = {
    style.name: style
    for style in (
        TraderStyle(
            "anchor",
            ask=(2.4, 3.2),
            bid=(0.30, 0.42),
            step=0.30,
            taper=0.85,
            final=0.55,
            history=(1.0, 0.45),
            talk=0.8,
            extras=0.1,
        ),
        TraderStyle(
            "taper", ask=(1.8, 2.4), bid=(0.45, 0.58), step=0.45, taper=0.75, final=0.65, history=(0.9, 0.6), extras=0.3
        ),
        TraderStyle(
            "walk-away",
            ask=(1.7, 2.3),
            bid=(0.56, 0.70),
            step=0.28,
            taper=0.9,
            final=0.4,
            margin=0.05,
            leaves_after=2,
            leave_rate=0.35,
            talk=0.6,
        ),
        TraderStyle(
            "hasty",
            ask=(1.5, 2.1),
            bid=(0.50, 0.68),
            step=0.55,
            taper=1.0,
            final=0.7,
            shrugs=1500,
            leaves_after=4,
            leave_rate=0.3,
            talk=0.3,
        ),
        TraderStyle(
            "accommodating",
            ask=(1.12, 1.4),
            bid=(0.76, 0.92),
            step=0.6,
            taper=1.0,
            final=0.9,
            takes_any_gain=True,
            talk=0.7,
            extras=0.2,
        ),
        TraderStyle(
            "irrational", ask=(1.3, 2.2), bid=(0.45, 0.8), step=0.5, taper=1.0, final=0.8, shrugs=1000, loss_rate=0.25
        ),
    )
}
"""By name, from the strongest to those that give most away."""


class _Table(NamedTuple):
    """What lies on the table, as one trader sees it. Every price is ``sign * cents``: more is better for it."""

    sign: int
    """1 for the seller, -1 for the buyer."""
    least: int
    """The worst price that leaves it a gain: one cent better than its limit."""
    mine: int | None
    """Its own latest offer."""
    theirs: int | None
    """The other side's latest offer, answered or not."""
    made: int
    """How many offers it has made."""


def _table(view: TradeView) -> _Table:
    seat, sign = view.seat, 1 if view.seat == SELLER else -1
    mine: int | None = None
    theirs: int | None = None
    made = 0
    for batch in view.heard:
        for event in batch:
            if event.kind == "offer" and event.price is not None:
                if event.seat == seat:
                    mine, made = sign * event.price, made + 1
                else:
                    theirs = sign * event.price
    return _Table(sign, sign * view.limit + 1, mine, theirs, made)


class Trader:
    """A scripted player of the trade game, for either seat."""

    def __init__(self, style: str | TraderStyle) -> None:
        """Raises ``NegolabError`` for a style that does not exist."""
        if isinstance(style, str):
            if style not in TRADER_STYLES:
                raise NegolabError(f"unknown trader {style!r}; allowed: {', '.join(TRADER_STYLES)}")
            style = TRADER_STYLES[style]
        self.style = style
        self.name = style.name

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": asdict(self.style)}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order. Raises ``NegolabError`` in another game."""
        return [Reply(self._say(request)) for request in requests]

    def _say(self, request: Request) -> str:
        view = request.view
        if not isinstance(view, TradeView):
            raise NegolabError(f"player {self.name} plays the trade game, and only that")
        kind, calls = self._act(view, request.seed, request.seat_seed)
        return render_tools(calls, THOUGHTS[kind])

    def _act(self, view: TradeView, seed: int, seat_seed: int) -> tuple[str, tuple[Call, ...]]:
        """What it does, in a word, and the calls."""
        style = self.style
        if style.history is not None and view.history is None and not view.own:
            return "search", (Call("search_price"),)
        table = _table(view)
        offer = self._offer(view, table, seed, seat_seed)
        pending = None if view.pending is None else table.sign * view.pending
        if pending is not None and self._takes(view, table, pending, offer, seed):
            return "accept", (*self._talks("accept", view, seed), Call("respond_to_offer", answer=True))
        hopeless = pending is None or pending < table.least
        tired = len(view.own) >= style.leaves_after and uniform(seed, 2) < style.leave_rate
        # An offer in the last round of all would never be answered.
        if offer is None or view.round >= view.max_rounds or (hopeless and tired):
            return "quit", (*self._talks("quit", view, seed), Call("quit_negotiation"))
        kind = "open" if table.mine is None else "step" if hopeless else "hold"
        side = ""
        if uniform(seed, 3) < style.extras:
            choices = SIDE_OFFERS[view.seat]
            side = choices[int(uniform(seed, 4) * len(choices))]
        return kind, (*self._talks(kind, view, seed), Call("make_offer", price=table.sign * offer, text=side))

    def _talks(self, kind: str, view: TradeView, seed: int) -> tuple[Call, ...]:
        if uniform(seed, 5) >= self.style.talk:
            return ()
        lines = TALK[view.seat][kind]
        return (Call("send_message", text=lines[int(uniform(seed, 6) * len(lines))]),)

    def _takes(self, view: TradeView, table: _Table, pending: int, offer: int | None, seed: int) -> bool:
        """Whether it accepts the offer that waits for its answer."""
        style = self.style
        if pending < table.least:
            return uniform(seed, 7) < style.loss_rate
        # Its next turn would come after the end: now or never.
        last = view.round + 2 > view.max_rounds
        return last or style.takes_any_gain or offer is None or pending + style.shrugs >= offer

    def _offer(self, view: TradeView, table: _Table, seed: int, seat_seed: int) -> int | None:
        """Its next offer, signed; None where no price leaves it a gain."""
        sign, least = table.sign, table.least
        if not 1 <= sign * least <= MAX_CENTS:
            return None
        if table.mine is None:
            wanted = float(self._opening(view, table, seat_seed))
        else:
            style, limit = self.style, sign * view.limit
            goal = max(least, limit + style.margin * view.limit)
            if table.theirs is not None:
                goal = max(goal, table.theirs)
            share = style.step * style.taper ** (table.made - 1) * (0.75 + 0.5 * uniform(seed, 1))
            if view.round + 3 > view.max_rounds:  # the other side could not answer a later one
                share = max(share, style.final)
            wanted = table.mine - min(share, 1.0) * max(0.0, table.mine - goal)
        cents = plausible(max(1, min(int(sign * wanted), MAX_CENTS)))
        # Never beyond its limit, and never back to what it had once improved on.
        offer = max(least, sign * cents)
        return offer if table.mine is None else min(offer, max(least, table.mine))

    def _opening(self, view: TradeView, table: _Table, seat_seed: int) -> float:
        """Its first offer, signed."""
        style, limit, place = self.style, view.limit, uniform(seat_seed, 1)
        if view.seat == SELLER:
            low, high = style.ask
            ask = (low + (high - low) * place) * limit
            if view.history is not None and style.history is not None:
                ask = max(ask, style.history[0] * view.history[1])
            return ask
        low, high = style.bid
        asked = limit if table.theirs is None else min(limit, -table.theirs)
        bid = (low + (high - low) * place) * asked
        if view.history is not None and style.history is not None:
            bid = min(bid, style.history[1] * view.history[0])
        return -bid


TRADERS: tuple[str, ...] = tuple(TRADER_STYLES)
"""Names of the scripted traders, for either seat."""
SENSIBLE_TRADERS: tuple[str, ...] = tuple(name for name, style in TRADER_STYLES.items() if not style.loss_rate)
"""Those of them that never agree to a loss."""
