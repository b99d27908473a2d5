"""arXiv 2609.33289, one seller, several items and sealed buyers: published numbers, the six suites, the example.

The numbers lie in ``data/papers/2609.33289/*.csv``; ``SOURCE.md`` there says where each is from, and what is not known:
the paper was not at hand, only a summary with sections and pages. Each number carries its trust: ``STATED``;
``DERIVED`` from stated ones by an identity, with the error that their rounding leaves; ``RECOVERED`` (the example's
costs), which is not stated legibly but fits all that is. Rates are fractions, money is integer cents.

This module may be imported without pandas; only the functions that return or read frames need it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from negolab.errors import NegolabError
from negolab.papers.multi_buyer import OURS, PAPER, wide_records
from negolab.papers.tables import ITEM_METRIC_LABELS, missing, number
from negolab.paths import data_dir
from negolab.scenario import Regime, regime

if TYPE_CHECKING:
    import pandas as pd

ARXIV = "2609.33289"
STATED, DERIVED, RECOVERED = "stated", "derived", "recovered"
"""How far a published number can be trusted; see the module."""

METRICS: tuple[str, ...] = tuple(ITEM_METRIC_LABELS)
"""The six metrics of section 6, in its order."""
TABLES: tuple[str, ...] = ("results", "ood", "settings")
"""Files of published numbers."""
TRAINED, UNTRAINED = "Qwen3-30B-A3B-Instruct-2507-trained", "Qwen3-30B-A3B-Instruct-2507-untrained"
HELD_OUT = "Musical Instruments"
"""The category that no seller is trained on (section 4.2)."""
TEST_CLUSTERS = 240
"""Clusters behind table 1; how many episodes each was played in is not stated."""

_HALF = 0.0005
"""What rounding to three digits can shift a number by."""
_TEXT_COLUMNS = frozenset({"seller", "params", "metric", "source", "suite", "group", "setting"})


class Cell(NamedTuple):
    """One published number."""

    value: float
    trust: str
    """``STATED`` or ``DERIVED``."""
    source: str
    """Table, section and page; for a derived number, from which others."""
    tolerance: float = _HALF
    """What rounding in print can shift it by."""


# -- suites -----------------------------------------------------------------------------------------------------------

_SIZES = ("n_buyers", "n_items", "message_budget", "per_buyer_cap")
_UNKNOWN = ("budget_tiers", "first_offer", "first_offer_rate")


@dataclass(frozen=True)
class Suite:
    """An environment of the paper as it is played here: how markets are drawn, and of which clusters."""

    name: str
    """The paper's name."""
    regime_name: str
    """The regime of ``negolab.scenario``."""
    split: str
    """``test`` (the categories of training) or ``held_out`` (``HELD_OUT``, or what a catalogue has in its place)."""
    shift: str
    """What differs from the market of training, in words."""
    ours: tuple[str, ...]
    """Knobs of the regime whose values the sources do not give: they are this project's."""

    @property
    def regime(self) -> Regime:
        """The regime itself, with N, M, T, K as it plays them."""
        return regime(self.regime_name)


REFERENCE = Suite("In-Distribution", "multi_product", "test", "clusters that training did not see", ("budget_tiers",))
"""The setting of table 1 (section 5.2): N = M = 3, T = 7, K = 3, the iter-60 buyer."""

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("Expanded", "multi_expanded", "test", "more buyers, items and messages", (*_SIZES, *_UNKNOWN)),
        Suite("Item Heavy", "multi_item_heavy", "test", "more items than buyers", (*_SIZES, *_UNKNOWN)),
        Suite("Buyer Heavy", "multi_buyer_heavy", "test", "more buyers than items", (*_SIZES, *_UNKNOWN)),
        Suite(
            "Item Correlation",
            "multi_item_correlation",
            "test",
            "buyers agree on which items are worth more",
            (*_SIZES, *_UNKNOWN, "item_correlation"),
        ),
        Suite("Musical", "multi_varied", "held_out", "a category that training did not see", (*_SIZES, *_UNKNOWN)),
        Suite(
            "Expanded Musical",
            "multi_expanded",
            "held_out",
            "a category that training did not see; more buyers, items and messages",
            (*_SIZES, *_UNKNOWN),
        ),
    )
}
"""The six of section 9.1 by name (``ood.csv`` marks which names are stated). Stated of all: each slot's buyer is drawn
from iter-50, iter-60 and iter-70. What shifts is stated, sizes and strengths are not."""


