"""Scripted sellers that match: ``screener`` on what it has learned, ``oracle`` on the valuations it is told.

Both plan anew before every message. Each open pair of buyer and item has a prospect: the ask to make, the chance that
the buyer follows, and so the value of accepting its bid now, after one more ask, or after two. The assignment algorithm
(``oracle.assign``) picks the pairs; where these want more messages than are left, the pairs that lose least by it are
pressed less or dropped. Pairs that are worth another ask get it, the most valuable first; only when none is left are
bids accepted, since a bid stands as long as its buyer is not spoken to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from negolab.environment.base import Request, SellerView
from negolab.oracle import assign
from negolab.policies.scripted_item_talk import SELLER_QUITS, heads, say_seller
from negolab.policies.scripted_items import ASKS, CLOSES, FIRM, ItemSeller, Stock, stock_of

_new = tuple.__new__


class _Row(NamedTuple):
    """What is known of one active buyer."""

    buyer: int
    sent: int
    tops: dict[int, int]
    """Its highest bid by item."""
    asks: dict[int, int]
    """The latest ask by item."""


class _Step(NamedTuple):
    """What a plan wants of one pair."""

    row: _Row
    item: int
    ask: int
    """Cents."""
    values: Sequence[float]
    """Expected gain when the bid is accepted after 0, 1, ... more asks."""
    depth: int
    """How many more asks are planned."""


Prospect = tuple[int, float]
"""The ask to make for an item, and the chance that the buyer follows it."""


Ahead = Sequence[tuple[float, float]]
"""For one, two, ... asks more: where a bid that follows will be, as a fraction of the ask, and the chance that the
buyer is still there."""
_CLOSE_ONLY: tuple[Ahead, Sequence[Prospect]] = ((), ())


class _MatchingSeller(ItemSeller):
    """The planning that both share."""

    _PRESS = heads("This pair is worth another message, so hold the line.", "Stay with the pair that pays most.")
    _TAKE = heads("It will not get better, lock this pair in.", "The plan is made; close this one.")
    _LAST = heads("Nothing good is on the table, try once more.", "Messages are left, so ask again.")

    def __init__(self, rises: tuple[float, ...], stays: float) -> None:
        """``rises``: where a buyer that follows an ask bids after one, two, ... messages, as fractions of the ask;
        ``stays``: the chance that it answers a message and does not leave."""
        self._rises, self._stays = rises, stays
        self._aheads: dict[tuple[int, int], list[tuple[float, float]]] = {}  # what ``_ahead`` has worked out

    def _move(self, request: Request) -> str:
        view, bits = request.view, request.seed
        assert isinstance(view, SellerView)
        stock = stock_of(view)
        rows = [
            # Of a buyer's bids on one item the highest comes last when they are sorted.
            _new(_Row, (at, sent, dict(sorted(bids)), dict(asks)))
            for at, (status, sent, bids, asks) in enumerate(view.channels, 1)
            if status == "active"
        ]
        probe = self._probe(view, stock, rows, bits, spare=False)
        if probe is not None:
            return probe
        plan = self._plan(view, stock, rows, request.episode)
        if sum(step.depth for step in plan) + len(plan) < view.messages_left:
            probe = self._probe(view, stock, rows, bits, spare=True)
            if probe is not None:
                return probe
        best, most, press = None, -1.0, False
        for step in plan:
            value = step.values[step.depth]
            if (step.depth > 0, value) > (press, most):
                best, most, press = step, value, step.depth > 0
        if best is None:
            return self._last(view, stock, rows, bits, request.episode)
        if press:
            return say_seller(self._PRESS, FIRM, bits, best.row.buyer, self._pressed(best, stock, request.episode))
        return say_seller(self._TAKE, CLOSES, bits, best.row.buyer, [(best.item, best.row.tops[best.item])])

    def _plan(self, view: SellerView, stock: Stock, rows: Sequence[_Row], episode: int) -> list[_Step]:
        """The pairs to bring to a close, within the messages that are left."""
        left, cap = view.messages_left, view.per_buyer_cap
        if left == 1:
            return self._best_bid(stock, rows)
        # By buyer: what lies ahead, and the prospect of every item; empty for those who can only be closed with.
        known: list[tuple[Ahead, Sequence[Prospect]]] = []
        weights: list[list[float]] = []
        for row in rows:
            rest = cap - 1 - row[1]
            if rest >= left:
                rest = left - 1
            if rest > 0:
                ahead, hope = self._ahead(row[1], rest), self._prospects(row, stock, episode)
                known.append((ahead, hope))
                weights.append(_worths(row[2], stock, hope, ahead))
            else:
                tops = row[2]
                worths: list[float] = []
                for item, price, cost in stock:
                    bid = tops.get(item, 0)
                    worths.append((bid if bid < price else price) - cost)
                known.append(_CLOSE_ONLY)
                weights.append(worths)
        plan, over = [], -left
        for i, j in assign(weights):
            ahead, prospects = known[i]
            if prospects:
                step = _step(rows[i], stock[j], prospects[j], ahead)
            else:
                step = _new(_Step, (rows[i], stock[j][0], 0, (weights[i][j],), 0))
            plan.append(step)
            over += step.depth + 1
        while over > 0:
            over -= _shorten(plan, over)
        return plan

    @staticmethod
    def _best_bid(stock: Stock, rows: Sequence[_Row]) -> list[_Step]:
        """The plan for the last message: the bid that leaves most, if there is one that leaves anything."""
        most, plan = 0, []
        for row in rows:
            tops = row[2]
            for item, price, cost in stock:
                bid = tops.get(item, 0)
                gain = (bid if bid < price else price) - cost
                if gain > most:
                    most, plan = gain, [_Step(row, item, 0, [float(gain)], 0)]
        return plan

    def _ahead(self, sent: int, rest: int) -> Ahead:
        """For a buyer who has had ``sent`` messages and may get ``rest`` more; beyond ``_rises`` nothing is gained."""
        rises, stays = self._rises, self._stays
        if rest > len(rises):
            rest = len(rises)
        found = self._aheads.get((sent, rest))
        if found is None:
            found = [(rises[min(sent + more, len(rises)) - 1], stays**more) for more in range(1, rest + 1)]
            self._aheads[sent, rest] = found
        return found

    def _prospects(self, row: _Row, stock: Stock, episode: int) -> list[Prospect]:
        """One for each item."""
        raise NotImplementedError

    def _pressed(self, step: _Step, stock: Stock, episode: int) -> list[tuple[int, int]]:
        """The menu for a pair that is to be pressed."""
        return [(step.item, step.ask)]

    def _probe(self, view: SellerView, stock: Stock, rows: Sequence[_Row], bits: int, spare: bool) -> str | None:
        """A menu to learn from, where there is a message for it; ``spare``: the plan leaves one over."""
        return None

    def _last(self, view: SellerView, stock: Stock, rows: Sequence[_Row], bits: int, episode: int) -> str:
        """No pair promises anything: ask whoever was asked least, there is nothing to lose."""
        row = min(rows, key=lambda row: row.sent)
        offers = []
        for (item, _, cost), (ask, _) in zip(stock[:3], self._prospects(row, stock[:3], episode), strict=True):
            offers.append((item, max(cost, ask)))
        return say_seller(self._LAST, ASKS, bits, row.buyer, offers)


def _worths(tops: Mapping[int, int], stock: Stock, hope: Sequence[Prospect], ahead: Ahead) -> list[float]:
    """What each item's pair with a buyer of these highest bids is worth at its best depth: the largest of ``_step``'s
    values."""
    worths: list[float] = []
    for (item, price, cost), (ask, chance) in zip(stock, hope, strict=True):
        bid = tops.get(item, 0)
        best: float = (bid if bid < price else price) - cost
        if chance:
            now, kept = best, best if best > 0 else 0.0
            for rise, stays in ahead:
                then = rise * ask
                then = (then if then < price else price) - cost
                if then > now:
                    value = stays * (chance * then + (1.0 - chance) * kept)
                    if value > best:
                        best = value
        worths.append(best)
    return worths


def _step(row: _Row, piece: tuple[int, int, int], hope: Prospect, ahead: Ahead) -> _Step:
    """What a pair is worth at every depth."""
    item, price, cost = piece
    ask, chance = hope
    bid = row.tops.get(item, 0)
    now = (bid if bid < price else price) - cost
    best, depth, kept = float(now), 0, now if now > 0 else 0
    values = [best]
    for rise, stays in ahead:
        then = rise * ask
        then = (then if then < price else price) - cost
        value = stays * (chance * (then if then > now else now) + (1.0 - chance) * kept)
        values.append(value)
        if value > best:
            best, depth = value, len(values) - 1
    return _new(_Step, (row, item, ask, values, depth))


def _shorten(plan: list[_Step], over: int) -> int:
    """Save messages where it costs least for each one saved, at most ``over`` where there is a choice; returns how
    many."""
    least, at, depth = float("inf"), 0, -1
    for i, step in enumerate(plan):
        value = step.values[step.depth]
        for shallower in range(step.depth):
            if step.values[shallower] > 0:
                loss = (value - step.values[shallower]) / (step.depth - shallower)
                if loss < least:
                    least, at, depth = loss, i, shallower
        loss = value / min(step.depth + 1, over)
        if loss < least:
            least, at, depth = loss, i, -1
    step = plan[at]
    if depth < 0:
        del plan[at]
    else:
        plan[at] = step._replace(depth=depth)
    return step.depth - depth


@dataclass(frozen=True, slots=True)
class ScreenerRules:
    """Parameters of ``screener``: what a seller learns of such buyers by playing; calibrated."""

    probe: float = 1.0
    """Asks of a screening menu, as fractions of the list prices."""
    rises: tuple[float, ...] = (0.58, 0.85, 0.92)
    """Where a buyer that follows an ask bids after one, two, ... messages, as fractions of the ask."""
    stays: float = 0.91
    """Chance that a buyer answers a message and does not leave."""
    moved: float = 0.485
    """A highest bid of at least this fraction of the latest ask says that the buyer follows it."""
    telling: float = 0.34
    """A highest bid of at least this fraction of the list price tells the valuation, where it followed no ask."""
    opens_at: float = 0.505
    """Such a bid as a fraction of the valuation."""
    sure: float = 0.9
    """Chance that a buyer follows an ask at a valuation told so."""
    stuck: float = 0.95
    """A buyer that does not follow an ask values the item at less than this fraction of it."""
    lowest: float = 0.40
    """Valuations begin at this fraction of the list price,"""
    highest: float = 1.15
    """and end at this one."""
    menu_items: int = 6
    """The most items on a screening menu."""
    press_items: int = 2
    """The most items on a later menu."""


class ScreenerSeller(_MatchingSeller):
    """The trained behaviour: a menu at list prices to each buyer to see who moves on what, valuations estimated from
    openings and moves, an assignment on the estimates, then firm with the assigned pairs, and closes as late as the
    limits allow. Never breaks a rule."""

    name = "screener"
    _SCREEN = heads("List prices first: see who moves on what.", "One more buyer to screen before I match.")

    def __init__(self, rules: ScreenerRules = ScreenerRules()) -> None:
        self.rules = rules
        super().__init__(rules.rises, rules.stays)

    def _probe(self, view: SellerView, stock: Stock, rows: Sequence[_Row], bits: int, spare: bool) -> str | None:
        cap, left, sold = view.per_buyer_cap, view.messages_left, len(view.sales)
        if cap < 2 or left < 2:
            return None
        if not spare:
            # As many deals as the messages can press through from the beginning; what these need is kept back.
            deals = max(1, min(len(view.channels), len(view.items), view.message_budget // cap)) - sold
            if left <= deals * (cap - 1):
                return None
        fresh = [row for row in rows if not row.sent]
        if not fresh:
            return None
        row = fresh[0] if len(fresh) == 1 else max(fresh, key=lambda row: max(row[2].values()))
        rules, offers = self.rules, []
        for item, price, cost in stock:
            top = row.tops.get(item, 0)
            if top < rules.telling * price or rules.rises[-1] * top > rules.opens_at * cost:
                ask = int(rules.probe * price)
                offers.append((item, ask if ask >= cost and ask >= top else max(cost, top)))
        if not offers:
            offers = [(item, max(cost, int(rules.probe * price))) for item, price, cost in stock]
        if len(offers) > rules.menu_items:  # those it has bid on, and then those with the largest margin
            margin = {item: price - cost for item, price, cost in stock}
            offers.sort(key=lambda offer: (offer[0] in row.tops, margin[offer[0]]), reverse=True)
            offers = sorted(offers[: rules.menu_items])
        return say_seller(self._SCREEN, ASKS, bits, row.buyer, offers)

    def _prospects(self, row: _Row, stock: Stock, episode: int) -> list[Prospect]:
        rules, (_, sent, tops, asks) = self.rules, row
        rises, stuck, moved, telling, found = rules.rises, rules.stuck, rules.moved, rules.telling, []
        rise = rises[sent + 1] if sent + 1 < len(rises) else rises[-1]
        for item, price, cost in stock:
            top, asked = tops.get(item, 0), asks.get(item, 0)
            if asked and top >= moved * asked:
                found.append((asked if asked >= top else top, 1.0))
                continue
            if top >= telling * price:
                worth = int(top / rules.opens_at)
                found.append((worth, rules.sure) if worth > cost else (cost, 0.0))
                continue
            # Nothing but a range is known: the ask with the highest expected gain, if valuations are uniform in it.
            high, low = rules.highest * price, rules.lowest * price
            if asked and stuck * asked < high:
                high = stuck * asked
            ask = (high / stuck + cost / rise) / 2.0
            if ask > price:
                ask = price
            chance = (high - stuck * ask) / (high - low) if high > low else 0.0
            if ask <= cost or chance <= 0.0:
                found.append((cost, 0.0))
            else:
                found.append((int(ask), chance if chance < 1.0 else 1.0))
        return found

    def _pressed(self, step: _Step, stock: Stock, episode: int) -> list[tuple[int, int]]:
        row, rules, offers = step.row, self.rules, [(step.item, step.ask)]
        for item, _, cost in stock:
            ask = row.asks.get(item)
            if item != step.item and ask is not None and row.tops.get(item, 0) >= rules.moved * ask:
                offers.append((item, max(ask, cost)))
        return sorted(offers[: rules.press_items])


Valuations = Callable[[int], Sequence[Sequence[int]]]
"""By episode: what each item is worth to each buyer, in cents."""


class ItemOracleSeller(_MatchingSeller):
    """Knows every valuation, so it asks exactly what the buyers of the best matching can pay, and asks nobody else. An
    upper reference: the valuations come from the run's scenarios, not from anything that a seller may see."""

    name = "oracle"

    def __init__(self, valuations: Valuations | Mapping[int, Sequence[Sequence[int]]]) -> None:
        """``valuations`` maps an episode's index to its valuations in cents, by buyer, then by item."""
        super().__init__((0.59, 0.85, 0.93), 0.91)
        self._valuations: Valuations = valuations.__getitem__ if isinstance(valuations, Mapping) else valuations

    def _prospects(self, row: _Row, stock: Stock, episode: int) -> list[Prospect]:
        worth = self._valuations(episode)[row.buyer - 1]
        return [(worth[item - 1], 1.0) if worth[item - 1] > cost else (cost, 0.0) for item, _, cost in stock]

    def _last(self, view: SellerView, stock: Stock, rows: Sequence[_Row], bits: int, episode: int) -> str:
        for row in rows:
            hope = zip(stock, self._prospects(row, stock, episode), strict=True)
            offers = [(item, ask) for (item, _, _), (ask, chance) in hope if chance]
            if offers:
                return say_seller(self._LAST, ASKS, bits, row.buyer, offers[:3])
        return SELLER_QUITS
