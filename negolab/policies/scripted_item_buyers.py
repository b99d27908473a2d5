"""Scripted buyers ``iter-50``, ``iter-60``, ``iter-70`` of the market of several items: stand-ins, as in
``scripted_buyers``.

2609.33289 takes the buyers of the single-item paper, trained there, and tells them by prompt that they may bid on
several items and buy one. So do these: each item is judged by the rules and parameters of the single-item buyer, and
a market of one item gets the very same prices.

* Opening: bids on the items that are worth most to it for their list price, on one or a few. Where its first offer is
  regulated the prices are fixed, but it still chooses the items: that it names an item tells the seller a little.
* Answer to a menu: of the offers that it would accept it takes the one with the largest gain, valuation minus ask.
  Otherwise it bids on the menu's items, and stays on those that it cannot follow. For an item that it has not named
  before the place where it stays is where it would have opened. Earlier bids on other items stand; they are not said
  again.
* Whether it leaves is drawn once for each message, not for each item. How far along it is counts messages, whichever
  items they named. It is told of no sale, so it treats all items as there.

All that varies comes from the request's seeds; a buyer keeps no state.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import BuyerView, Offer, Request
from negolab.errors import NegolabError
from negolab.policies.base import Reply
from negolab.policies.scripted_buyers import BUYER_TYPES, BuyerType, plausible
from negolab.policies.scripted_item_talk import QUITS, lines, say_buyer
from negolab.seeds import mix

VERSION = 1
"""Counts up whenever a rule or parameter changes what a buyer says."""

_U = 1.0 / (1 << 16)  # as in scripted_buyers, from whose words the numbers of item 1 are cut at the same places
_TRAITS = 0x51A7B0C39E2D4F68
# An item's own noise: the word times an odd number, which for item 1 is 1. Four bytes are enough, and quicker.
_LOW, _SPREAD = 0xFFFFFFFF, 0x9E3779B2
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class ItemRules:
    """What several items add to a ``BuyerType``."""

    open_items: int = 3
    """The most items that an opening names."""
    open_band: float = 0.25
    """An opening names items whose valuation over list price is at most this much below the best one's."""
    bid_items: int = 5
    """The most items that an answer names: of a longer menu those of the highest valuation over ask."""


_OPENINGS = lines(
    "BUY",
    ("Start low on what I like and see who blinks.", "Hello! I would start with ", "."),
    ("One of these will do; a low first number leaves room.", "I am looking at ", ", to begin with."),
    ("List prices are no place to start from.", "Could you do ", "?"),
    ("Stay friendly, anchor low, keep the choice open.", "My first thought is ", ", others are possible."),
)
_RISES = lines(
    "BUY",
    ("Some of this is within reach, but not at that price.", "I could go up to ", "."),
    ("Climb a little where it is worth it.", "Let me try ", ", paid at once."),
    ("There is room below my limit.", "How about ", "? I need only one of them."),
    ("One more step, then it is the seller's turn.", "I can stretch to ", "."),
)
_STAYS = lines(
    "BUY",
    ("I cannot follow these prices.", "That is beyond me, I stay with ", "."),
    ("All of it is more than I can spend.", "I have to keep to ", ", sorry."),
    ("Hold the line.", "Honestly, ", " is about all I can do."),
    ("No room to follow.", "These are steep. I remain at ", "."),
)
_ACCEPTS = lines(
    "DEAL",
    ("Well under my limit, take it.", "Good, I take ", "."),
    ("This one leaves me the most.", "Agreed: ", "."),
    ("One is all I need, and this is it.", "Fine by me, ", "."),
    ("Close it before the price moves.", "Yes, ", " works."),
)


