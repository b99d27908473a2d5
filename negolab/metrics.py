"""Metrics, each a function of one finished episode: of 2607.05863, sections 4.1, 4.2, 6.3 and 13, and, for the buyer of
the bilateral game, of 2604.09855, section 4.1.

A metric returns None when the episode is not in its denominator. Denominators, as read from the published counts:
rates are over all complete episodes, violations included; the surplus ratio and the top-buyer rate over deals only.
Hence the identity ``reward = deal rate x surplus ratio - violation rate``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.statistics import Accumulator, Estimate

Metric = Callable[[Episode], float | None]
VIOLATIONS = ("format", "target", "deal", "below_cost", "truncated")
"""Kinds of seller violation; equation (1)'s clause (i) is ``below_cost``."""


def reward(episode: Episode) -> float:
    """Equation (1)."""
    return episode.reward


def deal_rate(episode: Episode) -> float:
    """1 for a deal."""
    return float(episode.outcome.kind == "deal")


def surplus_ratio(episode: Episode) -> float | None:
    """Seller surplus extraction ratio, deals only: the reward of a deal."""
    return episode.reward if episode.outcome.kind == "deal" else None


def distinct_buyers(episode: Episode) -> float:
    """Buyers that got at least one message: a [SELL], or the accepting [DEAL]; a violating message reaches nobody."""
    reached = {t.buyer for t in episode.turns if t.seat == SELLER and t.violation is None and t.verb != "QUIT"}
    return float(len(reached))


def top_buyer_rate(episode: Episode) -> float | None:
    """Deals only: 1 when the buyer has the highest hidden budget of all N."""
    buyer = episode.outcome.buyer
    return None if episode.outcome.kind != "deal" or buyer is None else float(episode.scenario.rank(buyer) == 1)


def violation_rate(episode: Episode) -> float:
    """1 when the seller ended the episode by breaking a rule, of whatever kind."""
    return float(episode.outcome.kind == "violation" and episode.outcome.seat == SELLER)


def _violation(kind: str) -> Metric:
    def metric(episode: Episode) -> float:
        return float(violation_rate(episode) and episode.outcome.reason == kind)

    metric.__doc__ = f"1 when the seller's violation was of kind ``{kind}``."
    return metric


def aborted_rate(episode: Episode) -> float:
    """1 when a seat could not speak: its context was full or no answer came in time. Counted as no deal, reward 0."""
    return float(episode.outcome.kind == "aborted")


def reward_bound(episode: Episode) -> float:
    """What no seller can exceed on this market: the largest budget paid in full, capped as equation (1) caps."""
    product, best = episode.scenario.product, max(episode.scenario.budgets)
    room = product.listing.list_cents - product.cost_cents
    return min(1.0, max(0, best - product.cost_cents) / room)


def sell_above_cost_accuracy(episode: Episode) -> float:
    """1 - below_cost_rate (section 4.2, the radar's fifth axis)."""
    return 1.0 - float(violation_rate(episode) and episode.outcome.reason == "below_cost")


def seller_messages(episode: Episode) -> float:
    """Messages that the seller used up, the accepting [DEAL] included."""
    return float(sum(t.seat == SELLER and t.violation is None and t.verb != "QUIT" for t in episode.turns))


def turns(episode: Episode) -> float:
    """All accepted replies of all seats, openings included, and the violating one where there is one."""
    return float(len(episode.turns))


def refused_replies(episode: Episode) -> float:
    """Buyers' replies that the opponent guard turned down."""
    return float(sum(len(note.get("refused", ())) for note in episode.notes.values()))


def fallbacks(episode: Episode) -> float:
    """Buyers' turns that the guard played for them."""
    return float(sum(t.fallback for t in episode.turns))


