"""One seller, N sealed buyers, one item: the concurrent market of 2607.05863, section 3.1 and equation (1)'s clauses.

Rules that the paper leaves open, as read here:

* Only seller messages count towards K and T; openings are free; an accepting ``[DEAL]`` is a message.
* A buyer still answers the K-th (or T-th) message. If it answers ``[BUY]`` the bid is recorded, then the channel is
  capped (or the episode over), so that bid can never be accepted; the buyer's own ``[DEAL]`` can still close.
* A seller's ``[DEAL]`` must equal, to the cent, one of the active targeted buyer's own bids, not only the last.
* A message to a buyer that may not be addressed is ``target`` whatever it says; otherwise a price below cost is
  ``below_cost`` even where it would also be no bid of that buyer.
* A buyer's ``[DEAL]`` must equal the latest ask it got and fit its budget; its first reply must be a ``[BUY]``.
* A buyer's ``[QUIT]`` closes its own channel only, also on its K-th message (status quit, not capped).
* A seat that could not speak (its model's context is full, or its server gave no answer in time) ends the episode as
  ``aborted``, reward 0: no rule was broken, and nothing was sold.
"""

from collections.abc import Mapping, Sequence

from negolab.environment.base import (
    ABORTS,
    SELLER,
    BuyerView,
    Channel,
    Move,
    Outcome,
    Request,
    Said,
    SellerView,
    Turn,
    Violation,
)
from negolab.money import dollars
from negolab.scenario import Scenario
from negolab.seeds import mix

_NEW_CHANNEL = Channel("active", 0, (), ())
_EVERY_BUYER = -1  # who speaks at the opening; from then on one seat speaks at a time
# A named tuple's own constructor is a Python function; several are made per turn, so they are made the short way.
_new = tuple.__new__


def check_seller(move: Move, channels: Sequence[Channel], cost_cents: int) -> Violation | None:
    """Which clause of equation (1) a well-formed seller's move breaks: ``target``, ``below_cost``, ``deal`` or none."""
    price, target = move.price, move.target
    if target is None:
        return None
    if target > len(channels):
        return Violation("target", f"there is no Buyer {target} among {len(channels)}", move.text)
    channel = channels[target - 1]
    if channel.status != "active":
        return Violation("target", f"Buyer {target} is {channel.status}", move.text)
    if price is None:
        return None
    if price < cost_cents:
        what = f"[{move.verb}] {dollars(price)} is below the cost {dollars(cost_cents)}"
        return Violation("below_cost", what, move.text)
    if move.verb == "DEAL" and price not in channel.bids:
        bids = ", ".join(map(dollars, channel.bids)) or "none"
        return Violation("deal", f"{dollars(price)} is none of Buyer {target}'s bids ({bids})", move.text)
    return None


