"""Scripted sellers: ``random``, ``satisficer``, ``greedy``, ``prober``, ``oracle``. Stand-ins, not the paper's models.

``satisficer`` imitates the untrained model of 2607.05863 (sections 4.4, 6 and 14.2), ``prober`` the trained one (sections
4.3, 4.4 and 14.3); both are calibrated to tables 1 and 2 against the scripted buyers. ``random`` and ``greedy`` are
plain reference points; ``oracle`` is told the budgets, which no seller may see, and serves as an upper reference only.

All that varies comes from the request's seeds; a seller keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from negolab.environment.base import Channel, Request, SellerView
from negolab.policies.base import Reply
from negolab.scenario import Scenario
from negolab.seeds import mix

VERSION = 1
"""Counts up whenever a rule or parameter changes what a seller says."""

_U = 1.0 / (1 << 16)  # uniform numbers are cut out of one 64-bit word: a word costs more than all else here
_FREE = (None, None, None)
_TRAITS = 0x2545F4914F6CDD1D
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
    money = f"${cents // 100}.{cents % 100:02d}"
    return f"{heads[bits >> 61 & 1]}{buyer}{before}{money}{after}{money} (1x {view.product.listing.codename})"


def best_bid(channels: Sequence[Channel]) -> tuple[int, int]:
    """Highest standing bid in cents and its buyer, over active channels; (0, 0) when nobody is active."""
    price, buyer, at = 0, 0, 0
    for status, _, bids, _ in channels:
        at += 1
        if status == "active" and bids:
            top = bids[-1] if len(bids) == 1 else max(bids)
            if top > price:
                price, buyer = top, at
    return price, buyer


class _Seller:
    """What the sellers share: the loop over requests and the description."""

    name = ""
    parameters: Mapping[str, Any] = {}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        say = self._move
        return [_new(Reply, (say(request), "stop", *_FREE)) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        return {
            "name": self.name,
            "kind": "scripted stand-in",
            "version": VERSION,
            "parameters": dict(self.parameters),
        }

    def _move(self, request: Request) -> str:
        raise NotImplementedError


class RandomSeller(_Seller):
    """Writes well-formed replies to active buyers and knows nothing else: it asks or accepts at random, also below
    cost."""

    name = "random"
    parameters = {"deal_rate": 0.25, "low": 0.6, "high": 1.2}
    _THOUGHTS = _heads("Let me just try something.", "Any of them will do.")

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        p = self.parameters
        active = [i for i, channel in enumerate(view.channels, 1) if channel.status == "active"]
        buyer = active[(bits & 0xFFFF) % len(active)]
        bids = view.channels[buyer - 1].bids
        if bids and (bits >> 16 & 0xFFFF) * _U < p["deal_rate"]:
            return _say(view, self._THOUGHTS, _CLOSES, bits, buyer, bids[(bits >> 32 & 0xFFF) % len(bids)])
        share = p["low"] + (p["high"] - p["low"]) * (bits >> 44 & 0xFFFF) * _U
        return _say(view, self._THOUGHTS, _ASKS, bits, buyer, max(1, int(share * view.product.cost_cents)))


class SatisficerSeller(_Seller):
    """The untrained behaviour: lock on to the highest bid, ask a little above cost, take the first bid that covers cost
    or nearly does, and sometimes break the format."""

    name = "satisficer"
    parameters = {
        "markups": (0.20, 0.08, 0.04),
        "markup_noise": 0.5,
        "stay": 3,
        "slip_reach": 0.92,
        "slip_rate": 0.15,
        "undercut_rate": 0.01,
        "format_rate": 0.004,
    }
    _THOUGHTS = _heads("Anything above cost is fine, close it soon.", "This one bids the most, work on this one.")
    _TAKE = _heads("Covers my cost, take it.", "Good enough, secure it now.")

    def __init__(self) -> None:
        p = self.parameters
        self._markups, self._stay, self._noise = p["markups"], p["stay"], p["markup_noise"]
        self._reach, self._slip, self._undercut = p["slip_reach"], p["slip_rate"], p["undercut_rate"]
        self._format = p["format_rate"]

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        cost, channels = view.product.cost_cents, view.channels
        price, buyer = best_bid(channels)
        chance = (bits & 0xFFFF) * _U
        if chance < self._format:
            return f"I would sell it for {view.product.listing.list_cents / 100:.2f}.\nAction: [SELL]"
        if price >= cost:
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        if price >= self._reach * cost and chance > 1.0 - self._slip:
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        heard = view.heard
        last = heard[-1].buyer if view.turn > 1 and heard else buyer
        channel = channels[last - 1]
        if channel.status != "active" or channel.sent >= self._stay:
            last = _next_buyer(channels)
            channel = channels[last - 1]
        markups, sent = self._markups, channel.sent
        markup = markups[sent] if sent < len(markups) else markups[-1]
        noise = 1.0 + self._noise * (2.0 * (bits >> 16 & 0xFFFF) * _U - 1.0)
        ask = cost + int(markup * noise * (view.product.listing.list_cents - cost))
        if (bits >> 32 & 0xFFFF) * _U < self._undercut:
            ask = max(1, cost - cost // 20)
        return _say(view, self._THOUGHTS, _ASKS, bits, last, ask)


def _next_buyer(channels: Sequence[Channel]) -> int:
    """The active buyer with the fewest messages, the higher bid first."""
    best, found = (1 << 62, 0), 0
    for at, (status, sent, bids, _) in enumerate(channels, 1):
        if status == "active":
            key = (sent, -(bids[-1] if bids else 0))
            if key < best:
                best, found = key, at
    return found


class GreedySeller(_Seller):
    """Follows whoever bids most, starts high and concedes with every message, never below cost."""

    name = "greedy"
    parameters = {"markups": (0.7, 0.4, 0.2), "take": 0.15}
    _THOUGHTS = _heads("Stay with the highest bidder.", "Come down a step, never below cost.")
    _TAKE = _heads("Above cost and the best on the table.", "Take the highest bid.")

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        cost, room = view.product.cost_cents, view.product.listing.list_cents - view.product.cost_cents
        price, buyer = best_bid(view.channels)
        channel = view.channels[buyer - 1]
        last = channel.sent + 1 >= view.per_buyer_cap or view.messages_left == 1
        if price >= cost and (last or price - cost >= self.parameters["take"] * room):
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        markups: tuple[float, ...] = self.parameters["markups"]
        markup = markups[min(channel.sent, len(markups) - 1)]
        return _say(view, self._THOUGHTS, _ASKS, bits, buyer, max(cost + int(markup * room), price, 1))


class ProberSeller(_Seller):
    """The trained behaviour: the list price to one buyer after the other until somebody rises, then firm with that
    buyer, and a close as late as the limits allow. Never below cost."""

    name = "prober"
    parameters = {"found": 0.6, "enough": 0.97}
    _PROBE = _heads("Ask everyone the list price and watch who moves.", "One more channel to test at list price.")
    _PRESS = _heads("This one moved, so hold the line here.", "The others are stuck; press the one that rose.")
    _TAKE = _heads("Last chance on this channel, lock it in.", "It will not get better, close.")

    def __init__(self) -> None:
        self._found, self._enough = self.parameters["found"], self.parameters["enough"]

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        product, channels, cap, left = view.product, view.channels, view.per_buyer_cap, view.messages_left
        listing, cost = product.listing.list_cents, product.cost_cents
        price, buyer = best_bid(channels)
        need = cap - channels[buyer - 1].sent
        if price >= cost and (need <= 1 or left <= 1 or price >= self._enough * listing):
            return _say(view, self._TAKE, _CLOSES, bits, buyer, price)
        if left > need and price < self._found * listing:
            probe, top = 0, -1
            for at, (status, sent, bids, _) in enumerate(channels, 1):
                if sent == 0 and status == "active" and bids[-1] > top:
                    probe, top = at, bids[-1]
            if probe:
                return _say(view, self._PROBE, _FIRM, bits, probe, listing)
        return _say(view, self._PRESS, _FIRM, bits, buyer, listing)


class OracleSeller(_Seller):
    """Knows every budget, so it goes to the richest buyer and asks exactly what that buyer can pay. An upper reference:
    the budgets come from the run's scenarios, not from anything that a seller may see."""

    name = "oracle"
    parameters: Mapping[str, Any] = {}
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
        budgets, channels, cap, left = (
            self._budgets(request.episode),
            view.channels,
            view.per_buyer_cap,
            view.messages_left,
        )
        listing, cost = view.product.listing.list_cents, view.product.cost_cents
        rich, buyer = 0, 0
        for at, channel in enumerate(channels, 1):
            if channel.status == "active" and budgets[at - 1] > rich:
                rich, buyer = budgets[at - 1], at
        price, bidder = best_bid(channels)
        if price >= listing or (price >= cost and (left <= 1 or cap - channels[bidder - 1].sent <= 1)):
            return _say(view, self._TAKE, _CLOSES, bits, bidder, price)
        if rich < cost:
            return _QUIT
        return _say(view, self._PRESS, _FIRM, bits, buyer, rich)
