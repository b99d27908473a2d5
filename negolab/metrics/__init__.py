"""Metrics, each a function of one episode: of the market of one item, of that of several, of the bilateral game, of the
trade game."""

from negolab.metrics.bilateral import BILATERAL_METRICS, FOUR_PHASES
from negolab.metrics.common import Metric, Summary, Value
from negolab.metrics.items import ITEM_METRICS, SIX
from negolab.metrics.market import METRICS, VIOLATIONS, buyer_types, closing_ranks, first_offer_match
from negolab.metrics.runs import metrics_of, paired, summarise
from negolab.metrics.trade import TRADE_MAIN, TRADE_METRICS

__all__ = [
    "BILATERAL_METRICS",
    "FOUR_PHASES",
    "ITEM_METRICS",
    "METRICS",
    "SIX",
    "TRADE_MAIN",
    "TRADE_METRICS",
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
