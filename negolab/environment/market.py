"""One seller, N sealed buyers, one item: the concurrent market of 2607.05863, section 3.1 and equation (1)'s clauses.

Rules that the paper leaves open, as read here:

* Only seller messages count towards K and T; openings are free; an accepting ``[DEAL]`` is a message.
* A buyer still answers the K-th (or T-th) message. If it answers ``[BUY]`` the bid is recorded, then the channel is
  capped (or the episode over), so that bid can never be accepted; the buyer's own ``[DEAL]`` can still close.
* A seller's ``[DEAL]`` must equal, to the cent, one of the active targeted buyer's own bids, not only the last.
* A price below cost is ``below_cost`` whatever else is wrong with it (clause i comes first).
* A buyer's ``[DEAL]`` must equal the latest ask it got and fit its budget; its first reply must be a ``[BUY]``.
* A buyer's ``[QUIT]`` closes its own channel only, also on its K-th message (status quit, not capped).
"""

from collections.abc import Mapping, Sequence

from negolab.environment.base import (
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
_SEAT_STRIDE = 0xD1342543DE82EF95  # any large odd number: the seats' streams must not run into each other
_SELLER_ONLY: dict[int, None] = {SELLER: None}
# A named tuple's own constructor is a Python function; several are made per turn, so they are made the short way.
_new = tuple.__new__


def check_seller(move: Move, channels: Sequence[Channel], cost_cents: int) -> Violation | None:
    """Which clause of equation (1) a well-formed seller's move breaks: ``target``, ``below_cost``, ``deal`` or none."""
    verb, price, target = move.verb, move.price, move.target
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
        return Violation("below_cost", f"[{verb}] {dollars(price)} is below the cost {dollars(cost_cents)}", move.text)
    if verb == "DEAL" and price not in channel.bids:
        bids = ", ".join(map(dollars, channel.bids)) or "none"
        return Violation("deal", f"{dollars(price)} is none of Buyer {target}'s bids ({bids})", move.text)
    return None


class Market:
    """A single-use episode; see the module's docstring for the rules."""

    __slots__ = (
        "_awaiting",
        "_budget_left",
        "_channels",
        "_constants",
        "_heard",
        "_own",
        "_said",
        "_scenario",
        "_turn",
        "outcome",
    )

    def __init__(self, scenario: Scenario) -> None:
        n = scenario.n_buyers
        self._scenario = scenario
        self._constants = (scenario.product, scenario.per_buyer_cap, scenario.message_budget)
        self._channels = [_NEW_CHANNEL] * n
        self._budget_left = scenario.message_budget
        self._turn = 1
        self._heard: tuple[Said, ...] = ()
        self._said: list[tuple[Said, ...]] = [()] * (n + 1)
        self._own: list[tuple[str, ...]] = [()] * (n + 1)
        self._awaiting: dict[int, None] = dict.fromkeys(range(1, n + 1))
        self.outcome: Outcome | None = None

    # -- what a seat may see ------------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """The N buyers at the opening, then the seller and the buyer it targeted, in turn."""
        if self.outcome is not None:
            return []
        scenario, own = self._scenario, self._own
        if self._awaiting is _SELLER_ONLY:
            mine, key = own[SELLER], scenario.key
            shown = (*self._constants, self._turn, self._budget_left, tuple(self._channels), self._heard, mine)
            request = (scenario.episode, SELLER, _new(SellerView, shown), mix(key + len(mine)), key, 0, "")
            return [_new(Request, request)]
        listing, openings, made = scenario.product.listing, scenario.openings, []
        for seat in self._awaiting:
            mine, key = own[seat], scenario.key + seat * _SEAT_STRIDE
            opening = None if openings is None else openings[seat - 1]
            shown = (listing, scenario.budgets[seat - 1], scenario.per_buyer_cap, opening, self._said[seat], mine)
            request = (scenario.episode, seat, _new(BuyerView, shown), mix(key + len(mine)), key, 0, "")
            made.append(_new(Request, request))
        return made

    # -- rules --------------------------------------------------------------------------------------------------

    def check(self, seat: int, move: Move) -> Violation | None:
        """Which rule ``move`` would break if ``seat`` made it now; None if legal."""
        if move.fallback:
            return None
        return self._judge_seller(move) if seat == SELLER else self._check_buyer(seat, move)

    def _judge_seller(self, move: Move) -> Violation | None:
        return check_seller(move, self._channels, self._scenario.product.cost_cents)

    def _check_buyer(self, seat: int, move: Move) -> Violation | None:
        verb, price = move.verb, move.price
        s = self._scenario
        if not self._own[seat]:
            if verb != "BUY":
                return Violation("opening", f"the first action must be [BUY], not [{verb}]", move.text)
            if s.openings is not None and price != s.openings[seat - 1]:
                return Violation("opening", f"the first offer is fixed at {dollars(s.openings[seat - 1])}", move.text)
        if price is not None:
            if price > s.budgets[seat - 1]:
                return Violation("budget", f"{dollars(price)} is over the budget", move.text)
            if verb == "DEAL":
                asks = self._channels[seat - 1].asks
                if not asks or price != asks[-1]:
                    latest = dollars(asks[-1]) if asks else "none"
                    return Violation("deal", f"{dollars(price)} is not the seller's latest offer ({latest})", move.text)
        return None

    def fallback(self, seat: int) -> Move:
        """What the opponent guard plays for a buyer that keeps breaking the rules: its previous bid again, at the
        opening the regulated price, and ``[QUIT]`` where it has neither."""
        channel, s = self._channels[seat - 1], self._scenario
        if channel.bids:
            return Move("BUY", channel.bids[-1], None, "", "", True)
        if s.openings is not None:
            return Move("BUY", s.openings[seat - 1], None, "", "", True)
        return Move("QUIT", None, None, "", "", True)

    # -- transitions --------------------------------------------------------------------------------------------

    def submit(self, replies: Mapping[int, Move | Violation]) -> list[Turn]:
        """Apply the replies in seat order. The first violation ends the episode."""
        if self.outcome is not None:
            raise ValueError("the episode is over")
        if replies.keys() != self._awaiting.keys():
            raise ValueError(f"replies for seats {sorted(replies)}, expected {sorted(self._awaiting)}")
        if SELLER in self._awaiting:
            return [self._seller_turn(replies[SELLER])]
        turns = []
        for seat in self._awaiting:
            turns.append(self._buyer_turn(seat, replies[seat]))
            if self.outcome is not None:
                return turns
        self._settle()
        return turns

    def _violation(self, turn: int, seat: int, found: Violation) -> Turn:
        self.outcome = Outcome("violation", found.kind, seat=seat)
        return Turn(turn, seat, None, None, None, found.text, found.kind, found.detail)

    def _seller_turn(self, reply: Move | Violation) -> Turn:
        turn = self._turn
        found = reply if isinstance(reply, Violation) else self._judge_seller(reply)
        if found is not None:
            return self._violation(turn, SELLER, found)
        assert isinstance(reply, Move)
        verb, price, target = reply.verb, reply.price, reply.target
        self._own[SELLER] += (reply.text,)
        if verb == "QUIT":
            self.outcome = Outcome("no_deal", "seller_quit", seat=SELLER)
            return Turn(turn, SELLER, target, verb, None, reply.text)
        assert target is not None and price is not None
        self._budget_left -= 1
        self._turn += 1
        status, sent, bids, asks = self._channels[target - 1]
        if verb == "DEAL":
            self._channels[target - 1] = Channel(status, sent + 1, bids, asks)
            self.outcome = Outcome("deal", "seller_deal", price, target, SELLER)
            return Turn(turn, SELLER, target, verb, price, reply.text)
        self._channels[target - 1] = _new(Channel, (status, sent + 1, bids, (*asks, price)))
        said = _new(Said, (SELLER, target, verb, price, reply.talk))
        self._heard += (said,)
        self._said[target] += (said,)
        self._awaiting = {target: None}
        return _new(Turn, (turn, SELLER, target, verb, price, reply.text, None, "", False))

    def _buyer_turn(self, seat: int, reply: Move | Violation) -> Turn:
        turn = self._turn
        found = reply if isinstance(reply, Violation) else self.check(seat, reply)
        if found is not None:
            return self._violation(turn, seat, found)
        assert isinstance(reply, Move)
        verb, price = reply.verb, reply.price
        status, sent, bids, asks = self._channels[seat - 1]
        self._own[seat] += (reply.text,)
        if verb == "BUY":
            assert price is not None
            bids = (*bids, price)
            if sent >= self._scenario.per_buyer_cap:
                status = "capped"
        elif verb == "QUIT":
            status = "quit"
        else:
            self.outcome = Outcome("deal", "buyer_deal", price, seat, seat)
        self._channels[seat - 1] = _new(Channel, (status, sent, bids, asks))
        said = _new(Said, (seat, seat, verb, price, reply.talk))
        self._heard += (said,)
        self._said[seat] += (said,)
        return _new(Turn, (turn, seat, seat, verb, price, reply.text, None, "", reply.fallback))

    def _settle(self) -> None:
        self._awaiting = _SELLER_ONLY
        for channel in self._channels:
            if channel.status == "active":
                if self._budget_left == 0:
                    self.outcome = Outcome("no_deal", "messages_exhausted")
                return
        self.outcome = Outcome("no_deal", "all_inactive")