class Market:
    """A single-use episode; see the module's docstring for the rules."""

    __slots__ = (
        "_budget",
        "_budget_left",
        "_budgets",
        "_cap",
        "_channels",
        "_episode",
        "_heard",
        "_keys",
        "_legal",
        "_listing",
        "_openings",
        "_own",
        "_product",
        "_said",
        "_speaker",
        "_turn",
        "outcome",
    )

    def __init__(self, scenario: Scenario) -> None:
        self._episode, self._keys = scenario.episode, scenario.keys
        self._product, self._listing = scenario.product, scenario.product.listing
        self._cap, self._budget = scenario.per_buyer_cap, scenario.message_budget
        self._budgets, self._openings = scenario.budgets, scenario.openings
        n = len(scenario.budgets)
        self._channels = [_NEW_CHANNEL] * n
        self._budget_left = scenario.message_budget
        self._turn = 1
        self._heard: tuple[Said, ...] = ()
        self._said: list[tuple[Said, ...]] = [()] * (n + 1)
        self._own: list[tuple[str, ...]] = [()] * (n + 1)
        self._speaker = _EVERY_BUYER
        # Moves that ``check`` found legal since the seller last spoke: the same objects need no second look.
        self._legal: dict[int, Move] = {}
        self.outcome: Outcome | None = None

    # -- what a seat may see ------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """The N buyers at the opening, then the seller and the buyer it targeted, in turn."""
        if self.outcome is not None:
            return []
        speaker = self._speaker
        if speaker == SELLER:
            mine, key, channels = self._own[SELLER], self._keys[SELLER], tuple(self._channels)
            shown = (self._product, self._cap, self._budget, self._turn, self._budget_left, channels, self._heard, mine)
            request = (self._episode, SELLER, _new(SellerView, shown), mix(key + len(mine)), key, 0, "")
            return [_new(Request, request)]
        if speaker == _EVERY_BUYER:
            return [self._buyer_request(seat) for seat in range(1, len(self._budgets) + 1)]
        return [self._buyer_request(speaker)]

    def _buyer_request(self, seat: int) -> Request:
        mine, key = self._own[seat], self._keys[seat]
        opening = None if self._openings is None else self._openings[seat - 1]
        shown = (self._listing, self._budgets[seat - 1], self._cap, opening, self._said[seat], mine)
        return _new(Request, (self._episode, seat, _new(BuyerView, shown), mix(key + len(mine)), key, 0, ""))

    # -- rules --------------------------------------------------------------------------------------------------

    def check(self, seat: int, move: Move) -> Violation | None:
        """Which rule ``move`` would break if ``seat`` made it now; None if legal."""
        if move.fallback:
            return None
        if seat == SELLER:
            return check_seller(move, self._channels, self._product.cost_cents)
        verb, price = move.verb, move.price
        if not self._own[seat]:
            if verb != "BUY":
                return Violation("opening", f"the first action must be [BUY], not [{verb}]", move.text)
            if self._openings is not None and price != self._openings[seat - 1]:
                fixed = dollars(self._openings[seat - 1])
                return Violation("opening", f"the first offer is fixed at {fixed}", move.text)
        if price is not None:
            if price > self._budgets[seat - 1]:
                return Violation("budget", f"{dollars(price)} is over the budget", move.text)
            if verb == "DEAL":
                asks = self._channels[seat - 1].asks
                if not asks or price != asks[-1]:
                    latest = dollars(asks[-1]) if asks else "none"
                    return Violation("deal", f"{dollars(price)} is not the seller's latest offer ({latest})", move.text)
        self._legal[seat] = move
        return None

    def fallback(self, seat: int) -> Move:
        """What the opponent guard plays for a buyer that keeps breaking the rules: its previous bid again, at the
        opening the regulated price, and ``[QUIT]`` where it has neither."""
        bids = self._channels[seat - 1].bids
        if bids:
            return Move("BUY", bids[-1], None, "", "", True)
        if self._openings is not None:
            return Move("BUY", self._openings[seat - 1], None, "", "", True)
        return Move("QUIT", None, None, "", "", True)

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
        seats, turns = list(range(1, len(self._budgets) + 1)), []
        if sorted(replies) != seats:
            raise ValueError(f"replies for seats {sorted(replies)}, expected {seats}")
        for seat in seats:
            turns.append(self._buyer_turn(seat, replies[seat]))
            if self.outcome is not None:
                return turns
        self._settle(1)
        return turns

    def _violation(self, seat: int, found: Violation) -> Turn:
        self.outcome = Outcome("aborted" if found.kind in ABORTS else "violation", found.kind, seat=seat)
        return Turn(self._turn, seat, None, None, None, found.text, found.kind, found.detail)

    def _seller_turn(self, reply: Move | Violation) -> Turn:
        if isinstance(reply, Violation):
            return self._violation(SELLER, reply)
        found = check_seller(reply, self._channels, self._product.cost_cents)
        if found is not None:
            return self._violation(SELLER, found)
        turn = self._turn
        verb, price, target, talk, text, _ = reply
        self._own[SELLER] += (text,)
        if target is None or price is None:
            self.outcome = Outcome("no_deal", "seller_quit", seat=SELLER)
            return Turn(turn, SELLER, target, verb, None, text)
        self._budget_left -= 1
        self._turn = turn + 1
        status, sent, bids, asks = self._channels[target - 1]
        if verb == "DEAL":
            self._channels[target - 1] = Channel(status, sent + 1, bids, asks)
            self.outcome = Outcome("deal", "seller_deal", price, target, SELLER)
            return Turn(turn, SELLER, target, verb, price, text)
        self._channels[target - 1] = _new(Channel, (status, sent + 1, bids, (*asks, price)))
        said = (_new(Said, (SELLER, target, verb, price, talk)),)
        self._heard += said
        self._said[target] += said
        self._legal.clear()
        self._speaker = target
        return _new(Turn, (turn, SELLER, target, verb, price, text, None, "", False))

    def _buyer_turn(self, seat: int, reply: Move | Violation) -> Turn:
        if isinstance(reply, Violation):
            return self._violation(seat, reply)
        if self._legal.get(seat) is not reply:
            found = self.check(seat, reply)
            if found is not None:
                return self._violation(seat, found)
        verb, price, _, talk, text, fallback = reply
        status, sent, bids, asks = self._channels[seat - 1]
        if price is None:
            status = "quit"
        elif verb == "BUY":
            bids += (price,)
            if sent >= self._cap:
                status = "capped"
        else:
            self.outcome = Outcome("deal", "buyer_deal", price, seat, seat)
        self._channels[seat - 1] = _new(Channel, (status, sent, bids, asks))
        said = (_new(Said, (seat, seat, verb, price, talk)),)
        self._heard += said
        self._said[seat] += said
        self._own[seat] += (text,)
        return _new(Turn, (self._turn, seat, seat, verb, price, text, None, "", fallback))

    def _settle(self, seat: int) -> None:
        """The seller speaks next, if it can; ``seat`` is looked at first because it is nearly always active."""
        self._speaker = SELLER
        channels = self._channels
        if channels[seat - 1].status == "active" or any(channel.status == "active" for channel in channels):
            if self._budget_left == 0:
                self.outcome = Outcome("no_deal", "messages_exhausted")
        else:
            self.outcome = Outcome("no_deal", "all_inactive")
