"""One buyer, one regulated seller, one item, a few turns: the game in which a buyer is trained (2604.09855).

A turn is one message of the buyer and one of the seller; the buyer speaks first. Sources: the paper as its successor
2607.05863 (section 11.1) and the benchmark under both describe it. Rules that these leave open, as read here:

* A ``[DEAL]`` must equal, to the cent, an offer that the other side has made, the latest or an earlier one (the
  benchmark's rule, without its tolerance of one cent: money is whole cents here).
* A price over the budget is ``budget`` even where it would also be no offer of the seller, whose own prices below cost
  are ``below_cost`` in the same way.
* The buyer's first action is a ``[BUY]``. Its ``[QUIT]`` is legal at any time: the reward names it, 0, not a violation.
* ``[REJECT]``, where the game has it, turns the other side's offers down and names no price; somebody must have made
  one. The other side's offers stay open for a ``[DEAL]`` all the same.
* After the seller's message in the last turn nobody speaks any more: an ask in it cannot be accepted.
* "Regulated" is read as in the successor paper: a seller's reply that is malformed, below cost or no legal deal is
  asked again by whoever plays the game, at last replaced by ``fallback``. Only the buyer can violate.
* A violating move that could be read keeps its verb and price in the record: a bid over the budget is still a bid.
* A seat that could not speak ends the episode as ``aborted``, as in the market.
"""

from collections.abc import Mapping

from negolab.environment.base import (
    ABORTS,
    BUYER,
    SELLER,
    BilateralView,
    Move,
    Outcome,
    Request,
    Said,
    Sale,
    Turn,
    Violation,
)
from negolab.money import dollars
from negolab.scenario import Scenario
from negolab.seeds import mix


class Bilateral:
    """A single-use episode; see the module's docstring for the rules."""

    __slots__ = ("_heard", "_offers", "_own", "_scenario", "_speaker", "_turn", "outcome")

    def __init__(self, scenario: Scenario) -> None:
        if scenario.n_buyers != 1:
            raise ValueError(f"a bilateral game with {scenario.n_buyers} buyers")
        self._scenario = scenario
        self._turn = 1
        self._speaker = BUYER
        self._heard: tuple[Said, ...] = ()
        self._own: list[tuple[str, ...]] = [(), ()]  # by seat
        self._offers: list[tuple[int, ...]] = [(), ()]  # by seat, every [SELL] or [BUY] price in cents
        self.outcome: Outcome | None = None

    def requests(self) -> list[Request]:
        """The seat whose message is next; empty once there is an outcome."""
        if self.outcome is not None:
            return []
        seat, scenario = self._speaker, self._scenario
        mine, key = self._own[seat], scenario.keys[seat]
        view = BilateralView(
            seat=seat,
            listing=scenario.product.listing,
            limit=scenario.product.cost_cents if seat == SELLER else scenario.budgets[0],
            max_turns=scenario.message_budget,
            turn=self._turn,
            reject=scenario.reject,
            persona=scenario.persona if seat == SELLER else "",
            heard=self._heard,
            own=mine,
        )
        return [Request(scenario.episode, seat, view, mix(key + len(mine)), key)]

    def check(self, seat: int, move: Move) -> Violation | None:
        """Which rule ``move`` would break if ``seat`` made it now; None if legal."""
        if move.fallback:
            return None
        verb, price = move.verb, move.price
        other = BUYER if seat == SELLER else SELLER
        if seat == BUYER and not self._own[BUYER] and verb not in ("BUY", "QUIT"):
            return Violation("opening", f"the first action must be [BUY], not [{verb}]", move.text)
        if verb == "REJECT" and not self._offers[other]:
            return Violation("deal", "[REJECT] although the other side has made no offer", move.text)
        if price is None:
            return None
        if seat == SELLER:
            cost = self._scenario.product.cost_cents
            if price < cost:
                what = f"[{verb}] {dollars(price)} is below the cost {dollars(cost)}"
                return Violation("below_cost", what, move.text)
        elif price > self._scenario.budgets[0]:
            return Violation("budget", f"{dollars(price)} is over the budget", move.text)
        if verb == "DEAL" and price not in self._offers[other]:
            offers = ", ".join(map(dollars, self._offers[other])) or "none"
            return Violation("deal", f"{dollars(price)} is none of the other side's offers ({offers})", move.text)
        return None

    def fallback(self, seat: int) -> Move:
        """What is played for a seller that keeps breaking the rules: its latest ask again; before it has made one, the
        list price, or its cost where that is higher. Never below cost. Raises ``ValueError`` for the buyer."""
        if seat != SELLER:
            raise ValueError("the bilateral game's buyer is never played for")
        asks, product = self._offers[SELLER], self._scenario.product
        price = asks[-1] if asks else max(product.listing.list_cents, product.cost_cents)
        return Move("SELL", ((1, price),), None, "", "", True)

    def submit(self, replies: Mapping[int, Move | Violation]) -> list[Turn]:
        """Apply the reply of the seat that was asked. A violation ends the episode."""
        if self.outcome is not None:
            raise ValueError("the episode is over")
        seat, turn = self._speaker, self._turn
        reply = replies.get(seat)
        if reply is None or len(replies) != 1:
            raise ValueError(f"replies for seats {sorted(replies)}, expected [{seat}]")
        found = reply if isinstance(reply, Violation) else self.check(seat, reply)
        if found is not None:
            self.outcome = Outcome("aborted" if found.kind in ABORTS else "violation", found.kind, seat)
            verb, offers = (reply.verb, reply.offers) if isinstance(reply, Move) else (None, ())
            return [Turn(turn, seat, BUYER, verb, offers, found.text, found.kind, found.detail)]
        assert isinstance(reply, Move)
        verb, offers, _, talk, text, fallback = reply
        self._own[seat] += (text,)
        self._heard += (Said(seat, BUYER, verb, offers, talk),)
        if verb == "DEAL":
            sale = Sale(1, BUYER, offers[0][1], seat)
            self.outcome = Outcome("deal", "seller_deal" if seat == SELLER else "buyer_deal", seat, (sale,))
        elif verb == "QUIT":
            self.outcome = Outcome("no_deal", "seller_quit" if seat == SELLER else "buyer_quit", seat)
        elif seat == SELLER and turn == self._scenario.message_budget:
            self.outcome = Outcome("no_deal", "turns_exhausted")
        if offers:
            self._offers[seat] += (offers[0][1],)
        if seat == SELLER:
            self._turn, self._speaker = turn + 1, BUYER
        else:
            self._speaker = SELLER
        return [Turn(turn, seat, BUYER, verb, offers, text, None, "", fallback)]
