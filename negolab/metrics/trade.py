"""Metrics of the trade game: 2604.16472, tables 2 to 5 and 8, for both sides.

An episode has gains from trade (``_gft``) when the buyer's value b is at least the seller's reservation price s, and
none (``_ngft``) otherwise: its own values decide, so a run may hold either kind or both. Money is in dollars.

Denominators, as read here:

* Violations, utilities and the deal rate are over all episodes of the kind, aborted ones among them as no deal.
* Surplus share: deals that lose neither side anything (s <= p <= b), where there is something to share (b > s).
* Initial aggressiveness: episodes in which the offers it compares were made; the buyer's first counts against the
  seller's first only where it answers it.
* Concession rate: the same deals as the surplus share, and one observation for each step from an offer to the side's
  next one, pooled over steps (a long negotiation counts more than a short one). An offer repeated is a step of 0, one
  that retreats is below 0; steps from the reservation price itself, or from beyond it, have no rate. Accepting is no
  step.
* Rounds: one side's turn each, to the end; aborted episodes say nothing of patience.
* Problems: share of the side's replies whose first problem is of the kind. Only the first is recorded.

"Self" and "opponent" of the paper are a matter of whose row it is: the seller's opponent violation is the buyer's own
(``tournament_table.ROLE_METRICS``).
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from negolab.environment.base import ABORTS, BUYER, SELLER
from negolab.episodes import Episode
from negolab.metrics.common import Metric, Value, aborted_rate, deal_rate, reward, tokens
from negolab.reward import trade_parts, trade_reward

SIDES = (("seller", SELLER), ("buyer", BUYER))
"""Name and seat of both sides."""
PARTS = ("parsing", "execution", "constraints", "utility")
"""The four terms of the composite reward, equation 8 and table 8."""
PROBLEMS = (
    "unparseable",
    "truncated",
    "unknown_tool",
    "bad_argument",
    "too_many_calls",
    "after_terminal",
    "no_pending_offer",
)
"""Ways in which a reply may be wrong."""


def values_of(episode: Episode) -> tuple[int, int]:
    """The seller's reservation price s and the buyer's value b, in cents. Raises ``ValueError`` for another game."""
    reserve = episode.scenario.reserve
    if reserve is None:
        raise ValueError(f"episode {episode.scenario.episode} is none of the trade game: it has no reservation price")
    return reserve, episode.scenario.valuations[0][0]


def gains_from_trade(episode: Episode) -> float:
    """1 with gains from trade: b >= s."""
    reserve, value = values_of(episode)
    return float(value >= reserve)


def offers_of(episode: Episode, seat: int) -> list[int]:
    """A side's offers in cents, oldest first; the last one of a turn with several."""
    return [turn.price for turn in episode.turns if turn.seat == seat and turn.price is not None]


def utility_cents(episode: Episode, seat: int) -> int:
    """p - s of the seller, b - p of the buyer; 0 without a deal. Below 0 where the side agreed to a loss."""
    price = episode.outcome.price
    if price is None:
        return 0
    reserve, value = values_of(episode)
    return price - reserve if seat == SELLER else value - price


def any_violation(episode: Episode) -> float:
    """1 for a deal outside [s, b], whichever side loses."""
    return float(min(utility_cents(episode, SELLER), utility_cents(episode, BUYER)) < 0)


def rounds(episode: Episode) -> float | None:
    """Rounds to the end, one side's turn each; None where the episode was aborted."""
    return None if episode.outcome.kind == "aborted" else float(episode.turns[-1].turn)


def seller_initial_aggressiveness(episode: Episode) -> float | None:
    """The seller's first offer over its reservation price."""
    offers = offers_of(episode, SELLER)
    return offers[0] / values_of(episode)[0] if offers else None


def buyer_initial_aggressiveness(episode: Episode) -> float | None:
    """Gap closure, the first variant: what the buyer's first offer cuts from the seller's first, as a share of it; None
    where the buyer's is no answer to one."""
    first: int | None = None
    for turn in episode.turns:
        if turn.price is None:
            continue
        if turn.seat == BUYER:
            return None if first is None else (first - turn.price) / first
        first = turn.price if first is None else first
    return None


def buyer_reservation_ratio(episode: Episode) -> float | None:
    """The second variant: the share of its value that the buyer's first offer would leave it, (b - p) / b."""
    offers, value = offers_of(episode, BUYER), values_of(episode)[1]
    return (value - offers[0]) / value if offers else None


def _valid_deal(episode: Episode) -> bool:
    reserve, value = values_of(episode)
    return episode.outcome.price is not None and reserve <= episode.outcome.price <= value and reserve < value


def _violation(seat: int) -> Metric:
    def metric(episode: Episode) -> float:
        return float(utility_cents(episode, seat) < 0)

    metric.__doc__ = f"1 when the {_name(seat)} agreed to a price at which it loses."
    return metric


