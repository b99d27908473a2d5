"""One seller, N sealed buyers, M items: the market of 2607.05863 (M = 1; section 3.1, equation (1)'s clauses) and of
2609.33289 (M > 1; section 3). A buyer buys one item at most, and a deal takes both out of the market.

Rules that the papers leave open, as read here:

* Only seller messages count towards K and T; openings are free; an accepting ``[DEAL]`` is a message.
* A buyer still answers the K-th (or T-th) message. If it answers ``[BUY]`` the bids are recorded, then the channel is
  capped (or the episode over), so that they can never be accepted; the buyer's own ``[DEAL]`` can still close.
* A seller's ``[DEAL]`` must equal, item and price to the cent, one of the active targeted buyer's own bids, not only
  the last. Where items are left it gets no answer, and the seller speaks again.
* A message to a buyer that may not be addressed is ``target`` whatever it says; otherwise an item that is sold is
  ``item``; then a price below that item's cost is ``below_cost``, even where it would also be no bid of that buyer.
  An item that never was is found by the parser, which knows no buyers, and so is ``item`` whoever is addressed.
* A buyer's ``[DEAL]`` must equal one offer of the latest message it got and fit its valuation; its first reply must be
  a ``[BUY]``, and where its first offer is regulated names for each item the price that is fixed for it.
* Sales are told to nobody but the seller. A bid on an item that is gone is legal, and void.
* A buyer's ``[QUIT]`` closes its own channel only, also on its K-th message (status quit, not capped).
* A violation ends the episode, whatever was sold before.
* A seat that could not speak (its model's context is full, or its server gave no answer in time) ends the episode as
  ``aborted``: no rule was broken, and what was sold is sold.
"""

from collections.abc import Collection, Mapping, Sequence

from negolab.catalog import Listing
from negolab.environment.base import (
    ABORTS,
    SELLER,
    BuyerView,
    Channel,
    Move,
    Offer,
    Outcome,
    Request,
    Said,
    Sale,
    SellerView,
    Turn,
    Violation,
    item_name,
)
from negolab.money import dollars
from negolab.scenario import Scenario
from negolab.seeds import mix

_NEW_CHANNEL = Channel("active", 0, (), ())
_EVERY_BUYER = -1  # who speaks at the opening; from then on one seat speaks at a time
# A named tuple's own constructor is a Python function; several are made per turn, so they are made the short way.
_new = tuple.__new__


def check_seller(
    move: Move, channels: Sequence[Channel], costs: Sequence[int], sold: Collection[int] = ()
) -> Violation | None:
    """Which rule a well-formed seller's move breaks: ``target``, ``item``, ``below_cost``, ``deal`` or none.

    ``costs``: of every item, in cents; ``sold``: the items that are gone.
    """
    offers, target = move.offers, move.target
    if target is None:
        return None
    if target > len(channels):
        return Violation("target", f"there is no Buyer {target} among {len(channels)}", move.text)
    channel = channels[target - 1]
    if channel.status != "active":
        return Violation("target", f"Buyer {target} is {channel.status}", move.text)
    n = len(costs)
    if n > 1:
        for item, _ in offers:
            if item > n or item in sold:
                what = f"there is no {item_name(item)} among {n}" if item > n else f"{item_name(item)} is sold"
                return Violation("item", what, move.text)
    for item, price in offers:
        if price < costs[item - 1]:
            which = f" for {item_name(item)}" if n > 1 else ""
            what = f"[{move.verb}] {dollars(price)}{which} is below the cost {dollars(costs[item - 1])}"
            return Violation("below_cost", what, move.text)
    if move.verb == "DEAL" and offers[0] not in channel.bids:
        wanted, price = offers[0]
        which = f" for {item_name(wanted)}" if n > 1 else ""
        bids = ", ".join(dollars(bid) for item, bid in channel.bids if item == wanted) or "none"
        return Violation("deal", f"{dollars(price)} is none of Buyer {target}'s bids{which} ({bids})", move.text)
    return None


