"""Figures in one style: the analogues of figures 3 to 11 of arXiv 2607.05863, and charts of its tables; of a
tournament of the trade game those of figures 4 to 12 and 21 to 29 of arXiv 2604.16472.

Every function takes plain frames or lists, returns a ``Figure`` that pyplot does not know, and draws a "no data" note
where there is nothing to draw. Nothing here shows a window or chooses a backend; ``save`` writes the files. Series are
told apart by hatch, line or marker as well as by colour (Okabe and Ito's palette), so that they survive a grey print,
and a caption says which numbers are the paper's and which are ours. Error bars are one standard error.
"""

from negolab.plots.items import cluster_prices, item_benchmark, matchings, suites, valuation_scatter
from negolab.plots.market import catalog_distribution, episode_path, first_offers
from negolab.plots.results import benchmark_bars, closing_ranks, skill_radar
from negolab.plots.style import SavedFigure, save
from negolab.plots.trade import figures as tournament_figures
from negolab.plots.trade import trade_bars, trade_heat_maps, trade_profiles, trade_quintiles
from negolab.plots.training import LABELS as TRAINING_LABELS
from negolab.plots.training import training_curve, training_overview

__all__ = [
    "TRAINING_LABELS",
    "SavedFigure",
    "benchmark_bars",
    "catalog_distribution",
    "closing_ranks",
    "cluster_prices",
    "episode_path",
    "first_offers",
    "item_benchmark",
    "matchings",
    "save",
    "skill_radar",
    "suites",
    "tournament_figures",
    "trade_bars",
    "trade_heat_maps",
    "trade_profiles",
    "trade_quintiles",
    "training_curve",
    "training_overview",
    "valuation_scatter",
]
