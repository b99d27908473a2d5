"""The shapes that environments, players and records share.

Plain named tuples: they are made several times per turn, and they cannot be changed by whoever receives them.
A seat is an integer: 0 is the seller, 1..N are the buyers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from negolab.catalog import Listing, Product

SELLER = 0
BUYER = 1
"""The only buyer's seat in the bilateral game."""
ABORTS = ("context_limit", "timeout")
"""Kinds of ``Violation`` that break no rule: the seat could not speak. They end the episode as ``aborted``."""

Offer = tuple[int, int]
"""An item, counted from 1, and a price in cents."""
Offers = tuple[Offer, ...]


def item_name(item: int) -> str:
    """What an item is called where there are several: ``Item_1``."""
    return f"Item_{item}"


def _only(offers: Offers) -> int | None:
    return offers[0][1] if len(offers) == 1 else None


class Move(NamedTuple):
    """A well-formed reply. ``target`` is a buyer, None in a reply that has no such part."""

    verb: str
    """``SELL``, ``BUY``, ``DEAL``, ``QUIT``, and where the bilateral game has it ``REJECT``."""
    offers: Offers
    """The items that are named, each with its price: one for ``DEAL``, one or more for ``SELL`` and ``BUY``, none for
    ``QUIT`` and ``REJECT``. Where there is only one item it is item 1."""
    target: int | None
    talk: str
    text: str
    """The reply as it was written, thinking block cut; the author's own later view keeps it."""
    fallback: bool = False
    """Made by the opponent guard after too many illegal replies, not by the player."""

    @property
    def price(self) -> int | None:
        """Cents of the only offer; None where there is none, or several."""
        return _only(self.offers)


class Violation(NamedTuple):
    """A reply that breaks a rule. Data, never an exception."""

    kind: str
    """Seller: ``format``, ``target``, ``item``, ``below_cost``, ``deal``, ``truncated``. Buyer: ``format``,
    ``truncated``, ``item``, ``opening``, ``budget``, ``deal``. Either: one of ``ABORTS``, where there was no reply to
    judge."""
    detail: str
    text: str


class Call(NamedTuple):
    """One tool call of the trade game (2604.16472, table 9)."""

    tool: str
    """One of ``TOOLS``."""
    price: int | None = None
    """``make_offer``: cents."""
    answer: bool | None = None
    """``respond_to_offer``: True accepts."""
    text: str = ""
    """``send_message``: its content; ``make_offer``: the side offer."""
    seconds: float = 0.0
    """``wait_for_time_period``: how long."""


TOOLS = (
    "make_offer",
    "respond_to_offer",
    "send_message",
    "search_price",
    "quit_negotiation",
    "wait_for_response",
    "wait_for_time_period",
)
"""The tools of the trade game."""
MAX_CALLS = 3
"""Tool calls of one turn."""


class Calls(NamedTuple):
    """A reply of the trade game as it was read, well formed or not: what is wrong with it is lost, and ends nothing."""

    calls: tuple[Call, ...]
    """Those that take effect, in order; at most ``MAX_CALLS``."""
    problems: tuple[tuple[str, str], ...]
    """Kind and detail of whatever was wrong: ``unparseable``, ``truncated``, ``unknown_tool``, ``bad_argument``,
    ``too_many_calls``, ``after_terminal``."""
    text: str
    """The reply as it was written, thinking block cut; the author's own later view keeps it."""


class Event(NamedTuple):
    """What one side of the trade game did and the other is told. Never a Thought, and no search."""

    time: float
    """Simulated seconds since the beginning."""
    seat: int
    kind: str
    """``offer``, ``accept``, ``reject``, ``message``, ``quit`` or ``wait``."""
    price: int | None
    """Cents."""
    text: str


class Sale(NamedTuple):
    """One closed deal."""

    item: int
    buyer: int
    price: int
    """Cents."""
    seat: int
    """Who closed: 0 where the seller accepted a bid, else the buyer who took its offer."""


