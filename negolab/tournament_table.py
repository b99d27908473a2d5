"""Tables of a tournament of the trade game: 2604.16472, tables 14 to 32, figures 4 to 12 and 21 to 29.

In a tournament every seller meets every buyer (itself too) on the same scenarios. ``collect`` takes its episodes in any
order, each with its pair, and keeps the numbers that tables need; what the functions here make of them is plain data.

As the paper's tables 20 and 27 to 31 show, a model's number in a role is the plain mean of its pairs' means, whatever
each pair's number of deals. Its errors: ``se`` takes pairs and episodes as independent, ``se_clustered`` clusters all
that was played on one product, with whomever, since all pairs share the scenarios. A pair without an observation (no
deal, no share of one) is left out, and ``opponents`` counts those that are in.

Quintiles are of the side's own reservation price: equal counts of the tournament's scenarios of one kind (with gains
from trade, or without), the same for every pair. Rates and shares are fractions, so consistency is 1 - spread.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics.common import Value
from negolab.metrics.trade import TRADE_METRICS, values_of
from negolab.papers.trade import AXES, QUINTILES, scaled
from negolab.statistics import Estimate, estimate

ROLES = ("buyer", "seller")
"""In the paper's order."""

ROLE_METRICS: Mapping[str, Mapping[str, str]] = {
    "self_violation_gft": {"buyer": "buyer_violation_gft", "seller": "seller_violation_gft"},
    "opponent_violation_gft": {"buyer": "seller_violation_gft", "seller": "buyer_violation_gft"},
    "any_violation_gft": dict.fromkeys(ROLES, "any_violation_gft"),
    "self_violation_ngft": {"buyer": "buyer_violation_ngft", "seller": "seller_violation_ngft"},
    "opponent_violation_ngft": {"buyer": "seller_violation_ngft", "seller": "buyer_violation_ngft"},
    "surplus_share": {"buyer": "buyer_surplus_share", "seller": "seller_surplus_share"},
    "deal_rate_gft": dict.fromkeys(ROLES, "deal_rate_gft"),
    "deal_rate_ngft": dict.fromkeys(ROLES, "deal_rate_ngft"),
    "utility_gft": {"buyer": "buyer_utility_gft", "seller": "seller_utility_gft"},
    "utility_deals_gft": {"buyer": "buyer_utility_deals_gft", "seller": "seller_utility_deals_gft"},
    "utility_ngft": {"buyer": "buyer_utility_ngft", "seller": "seller_utility_ngft"},
    "utility_deals_ngft": {"buyer": "buyer_utility_deals_ngft", "seller": "seller_utility_deals_ngft"},
    "initial_aggressiveness": {
        "buyer": "buyer_initial_aggressiveness_gft",
        "seller": "seller_initial_aggressiveness_gft",
    },
    "reservation_ratio": {"buyer": "buyer_reservation_ratio_gft"},
    "concession_rate": {"buyer": "buyer_concession_rate", "seller": "seller_concession_rate"},
    "patience": dict.fromkeys(ROLES, "rounds_gft"),
    "reward": {"buyer": "buyer_reward", "seller": "reward"},
}
"""A row of a model's table by role -> the metric of ``metrics.trade`` that it is. Columns of the paper's tables 14 and
16 (``papers.trade``) have the same names."""

HEAT_MAPS: Mapping[int, tuple[str, ...]] = {
    21: ("any_violation_gft", "any_violation_ngft"),
    22: ("buyer_utility_gft", "buyer_utility_deals_gft"),
    23: ("seller_utility_gft", "seller_utility_deals_gft"),
    24: ("buyer_surplus_share", "seller_surplus_share"),
    25: ("deal_rate_gft",),
    26: ("seller_initial_aggressiveness_gft",),
    27: ("buyer_initial_aggressiveness_gft", "buyer_reservation_ratio_gft"),
    28: ("buyer_concession_rate", "seller_concession_rate"),
    29: ("rounds_gft",),
}
"""Number of the paper's figure -> its heat maps, left to right."""

_COLLECTED = tuple(
    dict.fromkeys(
        [
            *[name for by_role in ROLE_METRICS.values() for name in by_role.values()],
            *[name for names in HEAT_MAPS.values() for name in names],
        ]
    )
)