def _tokens(sellers: bool, which: int) -> Metric:
    def metric(episode: Episode) -> float | None:
        used = []
        for position, note in episode.notes.items():
            if (episode.turns[position].seat == SELLER) == sellers:
                counts = [n["tokens"][which] for n in (note, *note.get("refused", ())) if "tokens" in n]
                used += [count for count in counts if count is not None]
        return float(sum(used)) if used else None

    who, what = "seller" if sellers else "buyers", ("prompt", "sampled")[which]
    metric.__doc__ = f"{what.capitalize()} tokens of the {who}; None where no player has a tokenizer."
    return metric


METRICS: Mapping[str, Metric] = {
    "reward": reward,
    "deal_rate": deal_rate,
    "surplus_ratio": surplus_ratio,
    "distinct_buyers": distinct_buyers,
    "top_buyer_rate": top_buyer_rate,
    "below_cost_rate": _violation("below_cost"),
    "violation_rate": violation_rate,
    **{f"violation_{kind}": _violation(kind) for kind in VIOLATIONS if kind != "below_cost"},
    "aborted_rate": aborted_rate,
    "sell_above_cost_accuracy": sell_above_cost_accuracy,
    "reward_bound": reward_bound,
    "seller_messages": seller_messages,
    "turns": turns,
    "refused_replies": refused_replies,
    "fallbacks": fallbacks,
    "seller_prompt_tokens": _tokens(True, 0),
    "seller_sampled_tokens": _tokens(True, 1),
    "buyer_prompt_tokens": _tokens(False, 0),
    "buyer_sampled_tokens": _tokens(False, 1),
}
"""Rows of a market's ``metrics.csv``, in order."""


# -- the bilateral game (2604.09855) ---------------------------------------------------------------------------------


def bargained_ratio(episode: Episode) -> float | None:
    """Deals only: (B - P) / (B - C), the buyer's share of what there was to gain; None where there was nothing."""
    budget, cost, price = episode.scenario.budgets[0], episode.scenario.product.cost_cents, episode.outcome.price
    if episode.outcome.kind != "deal" or price is None or budget <= cost:
        return None
    return (budget - price) / (budget - cost)


def first_offer_ratio(episode: Episode) -> float | None:
    """The buyer's first bid / B, also where it is over the budget (which ends the episode); None where the buyer did
    not begin with a price that could be read."""
    first = episode.turns[0]
    return first.price / episode.scenario.budgets[0] if first.verb == "BUY" and first.price is not None else None


def overshoot_rate(episode: Episode) -> float:
    """1 when the buyer bid, or took, more than its budget."""
    return float(buyer_violation_rate(episode) and episode.outcome.reason == "budget")


def buyer_violation_rate(episode: Episode) -> float:
    """1 when the buyer ended the episode by breaking a rule, of whatever kind."""
    return float(episode.outcome.kind == "violation" and episode.outcome.seat != SELLER)


def _buyer_violation(kind: str) -> Metric:
    def metric(episode: Episode) -> float:
        return float(buyer_violation_rate(episode) and episode.outcome.reason == kind)

    metric.__doc__ = f"1 when the buyer's violation was of kind ``{kind}``."
    return metric


def game_turns(episode: Episode) -> float:
    """Turns begun, each a message of the buyer and mostly one of the seller."""
    return float(episode.turns[-1].turn)


def _where(gains: bool, metric: Metric) -> Metric:
    """``metric`` over the games with gains from trade (MI: B > C), or over those without (CI: no deal is rational)."""

    def part(episode: Episode) -> float | None:
        mutual = episode.scenario.budgets[0] > episode.scenario.product.cost_cents
        return metric(episode) if mutual == gains else None

    part.__doc__ = f"{metric.__doc__} Only games with B {'>' if gains else '<='} C."
    return part


