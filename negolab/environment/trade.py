"""Bilateral trade with private information, by tool calls (2604.16472, sections 2 to 4 and appendix, table 9).

The seller begins, then the sides take turns, at most ``message_budget`` of them in all (the paper's rounds: one side's
turn each). A turn is a few tool calls; they take effect in order, and what they tell the other side is delivered as one
batch. A reply that cannot be read, or a call that makes no sense, is lost and counted, and ends nothing.

Rules that the paper leaves open, as read here:

* ``make_offer`` replaces one's own pending offer and rejects the other side's, so that at most one offer is pending.
* ``respond_to_offer(True)`` closes at the pending price. Without a pending offer either answer is lost
  (``no_pending_offer``).
* A turn without a terminal tool passes like one that ends with ``wait_for_response``.
* ``search_price`` tells its caller the lowest and highest price, once and for all. Where the first search is all that
  took effect in a turn that does not end with a terminal tool, the same side goes on in the same round, since the
  answer is what it asked for; later ones pass the turn.
* After ``wait_for_time_period`` the same side speaks again, in a new round.
* Deals at a loss are legal: that a side agreed to one is a metric.
* The simulated clock only orders and dates what is told: a batch arrives 0.5 to 2 seconds after its turn began, drawn
  from the side's own word, a waiting side's next turn begins when its time is over.
* A turn's record names its first problem, those of the reply before those of the rules; its detail tells of the others.
* No view tells the listing's price, which is here the highest of the item's history: it reads 0.
* A side that could not speak (its model's context is full, no answer came in time) ends the game as ``aborted``.
"""

from collections.abc import Mapping
from dataclasses import replace

from negolab.environment.base import (
    ABORTS,
    BUYER,
    SELLER,
    Calls,
    Event,
    Move,
    Outcome,
    Request,
    Sale,
    Taken,
    TradeView,
    Turn,
    Violation,
)
from negolab.scenario import Scenario
from negolab.seeds import mix, uniform

_DELAY = 0xC10C_0F_7A1E  # keeps the clock's numbers apart from the replies' seeds


