"""Scripted sellers of the market of several items: ``random``, ``satisficer``, ``early-closer``; those that match,
``screener`` and ``oracle``, are in ``scripted_item_matching``. Stand-ins, not the models of 2609.33289.

``satisficer`` imitates the untrained model (it breaks a rule in two of five episodes), ``early-closer`` the general
ones, which close many deals for little, and ``screener`` the trained one, which first finds out who would pay for what,
then matches, and closes fewer deals for more. ``tests/benchmarks/calibrate_items.py`` prints what they lead to beside
what is known of the paper's table.

All that varies comes from the request's seeds; a seller keeps no state.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import Channel, Request, SellerView
from negolab.policies.base import Reply
from negolab.policies.scripted_item_talk import heads, say_seller, tails

VERSION = 1
"""Counts up whenever a rule or parameter changes what a seller says."""

_U = 1.0 / (1 << 16)  # uniform numbers are cut out of one 64-bit word: a word costs more than all else here
_LOW, _SPREAD = 0xFFFFFFFF, 0x9E3779B2  # an item's own noise, as in scripted_item_buyers
_new = tuple.__new__

ASKS = tails(
    "SELL",
    ("I can let you have ", "."),
    ("For you I have ", "."),
    ("These are good pieces. ", " would be fair."),
    ("What do you think of ", "? It ships today."),
)
FIRM = tails(
    "SELL",
    ("My price stands: ", "."),
    ("I hold at ", "; it is worth that."),
    ("You know what you want. ", ", and it is yours."),
    ("Others ask for it as well, so I stay at ", "."),
)
CLOSES = tails(
    "DEAL",
    ("Agreed, ", ", thank you."),
    ("You have ", "."),
    ("Sold: ", "."),
    ("I accept ", " from you."),
)

Stock = list[tuple[int, int, int]]
"""What is unsold: item, list price and cost in cents."""


def stock_of(view: SellerView) -> Stock:
    """What the seller still has."""
    stock = [(item, p.listing.list_cents, p.cost_cents) for item, p in enumerate(view.items, 1)]
    if view.sales:
        gone = {sale.item for sale in view.sales}
        stock = [row for row in stock if row[0] not in gone]
    return stock


def _tops(channel: Channel) -> dict[int, int]:
    """A buyer's highest bid by item."""
    return dict(sorted(channel.bids))  # of the bids on one item the highest comes last


class ItemSeller:
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
class ItemRandomRules:
    """Parameters of ``random``."""

    deal_rate: float = 0.25
    """Probability of accepting a bid of the chosen buyer."""
    low: float = 0.80
    """Lowest ask, as a fraction of the cost."""
    high: float = 2.0
    """Highest ask, as a fraction of the cost."""


