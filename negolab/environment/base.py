"""The shapes that environments, players and records share.

Plain named tuples: they are made several times per turn, and they cannot be changed by whoever receives them.
A seat is an integer: 0 is the seller, 1..N are the buyers.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from negolab.catalog import Listing, Product

SELLER = 0
BUYER = 1
"""The only buyer's seat in the bilateral game."""
ABORTS = ("context_limit", "timeout")
"""Kinds of ``Violation`` that break no rule: the seat could not speak. They end the episode as ``aborted``."""


class Move(NamedTuple):
    """A well-formed reply. ``price`` is in cents, None for QUIT and REJECT; ``target`` is a buyer, None in a reply that
    has no such part."""

    verb: str
    """``SELL``, ``BUY``, ``DEAL``, ``QUIT``, and where the bilateral game has it ``REJECT``."""
    price: int | None
    target: int | None
    talk: str
    text: str
    """The reply as it was written, thinking block cut; the author's own later view keeps it."""
    fallback: bool = False
    """Made by the opponent guard after too many illegal replies, not by the player."""


class Violation(NamedTuple):
    """A reply that breaks a rule. Data, never an exception."""

    kind: str
    """Seller: ``format``, ``target``, ``deal``, ``below_cost``, ``truncated``. Buyer: ``format``, ``truncated``,
    ``opening``, ``budget``, ``deal``. Either: one of ``ABORTS``, where there was no reply to judge."""
    detail: str
    text: str


class Said(NamedTuple):
    """The public part of one turn: what the other end of a channel may know. Never a Thought.

    It carries no turn number: the seller's running count would tell a buyer how much the seller talks to others. Who
    sees the whole market can count (``turn_labels``).
    """

    seat: int
    buyer: int
    """The channel: which buyer spoke or was spoken to."""
    verb: str
    price: int | None
    talk: str


class Channel(NamedTuple):
    """Public state of one buyer's channel as the seller knows it (section 3.1)."""

    status: str
    """``active``, ``quit`` or ``capped``."""
    sent: int
    """u_i, the seller messages this buyer has had."""
    bids: tuple[int, ...]
    """Every [BUY] price of this buyer in cents, oldest first; while active each may be accepted."""
    asks: tuple[int, ...]
    """Every [SELL] price sent to this buyer in cents, oldest first."""


class SellerView(NamedTuple):
    """All that the seller may see."""

    product: Product
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


class BuyerView(NamedTuple):
    """All that one buyer may see: its own channel and its own budget."""

    listing: Listing
    budget: int
    per_buyer_cap: int
    opening: int | None
    """The regulated first offer, in cents, that the first reply had or has to make; None where openings are free."""
    heard: tuple[Said, ...]
    own: tuple[str, ...]


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


class Request(NamedTuple):
    """One seat must speak now. Nothing in it tells of another seat: its seeds are the seat's own."""

    episode: int
    """The episode's place in the run: a label for caches and records, drawn from nothing."""
    seat: int
    view: SellerView | BuyerView | BilateralView
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
    price: int | None
    text: str
    violation: str | None = None
    detail: str = ""
    fallback: bool = False


class Outcome(NamedTuple):
    """How an episode ended; the only source of reward."""

    kind: str
    """``deal``, ``no_deal``, ``violation`` or ``aborted``."""
    reason: str
    """``seller_deal``, ``buyer_deal``, ``seller_quit``, ``all_inactive``, ``messages_exhausted``, in the bilateral game
    ``buyer_quit`` and ``turns_exhausted``; or the kind of a violation; for ``aborted`` one of ``ABORTS``."""
    price: int | None = None
    buyer: int | None = None
    """Who bought, or, for a violation, None."""
    seat: int | None = None
    """Who closed, violated or could not speak."""


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

    def check(self, seat: int, move: Move) -> Violation | None:
        """Would this move break a rule now? Changes nothing."""
        ...

    def fallback(self, seat: int) -> Move:
        """What the opponent guard plays for a seat that is not the learner's and keeps breaking the rules."""
        ...

    def submit(self, replies: Mapping[int, Move | Violation]) -> list[Turn]:
        """Apply one reply per requested seat. Raises ``ValueError`` when the seats are not the requested ones."""
        ...