class Pair(NamedTuple):
    """Who plays whom, by name."""

    seller: str
    buyer: str


class _Played(NamedTuple):
    """What tables need of one episode."""

    scenario: tuple[str, int, int, int]
    """Product, repetition, and both reservation prices in cents."""
    values: Mapping[str, Value]

    @property
    def gains(self) -> bool:
        return self.scenario[3] >= self.scenario[2]

    def own(self, role: str) -> int:
        """The reservation price of a role."""
        return self.scenario[2] if role == "seller" else self.scenario[3]


@dataclass(frozen=True)
class Tournament:
    """A tournament's numbers; ``collect`` makes it."""

    models: tuple[str, ...]
    """Everybody who played, in the order of tables."""
    games: Mapping[Pair, Sequence[_Played]]

    def __len__(self) -> int:
        return sum(map(len, self.games.values()))


def collect(played: Iterable[tuple[Pair, Episode]], models: Sequence[str] | None = None) -> Tournament:
    """One pass over a tournament's episodes, in any order. ``models`` orders the tables' rows; by default names do.

    Raises ``NegolabError`` where a model played that is not among ``models``, ``ValueError`` for another game.
    """
    games: dict[Pair, list[_Played]] = {}
    for pair, episode in played:
        scenario = (episode.scenario.unit, episode.scenario.rep, *values_of(episode))
        found = {name: value for name in _COLLECTED if (value := TRADE_METRICS[name](episode)) is not None}
        games.setdefault(pair, []).append(_Played(scenario, found))
    names = sorted({name for pair in games for name in pair})
    if models is not None:
        strangers = [name for name in names if name not in models]
        if strangers:
            raise NegolabError(f"{strangers[0]} played, but is none of the tournament's models: {', '.join(models)}")
        names = [name for name in models if name in names]
    # One order whatever came first, so that sums come out alike.
    ordered = {pair: sorted(games[pair], key=lambda one: one.scenario) for pair in sorted(games)}
    return Tournament(tuple(names), ordered)


# -- pairs ------------------------------------------------------------------------------------------------------------


def pairs(tournament: Tournament, metrics: Iterable[str] = _COLLECTED) -> list[dict[str, Any]]:
    """Every pair's means: rows of ``seller``, ``buyer``, ``metric``, ``mean``, ``se``, ``se_clustered``, ``n``.

    ``metrics`` are names of ``metrics.trade``, of those that tables need. Raises ``NegolabError`` for any other.
    """
    rows = []
    for metric in metrics:
        _known(metric, _COLLECTED)
        for seller in tournament.models:
            for buyer in tournament.models:
                games = tournament.games.get(Pair(seller, buyer), ())
                if games:
                    row = {"seller": seller, "buyer": buyer, "metric": metric}
                    rows.append({**row, **estimate(*_columns(_observed(games, metric)))._asdict()})
    return rows


def matrix(rows: Iterable[Mapping[str, Any]], metric: str, cell: str = "mean") -> list[dict[str, Any]]:
    """A heat map of ``pairs``: a row for each seller, which has ``cell`` by buyer; None for a pair that is missing.

    ``[{"seller": "a", "by_buyer": {"a": 0.5, "b": 0.4}}, ...]``
    """
    mine = [row for row in rows if row["metric"] == metric]
    sellers = dict.fromkeys(row["seller"] for row in mine)
    buyers = dict.fromkeys(row["buyer"] for row in mine)
    found = {(row["seller"], row["buyer"]): row[cell] for row in mine}
    return [
        {"seller": seller, "by_buyer": {buyer: found.get((seller, buyer)) for buyer in buyers}} for seller in sellers
    ]


# -- models -----------------------------------------------------------------------------------------------------------


