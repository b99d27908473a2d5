"""What is said of an episode with several items as a whole (2609.33289): ``whole`` has the same for one item.

The sums are those of the paper's section 6: a pair's clipped surplus is ``max(0, min(V, L) - C)`` where the best
matching is made, and a sale's is ``min(P, L) - C``. Tables name at most ``SHOWN`` buyers and items and say so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from negolab.environment.base import SELLER, Sale, Turn, item_name
from negolab.episodes import Episode
from negolab.metrics.items import proposed, reward_bound, top_buyer_rate
from negolab.money import dollars
from negolab.oracle import Matching, best_matching
from negolab.transcripts.tables import Table
from negolab.transcripts.whole import (
    ABORTED,
    NO_DEAL,
    buyers_text,
    checked,
    limits_text,
    openings_text,
    player,
    some,
)
from negolab.transcripts.whole import closing_title as closing_of_one

_Row = TypeVar("_Row")

SHOWN = 40
"""Buyers and items that a table shows at most."""
_NAMED, _VALUED, _SUMMED = 4, 6, 8  # items in a heading, beside a turn, and terms of the reward


def name_of(episode: Episode) -> str:
    """The cluster's name."""
    return episode.scenario.unit


def headline_of(episode: Episode) -> str:
    """``3 items, 3 buyers``."""
    return f"{episode.scenario.n_items} items, {_count(episode.scenario.n_buyers, 'buyer')}"


def listings_of(episode: Episode) -> list[tuple[str, str]]:
    """Title and description of each item."""
    listings = [product.listing for product in episode.scenario.products]
    return [(f"{item_name(j)}: {listing.title}", listing.description) for j, listing in enumerate(listings, 1)]


