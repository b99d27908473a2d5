"""What metrics of all games share: the shape of a metric, those that any game has, and summaries of many episodes.

A metric is a function of one finished episode. It returns None when the episode is not in its denominator, one number,
or, where an episode holds several observations (one per sold item, say), a tuple of them: they are pooled, so that the
mean is a rate over all items and n their number, and clustered by what the run repeats like everything else.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.statistics import Accumulator, Estimate

Value = float | tuple[float, ...] | None
Metric = Callable[[Episode], Value]


def reward(episode: Episode) -> float:
    """The paper's reward."""
    return episode.reward


def deal_rate(episode: Episode) -> float:
    """1 for a deal, or several."""
    return float(episode.outcome.kind == "deal")


def violation_rate(episode: Episode) -> float:
    """1 when the seller ended the episode by breaking a rule, of whatever kind."""
    return float(episode.outcome.kind == "violation" and episode.outcome.seat == SELLER)


def seller_violation(kind: str) -> Metric:
    """The rate of one kind of violation."""

    def metric(episode: Episode) -> float:
        return float(violation_rate(episode) and episode.outcome.reason == kind)

    metric.__doc__ = f"1 when the seller's violation was of kind ``{kind}``."
    return metric


def aborted_rate(episode: Episode) -> float:
    """1 when a seat could not speak: its context was full or no answer came in time."""
    return float(episode.outcome.kind == "aborted")


def distinct_buyers(episode: Episode) -> float:
    """Buyers that got at least one message: a [SELL], or the accepting [DEAL]; a violating message reaches nobody."""
    reached = {t.buyer for t in episode.turns if t.seat == SELLER and t.violation is None and t.verb != "QUIT"}
    return float(len(reached))


def seller_messages(episode: Episode) -> float:
    """Messages that the seller used up, the accepting [DEAL] included."""
    return float(sum(t.seat == SELLER and t.violation is None and t.verb != "QUIT" for t in episode.turns))


def turns(episode: Episode) -> float:
    """All accepted replies of all seats, openings included, and the violating one where there is one."""
    return float(len(episode.turns))


def refused_replies(episode: Episode) -> float:
    """Opponents' replies that the guard turned down."""
    return float(sum(len(note.get("refused", ())) for note in episode.notes.values()))


def fallbacks(episode: Episode) -> float:
    """Opponents' turns that the guard played for them."""
    return float(sum(t.fallback for t in episode.turns))


def tokens(sellers: bool, which: int) -> Metric:
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


UPKEEP: Mapping[str, Metric] = {
    "refused_replies": refused_replies,
    "fallbacks": fallbacks,
    "seller_prompt_tokens": tokens(True, 0),
    "seller_sampled_tokens": tokens(True, 1),
    "buyer_prompt_tokens": tokens(False, 0),
    "buyer_sampled_tokens": tokens(False, 1),
}
"""What a market's episode took beside its turns; the last rows of ``metrics.csv``."""


class Summary:
    """All metrics of a run in one pass over its episodes; memory grows with the products, not with the episodes."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._totals = {name: Accumulator() for name in metrics}

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        cluster = episode.scenario.unit
        for name, metric in self._metrics.items():
            value = metric(episode)
            if isinstance(value, tuple):
                for one in value:
                    self._totals[name].add(one, cluster)
            elif value is not None:
                self._totals[name].add(value, cluster)

    def estimates(self) -> dict[str, Estimate]:
        """Mean, errors and n by metric."""
        return {name: total.estimate() for name, total in self._totals.items()}


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
    from negolab.metrics import metrics_of

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
    drawn = (s.valuations, s.openings, s.keys, s.buyer_types)
    return (s.unit, s.rep, s.per_buyer_cap, s.message_budget, s.protocol, tuple(money), *drawn)
