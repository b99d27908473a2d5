"""What is said of an episode of the trade game as a whole (2604.16472): who could pay what, how it ended, and what both
sides got. ``whole`` says the same of markets."""

from collections.abc import Mapping

from negolab.environment.base import ABORTS, BUYER, SELLER, Turn
from negolab.episodes import Episode
from negolab.money import dollars
from negolab.reward import trade_parts, trade_reward
from negolab.transcripts.tables import Table
from negolab.transcripts.whole import NO_DEAL, player

_ROLES = {SELLER: "Seller", BUYER: "Buyer"}
_ABORTED = {"context_limit": "the conversation does not fit into its context", "timeout": "no reply came in time"}


def _limits(episode: Episode) -> tuple[int, int]:
    """The seller's and the buyer's reservation price in cents."""
    return episode.scenario.reserve or 0, episode.scenario.valuations[0][0]


def name_of(episode: Episode) -> str:
    """The item's codename."""
    return episode.scenario.product.listing.codename


def headline_of(episode: Episode) -> str:
    """The item's title."""
    return episode.scenario.product.listing.title


def listings_of(episode: Episode) -> list[tuple[str, str]]:
    """The item's title and description; empty where it has no description."""
    listing = episode.scenario.product.listing
    return [(listing.title, listing.description)] if listing.description else []


def facts(episode: Episode, kinds: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The game's constants as (name, value). ``kinds`` says of a player's name what it is."""
    s = episode.scenario
    reserve, value = _limits(episode)
    room = value - reserve
    why = "gains from trade" if room > 0 else "no gains from trade: no deal is rational"
    history = f"{dollars(s.product.cost_cents)} to {dollars(s.product.listing.list_cents)}"
    return [
        ("Prices", f"{history} so far (told to a side that searches)"),
        ("Room", f"{dollars(room)} (buyer's limit - seller's limit: {why})"),
        ("Limits", f"{s.message_budget} rounds, each one side's turn"),
        ("Game", f"{s.regime}, repetition {s.rep}"),
        ("Seller", player(episode.players[SELLER], kinds)),
        ("Buyer", player(episode.players[BUYER], kinds)),
    ]


def tables(episode: Episode) -> list[Table]:
    """What was hidden of both sides, and what each got."""
    reserve, value = _limits(episode)
    rows = []
    for seat, limit in ((SELLER, reserve), (BUYER, value)):
        parts = trade_parts(reserve, value, episode.outcome, episode.turns, seat)
        gain = "-" if episode.outcome.price is None else dollars(_gain(episode, seat))
        rows.append((_ROLES[seat], dollars(limit), gain, *(f"{part:.2f}" for part in parts), f"{sum(parts) / 4:.3f}"))
    columns = ("side", "own limit", "utility", "parsing", "execution", "constraints", "utility share", "reward")
    numbers = frozenset(range(1, len(columns)))
    return [Table("BOTH SIDES", "each knows its own limit only", columns, rows, by_buyer=False, numbers=numbers)]


def _gain(episode: Episode, seat: int) -> int:
    reserve, value = _limits(episode)
    price = episode.outcome.price or 0
    return price - reserve if seat == SELLER else value - price


def buyer_name(episode: Episode, buyer: int) -> str:
    """``Buyer (taper, hidden limit $38.37)``."""
    return f"Buyer ({episode.players[BUYER]}, hidden limit {dollars(_limits(episode)[1])})"


def event_text(turn: Turn) -> str:
    """What a turn's calls came to; empty for one without effect, and for the ends, which the title names."""
    if turn.violation in ABORTS or turn.verb is None:
        return ""
    done = [part for part in turn.verb.split("+") if part not in ("accept", "quit")]
    return ", ".join(f"offers {dollars(turn.price or 0)}" if part == "offer" else part for part in done)


def closing_title(episode: Episode) -> str:
    """What the last turn's title says of the end."""
    o = episode.outcome
    if o.reason in NO_DEAL:
        return NO_DEAL[o.reason][1]
    return f"the deal closes at {dollars(o.price or 0)}" if o.kind == "deal" else "no reply"


def outcome_text(episode: Episode) -> str:
    """How it ended, in a sentence or two."""
    o = episode.outcome
    who = "the buyer" if o.seat == BUYER else "the seller"
    if o.kind == "aborted":
        return f"Aborted: {who} could not speak: {_ABORTED.get(o.reason, o.reason)}. No rule was broken."
    if o.price is None:
        why = NO_DEAL[o.reason][0].format(episode.scenario.message_budget) if o.reason in NO_DEAL else o.reason
        return f"No deal: {why}."
    losers = [_ROLES[seat].lower() for seat in (SELLER, BUYER) if _gain(episode, seat) < 0]
    loss = f" The {' and the '.join(losers)} agreed to a loss." if losers else ""
    return f"Deal at {dollars(o.price)}: {who} accepted the other side's offer.{loss}"


def reward_text(episode: Episode) -> str:
    """The stored reward, which is the seller's, with its parts, and the buyer's."""
    reserve, value = _limits(episode)
    texts = []
    for seat in (SELLER, BUYER):
        parts = trade_parts(reserve, value, episode.outcome, episode.turns, seat)
        shown = " + ".join(f"{part:.3f}" for part in parts)
        texts.append(f"{_ROLES[seat].lower()}'s reward = ({shown}) / 4 = {sum(parts) / 4:.3f}")
    text = "; ".join(texts)
    if trade_reward(reserve, value, episode.outcome, episode.turns, SELLER) != episode.reward:
        text += f"; but the record says {episode.reward!r}: run `negolab verify`"
    return text


def engaged_text(episode: Episode) -> str:
    """How both sides opened and how long it took."""
    firsts: dict[int, int] = {}
    for turn in episode.turns:
        if turn.price is not None:
            firsts.setdefault(turn.seat, turn.price)
    said = [f"the {_ROLES[seat].lower()} opened at {dollars(price)}" for seat, price in sorted(firsts.items())]
    opened = ", ".join(said) or "nobody made an offer"
    return f"{opened[0].upper()}{opened[1:]}; {episode.turns[-1].turn} rounds."