def by_role(tournament: Tournament, metrics: Iterable[str] = tuple(ROLE_METRICS)) -> list[dict[str, Any]]:
    """Every model in both roles, averaged over its opponents (tables 14 and 16): rows of ``model``, ``role``,
    ``metric``, ``mean``, ``se``, ``se_clustered``, ``n`` (observations) and ``opponents``.

    ``metrics`` are names of ``ROLE_METRICS``. Raises ``NegolabError`` for any other.
    """
    rows = []
    for metric in metrics:
        _known(metric, ROLE_METRICS)
        for model, role in _sides(tournament):
            if role not in ROLE_METRICS[metric]:
                continue
            name = ROLE_METRICS[metric][role]
            groups = [_observed(games, name) for games in _opponents(tournament, model, role).values()]
            kept = [group for group in groups if group]
            row = {"model": model, "role": role, "metric": metric}
            rows.append({**row, **mean_of_means(kept)._asdict(), "opponents": len(kept)})
    return rows


def mean_of_means(groups: Sequence[Sequence[tuple[float, str]]]) -> Estimate:
    """The plain mean of the groups' means; an observation is a number and the cluster it belongs to. No group may be
    empty; n counts observations.

    ``se``: the root of the sum of the groups' squared errors over their number. ``se_clustered``: that of the weighted
    sum that this mean is, observations of one cluster taken together across groups, with G / (G - 1). With one group
    both are those of ``statistics.estimate``.
    """
    if not groups:
        return Estimate(None, None, None, 0)
    each = [estimate(*_columns(group)) for group in groups]
    k, n = len(groups), sum(len(group) for group in groups)
    means = [e.mean for e in each if e.mean is not None]
    errors = [e.se for e in each if e.se is not None]
    se = math.sqrt(math.fsum(error * error for error in errors)) / k if len(errors) == k else None
    scores: dict[str, list[float]] = {}
    for group, mean in zip(groups, means, strict=True):
        for value, cluster in group:
            scores.setdefault(cluster, []).append((value - mean) / (k * len(group)))
    clusters, clustered = len(scores), None
    if clusters > 1:
        squares = math.fsum(math.fsum(score) ** 2 for score in scores.values())
        clustered = math.sqrt(clusters / (clusters - 1) * squares)
    return Estimate(math.fsum(means) / k, se, clustered, n)


# -- quintiles --------------------------------------------------------------------------------------------------------


def quintiles(tournament: Tournament, metric: str = "surplus_share") -> list[dict[str, Any]]:
    """Every model in both roles by quintile of its own reservation price, averaged over its opponents (tables 19 to
    21): rows of ``model``, ``role``, ``metric``, ``q1`` to ``q5``, their ``_se``, ``_se_clustered`` and ``_n``, and
    ``spread``, the largest less the smallest; None where a quintile has no observation.

    ``metric`` is a name of ``ROLE_METRICS``; one that ends in ``_ngft`` is over scenarios without gains from trade, any
    other over those with. Raises ``NegolabError`` for an unknown one.
    """
    _known(metric, ROLE_METRICS)
    rows = []
    for role in ROLES:
        tier, name = _tiers(tournament, role, metric), ROLE_METRICS[metric].get(role)
        for model in tournament.models if name else ():
            games = _opponents(tournament, model, role)
            if games:
                cells = [
                    mean_of_means([group for group in groups if group])
                    for groups in zip(*[_by_tier(played, str(name), tier) for played in games.values()], strict=True)
                ]
                rows.append({"model": model, "role": role, "metric": metric, **_wide(cells)})
    return rows


def quintiles_by_opponent(tournament: Tournament, metric: str = "surplus_share") -> list[dict[str, Any]]:
    """The same for every pair (tables 22 to 32): rows have ``opponent`` too, and ``average``, the plain mean of the
    five quintiles."""
    _known(metric, ROLE_METRICS)
    rows = []
    for role in ROLES:
        tier, name = _tiers(tournament, role, metric), ROLE_METRICS[metric].get(role)
        for model in tournament.models if name else ():
            for opponent, played in _opponents(tournament, model, role).items():
                cells = [estimate(*_columns(group)) for group in _by_tier(played, str(name), tier)]
                means = [cell.mean for cell in cells if cell.mean is not None]
                average = math.fsum(means) / len(means) if len(means) == len(cells) else None
                row = {"model": model, "role": role, "opponent": opponent, "metric": metric}
                rows.append({**row, **_wide(cells), "average": average})
    return rows