def facts(episode: Episode, kinds: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The market's constants as (name, value). ``kinds`` says of a player's name what it is."""
    s = episode.scenario
    return [
        ("Items", f"{s.n_items} of cluster {s.unit}, all for sale at once; a buyer buys one of them at most"),
        ("Margin", f"{dollars(_margin(episode))} (list prices - costs)"),
        ("Limits", limits_text(s)),
        ("Market", f"{s.regime}, repetition {s.rep}"),
        ("First offers", openings_text(s)),
        ("Seller", player(episode.players[SELLER], kinds)),
        ("Buyers", buyers_text(episode, kinds)),
    ]


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(episode: Episode) -> list[Table]:
    """What is for sale, who it is worth how much to, the best matching beside the real one, and the buyers."""
    best = _best(episode)
    return [_items(episode), _valuations(episode, best), _matchings(episode, best), _buyers(episode)]


def _items(episode: Episode) -> Table:
    sold = {sale.item: sale for sale in episode.outcome.sales}
    rows = []
    for item, product in _shown(episode.scenario.products):
        listing, sale = product.listing, sold.get(item)
        money = (listing.list_cents, product.cost_cents, listing.list_cents - product.cost_cents)
        what = f"{' '.join(listing.title.split())} ({listing.codename})"
        rows.append((item_name(item), *map(dollars, money), _whom(sale), what))
    lists = sum(product.listing.list_cents for product in episode.scenario.products)
    rows.append(("all", dollars(lists), dollars(lists - _margin(episode)), dollars(_margin(episode)), "", ""))
    return Table(
        "Items",
        "costs are private to the seller",
        ("item", "list price", "cost", "margin", "sold to", "what it is"),
        rows,
        note="Costs are private to the seller.",
        legend=_left_out(episode.scenario.n_items, "items"),
        secret=False,
        by_buyer=False,
        numbers=frozenset({1, 2, 3}),
        free=5,
    )


def _valuations(episode: Episode, best: Matching) -> Table:
    s = episode.scenario
    sold, paired = {(sale.buyer, sale.item) for sale in episode.outcome.sales}, {*best.pairs}
    top = [max(column) for column in zip(*s.valuations, strict=True)]

    def cell(buyer: int, item: int, value: int) -> str:
        marks = "*" if value == top[item - 1] else ""
        marks += "-" if value < s.products[item - 1].cost_cents else ""
        marks += "o" if (buyer, item) in paired else ""
        marks += "s" if (buyer, item) in sold else ""
        return f"{dollars(value)} {marks:<3}"

    rows = [
        (f"Buyer {buyer}", *(cell(buyer, item, value) for item, value in _shown(row)))
        for buyer, row in _shown(s.valuations)
    ]
    return Table(
        "Valuations",
        "hidden: a buyer knows only its own row",
        ("buyer", *(f"{item_name(item)}    " for item, _ in _shown(s.products))),
        rows,
        note="The seller sees offers, never valuations, types or ranks.",
        legend="* highest of its item, - below its cost, o pair of the best matching, s sold to this buyer."
        + _left_out(s.n_buyers, "buyers", " ")
        + _left_out(s.n_items, "items", " "),
        numbers=frozenset(range(1, s.n_items + 1)),
    )


def _matchings(episode: Episode, best: Matching) -> Table:
    s, offered = episode.scenario, proposed(episode)
    best_buyer, sold = {item: buyer for buyer, item in best.pairs}, {sale.item: sale for sale in episode.outcome.sales}
    rows = []
    for item, product in _shown(s.products):
        buyer, sale = best_buyer.get(item), sold.get(item)
        listed, cost = product.listing.list_cents, product.cost_cents
        rows.append(
            (
                item_name(item),
                _top(episode, item),
                "nobody" if buyer is None else f"Buyer {buyer}",
                "" if buyer is None else dollars(min(s.valuations[buyer - 1][item - 1], listed) - cost),
                "" if buyer is None else "yes" if (buyer, item) in offered else "no",
                "nobody" if sale is None else f"Buyer {sale.buyer}",
                "" if sale is None else dollars(sale.price),
                "" if sale is None else dollars(min(sale.price, listed) - cost),
            )
        )
    covered = f"{len(offered & {*best.pairs})} of {len(best.pairs)}"
    prices, gained = sum(sale.price for sale in episode.outcome.sales), _gained(episode)
    sales = len(episode.outcome.sales)
    rows.append(
        (
            "all",
            "",
            str(len(best.pairs)),
            dollars(best.surplus_cents),
            covered,
            str(sales),
            dollars(prices),
            dollars(gained),
        )
    )
    return Table(
        "Best matching and realised one",
        "hidden: best for a seller who knows all valuations",
        ("item", "top buyer", "best buyer", "surplus", "offered", "sold to", "price", "surplus"),
        rows,
        note="Of several best matchings the one that shares most pairs with what the seller offered. Surplus: what is "
        "paid, up to the list price, above the cost.",
        legend=_left_out(s.n_items, "items"),
        by_buyer=False,
        numbers=frozenset({3, 6, 7}),
    )


def _buyers(episode: Episode) -> Table:
    s = episode.scenario
    firsts: dict[int, str] = {}
    wrote = [0] * (s.n_buyers + 1)
    for turn in episode.turns:
        if turn.violation is not None or turn.buyer is None or turn.verb == "QUIT":
            continue
        if turn.seat == SELLER:
            wrote[turn.buyer] += 1
        else:
            firsts.setdefault(
                turn.seat, ", ".join(f"{item_name(item)} {dollars(price)}" for item, price in turn.offers)
            )
    bought = {sale.buyer: sale for sale in episode.outcome.sales}
    rows = []
    for buyer, kind in _shown(s.buyer_types):
        fixed = s.openings is not None and s.openings[buyer - 1] is not None
        sale = bought.get(buyer)
        got = "-" if sale is None else f"{item_name(sale.item)} at {dollars(sale.price)}"
        messages = f"{wrote[buyer]} of {s.per_buyer_cap}"
        rows.append((f"Buyer {buyer}", kind, messages, got, "regulated" if fixed else "free", firsts.get(buyer, "-")))
    return Table(
        "Buyers",
        "the seller does not know types, nor whose opening is regulated",
        ("buyer", "type", "messages", "bought", "opening", "first offer"),
        rows,
        note="The seller does not know types, nor whose opening is regulated; a buyer knows nothing of the others.",
        legend=_left_out(s.n_buyers, "buyers"),
        free=5,
    )


# -- turns ------------------------------------------------------------------------------------------------------------


def buyer_name(episode: Episode, buyer: int) -> str:
    """``Buyer 2 (values Item_1, Item_2 most)``."""
    s = episode.scenario
    most = [item_name(item) for item in range(1, s.n_items + 1) if s.rank(buyer, item) == 1]
    return f"Buyer {buyer} ({f'values {some(most, _NAMED)} most' if most else 'values no item most'})"


def values_text(episode: Episode, turn: Turn) -> str:
    """What the items that a turn names are worth to the buyer who names them, or whom the seller wrote to; empty where
    it names none."""
    if turn.buyer is None or not turn.offers:
        return ""
    s, mine = episode.scenario, episode.scenario.valuations[turn.buyer - 1]
    worth = [f"{item_name(i)} {dollars(mine[i - 1])} (rank {s.rank(turn.buyer, i)})" for i, _ in turn.offers]
    return ("" if turn.seat else f"Buyer {turn.buyer}: ") + some(worth, _VALUED)


def sale_text(episode: Episode, turn: Turn) -> str:
    """``Item_2 sold to Buyer 1 at $140.00``, with how it came about; empty where a turn sells nothing."""
    if not event_text(turn):
        return ""
    (item, price), product = turn.offers[0], episode.scenario.products[turn.offers[0][0] - 1]
    gain = dollars(min(price, product.listing.list_cents) - product.cost_cents)
    how = "the seller accepted its bid" if turn.seat == SELLER else "the buyer took the seller's offer"
    return f"{item_name(item)} sold to Buyer {turn.buyer} at {dollars(price)}: {how}. Surplus {gain}."


def event_text(turn: Turn) -> str:
    """``Item_2 is sold`` where a turn does that, else empty."""
    return f"{item_name(turn.offers[0][0])} is sold" if turn.verb == "DEAL" and turn.violation is None else ""


def closing_title(episode: Episode) -> str:
    """What the last turn's title says of the end."""
    o = episode.outcome
    return (
        "sold out"
        if o.reason == "sold_out"
        else NO_DEAL[o.reason][1]
        if o.reason in NO_DEAL
        else closing_of_one(episode)
    )


# -- the end ----------------------------------------------------------------------------------------------------------


def outcome_text(episode: Episode) -> str:
    """How it ended, in one or two sentences."""
    o, s = episode.outcome, episode.scenario
    k, m = len(o.sales), s.n_items
    prices = dollars(sum(sale.price for sale in o.sales))
    before = f" {k} of {m} items {'was' if k == 1 else 'were'} sold before, for {prices}" if k else ""
    who = "the seller" if o.seat == SELLER else f"Buyer {o.seat}"
    if o.kind == "aborted":
        before = f"{before}: that counts." if k else ""
        return f"Aborted: {who} could not speak: {ABORTED.get(o.reason, o.reason)}. No rule was broken.{before}"
    if o.kind == "violation":
        detail = f": {episode.turns[-1].detail}" if episode.turns and episode.turns[-1].detail else ""
        forfeit = f"{before}{', and that counts for nothing' if o.seat == SELLER else ''}." if k else ""
        return f"Violation by {who} ({o.reason}){detail}.{forfeit}"
    if o.reason == "sold_out":
        return f"Sold out: all {m} items are sold, for {prices} together."
    why = NO_DEAL[o.reason][0].format(s.message_budget) if o.reason in NO_DEAL else o.reason
    if not k:
        return f"No deal: {why}."
    if o.reason == "all_inactive":
        why = "every buyer has bought, quit or is capped"
    return f"{k} of {m} items sold, for {prices} together: {why}."


def engaged_text(episode: Episode) -> str:
    """Coverage of the best matching, sales to top buyers, whom the seller wrote to, and what could be had, in one
    line."""
    s, offered, best = episode.scenario, proposed(episode), _best(episode)
    hit, top = len(offered & {*best.pairs}), top_buyer_rate(episode)
    covered = (
        f"The seller offered {hit} of the {len(best.pairs)} best pairs (coverage {hit / len(best.pairs):.3f})"
        if (best.pairs)
        else "No pair has a surplus to offer"
    )
    to_top = f"{sum(top):.0f} of {_count(len(top), 'sale')} went to the item's top buyer" if top else "nothing was sold"
    messages = [t for t in episode.turns if t.seat == SELLER and t.violation is None and t.verb != "QUIT"]
    reached = len({turn.buyer for turn in messages})
    wrote = f"{_count(len(messages), 'message')} of {s.message_budget} to {reached} of {_count(s.n_buyers, 'buyer')}"
    return f"{covered}; {to_top}; {wrote}. No seller could get more than {reward_bound(episode):.3f} here."


def reward_text(episode: Episode) -> str:
    """The reward's formula with this episode's numbers: ``sum(min(P, L) - C)`` over sales, ``sum(L - C)`` over all."""
    o, gained, margin = episode.outcome, _gained(episode), _margin(episode)
    if o.kind == "violation" and o.seat == SELLER:
        lost = f"; the {dollars(gained)} earned before are lost" if o.sales else ""
        return checked(-1.0, f"reward = -1 (the seller broke a rule{lost})", episode)
    if not o.sales:
        why = {"aborted": "aborted, counts as no deal", "violation": "a buyer broke a rule; the seller did not"}
        return checked(0.0, f"reward = 0 ({why.get(o.kind, 'no deal')})", episode)
    terms = " + ".join(_term(episode, sale) for sale in o.sales[:_SUMMED])
    if len(o.sales) > _SUMMED:
        terms += f" + {len(o.sales) - _SUMMED} more"
    text = f"reward = sum of (min(P, L) - C) over the margin = ({terms}) / {dollars(margin)}"
    return checked(gained / margin, f"{text} = {dollars(gained)} / {dollars(margin)} = {gained / margin:.3f}", episode)


def _term(episode: Episode, sale: Sale) -> str:
    product = episode.scenario.products[sale.item - 1]
    listed, paid = product.listing.list_cents, dollars(sale.price)
    return f"({paid if sale.price <= listed else f'min({paid}, {dollars(listed)})'} - {dollars(product.cost_cents)})"


# -- sums and words ---------------------------------------------------------------------------------------------------


def _best(episode: Episode) -> Matching:
    s = episode.scenario
    lists, costs = [p.listing.list_cents for p in s.products], [p.cost_cents for p in s.products]
    return best_matching(s.valuations, lists, costs, proposed(episode))


def _margin(episode: Episode) -> int:
    return sum(product.listing.list_cents - product.cost_cents for product in episode.scenario.products)


def _gained(episode: Episode) -> int:
    products = episode.scenario.products
    return sum(
        min(sale.price, products[sale.item - 1].listing.list_cents) - products[sale.item - 1].cost_cents
        for sale in episode.outcome.sales
    )


def _top(episode: Episode, item: int) -> str:
    """``Buyer 2 $252.12``, and how many value the item just as much."""
    values = [row[item - 1] for row in episode.scenario.valuations]
    first, equal = values.index(max(values)), values.count(max(values)) - 1
    return f"Buyer {first + 1}{f' +{equal} more' if equal else ''} {dollars(max(values))}"


def _whom(sale: Sale | None) -> str:
    return "-" if sale is None else f"Buyer {sale.buyer} at {dollars(sale.price)}"


def _shown(rows: Sequence[_Row]) -> Iterable[tuple[int, _Row]]:
    return enumerate(rows[:SHOWN], 1)


def _left_out(count: int, what: str, lead: str = "") -> str:
    return f"{lead}{count - SHOWN} more {what} are left out, see --json." if count > SHOWN else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
