"""arXiv 2604.09855, a buyer against one regulated seller: its setting, and runs put next to its published numbers.

The numbers are second-hand (``data/papers/2604.09855/SOURCE.md`` says from where); they are read through
``papers.training.table``. This module imports nothing heavy.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.statistics import Estimate

ARXIV = "2604.09855"
PAPER, OURS = "paper, second-hand", "ours"

METRIC_LABELS: Mapping[str, str] = {
    "reward": "Reward",
    "deal_rate": "Deal Rate",
    "bargained_ratio": "Bargained Ratio (deals)",
    "first_offer_ratio": "First-Turn Offer Ratio",
    "overshoot_rate": "Price Overshoot Rate",
}
"""Metric -> the paper's label, in the order in which its section 4.1 is reported."""
LOWER_IS_BETTER: frozenset[str] = frozenset({"overshoot_rate"})
EPISODES = 512
"""Of its evaluation: 128 held-out products, four times each (its table 6, second-hand)."""
SETTING: Mapping[str, float] = {
    "turns": 6,
    "budget_of_list_price": 0.8,
    "learning_rate": 3e-5,
    "groups": 64,
    "group_size": 8,
    "kl": 0.0,
    "buyer_temperature": 1.0,
    "seller_temperature": 0.7,
}
"""Its game and training (tables 5 and 6, second-hand)."""


class Row(NamedTuple):
    """One buyer's numbers. Every metric is an ``Estimate``, empty (n = 0) where nobody reported it."""

    buyer: str
    source: str
    """``PAPER`` or ``OURS``."""
    metrics: Mapping[str, Estimate]


def published() -> Row:
    """The trained buyer against the neutral seller (table 1, second-hand). Errors and n are not reported: 0 stands for
    no n. Raises ``NegolabError`` where the packaged file is missing or damaged."""
    path = data_dir() / "papers" / ARXIV / "results.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, ValueError) as error:
        raise NegolabError(f"published numbers {path.name} of {ARXIV} cannot be read: {error}") from None
    none = Estimate(None, None, None, 0)
    values = {name: none._replace(mean=found.get(name)) for name in METRIC_LABELS}
    return Row("trained (Qwen3-30B-A3B-Instruct-2507)", PAPER, values)


def side_by_side(ours: Mapping[str, Mapping[str, Estimate]]) -> list[Row]:
    """The paper's row, then ours by buyer (estimates as ``metrics.summarise`` gives them).

    Raises ``NegolabError`` for numbers that are not the bilateral game's.
    """
    rows = [published()]
    for buyer, found in ours.items():
        missing = [name for name in METRIC_LABELS if name not in found]
        if missing:
            raise NegolabError(f"{buyer}: no metric {missing[0]!r}; its episodes are not the bilateral game's")
        rows.append(Row(buyer, OURS, {name: found[name] for name in METRIC_LABELS}))
    return rows


def implied_violations(row: Row) -> float | None:
    """Deal rate x bargained ratio - reward: the share of broken rules, where all games have gains from trade and no
    reward is clipped. About 0.005 for the paper's buyer. None where one of the three is not known."""
    reward, deals, ratio = (row.metrics[name].mean for name in ("reward", "deal_rate", "bargained_ratio"))
    return None if reward is None or deals is None or ratio is None else deals * ratio - reward


def table(rows: Sequence[Row], digits: int = 3) -> list[list[str]]:
    """Cells of a printed table, the head first: ``mean ± standard error``, or the mean alone where that is all."""
    made = [["buyer", "source", *METRIC_LABELS.values()]]
    for row in rows:
        cells = []
        for name in METRIC_LABELS:
            mean, se, *_ = row.metrics[name]
            shown = "n/a" if mean is None else f"{mean:.{digits}f}"
            cells.append(shown if se is None else f"{shown} ± {se:.{digits}f}")
        made.append([row.buyer, row.source, *cells])
    return made