class Trade:
    """A single-use episode; see the module's docstring for the rules."""

    __slots__ = (
        "_heard",
        "_listing",
        "_now",
        "_own",
        "_pending",
        "_round",
        "_scenario",
        "_searched",
        "_speaker",
        "_speakers",
        "_taken",
        "outcome",
    )

    def __init__(self, scenario: Scenario) -> None:
        if scenario.n_buyers != 1 or scenario.reserve is None:
            raise ValueError("the trade game has one buyer, and a seller with a reservation price")
        self._scenario = scenario
        self._listing = replace(scenario.product.listing, list_cents=0)
        self._round = 1
        self._speaker = SELLER
        self._now = 0.0
        self._pending: list[int | None] = [None, None]  # by seat: its offer that waits for an answer
        self._searched = [False, False]
        self._heard: tuple[tuple[Event, ...], ...] = ()
        self._speakers: tuple[int, ...] = ()
        self._own: list[tuple[str, ...]] = [(), ()]
        self._taken: list[tuple[Taken, ...]] = [(), ()]
        self.outcome: Outcome | None = None

    def requests(self) -> list[Request]:
        """The side whose turn it is; empty once there is an outcome."""
        if self.outcome is not None:
            return []
        seat, scenario = self._speaker, self._scenario
        mine, key, product = self._own[seat], scenario.keys[seat], scenario.product
        assert scenario.reserve is not None
        view = TradeView(
            seat=seat,
            listing=self._listing,
            limit=scenario.reserve if seat == SELLER else scenario.valuations[0][0],
            max_rounds=scenario.message_budget,
            round=self._round,
            pending=self._pending[1 - seat],
            mine=self._pending[seat],
            history=(product.cost_cents, product.listing.list_cents) if self._searched[seat] else None,
            heard=self._heard,
            speakers=self._speakers,
            own=mine,
            taken=self._taken[seat],
            now=self._now,
        )
        return [Request(scenario.episode, seat, view, mix(key + len(mine)), key)]

    def check(self, seat: int, move: Calls) -> Violation | None:
        """None: no reply is refused, both sides are under test."""
        return None

    def fallback(self, seat: int) -> Move:
        """Raises ``ValueError``: nobody is played for."""
        raise ValueError("nobody is played for in the trade game")

    def submit(self, replies: Mapping[int, Calls | Violation]) -> list[Turn]:
        """Apply the reply of the side whose turn it is."""
        if self.outcome is not None:
            raise ValueError("the episode is over")
        seat = self._speaker
        reply = replies.get(seat)
        if reply is None or len(replies) != 1:
            raise ValueError(f"replies for seats {sorted(replies)}, expected [{seat}]")
        if isinstance(reply, Violation):
            if reply.kind not in ABORTS:
                raise ValueError(f"a reply of the trade game is never a violation ({reply.kind})")
            self.outcome = Outcome("aborted", reply.kind, seat)
            return [Turn(self._round, seat, BUYER, None, (), reply.text, reply.kind, reply.detail)]
        return [self._turn(seat, reply)]

    def _turn(self, seat: int, reply: Calls) -> Turn:
        other, turn = 1 - seat, self._round
        key = mix(self._scenario.keys[seat] ^ _DELAY)
        at = round(self._now + 0.5 + 1.5 * uniform(key, len(self._own[seat])), 3)
        batch: list[Event] = []
        done: list[str] = []
        offered: int | None = None
        problems = list(reply.problems)
        wait, again = 0.0, False
        for call in reply.calls:
            if call.tool == "make_offer" and call.price is not None:
                self._pending[other], self._pending[seat] = None, call.price
                offered = call.price
                batch.append(Event(at, seat, "offer", call.price, call.text))
                done.append("offer")
            elif call.tool == "respond_to_offer":
                price = self._pending[other]
                if price is None:
                    problems.append(("no_pending_offer", "there is no offer to answer"))
                    continue
                kind = "accept" if call.answer else "reject"
                self._pending[other] = None
                batch.append(Event(at, seat, kind, price, ""))
                done.append(kind)
                if call.answer:
                    reason = "seller_deal" if seat == SELLER else "buyer_deal"
                    self.outcome = Outcome("deal", reason, seat, (Sale(1, BUYER, price, seat),))
                    break
            elif call.tool == "send_message":
                batch.append(Event(at, seat, "message", None, call.text))
                done.append("message")
            elif call.tool == "search_price":
                again = again or not self._searched[seat]
                self._searched[seat] = True
                done.append("search")
            elif call.tool == "quit_negotiation":
                self.outcome = Outcome("no_deal", "seller_quit" if seat == SELLER else "buyer_quit", seat)
                batch.append(Event(at, seat, "quit", None, ""))
                done.append("quit")
                break
            elif call.tool == "wait_for_time_period":
                wait = call.seconds
                batch.append(Event(at, seat, "wait", None, ""))
                done.append("wait")
                break
            else:  # wait_for_response
                again = False
                break
        self._own[seat] += (reply.text,)
        self._taken[seat] += (Taken(turn, self._now, tuple(problems), "search" in done, wait),)
        self._heard += (tuple(batch),)
        self._speakers += (seat,)
        self._pass(seat, at, wait, again and set(done) == {"search"})
        violation, detail = problems[0] if problems else (None, "")
        detail = "; ".join([detail, *[f"{kind}: {more}" for kind, more in problems[1:]]])
        offers = () if offered is None else ((1, offered),)
        return Turn(turn, seat, BUYER, "+".join(done) or None, offers, reply.text, violation, detail)

    def _pass(self, seat: int, at: float, wait: float, again: bool) -> None:
        """Whose turn is next, and when."""
        self._now = at + wait
        if self.outcome is not None or again:
            return
        if self._round >= self._scenario.message_budget:
            self.outcome = Outcome("no_deal", "turns_exhausted")
            return
        self._round += 1
        if not wait:
            self._speaker = 1 - seat
