"""Scripted sellers: ``random``, ``satisficer``, ``greedy``, ``prober``, ``oracle``. Stand-ins, not the paper's models.

``satisficer`` imitates the untrained model of 2607.05863 (sections 4.4, 6 and 14.2), ``prober`` the trained one
(sections 4.3, 4.4 and 14.3); both are calibrated to tables 1 and 2 against the scripted buyers. ``random`` and
``greedy`` are plain reference points; ``oracle`` is told the budgets, which no seller may see, and serves as an upper
reference only.

All that varies comes from the request's seeds; a seller keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import Channel, Request, SellerView
from negolab.policies.base import Reply
from negolab.scenario import Scenario

VERSION = 1
"""Counts up whenever a rule or parameter changes what a seller says."""

_U = 1.0 / (1 << 16)  # uniform numbers are cut out of one 64-bit word: a word costs more than all else here
_CENTS = [f".{cents:02d}" for cents in range(100)]  # a look-up costs a fifth of formatting with leading zeros
_new = tuple.__new__
_QUIT = "Thought: Nobody is left who could pay.\nTarget: [QUIT]\nTalk: Thank you all.\nAction: [QUIT]"


def _heads(*thoughts: str) -> tuple[str, ...]:
    return tuple(f"Thought: {thought}\nTarget: Buyer " for thought in thoughts)


def _tails(verb: str, *said: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """What follows the target, cut where the price goes: (Talk before the price, Talk after it)."""
    return tuple((f"\nTalk: {before}", f"{after}\nAction: [{verb}] ") for before, after in said)


_ASKS = _tails(
    "SELL",
    ("I can let it go for ", "."),
    ("For ", " it is yours."),
    ("It is worth more than that; I ask ", "."),
    ("Let me offer it to you at ", ", ready to ship."),
)
_FIRM = _tails(
    "SELL",
    ("The price is ", ", and I mean it."),
    ("I hold at ", "."),
    ("At ", " it is good value; I will not go lower."),
    ("Others are asking too, so it stays at ", "."),
)
_CLOSES = _tails(
    "DEAL",
    ("Agreed, ", ", thank you."),
    ("You have it for ", "."),
    ("Sold to you for ", "."),
    ("I accept your ", "."),
)
_Heads = tuple[str, ...]
_Tails = tuple[tuple[str, str], ...]


def _say(view: SellerView, heads: _Heads, tails: _Tails, bits: int, buyer: int, cents: int) -> str:
    before, after = tails[bits >> 62]
    money = f"${cents // 100}{_CENTS[cents % 100]}"
    return f"{heads[bits >> 61 & 1]}{buyer}{before}{money}{after}{money} (1x {view.product.listing.codename})"


def _best_bid(channels: Sequence[Channel]) -> tuple[int, int]:
    """Highest standing bid in cents and its buyer, over the active channels (each has a bid: its opening)."""
    price = buyer = at = 0
    for status, sent, bids, _ in channels:
        at += 1  # noqa: SIM113 - counting here costs less than unpacking enumerate's pairs
        if status == "active":
            top = max(bids)[1] if sent else bids[0][1]
            if top > price:
                price, buyer = top, at
    return price, buyer


def _next_buyer(channels: Sequence[Channel], but: int) -> int:
    """The active buyer with the fewest messages, among those the one with the higher bid; ``but`` only if alone."""
    least, top, found = 1 << 62, 0, but
    for at, (status, sent, bids, _) in enumerate(channels, 1):
        if status == "active" and at != but and (sent < least or (sent == least and bids[-1][1] > top)):
            least, top, found = sent, bids[-1][1], at
    return found


class _Seller:
    """What the sellers share: the loop over requests and the description."""

    name = ""
    rules: Any = None

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        move = self._move
        return [_new(Reply, (move(request), "stop", None, None, None, None, None, None, None)) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        parameters = {} if self.rules is None else asdict(self.rules)
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": parameters}

    def _move(self, request: Request) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RandomRules:
    """Parameters of ``random``."""

    deal_rate: float = 0.25
    """Probability of accepting a bid of the chosen buyer."""
    low: float = 0.80
    """Lowest ask, as a fraction of the cost."""
    high: float = 2.0
    """Highest ask, as a fraction of the cost."""


class RandomSeller(_Seller):
    """Writes well-formed replies to active buyers and knows nothing else: it asks and accepts at random, also below
    cost."""

    name = "random"
    _THOUGHTS = _heads("Let me just try something.", "Any of them will do.")

    def __init__(self, rules: RandomRules = RandomRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        active = [at for at, channel in enumerate(view.channels, 1) if channel.status == "active"]
        buyer = active[(bits & 0xFFFF) % len(active)]
        bids = view.channels[buyer - 1].bids
        if bids and (bits >> 16 & 0xFFFF) * _U < rules.deal_rate:
            return _say(view, self._THOUGHTS, _CLOSES, bits, buyer, bids[(bits >> 32 & 0xFFF) % len(bids)][1])
        share = rules.low + (rules.high - rules.low) * (bits >> 44 & 0xFFFF) * _U
        return _say(view, self._THOUGHTS, _ASKS, bits, buyer, max(1, int(share * view.product.cost_cents)))


@dataclass(frozen=True, slots=True)
class SatisficerRules:
    """Parameters of ``satisficer``; calibrated."""

    markups: tuple[float, ...] = (0.25, 0.06, 0.03)
    """Ask above cost after zero, one, ... messages to that buyer, as fractions of list price minus cost."""
    markup_noise: float = 0.4
    """Half-width of the uniform noise on the markup, as a fraction of it."""
    stray_rate: float = 0.12
    """Probability that the first message goes to some buyer, not to the highest bid."""
    roam_rate: float = 0.5
    """Probability of turning to another buyer after a message."""
    slip_reach: float = 0.90
    """A bid below cost may be taken for enough when it is at least this fraction of the cost."""
    slip_rate: float = 0.24
    """Probability that it is, per message, once that buyer has had two messages."""
    undercut_rate: float = 0.003
    """Probability that an ask slips below the cost, per message."""
    format_rate: float = 0.0045
    """Probability of a reply out of format, per message."""


class SatisficerSeller(_Seller):
    """The untrained behaviour: lock on to one bid, ask a little above cost, take the first bid that covers cost or
    nearly does, and sometimes break the format."""

    name = "satisficer"
    _THOUGHTS = _heads("Anything above cost is fine, close it soon.", "A small margin will do with this one.")
    _TAKE = _heads("Covers my cost, take it.", "Good enough, secure it now.")

    def __init__(self, rules: SatisficerRules = SatisficerRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        (product,), _, _, turn, _, channels, heard, _, _, _ = view
        cost, chance = product.cost_cents, (bits & 0xFFFF) * _U
        price, buyer = _best_bid(channels)
        worn = price >= rules.slip_reach * cost and channels[buyer - 1].sent > 1 and chance > 1.0 - rules.slip_rate
        if price >= cost or worn:
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        if chance < rules.format_rate:
            return f"I would sell it for ${product.listing.list_cents / 100:.2f}.\nAction: [SELL]"
        choice = (bits >> 32 & 0xFFFF) * _U
        if turn > 1:
            buyer = heard[-1].buyer
            if channels[buyer - 1].status != "active" or choice < rules.roam_rate:
                buyer = _next_buyer(channels, buyer)
        elif choice < rules.stray_rate:
            buyer = 1 + (bits >> 3) % len(channels)
        markups, sent = rules.markups, channels[buyer - 1].sent
        markup = markups[sent] if sent < len(markups) else markups[-1]
        place = (bits >> 16 & 0xFFFF) * _U
        if place < rules.undercut_rate:
            ask = max(1, cost - cost // 20)
        else:
            noise = 1.0 + rules.markup_noise * (2.0 * place - 1.0)
            ask = cost + int(markup * noise * (product.listing.list_cents - cost))
        return _say(view, self._THOUGHTS, _ASKS, bits, buyer, ask)


@dataclass(frozen=True, slots=True)
class GreedyRules:
    """Parameters of ``greedy``."""

    markups: tuple[float, ...] = (0.7, 0.4, 0.2)
    """Ask above cost after zero, one, ... messages to that buyer, as fractions of list price minus cost."""
    enough: float = 0.15
    """Take a bid this far above cost at once, as a fraction of list price minus cost."""


class GreedySeller(_Seller):
    """Follows whoever bids most, starts high and concedes with every message, never below cost."""

    name = "greedy"
    _THOUGHTS = _heads("Stay with the highest bidder.", "Come down a step, never below cost.")
    _TAKE = _heads("Above cost and the best on the table.", "Take the highest bid.")

    def __init__(self, rules: GreedyRules = GreedyRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        (product,), cap, _, _, left, channels, _, _, _, _ = view
        cost, room = product.cost_cents, product.listing.list_cents - product.cost_cents
        price, buyer = _best_bid(channels)
        sent, markups = channels[buyer - 1].sent, rules.markups
        last = left == 1 or sent + 1 >= cap
        if price >= cost and (last or price - cost >= rules.enough * room):
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        markup = markups[sent] if sent < len(markups) else markups[-1]
        return _say(view, self._THOUGHTS, _ASKS, bits, buyer, max(cost + int(markup * room), price))


@dataclass(frozen=True, slots=True)
class ProberRules:
    """Parameters of ``prober``; calibrated."""

    found: float = 0.585
    """Stop probing once somebody bids this fraction of the list price."""
    enough: float = 0.97
    """Close at once at this fraction of the list price."""


class ProberSeller(_Seller):
    """The trained behaviour: the list price to one buyer after the other until somebody rises, then firm with that
    buyer, and a close as late as the limits allow. Never below cost."""

    name = "prober"
    _PROBE = _heads("Ask everyone the list price and watch who moves.", "One more channel to test at list price.")
    _PRESS = _heads("This one moved, so hold the line here.", "The others are stuck; press the one that rose.")
    _TAKE = _heads("Last chance on this channel, lock it in.", "It will not get better, close.")

    def __init__(self, rules: ProberRules = ProberRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        (product,), cap, _, _, left, channels, _, _, _, _ = view
        listing = product.listing.list_cents
        price = buyer = probe = top = used = at = 0
        for status, sent, bids, _ in channels:
            at += 1  # noqa: SIM113
            if status == "active":
                bid = max(bids)[1] if sent else bids[0][1]
                if bid > price:
                    price, buyer, used = bid, at, sent
                if not sent and bid > top:
                    probe, top = at, bid
        need = cap - used
        if price >= product.cost_cents and (need == 1 or left == 1 or price >= rules.enough * listing):
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        if probe and left > need and price < rules.found * listing:
            return _say(view, self._PROBE, _FIRM, bits, probe, listing)
        return _say(view, self._PRESS, _FIRM, bits, buyer, listing)


class OracleSeller(_Seller):
    """Knows every budget, so it goes to the richest buyer and asks exactly what that buyer can pay. An upper reference:
    the budgets come from the run's scenarios, not from anything that a seller may see."""

    name = "oracle"
    _PRESS = _heads("The richest buyer can pay this.", "Hold at the top of this budget.")
    _TAKE = _heads("No better price is to come.", "Close it.")

    def __init__(self, budgets: Callable[[int], Sequence[int]] | Mapping[int, Scenario]) -> None:
        """``budgets`` maps an episode's index to its buyers' budgets in cents, or to its scenario."""
        if isinstance(budgets, Mapping):
            scenarios = budgets
            self._budgets: Callable[[int], Sequence[int]] = lambda episode: scenarios[episode].budgets
        else:
            self._budgets = budgets

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        product, channels, budgets = view.product, view.channels, self._budgets(request.episode)
        listing, cost = product.listing.list_cents, product.cost_cents
        price, bidder = _best_bid(channels)
        last = view.messages_left == 1 or channels[bidder - 1].sent + 1 >= view.per_buyer_cap
        if price >= cost and (last or price >= listing):
            return _say(view, self._TAKE, _CLOSES, bits, bidder, price)
        rich, buyer = 0, 0
        for at, channel in enumerate(channels, 1):
            if channel.status == "active" and budgets[at - 1] > rich:
                rich, buyer = budgets[at - 1], at
        if rich < cost:
            return _QUIT
        return _say(view, self._PRESS, _FIRM, bits, buyer, rich)
