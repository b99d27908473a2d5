"""Metrics, each a function of one episode: of the market of one item, of that of several, of the bilateral game."""

from collections.abc import Mapping

from negolab.metrics.bilateral import BILATERAL_METRICS, FOUR_PHASES
from negolab.metrics.common import Metric, Summary, Value, paired, summarise
from negolab.metrics.items import ITEM_METRICS, SIX
from negolab.metrics.market import METRICS, VIOLATIONS, buyer_types, closing_ranks, first_offer_match

__all__ = [
    "BILATERAL_METRICS",
    "FOUR_PHASES",
    "ITEM_METRICS",
    "METRICS",
    "SIX",
    "VIOLATIONS",
    "Metric",
    "Summary",
    "Value",
    "buyer_types",
    "closing_ranks",
    "first_offer_match",
    "metrics_of",
    "paired",
    "summarise",
]


def metrics_of(game: str, protocol: str = "lines") -> Mapping[str, Metric]:
    """The metrics of a game by what scenarios and regimes call it and its protocol. Raises ``KeyError`` for others."""
    games = {("market", "lines"): METRICS, ("market", "tags"): ITEM_METRICS, ("bilateral", "lines"): BILATERAL_METRICS}
    return games[game, protocol]