class ItemBuyer:
    """A rule-based buyer of one type for the tag format. Legal at every request: it never needs the opponent guard."""

    def __init__(self, type: str | BuyerType, rules: ItemRules = ItemRules()) -> None:
        """Raises ``NegolabError`` for a type that does not exist."""
        if isinstance(type, str):
            if type not in BUYER_TYPES:
                raise NegolabError(f"unknown buyer type {type!r}; allowed: {', '.join(BUYER_TYPES)}")
            type = BUYER_TYPES[type]
        self.type, self.rules = type, rules
        self.name = type.name

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        parameters = {**asdict(self.type), **asdict(self.rules)}
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": parameters}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        answer, opening, made = self._answer, self._opening, []
        for request in requests:
            view: Any = request.view  # a buyer's seat is only ever shown a buyer's view
            speak = answer if view.heard else opening
            text = speak(view, request.seed, request.seat_seed)
            made.append(_new(Reply, (text, "stop", None, None, None, None, None, None, None)))
        return made

    def _opening(self, view: BuyerView, _: int, seat_seed: int) -> str:
        rules, bits = self.rules, mix(seat_seed ^ _TRAITS)
        listings, budgets = view.listings, view.budgets
        ratios = [budget / listing.list_cents for budget, listing in zip(budgets, listings, strict=True)]
        least = max(ratios) - rules.open_band
        chosen = [at for at, ratio in enumerate(ratios) if ratio >= least]
        if len(chosen) > rules.open_items:  # named in the items' order: the order shall tell nothing
            chosen = sorted(sorted(chosen, key=ratios.__getitem__, reverse=True)[: rules.open_items])
        return say_buyer(_OPENINGS, bits, [(at + 1, self._first(view, at, bits)) for at in chosen])

    def _first(self, view: BuyerView, at: int, bits: int) -> int:
        """Where the buyer opens on an item, counted from 0; ``bits`` are the seat's traits."""
        if view.openings is not None:
            return view.openings[at]
        t, budget, list_price = self.type, view.budgets[at], view.listings[at].list_cents
        place = ((bits & _LOW) * (at * _SPREAD + 1) >> 16 & 0xFFFF) * _U
        if (bits & 0xFFFF) * _U < t.lowball_rate:
            low, high = t.lowball
            amount = (low + (high - low) * place) * list_price
        else:
            shown = budget if budget < list_price else list_price
            amount = t.open_share * shown + t.open_noise * (2.0 * place - 1.0) * list_price
        return max(1, min(plausible(int(amount)), budget))

    def _answer(self, view: BuyerView, bits: int, seat_seed: int) -> str:
        t, traits = self.type, mix(seat_seed ^ _TRAITS)
        _, budgets, _, _, heard, _, _ = view
        # A buyer's channel is its opening, then the seller's messages and its own bids in turn.
        menu, sent = heard[-1].offers, len(heard) >> 1
        bids: dict[int, int] = {}
        for said in heard[::2]:
            bids.update(said.offers)
        chance = (bits & 0xFFFF) * _U
        near = t.accept_below if chance < t.accept_rate else 0.0
        taken: Offer | None = None
        most = -1
        for item, ask in menu:
            budget = budgets[item - 1]
            if item not in bids:
                bids[item] = self._first(view, item - 1, traits)
            if budget - ask > most and (ask <= bids[item] or ask <= near * budget):
                most, taken = budget - ask, (item, ask)
        if taken is not None:
            return say_buyer(_ACCEPTS, bits, [taken])
        if chance > 1.0 - t.quit_rate:
            return QUITS[bits >> 63]
        if len(menu) > self.rules.bid_items:
            best = sorted(menu, key=lambda offer: offer[1] / budgets[offer[0] - 1])[: self.rules.bid_items]
            menu = tuple(sorted(best))
        rose, offers = False, []
        for item, ask in menu:
            bid, budget = bids[item], budgets[item - 1]
            counter = bid
            if budget > t.flat_below * ask:
                counter = self._counter(view, item - 1, ask, bid, sent, bits, traits)
                if counter >= ask and budget - ask > most:
                    most, taken = budget - ask, (item, ask)
                rose = rose or counter > bid
            offers.append((item, counter))
        if taken is not None:
            return say_buyer(_ACCEPTS, bits, [taken])
        return say_buyer(_RISES if rose else _STAYS, bits, offers)

    def _counter(self, view: BuyerView, at: int, ask: int, bid: int, sent: int, bits: int, traits: int) -> int:
        """The next bid on an item, counted from 0, whose ask is within reach or nearly so: never above the valuation,
        never below the last bid; the ask itself where the buyer can pay it and would come so far."""
        t, fractions, budget = self.type, self.type.fractions, view.budgets[at]
        lift = (budget / ask - t.flat_below) / (t.lifted_above - t.flat_below)
        noise = ((bits & _LOW) * (at * _SPREAD + 1) >> 16 & 0xFFFF) * _U
        share = (
            (fractions[sent - 1] if sent <= len(fractions) else fractions[-1])
            + t.wealth * (budget / view.listings[at].list_cents - 0.75)
            + t.fraction_noise * (2.0 * noise - 1.0)
            + t.fraction_trait * (2.0 * (traits >> 32 & 0xFFFF) * _U - 1.0)
        )
        counter = ask * share
        if counter <= bid:
            return bid
        counter = plausible(int(bid + (counter - bid) * lift if lift < 1.0 else counter))
        if counter >= ask and ask <= budget:
            return ask
        return max(bid, min(counter, budget))