def suite(name: str) -> Suite:
    """A suite by the paper's name, the reference included. Raises ``NegolabError`` for any other."""
    known = {REFERENCE.name: REFERENCE, **SUITES}
    if name not in known:
        raise NegolabError(f"unknown suite {name!r} of arXiv {ARXIV}; known: {', '.join(known)}")
    return known[name]


# -- the example of appendix H ----------------------------------------------------------------------------------------


class ExampleSale(NamedTuple):
    """A sale of the example, items and buyers counted from 1."""

    item: int
    buyer: int
    cents: int
    trust: str = STATED


@dataclass(frozen=True)
class ExampleRun:
    """One of the two runs on the market of appendix H: three buyers, three items, no opening regulated."""

    name: str
    section: str
    sales: tuple[ExampleSale, ...]
    """In order where that is known (untrained); by item otherwise."""
    published_reward: float

    @property
    def margin_cents(self) -> int:
        """What the seller earned above the costs; no price is above its list price."""
        return sum(sale.cents - EXAMPLE_COSTS[sale.item - 1] for sale in self.sales)

    @property
    def reward(self) -> float:
        """The reward of section 3.2 of the sales."""
        return self.margin_cents / EXAMPLE_ROOM


EXAMPLE_ROOM = 27_791
"""The catalogue's list prices minus costs in cents (section H.2, p. 47): the reward's denominator. Stated."""
EXAMPLE_COSTS: tuple[int, ...] = (5_599, 10_000, 4_207)
"""Costs of the items in cents. Recovered: item 3's is its price less its margin; the others fit both rewards."""
EXAMPLE_UNTRAINED_MARGINS = (359, 4_760)
"""Stated of the untrained run, in cents: the margin of its first sale, and of all (section H.2, pp. 46-47)."""
EXAMPLE_VALUATIONS: Mapping[tuple[int, int], int] = {(2, 2): 25_212, (3, 3): 4_399}
"""(buyer, item) -> cents: the two valuations that are stated (sections H.2 and H.3)."""
EXAMPLE_UNTRAINED = ExampleRun(
    "untrained", "H.2, pp. 46-47", (ExampleSale(3, 1, 4_566), ExampleSale(1, 2, 10_000, RECOVERED)), 0.171
)
"""Item 2, of the highest margin, stays unsold: buyer 2, who would pay for it, is gone."""
EXAMPLE_TRAINED = ExampleRun(
    "trained",
    "H.3, p. 50",
    (ExampleSale(1, 1, 14_000), ExampleSale(2, 2, 24_000), ExampleSale(3, 3, 4_399)),
    0.813,
)
"""The assignment with most surplus. Item 2 sells at 96 % of its list price, item 3 at its buyer's valuation."""


# -- published numbers ------------------------------------------------------------------------------------------------


def _rows(name: str) -> list[dict[str, str]]:
    if name not in TABLES:
        raise NegolabError(f"unknown table {name!r} of arXiv {ARXIV}; known: {', '.join(TABLES)}")
    path = data_dir() / "papers" / ARXIV / f"{name}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise NegolabError(f"published table not found: {path}") from None


def table(name: str) -> pd.DataFrame:
    """A published table by name (see ``TABLES``) as its file has it: stated cells only, one a row; NaN for a number
    that is not stated. The values of ``settings`` stay text. Raises ``NegolabError`` for another name."""
    import pandas as pd

    frame = pd.DataFrame(_rows(name))
    texts = _TEXT_COLUMNS | ({"value"} if name == "settings" else set())
    return frame.assign(**{c: pd.to_numeric(frame[c]) for c in map(str, frame.columns) if c not in texts})