class Market:
    """A single-use episode; see the module's docstring for the rules."""

    __slots__ = (
        "_budget",
        "_budget_left",
        "_cap",
        "_channels",
        "_costs",
        "_episode",
        "_heard",
        "_items",
        "_keys",
        "_legal",
        "_listings",
        "_openings",
        "_own",
        "_protocol",
        "_said",
        "_sales",
        "_sold",
        "_speaker",
        "_turn",
        "_valuations",
        "outcome",
    )

    def __init__(self, scenario: Scenario) -> None:
        self._episode, self._keys, self._protocol = scenario.episode, scenario.keys, scenario.protocol
        self._items = items = scenario.products
        if len(items) == 1:  # nearly all markets: no loop over one thing
            product = items[0]
            self._listings: tuple[Listing, ...] = (product.listing,)
            self._costs: tuple[int, ...] = (product.cost_cents,)
        else:
            self._listings = tuple([product.listing for product in items])
            self._costs = tuple([product.cost_cents for product in items])
        self._cap, self._budget = scenario.per_buyer_cap, scenario.message_budget
        self._valuations, self._openings = scenario.valuations, scenario.openings
        n = len(scenario.valuations)
        self._channels = [_NEW_CHANNEL] * n
        self._budget_left = scenario.message_budget
        self._turn = 1
        self._heard: tuple[Said, ...] = ()
        self._said: list[tuple[Said, ...]] = [()] * (n + 1)
        self._own: list[tuple[str, ...]] = [()] * (n + 1)
        self._speaker = _EVERY_BUYER
        self._sold: set[int] = set()
        self._sales: tuple[Sale, ...] = ()
        # Moves that ``check`` found legal since the seller last spoke: the same objects need no second look.
        self._legal: dict[int, Move] = {}
        self.outcome: Outcome | None = None

    # -- what a seat may see ------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """The N buyers at the opening, then the seller and the buyer it targeted, in turn; after a deal that it made
        the seller again."""
        if self.outcome is not None:
            return []
        speaker = self._speaker
        if speaker == SELLER:
            mine, key, channels = self._own[SELLER], self._keys[SELLER], tuple(self._channels)
            limits = (self._cap, self._budget, self._turn, self._budget_left)
            shown = (self._items, *limits, channels, self._heard, mine, self._sales, self._protocol)
            request = (self._episode, SELLER, _new(SellerView, shown), mix(key + len(mine)), key, 0, "")
            return [_new(Request, request)]
        if speaker == _EVERY_BUYER:
            return [self._buyer_request(seat) for seat in range(1, len(self._valuations) + 1)]
        return [self._buyer_request(speaker)]

    def _buyer_request(self, seat: int) -> Request:
        mine, key = self._own[seat], self._keys[seat]
        openings = None if self._openings is None else self._openings[seat - 1]
        secret = self._valuations[seat - 1]
        shown = (self._listings, secret, self._cap, openings, self._said[seat], mine, self._protocol)
        return _new(Request, (self._episode, seat, _new(BuyerView, shown), mix(key + len(mine)), key, 0, ""))

    # -- rules --------------------------------------------------------------------------------------------------

    def check(self, seat: int, move: Move) -> Violation | None:
        """Which rule ``move`` would break if ``seat`` made it now; None if legal."""
        if move.fallback:
            return None
        if seat == SELLER:
            return check_seller(move, self._channels, self._costs, self._sold)
        verb, offers, valuations = move.verb, move.offers, self._valuations[seat - 1]
        n = len(valuations)
        for item, _ in offers:
            if item > n:
                return Violation("item", f"there is no {item_name(item)} among {n}", move.text)
        if not self._own[seat]:
            if verb != "BUY":
                return Violation("opening", f"the first action must be [BUY], not [{verb}]", move.text)
            fixed = None if self._openings is None else self._openings[seat - 1]
            if fixed is not None:
                for item, price in offers:
                    if price != fixed[item - 1]:
                        which = f" for {item_name(item)}" if n > 1 else ""
                        what = f"the first offer{which} is fixed at {dollars(fixed[item - 1])}"
                        return Violation("opening", what, move.text)
        for item, price in offers:
            if price > valuations[item - 1]:
                which = f" for {item_name(item)}" if n > 1 else ""
                return Violation("budget", f"{dollars(price)} is over the budget{which}", move.text)
        if verb == "DEAL":
            menu = self._said[seat][-1].offers
            if offers[0] not in menu:
                latest = ", ".join(dollars(p) + (f" for {item_name(i)}" if n > 1 else "") for i, p in menu)
                what = f"{dollars(offers[0][1])} is not the seller's latest offer ({latest})"
                if n > 1:
                    what = f"{dollars(offers[0][1])} for {item_name(offers[0][0])} is not on the latest menu ({latest})"
                return Violation("deal", what, move.text)
        self._legal[seat] = move
        return None

    def fallback(self, seat: int) -> Move:
        """What the opponent guard plays for a buyer that keeps breaking the rules: its previous bids again, at the
        opening the regulated prices, and ``[QUIT]`` where it has neither."""
        said = self._said[seat]
        if said:  # its own words, and the seller's that it is to answer
            return Move("BUY", said[-2].offers, None, "", "", True)
        fixed = None if self._openings is None else self._openings[seat - 1]
        if fixed is not None:
            return Move("BUY", tuple(enumerate(fixed, 1)), None, "", "", True)
        return Move("QUIT", (), None, "", "", True)

    # -- transitions --------------------------------------------------------------------------------------------

    def submit(self, replies: Mapping[int, Move | Violation]) -> list[Turn]:
        """Apply the replies in seat order. The first violation ends the episode."""
        if self.outcome is not None:
            raise ValueError("the episode is over")
        speaker = self._speaker
        if speaker == _EVERY_BUYER:
            return self._open(replies)
        reply = replies.get(speaker)
        if reply is None or len(replies) != 1:
            raise ValueError(f"replies for seats {sorted(replies)}, expected [{speaker}]")
        if speaker == SELLER:
            return [self._seller_turn(reply)]
        turn = self._buyer_turn(speaker, reply)
        if self.outcome is None:
            self._settle(speaker)
        return [turn]

    def _open(self, replies: Mapping[int, Move | Violation]) -> list[Turn]:
        seats, turns = list(range(1, len(self._valuations) + 1)), []
        if sorted(replies) != seats:
            raise ValueError(f"replies for seats {sorted(replies)}, expected {seats}")
        for seat in seats:
            turns.append(self._buyer_turn(seat, replies[seat]))
            if self.outcome is not None:
                return turns
        self._settle(1)
        return turns

    def _violation(self, seat: int, found: Violation) -> Turn:
        self.outcome = Outcome("aborted" if found.kind in ABORTS else "violation", found.kind, seat, self._sales)
        return Turn(self._turn, seat, None, None, (), found.text, found.kind, found.detail)

    def _seller_turn(self, reply: Move | Violation) -> Turn:
        if isinstance(reply, Violation):
            return self._violation(SELLER, reply)
        found = check_seller(reply, self._channels, self._costs, self._sold)
        if found is not None:
            return self._violation(SELLER, found)
        turn = self._turn
        verb, offers, target, talk, text, _ = reply
        self._own[SELLER] += (text,)
        if target is None or not offers:
            self.outcome = Outcome("deal" if self._sales else "no_deal", "seller_quit", SELLER, self._sales)
            return Turn(turn, SELLER, target, verb, (), text)
        self._budget_left -= 1
        self._turn = turn + 1
        status, sent, bids, asks = self._channels[target - 1]
        said = (_new(Said, (SELLER, target, verb, offers, talk)),)
        self._heard += said
        if verb == "DEAL":
            self._channels[target - 1] = Channel("bought", sent + 1, bids, asks)
            self._sell(offers[0], target, SELLER)
            if self.outcome is None:
                self._settle(1)
            return Turn(turn, SELLER, target, verb, offers, text)
        self._channels[target - 1] = _new(Channel, (status, sent + 1, bids, asks + offers))
        self._said[target] += said
        self._legal.clear()
        self._speaker = target
        return _new(Turn, (turn, SELLER, target, verb, offers, text, None, "", False))

    def _buyer_turn(self, seat: int, reply: Move | Violation) -> Turn:
        if isinstance(reply, Violation):
            return self._violation(seat, reply)
        if self._legal.get(seat) is not reply:
            found = self.check(seat, reply)
            if found is not None:
                return self._violation(seat, found)
        verb, offers, _, talk, text, fallback = reply
        status, sent, bids, asks = self._channels[seat - 1]
        if not offers:
            status = "quit"
        elif verb == "BUY":
            bids += offers
            if sent >= self._cap:
                status = "capped"
        else:
            status = "bought"
            self._sell(offers[0], seat, seat)
        self._channels[seat - 1] = _new(Channel, (status, sent, bids, asks))
        said = (_new(Said, (seat, seat, verb, offers, talk)),)
        self._heard += said
        self._said[seat] += said
        self._own[seat] += (text,)
        return _new(Turn, (self._turn, seat, seat, verb, offers, text, None, "", fallback))

    def _sell(self, offer: Offer, buyer: int, closer: int) -> None:
        item, price = offer
        self._sold.add(item)
        self._sales += (Sale(item, buyer, price, closer),)
        n = len(self._items)
        if len(self._sold) == n:
            reason = "sold_out" if n > 1 else "seller_deal" if closer == SELLER else "buyer_deal"
            self.outcome = Outcome("deal", reason, closer, self._sales)

    def _settle(self, seat: int) -> None:
        """The seller speaks next, if it can; ``seat`` is looked at first because it is nearly always active."""
        self._speaker = SELLER
        channels = self._channels
        if channels[seat - 1].status == "active" or any(channel.status == "active" for channel in channels):
            if self._budget_left == 0:
                self.outcome = Outcome("deal" if self._sales else "no_deal", "messages_exhausted", None, self._sales)
        else:
            self.outcome = Outcome("deal" if self._sales else "no_deal", "all_inactive", None, self._sales)
