"""What metrics of all games share: the shape of a metric, those that any game has, and summaries of many episodes.

A metric is a function of one finished episode. It returns None when the episode is not in its denominator, one number,
or, where an episode holds several observations (one per sold item, say), a tuple of them: they are pooled, so that the
mean is a rate over all items and n their number, and clustered by what the run repeats like everything else.
"""

from collections.abc import Callable, Mapping

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