def known() -> dict[str, dict[str, Cell]]:
    """Seller -> metric -> what is known of table 1, in the order of its file: stated cells, and those that follow.

    Reward is -1 on a violation and the surplus ratio elsewhere, so ``reward = (1 - v) * ratio - v``: of reward, ratio
    and violation rate v the third follows from two.
    """
    cells: dict[str, dict[str, Cell]] = {}
    for row in _rows("results"):
        cells.setdefault(row["seller"], {})[row["metric"]] = Cell(float(row["value"]), STATED, row["source"])
    for found in cells.values():
        r, s, v = (found[m].value if m in found else None for m in ("reward", "surplus_ratio", "violation_rate"))
        if r is not None and v is not None and s is None:
            error = _HALF * (1 / (1 - v) + (1 + r) / (1 - v) ** 2)
            found["surplus_ratio"] = Cell((r + v) / (1 - v), DERIVED, "from reward and violation rate", error)
        elif r is not None and s is not None and v is None:
            error = _HALF * (1 / (1 + s) + (1 + r) / (1 + s) ** 2)
            found["violation_rate"] = Cell((s - r) / (1 + s), DERIVED, "from reward and surplus ratio", error)
    return cells


def notes() -> list[str]:
    """A sentence for each derived cell, to stand below a table that shows it."""
    return [
        f"{seller}: {ITEM_METRIC_LABELS[metric]} {cell.value:.3f} (to {cell.tolerance:.3f}) is not stated; it is "
        f"derived {cell.source}."
        for seller, cells in known().items()
        for metric, cell in cells.items()
        if cell.trust == DERIVED
    ]


def reward_margins() -> dict[str, float | None]:
    """Suite -> the trained seller's reward above the best baseline's (section 9.2); None where it is not stated, which
    is between the smallest and the largest of the others."""
    return {row["suite"]: float(row["reward_margin"]) if row["reward_margin"] else None for row in _rows("ood")}


def published() -> list[dict[str, Any]]:
    """The paper's rows of table 1: ``seller``, ``source``, ``params``, and per metric the mean, ``_se``, ``_n`` (never
    stated) and ``_trust``; NaN, and an empty trust, for what is not known."""
    params = {row["seller"]: row["params"] for row in _rows("results")}
    records = []
    for seller, cells in known().items():
        record: dict[str, Any] = {"seller": seller, "source": PAPER, "params": params[seller]}
        for metric in METRICS:
            cell = cells.get(metric)
            record |= {metric: cell.value if cell else float("nan"), f"{metric}_trust": cell.trust if cell else ""}
            record |= {f"{metric}_se": float("nan"), f"{metric}_n": float("nan")}
        records.append(record)
    return records


def side_by_side(ours: pd.DataFrame, source: str | Mapping[str, str] = OURS) -> pd.DataFrame:
    """Our rows among the paper's of table 1, sorted by reward, each marked ``"paper"`` or ``source`` (one for all, or
    by seller).

    ``ours`` is wide or long as in ``multi_buyer.side_by_side``; absent metrics become NaN. The result is wide: the six
    metrics in the paper's order, each with ``_se``, ``_n`` and ``_trust`` (``"measured"`` for ours).
    Raises ``NegolabError`` where ``ours`` names no sellers.
    """
    import pandas as pd

    if "seller" not in ours.columns:
        raise NegolabError(f"a table of results needs a column 'seller'; found: {', '.join(map(str, ours.columns))}")
    records = published()
    for row in wide_records(ours):
        seller, params = str(row["seller"]), row.get("params")
        record: dict[str, Any] = {"seller": seller, "source": source if isinstance(source, str) else source[seller]}
        record["params"] = "" if missing(params) else str(params)
        for metric in METRICS:
            record |= {metric + part: number(row.get(metric + part)) for part in ("", "_se", "_n")}
            record[f"{metric}_trust"] = "" if missing(row.get(metric)) else "measured"
        records.append(record)
    parts = ("", "_se", "_n", "_trust")
    frame = pd.DataFrame(
        records, columns=["seller", "source", "params", *(m + part for m in METRICS for part in parts)]
    )
    return frame.sort_values("reward", ascending=False, kind="stable", na_position="last", ignore_index=True)