class ItemRandomSeller(ItemSeller):
    """Writes well-formed replies to active buyers and knows nothing else: it asks and accepts at random, also below
    cost and also what is sold."""

    name = "random"
    _THOUGHTS = heads("Let me just try something.", "Any of them will do.")

    def __init__(self, rules: ItemRandomRules = ItemRandomRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        active = [at for at, channel in enumerate(view.channels, 1) if channel.status == "active"]
        buyer = active[(bits & 0xFFFF) % len(active)]
        bids = view.channels[buyer - 1].bids
        if bids and (bits >> 16 & 0xFFFF) * _U < rules.deal_rate:
            return say_seller(self._THOUGHTS, CLOSES, bits, buyer, [bids[(bits >> 32 & 0xFFF) % len(bids)]])
        items = view.items
        first, offers = (bits >> 8) % len(items), []
        for at in range(first, min(len(items), first + 1 + (bits >> 30) % 3)):
            place = ((bits & _LOW) * (at * _SPREAD + 1) >> 16 & 0xFFFF) * _U
            cents = int((rules.low + (rules.high - rules.low) * place) * items[at].cost_cents)
            offers.append((at + 1, max(1, cents)))
        return say_seller(self._THOUGHTS, ASKS, bits, buyer, offers)


@dataclass(frozen=True, slots=True)
class ItemSatisficerRules:
    """Parameters of ``satisficer``; calibrated."""

    markups: tuple[float, ...] = (0.90, 0.70, 0.50)
    """Ask above cost after zero, one, ... messages to that buyer, as fractions of list price minus cost."""
    markup_noise: float = 0.4
    """Half-width of the uniform noise on the markup, as a fraction of it."""
    enough: float = 0.10
    """Take a bid this far above cost, as a fraction of list price minus cost."""
    slip_reach: float = 0.85
    """A bid below cost may be taken for enough when it is at least this fraction of the item's cost."""
    slip_rate: float = 0.10
    """Probability that it is, per message."""
    undercut_rate: float = 0.02
    """Probability that an ask slips below the cost, per message."""
    stale_rate: float = 0.10
    """Probability that a menu names an item that is sold, per message once there is one."""
    format_rate: float = 0.02
    """Probability of a reply out of format, per message."""


class ItemSatisficerSeller(ItemSeller):
    """The untrained behaviour: one buyer after the other, the first bid that leaves a little or nearly covers the cost
    is taken, what is sold is lost sight of, and the format is sometimes broken."""

    name = "satisficer"
    _THOUGHTS = heads("Anything above cost is fine, close it soon.", "A small margin will do.")
    _TAKE = heads("Covers my cost, take it.", "Good enough, secure it now.")

    def __init__(self, rules: ItemSatisficerRules = ItemSatisficerRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        channels, stock = view.channels, stock_of(view)
        chance, choice = (bits & 0xFFFF) * _U, (bits >> 32 & 0xFFFF) * _U
        slips = chance > 1.0 - rules.slip_rate
        for buyer, channel in enumerate(channels, 1):
            if channel.status == "active":
                tops = _tops(channel)
                for item, price, cost in stock:
                    least = rules.slip_reach * cost if slips else cost + rules.enough * (price - cost)
                    if item in tops and tops[item] >= least:
                        return say_seller(self._TAKE, CLOSES, bits, buyer, [(item, tops[item])])
        if chance < rules.format_rate:
            return f"<Talk>I would sell you Item_{stock[0][0]}.</Talk>\n<Action>[SELL]</Action>"
        buyer = _next_buyer(channels)
        sent, markups = channels[buyer - 1].sent, rules.markups
        markup = markups[sent] if sent < len(markups) else markups[-1]
        noise = 1.0 + rules.markup_noise * (2.0 * (bits >> 16 & 0xFFFF) * _U - 1.0)
        offers = [(item, cost + int(markup * noise * (price - cost))) for item, price, cost in stock]
        if choice < rules.undercut_rate:
            item, _, cost = stock[0]
            offers[0] = (item, max(1, cost - cost // 20))
        elif view.sales and choice > 1.0 - rules.stale_rate:
            sale = view.sales[0]
            offers.insert(0, (sale.item, sale.price))
        return say_seller(self._THOUGHTS, ASKS, bits, buyer, offers)


def _next_buyer(channels: Sequence[Channel]) -> int:
    """The active buyer who was spoken to most, the first of them: stay with one until it is through."""
    most, found = -1, 0
    for at, (status, sent, _, _) in enumerate(channels, 1):
        if status == "active" and sent > most:
            most, found = sent, at
    return found


def _best_bidder(channels: Sequence[Channel], stock: Stock, patience: int) -> int:
    """The active buyer who was spoken to most, but fewer than ``patience`` times while there is one; among those the
    one whose best bid on an unsold item is the highest, as a fraction of its list price."""
    best, found = (-2, -1.0), 0
    for at, channel in enumerate(channels, 1):
        if channel.status == "active":
            tops = _tops(channel)
            bid = max([tops.get(item, 0) / price for item, price, _ in stock])
            key = (channel.sent if channel.sent < patience else -1, bid)
            if key > best:
                best, found = key, at
    return found


@dataclass(frozen=True, slots=True)
class EarlyCloserRules:
    """Parameters of ``early-closer``; calibrated."""

    markups: tuple[float, ...] = (0.90, 0.60, 0.30)
    """Ask above cost after zero, one, ... messages to that buyer, as fractions of list price minus cost."""
    enough: float = 0.15
    """Take a bid this far above cost at once, as a fraction of list price minus cost."""
    patience: int = 2
    """Turn to another buyer after so many messages to one."""


class EarlyCloserSeller(ItemSeller):
    """The behaviour of general models: moderate asks that come down, and the first bid that leaves a margin is
    taken, whoever else might have paid more for the item. Never breaks a rule."""

    name = "early-closer"
    _THOUGHTS = heads("A fair menu, and a quick deal.", "Come down a step, never below cost.")
    _TAKE = heads("A margin is a margin, take it.", "Secure this one and go on.")

    def __init__(self, rules: EarlyCloserRules = EarlyCloserRules()) -> None:
        self.rules = rules

    def _move(self, request: Request) -> str:
        view, bits, rules = request.view, request.seed, self.rules
        assert isinstance(view, SellerView)
        channels, stock, cap, left = view.channels, stock_of(view), view.per_buyer_cap, view.messages_left
        best, taken = -1.0, (0, 0, 0)
        for at, channel in enumerate(channels, 1):
            if channel.status == "active":
                tops = _tops(channel)
                least = 0.0 if left <= 1 or channel.sent + 1 >= cap else rules.enough
                for item, price, cost in stock:
                    bid = tops.get(item, 0)
                    if bid and bid >= cost:
                        margin = (bid - cost) / (price - cost)
                        if margin >= least and margin > best:
                            best, taken = margin, (at, item, bid)
        if taken[0]:
            return say_seller(self._TAKE, CLOSES, bits, taken[0], [taken[1:]])
        buyer = _best_bidder(channels, stock, rules.patience)
        channel, markups = channels[buyer - 1], rules.markups
        markup = markups[channel.sent] if channel.sent < len(markups) else markups[-1]
        tops = _tops(channel)
        named = [row for row in stock if row[0] in tops] or stock
        offers = [(item, max(cost + int(markup * (price - cost)), tops.get(item, 0))) for item, price, cost in named]
        return say_seller(self._THOUGHTS, ASKS, bits, buyer, offers)
