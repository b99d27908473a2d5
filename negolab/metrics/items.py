"""Metrics of the market of several items: 2609.33289, section 6 and appendix B.

Denominators, as read here: the item deal rate and both allocation rates are pooled over items and pairs, as their
definitions are worded (n is the number of items or pairs, clustered by the cluster of products); the violation rate is
over all episodes, the surplus ratio over those without a seller's violation, no deals among them as 0. Hence
``reward = (1 - violation rate) x surplus ratio - violation rate``. Deals that closed before a violation count as deals
in the item deal rate and in the allocation rates, and earn nothing.

An episode whose best matching is empty (no pair has a positive clipped surplus) is in no denominator of the coverage.
"""

from collections.abc import Mapping

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.metrics.common import (
    UPKEEP,
    Metric,
    aborted_rate,
    distinct_buyers,
    reward,
    seller_messages,
    seller_violation,
    turns,
    violation_rate,
)
from negolab.oracle import best_matching, most_surplus

VIOLATIONS = ("format", "target", "item", "deal", "below_cost", "truncated")
"""Kinds of seller violation."""


def item_deal_rate(episode: Episode) -> tuple[float, ...]:
    """Per item: 1 when it was sold."""
    sold = {sale.item for sale in episode.outcome.sales}
    return tuple([float(item in sold) for item in range(1, episode.scenario.n_items + 1)])


def surplus_ratio(episode: Episode) -> float | None:
    """Seller surplus extraction ratio: the reward of an episode without a seller's violation."""
    return None if violation_rate(episode) else episode.reward


def proposed(episode: Episode) -> set[tuple[int, int]]:
    """Pairs of (buyer, item) for which the seller sent at least one [SELL] or [DEAL], whether or not it closed."""
    return {
        (turn.buyer, item)
        for turn in episode.turns
        if turn.seat == SELLER and turn.violation is None and turn.buyer is not None
        for item, _ in turn.offers
    }


def optimal_pair_coverage(episode: Episode) -> tuple[float, ...]:
    """Per pair of the best matching: 1 when the seller proposed it. Of several best matchings the one with most pairs
    that the seller proposed."""
    offered = proposed(episode)
    best = best_matching(*_money(episode), offered)
    return tuple([float(pair in offered) for pair in best.pairs])


def top_buyer_rate(episode: Episode) -> tuple[float, ...]:
    """Per sold item: 1 when nobody values it higher than its buyer. Below 1 even under perfect play, where one buyer
    values several items most."""
    return tuple([float(episode.scenario.rank(sale.buyer, sale.item) == 1) for sale in episode.outcome.sales])


def reward_bound(episode: Episode) -> float:
    """What no seller can exceed on this market: the best matching of at most T pairs, each paid in full up to the list
    price, over the catalogue's margin."""
    valuations, lists, costs = _money(episode)
    room = sum(lists) - sum(costs)
    return most_surplus(valuations, lists, costs, episode.scenario.message_budget) / room


def items_sold(episode: Episode) -> float:
    """Deals of the episode."""
    return float(len(episode.outcome.sales))


def _money(episode: Episode) -> tuple[tuple[tuple[int, ...], ...], list[int], list[int]]:
    """Valuations by buyer and item, list prices and costs by item, in cents."""
    products = episode.scenario.products
    return episode.scenario.valuations, [p.listing.list_cents for p in products], [p.cost_cents for p in products]


ITEM_METRICS: Mapping[str, Metric] = {
    "reward": reward,
    "item_deal_rate": item_deal_rate,
    "violation_rate": violation_rate,
    "surplus_ratio": surplus_ratio,
    "optimal_pair_coverage": optimal_pair_coverage,
    "top_buyer_rate": top_buyer_rate,
    "items_sold": items_sold,
    "distinct_buyers": distinct_buyers,
    **{f"violation_{kind}": seller_violation(kind) for kind in VIOLATIONS},
    "aborted_rate": aborted_rate,
    "reward_bound": reward_bound,
    "seller_messages": seller_messages,
    "turns": turns,
    **UPKEEP,
}
"""Rows of ``metrics.csv`` of a market of several items, in order; the first six are table 1's."""
SIX = tuple(ITEM_METRICS)[:6]
"""The paper's six metrics."""