def _utility(seat: int, deals_only: bool) -> Metric:
    def metric(episode: Episode) -> float | None:
        if deals_only and episode.outcome.price is None:
            return None
        return utility_cents(episode, seat) / 100

    metric.__doc__ = f"Dollars that the {_name(seat)} gained; {'deals only' if deals_only else '0 without a deal'}."
    return metric


def _surplus_share(seat: int) -> Metric:
    def metric(episode: Episode) -> float | None:
        if not _valid_deal(episode):
            return None
        reserve, value = values_of(episode)
        return utility_cents(episode, seat) / (value - reserve)

    metric.__doc__ = f"The {_name(seat)}'s share of b - s; deals that lose neither side anything."
    return metric


def _concession_rate(seat: int) -> Metric:
    def metric(episode: Episode) -> tuple[float, ...]:
        if not _valid_deal(episode):
            return ()
        limit, sign = values_of(episode)[seat], 1 if seat == SELLER else -1
        offers = offers_of(episode, seat)
        steps = [(sign * (before - limit), sign * (before - after)) for before, after in pairwise(offers)]
        return tuple([given / left for left, given in steps if left > 0])

    metric.__doc__ = f"Per step: the share of what was left above its limit that the {_name(seat)} gave up."
    return metric


def _side_reward(seat: int) -> Metric:
    def metric(episode: Episode) -> float:
        return trade_reward(*values_of(episode), episode.outcome, episode.turns, seat)

    metric.__doc__ = f"Composite reward of the {_name(seat)}, equal weights."
    return metric


def _part(seat: int, part: int) -> Metric:
    def metric(episode: Episode) -> float:
        return trade_parts(*values_of(episode), episode.outcome, episode.turns, seat)[part]

    metric.__doc__ = f"Term of the {_name(seat)}'s composite reward: {PARTS[part]}."
    return metric


def _problem(seat: int, kind: str) -> Metric:
    def metric(episode: Episode) -> tuple[float, ...]:
        mine = [turn for turn in episode.turns if turn.seat == seat and turn.violation not in ABORTS]
        return tuple([float(turn.violation == kind) for turn in mine])

    metric.__doc__ = f"Per reply of the {_name(seat)}: 1 when its first problem was ``{kind}``."
    return metric


def _name(seat: int) -> str:
    return "seller" if seat == SELLER else "buyer"


def _where(gains: bool, metric: Metric) -> Metric:
    """``metric`` over the episodes with gains from trade, or over those without."""

    def part(episode: Episode) -> Value:
        return metric(episode) if gains_from_trade(episode) == gains else None

    part.__doc__ = f"{metric.__doc__} Only episodes with b {'>=' if gains else '<'} s."
    return part


def _sides(name: str, make: Callable[[int], Metric]) -> dict[str, Metric]:
    return {f"{side}_{name}": make(seat) for side, seat in SIDES}


_SPLIT: Mapping[str, Metric] = {
    "deal_rate": deal_rate,
    **_sides("violation", _violation),
    "any_violation": any_violation,
    **_sides("utility", lambda seat: _utility(seat, False)),
    **_sides("utility_deals", lambda seat: _utility(seat, True)),
    "seller_initial_aggressiveness": seller_initial_aggressiveness,
    "buyer_initial_aggressiveness": buyer_initial_aggressiveness,
    "buyer_reservation_ratio": buyer_reservation_ratio,
    "rounds": rounds,
}
"""What is told for each kind of episode as well as for all."""

TRADE_METRICS: Mapping[str, Metric] = {
    "reward": reward,
    "buyer_reward": _side_reward(BUYER),
    **_sides("surplus_share", _surplus_share),
    **_SPLIT,
    **_sides("concession_rate", _concession_rate),
    "gft_rate": gains_from_trade,
    **{f"{name}_gft": _where(True, metric) for name, metric in _SPLIT.items()},
    **{f"{name}_ngft": _where(False, metric) for name, metric in _SPLIT.items()},
    **{f"{side}_reward_{part}": _part(seat, at) for side, seat in SIDES for at, part in enumerate(PARTS)},
    **{f"{side}_{kind}": _problem(seat, kind) for side, seat in SIDES for kind in PROBLEMS},
    "aborted_rate": aborted_rate,
    "seller_prompt_tokens": tokens(True, 0),
    "seller_sampled_tokens": tokens(True, 1),
    "buyer_prompt_tokens": tokens(False, 0),
    "buyer_sampled_tokens": tokens(False, 1),
}
"""Rows of a trade run's ``metrics.csv``, in order. ``reward`` is the seller's."""
TRADE_MAIN = (
    "reward",
    "buyer_reward",
    "seller_surplus_share",
    "buyer_surplus_share",
    "deal_rate_gft",
    "deal_rate_ngft",
    "seller_violation",
    "buyer_violation",
    "rounds",
)
"""What a short table shows."""
