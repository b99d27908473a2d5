"""Metrics of the bilateral game's buyer: 2604.09855, section 4.1. Rates are over all complete episodes."""

from collections.abc import Mapping

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.metrics.common import Metric, Value, aborted_rate, deal_rate, fallbacks, refused_replies, reward, tokens


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

    def part(episode: Episode) -> Value:
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
    "buyer_prompt_tokens": tokens(False, 0),
    "buyer_sampled_tokens": tokens(False, 1),
    "seller_prompt_tokens": tokens(True, 0),
    "seller_sampled_tokens": tokens(True, 1),
}
"""Rows of a bilateral run's ``metrics.csv``, in order."""
FOUR_PHASES = ("reward", "deal_rate", "bargained_ratio", "first_offer_ratio", "overshoot_rate")
"""What the paper follows over training: from naive to aggressive openings, deadlock, concession, persuasion."""