BUYER_VIOLATIONS = ("format", "truncated", "opening", "budget", "deal")
"""Kinds of buyer violation."""
BILATERAL_METRICS: Mapping[str, Metric] = {
    "reward": reward,
    "deal_rate": deal_rate,
    "bargained_ratio": bargained_ratio,
    "first_offer_ratio": first_offer_ratio,
    "overshoot_rate": overshoot_rate,
    "violation_rate": buyer_violation_rate,
    **{f"violation_{kind}": _buyer_violation(kind) for kind in BUYER_VIOLATIONS if kind != "budget"},
    "aborted_rate": aborted_rate,
    "reward_mi": _where(True, reward),
    "deal_rate_mi": _where(True, deal_rate),
    "overshoot_rate_mi": _where(True, overshoot_rate),
    "reward_ci": _where(False, reward),
    "deal_rate_ci": _where(False, deal_rate),
    "overshoot_rate_ci": _where(False, overshoot_rate),
    "turns": game_turns,
    "refused_replies": refused_replies,
    "fallbacks": fallbacks,
    "buyer_prompt_tokens": _tokens(False, 0),
    "buyer_sampled_tokens": _tokens(False, 1),
    "seller_prompt_tokens": _tokens(True, 0),
    "seller_sampled_tokens": _tokens(True, 1),
}
"""Rows of a bilateral run's ``metrics.csv``, in order."""
FOUR_PHASES = ("reward", "deal_rate", "bargained_ratio", "first_offer_ratio", "overshoot_rate")
"""What the paper follows over training: from naive to aggressive openings, deadlock, concession, persuasion."""


def metrics_of(game: str) -> Mapping[str, Metric]:
    """The metrics of a game by its name in scenarios and regimes. Raises ``KeyError`` for another name."""
    return {"market": METRICS, "bilateral": BILATERAL_METRICS}[game]


class Summary:
    """All metrics of a run in one pass over its episodes; memory grows with the products, not with the episodes."""

    def __init__(self, metrics: Mapping[str, Metric] = METRICS) -> None:
        self._metrics = metrics
        self._totals = {name: Accumulator() for name in metrics}

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        cluster = episode.scenario.unit
        for name, metric in self._metrics.items():
            value = metric(episode)
            if value is not None:
                self._totals[name].add(value, cluster)

    def estimates(self) -> dict[str, Estimate]:
        """Mean, errors and n by metric."""
        return {name: total.estimate() for name, total in self._totals.items()}


def summarise(episodes: Iterable[Episode], metrics: Mapping[str, Metric] = METRICS) -> dict[str, Estimate]:
    """``Summary`` of an iterable."""
    summary = Summary(metrics)
    for episode in episodes:
        summary.add(episode)
    return summary.estimates()


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
    return summarise(episodes, {"full_rank_match": _full_rank_match, "top1_match": _top1_match})


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


def paired(
    first: Iterable[Episode], second: Iterable[Episode], metrics: Mapping[str, Metric] = METRICS
) -> tuple[dict[str, Estimate], int]:
    """Mean difference ``second - first`` by metric over the scenarios both runs played, and how many those are.

    Two episodes are a pair when they share the product, the repetition and every drawn number. A metric's pairs are
    those in whose denominator both episodes are (for deal-only metrics: both closed).
    """
    kept = {_market(e): {name: metric(e) for name, metric in metrics.items()} for e in first}
    totals = {name: Accumulator() for name in metrics}
    common = 0
    for episode in second:
        mine = kept.get(_market(episode))
        if mine is None:
            continue
        common += 1
        for name, metric in metrics.items():
            a, b = mine[name], metric(episode)
            if a is not None and b is not None:
                totals[name].add(b - a, episode.scenario.unit)
    return {name: total.estimate() for name, total in totals.items()}, common


def _market(episode: Episode) -> tuple[Any, ...]:
    s = episode.scenario
    money = [(p.listing.codename, p.listing.list_cents, p.cost_cents) for p in s.products]
    drawn = (s.valuations, s.openings, s.keys, s.buyer_types)
    return (s.unit, s.rep, s.per_buyer_cap, s.message_budget, s.protocol, tuple(money), *drawn)
