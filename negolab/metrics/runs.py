"""Which metrics a game has; means over many episodes of it, and differences of two runs on the same markets."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from negolab.episodes import Episode
from negolab.metrics.bilateral import BILATERAL_METRICS
from negolab.metrics.common import Metric, Summary, Value
from negolab.metrics.items import ITEM_METRICS
from negolab.metrics.market import METRICS
from negolab.metrics.trade import TRADE_METRICS
from negolab.statistics import Accumulator, Estimate


def metrics_of(game: str, protocol: str = "lines") -> Mapping[str, Metric]:
    """The metrics of a game by what scenarios and regimes call it and its protocol. Raises ``KeyError`` for others."""
    games = {
        ("market", "lines"): METRICS,
        ("market", "tags"): ITEM_METRICS,
        ("bilateral", "lines"): BILATERAL_METRICS,
        ("trade", "tools"): TRADE_METRICS,
    }
    return games[game, protocol]


def summarise(episodes: Iterable[Episode], metrics: Mapping[str, Metric] | None = None) -> dict[str, Estimate]:
    """``Summary`` of an iterable; by default with the metrics of its game, of which there must then be an episode."""
    source = iter(episodes)
    first = next(source, None) if metrics is None else None
    summary = Summary(metrics if metrics is not None else metrics_by(first))
    for episode in source if first is None else chain([first], source):
        summary.add(episode)
    return summary.estimates()


def metrics_by(episode: Episode | None) -> Mapping[str, Metric]:
    """The metrics of an episode's game. Raises ``ValueError`` for None: no episode, no game."""
    if episode is None:
        raise ValueError("no episodes, so nobody can say whose metrics to take")
    return metrics_of(episode.scenario.game, episode.scenario.protocol)


def paired(
    first: Iterable[Episode], second: Iterable[Episode], metrics: Mapping[str, Metric] | None = None
) -> tuple[dict[str, Estimate], int]:
    """Mean difference ``second - first`` by metric over the scenarios both runs played, and how many those are.

    Two episodes are a pair when they share products, repetition and every drawn number. A metric's pairs are those in
    whose denominator both episodes are (for deal-only metrics: both closed); of several observations in one episode
    their mean counts. By default the metrics are those of the game.
    """
    source = iter(first)
    peeked = next(source, None) if metrics is None else None
    if metrics is None:
        metrics = metrics_by(peeked)
    known = source if peeked is None else chain([peeked], source)
    kept = {_market(e): {name: _mean(metric(e)) for name, metric in metrics.items()} for e in known}
    totals = {name: Accumulator() for name in metrics}
    common = 0
    for episode in second:
        mine = kept.get(_market(episode))
        if mine is None:
            continue
        common += 1
        for name, metric in metrics.items():
            a, b = mine[name], _mean(metric(episode))
            if a is not None and b is not None:
                totals[name].add(b - a, episode.scenario.unit)
    return {name: total.estimate() for name, total in totals.items()}, common


def _mean(value: Value) -> float | None:
    if isinstance(value, tuple):
        return sum(value) / len(value) if value else None
    return value


def _market(episode: Episode) -> tuple[Any, ...]:
    s = episode.scenario
    money = [(p.listing.codename, p.listing.list_cents, p.cost_cents) for p in s.products]
    drawn = (s.valuations, s.openings, s.keys, s.buyer_types, s.reserve)
    return (s.unit, s.rep, s.per_buyer_cap, s.message_budget, s.protocol, tuple(money), *drawn)