class Said(NamedTuple):
    """The public part of one turn: what the other end of a channel may know. Never a Thought.

    It carries no turn number: the seller's running count would tell a buyer how much the seller talks to others. Who
    sees the whole market can count (``turn_labels``).
    """

    seat: int
    buyer: int
    """The channel: which buyer spoke or was spoken to."""
    verb: str
    offers: Offers
    talk: str

    @property
    def price(self) -> int | None:
        """Cents of the only offer; None where there is none, or several."""
        return _only(self.offers)


class Channel(NamedTuple):
    """Public state of one buyer's channel as the seller knows it (section 3.1)."""

    status: str
    """``active``, ``quit``, ``capped`` or ``bought``."""
    sent: int
    """u_i, the seller messages this buyer has had."""
    bids: Offers
    """Every offer of this buyer's [BUY]s, oldest first; while it is active each on an unsold item may be accepted."""
    asks: Offers
    """Every offer of the [SELL]s sent to this buyer, oldest first."""


class SellerView(NamedTuple):
    """All that the seller may see."""

    items: tuple[Product, ...]
    """What is on sale; item 1 comes first."""
    per_buyer_cap: int
    message_budget: int
    turn: int
    """Number of the message the seller is about to send, from 1."""
    messages_left: int
    channels: tuple[Channel, ...]
    heard: tuple[Said, ...]
    """All turns so far, buyers' and own, public parts only."""
    own: tuple[str, ...]
    """The seller's own replies in full."""
    sales: tuple[Sale, ...] = ()
    """Deals so far, oldest first."""
    protocol: str = "lines"
    """How replies are written: ``lines`` or ``tags``."""

    @property
    def product(self) -> Product:
        """Item 1, where that is all there is."""
        return self.items[0]


class BuyerView(NamedTuple):
    """All that one buyer may see: its own channel and its own valuations. It is not told what others bought."""

    listings: tuple[Listing, ...]
    """What is on sale, or was at the beginning; item 1 comes first."""
    budgets: tuple[int, ...]
    """What each item is worth to it, in cents: the most it may pay."""
    per_buyer_cap: int
    openings: tuple[int, ...] | None
    """The regulated first offer: for each item the price in cents at which the first reply has to name it, if it names
    it. None where openings are free."""
    heard: tuple[Said, ...]
    own: tuple[str, ...]
    protocol: str = "lines"
    """How replies are written: ``lines`` or ``tags``."""

    @property
    def listing(self) -> Listing:
        """Item 1, where that is all there is."""
        return self.listings[0]

    @property
    def budget(self) -> int:
        """The budget for item 1, where that is all there is."""
        return self.budgets[0]

    @property
    def opening(self) -> int | None:
        """The regulated first offer for item 1, where that is all there is."""
        return None if self.openings is None else self.openings[0]


class BilateralView(NamedTuple):
    """All that one side of the bilateral game may see. The two sides are mirror images, so one shape serves both."""

    seat: int
    """``SELLER`` or ``BUYER``."""
    listing: Listing
    limit: int
    """The seat's own secret in cents: the seller's cost, or the buyer's budget."""
    max_turns: int
    turn: int
    """Number of the turn the next message belongs to, from 1."""
    reject: bool
    """Whether ``[REJECT]`` is an action."""
    persona: str
    """How the seller is to behave; empty for the buyer, who is not told."""
    heard: tuple[Said, ...]
    """All messages so far, both sides', public parts only."""
    own: tuple[str, ...]
    """The seat's own replies in full."""


class Taken(NamedTuple):
    """One of a side's own turns of the trade game, as far as what was said does not tell of it: its own affair."""

    round: int
    """Number of the turn, both sides' counted, from 1; the same twice where a search let the side go on."""
    time: float
    """Simulated seconds when it began."""
    problems: tuple[tuple[str, str], ...]
    """Kind and detail of whatever was wrong with the reply, the rules' verdicts included."""
    searched: bool
    """Whether it called ``search_price``."""
    waited: float
    """Seconds that it let pass by ``wait_for_time_period``; 0 where it did not."""