def _wide(cells: Sequence[Estimate]) -> dict[str, Any]:
    """Five quintiles side by side, and their spread."""
    row: dict[str, Any] = {}
    for name, cell in zip(QUINTILES, cells, strict=True):
        row[name], row[f"{name}_se"], row[f"{name}_se_clustered"], row[f"{name}_n"] = cell
    return {**row, "spread": spread([cell.mean for cell in cells])}


def spread(means: Sequence[float | None]) -> float | None:
    """The largest less the smallest; None where one is missing, or all are."""
    known = [mean for mean in means if mean is not None]
    return max(known) - min(known) if known and len(known) == len(means) else None


def _tiers(tournament: Tournament, role: str, metric: str) -> dict[tuple[str, int, int, int], int]:
    """Scenario -> quintile from 0, by the role's reservation price; ties go by product and repetition."""
    gains = not metric.endswith("_ngft")
    scenarios = {
        one.scenario: one.own(role) for games in tournament.games.values() for one in games if one.gains == gains
    }
    order = sorted(scenarios, key=lambda scenario: (scenarios[scenario], scenario))
    return {scenario: at * len(QUINTILES) // len(order) for at, scenario in enumerate(order)}


def _by_tier(
    games: Iterable[_Played], metric: str, tier: Mapping[tuple[str, int, int, int], int]
) -> list[list[tuple[float, str]]]:
    """A metric's observations by quintile."""
    parts: list[list[_Played]] = [[] for _ in QUINTILES]
    for one in games:
        if one.scenario in tier:
            parts[tier[one.scenario]].append(one)
    return [_observed(part, metric) for part in parts]


# -- profiles ---------------------------------------------------------------------------------------------------------


def profiles(tournament: Tournament) -> list[dict[str, Any]]:
    """The radar profiles (tables 17 and 18): rows of ``model``, ``role``, the six ``AXES``, and each ``_scaled``.

    IR compliance and pressure resistance are 1 less the model's own violation rate with and without gains from trade,
    anchoring its initial aggressiveness (the buyer's is the gap closure), consistency 1 less the spread of its surplus
    share over quintiles. None for what there is no observation of.
    """
    means = {(row["model"], row["role"], row["metric"]): row["mean"] for row in by_role(tournament)}
    spreads = {(row["model"], row["role"]): row["spread"] for row in quintiles(tournament)}
    rows = []
    for model, role in _sides(tournament):
        if not _opponents(tournament, model, role):
            continue
        found = {metric: means.get((model, role, metric)) for metric in ROLE_METRICS}
        axes = (
            _less(found["self_violation_gft"]),
            found["surplus_share"],
            found["deal_rate_gft"],
            found["initial_aggressiveness"],
            _less(spreads[model, role]),
            _less(found["self_violation_ngft"]),
        )
        rows.append({"model": model, "role": role, **dict(zip(AXES, axes, strict=True))})
    return scaled(rows)


def _less(value: float | None) -> float | None:
    return None if value is None else 1 - value


# -- what all share ---------------------------------------------------------------------------------------------------


def _sides(tournament: Tournament) -> list[tuple[str, str]]:
    return [(model, role) for role in ROLES for model in tournament.models]


def _opponents(tournament: Tournament, model: str, role: str) -> dict[str, Sequence[_Played]]:
    """Opponent -> what the model played against it in a role; itself among them."""
    found = {}
    for other in tournament.models:
        games = tournament.games.get(Pair(model, other) if role == "seller" else Pair(other, model))
        if games:
            found[other] = games
    return found


def _observed(games: Iterable[_Played], metric: str) -> list[tuple[float, str]]:
    """All observations of a metric, each with its product."""
    found = []
    for one in games:
        value = one.values.get(metric)
        if isinstance(value, tuple):
            found += [(single, one.scenario[0]) for single in value]
        elif value is not None:
            found.append((value, one.scenario[0]))
    return found


def _columns(observations: Sequence[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [value for value, _ in observations], [cluster for _, cluster in observations]


def _known(metric: str, allowed: Iterable[str]) -> None:
    if metric not in allowed:
        raise NegolabError(f"unknown metric {metric!r} of a tournament; allowed: {', '.join(allowed)}")
