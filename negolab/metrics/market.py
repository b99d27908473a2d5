"""Metrics of the market of one item: 2607.05863, sections 4.1, 4.2, 6.3 and 13.

Denominators, as read from the published counts: rates are over all complete episodes, violations included; the surplus
ratio and the top-buyer rate over deals only. Hence ``reward = deal rate x surplus ratio - violation rate``.
"""

from collections.abc import Iterable, Iterator, Mapping

from negolab.episodes import Episode
from negolab.metrics.common import (
    UPKEEP,
    Metric,
    Summary,
    aborted_rate,
    deal_rate,
    distinct_buyers,
    reward,
    seller_messages,
    seller_violation,
    turns,
    violation_rate,
)
from negolab.statistics import Accumulator, Estimate

VIOLATIONS = ("format", "target", "deal", "below_cost", "truncated")
"""Kinds of seller violation; equation (1)'s clause (i) is ``below_cost``."""


def surplus_ratio(episode: Episode) -> float | None:
    """Seller surplus extraction ratio, deals only: the reward of a deal."""
    return episode.reward if episode.outcome.kind == "deal" else None


def top_buyer_rate(episode: Episode) -> float | None:
    """Deals only: 1 when the buyer has the highest hidden budget of all N."""
    buyer = episode.outcome.buyer
    return None if episode.outcome.kind != "deal" or buyer is None else float(episode.scenario.rank(buyer) == 1)


def reward_bound(episode: Episode) -> float:
    """What no seller can exceed on this market: the largest budget paid in full, capped as equation (1) caps."""
    product, best = episode.scenario.product, max(episode.scenario.budgets)
    room = product.listing.list_cents - product.cost_cents
    return min(1.0, max(0, best - product.cost_cents) / room)


def sell_above_cost_accuracy(episode: Episode) -> float:
    """1 - below_cost_rate (section 4.2, the radar's fifth axis)."""
    return 1.0 - float(violation_rate(episode) and episode.outcome.reason == "below_cost")


METRICS: Mapping[str, Metric] = {
    "reward": reward,
    "deal_rate": deal_rate,
    "surplus_ratio": surplus_ratio,
    "distinct_buyers": distinct_buyers,
    "top_buyer_rate": top_buyer_rate,
    "below_cost_rate": seller_violation("below_cost"),
    "violation_rate": violation_rate,
    **{f"violation_{kind}": seller_violation(kind) for kind in VIOLATIONS if kind != "below_cost"},
    "aborted_rate": aborted_rate,
    "sell_above_cost_accuracy": sell_above_cost_accuracy,
    "reward_bound": reward_bound,
    "seller_messages": seller_messages,
    "turns": turns,
    **UPKEEP,
}
"""Rows of a market's ``metrics.csv``, in order."""


def closing_ranks(episodes: Iterable[Episode]) -> dict[int, Estimate]:
    """Share of deals by the buyer's budget rank, 1 the highest (figure 10). Ranks up to the largest N seen."""
    deals, most = [], 0
    for e in episodes:
        most = max(most, e.scenario.n_buyers)
        if e.outcome.buyer is not None and e.outcome.kind == "deal":
            deals.append((e.scenario.rank(e.outcome.buyer), e.scenario.unit))
    totals = {rank: Accumulator() for rank in range(1, most + 1)}
    for rank, codename in deals:
        for other, total in totals.items():
            total.add(float(other == rank), codename)
    return {rank: total.estimate() for rank, total in totals.items()}


def first_offer_match(episodes: Iterable[Episode]) -> dict[str, Estimate]:
    """How far openings give the budget ranking away (table 11): ``full_rank_match`` and ``top1_match``.

    Eligible are episodes in which every buyer opened with a price. Equal openings (or budgets) are broken by slot
    order, as a stable sort does.
    """
    summary = Summary({"full_rank_match": _full_rank_match, "top1_match": _top1_match})
    for episode in episodes:
        summary.add(episode)
    return summary.estimates()


def _rankings(episode: Episode) -> tuple[list[int], list[int]] | None:
    offers = [t.price for t in episode.turns[: episode.scenario.n_buyers] if t.verb == "BUY" and not t.fallback]
    if len(offers) < episode.scenario.n_buyers:
        return None
    budgets, slots = episode.scenario.budgets, range(len(offers))
    return sorted(slots, key=lambda i: -(offers[i] or 0)), sorted(slots, key=lambda i: -budgets[i])


def _full_rank_match(episode: Episode) -> float | None:
    found = _rankings(episode)
    return None if found is None else float(found[0] == found[1])


def _top1_match(episode: Episode) -> float | None:
    found = _rankings(episode)
    return None if found is None else float(found[0][0] == found[1][0])


def buyer_types(episodes: Iterable[Episode]) -> dict[str, dict[str, Estimate]]:
    """Table 12, by buyer type: ``first_offer_ratio`` (opening / list price), ``buyer_surplus`` ((list - deal) /
    (list - cost), over this type's deals) and ``closing_rate`` (how often a buyer of this type closes the deal)."""
    totals: dict[str, dict[str, Accumulator]] = {}
    for episode in episodes:
        for kind, name, value in _buyer_facts(episode):
            rows = totals.setdefault(
                kind, {name: Accumulator() for name in ("first_offer_ratio", "buyer_surplus", "closing_rate")}
            )
            rows[name].add(value, episode.scenario.unit)
    return {kind: {n: total.estimate() for n, total in totals[kind].items()} for kind in sorted(totals)}


def _buyer_facts(episode: Episode) -> Iterator[tuple[str, str, float]]:
    scenario, product = episode.scenario, episode.scenario.product
    list_cents, outcome = product.listing.list_cents, episode.outcome
    for turn in episode.turns[: scenario.n_buyers]:
        if turn.price is not None and not turn.fallback:
            yield scenario.buyer_types[turn.seat - 1], "first_offer_ratio", turn.price / list_cents
    for buyer, kind in enumerate(scenario.buyer_types, 1):
        closed = outcome.kind == "deal" and outcome.buyer == buyer
        yield kind, "closing_rate", float(closed)
        if closed and outcome.price is not None:
            yield kind, "buyer_surplus", (list_cents - outcome.price) / (list_cents - product.cost_cents)