class TradeView(NamedTuple):
    """All that one side of the trade game may see."""

    seat: int
    """``SELLER`` or ``BUYER``."""
    listing: Listing
    """Title, description and category; its price is no part of what the sides are told."""
    limit: int
    """The seat's own reservation price in cents."""
    max_rounds: int
    round: int
    """Number of this turn, both sides' turns counted, from 1."""
    pending: int | None
    """The other side's offer that waits for an answer, in cents."""
    mine: int | None
    """The seat's own offer that waits for one."""
    history: tuple[int, int] | None
    """The item's lowest and highest price so far in cents, once the seat has searched for them."""
    heard: tuple[tuple[Event, ...], ...]
    """What was done so far, a batch for each turn, both sides'; a turn that told nothing is an empty batch."""
    speakers: tuple[int, ...]
    """By turn: whose it was."""
    own: tuple[str, ...]
    """The seat's own replies in full."""
    taken: tuple[Taken, ...]
    """What else belongs to each of ``own``."""
    now: float
    """Simulated seconds since the beginning."""


class Request(NamedTuple):
    """One seat must speak now. Nothing in it tells of another seat: its seeds are the seat's own."""

    episode: int
    """The episode's place in the run: a label for caches and records, drawn from nothing."""
    seat: int
    view: SellerView | BuyerView | BilateralView | TradeView
    seed: int
    """64 random bits for this very reply: a function of the scenario, seat, turn and attempt."""
    seat_seed: int
    """Names this seat's stream for the whole episode (``negolab.seeds.uniform`` reads it): the same at every turn."""
    attempt: int = 0
    """0 at first, then counts re-asks by the opponent guard."""
    complaint: str = ""
    """Why the previous attempt was refused; empty at attempt 0."""


class Turn(NamedTuple):
    """One accepted or violating reply, labelled as in section 14: openings are turn 1, the seller's t-th message is
    turn t, and the answer to it is turn t + 1."""

    turn: int
    seat: int
    buyer: int | None
    verb: str | None
    offers: Offers
    text: str
    violation: str | None = None
    detail: str = ""
    fallback: bool = False

    @property
    def price(self) -> int | None:
        """Cents of the only offer; None where there is none, or several."""
        return _only(self.offers)


class Outcome(NamedTuple):
    """How an episode ended; the only source of reward."""

    kind: str
    """``deal`` (at least one), ``no_deal``, ``violation`` or ``aborted``."""
    reason: str
    """``seller_deal`` and ``buyer_deal`` where the only item is sold, ``sold_out`` where all of several are;
    ``seller_quit``, ``all_inactive``, ``messages_exhausted``, in the games of two ``buyer_quit`` and
    ``turns_exhausted``; or the kind of a violation; for ``aborted`` one of ``ABORTS``."""
    seat: int | None = None
    """Who closed, quit, violated or could not speak; None where messages or channels ran out."""
    sales: tuple[Sale, ...] = ()
    """Deals in the order in which they closed, also those before a violation."""

    @property
    def price(self) -> int | None:
        """Cents of the only deal; None where there is none, or several."""
        return self.sales[0].price if len(self.sales) == 1 else None

    @property
    def buyer(self) -> int | None:
        """Who bought, where there is one deal."""
        return self.sales[0].buyer if len(self.sales) == 1 else None


def turn_labels(heard: Sequence[Said]) -> list[int]:
    """Turn numbers of a whole market's turns in order, as section 14 labels them: openings are turn 1, the seller's
    t-th message is turn t, and the answer to it is turn t + 1."""
    labels, turn = [], 1
    for said in heard:
        labels.append(turn)
        turn += said.seat == SELLER
    return labels


class Environment(Protocol):
    """Rules of one episode: built from a scenario, played once, dropped."""

    outcome: Outcome | None

    def requests(self) -> list[Request]:
        """Every seat that must speak now, with what that seat may see; empty once there is an outcome."""
        ...

    def check(self, seat: int, move: Any) -> Violation | None:
        """Would this move (``Move``, or what the game has in its place) break a rule now? Changes nothing."""
        ...

    def fallback(self, seat: int) -> Move:
        """What the opponent guard plays for a seat that is not the learner's and keeps breaking the rules."""
        ...

    def submit(self, replies: Mapping[int, Any]) -> list[Turn]:
        """Apply one reply per requested seat. Raises ``ValueError`` when the seats are not the requested ones."""
        ...
