"""arXiv 2607.05863, one seller against several sealed buyers: the published numbers, and ours put next to them.

The numbers lie in ``data/papers/2607.05863/*.csv``; ``SOURCE.md`` in that folder names the table and section of every
file and lists the paper's oddities. Rates are fractions, money is integer cents. What this project measured never
stands in those files: ``side_by_side`` joins the two and marks every row with its source.

This module may be imported without pandas; only the functions that return or read frames need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from negolab.errors import NegolabError
from negolab.papers.tables import (
    LOWER_IS_BETTER,
    METRIC_LABELS,
    METRICS,
    TABLE_METRICS,
    format_cell,
    missing,
    number,
    to_latex,
    to_markdown,
)
from negolab.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ARXIV",
    "DEAL_ONLY",
    "EPISODES",
    "EXAMPLE_TRAINED",
    "EXAMPLE_UNTRAINED",
    "LOWER_IS_BETTER",
    "METRICS",
    "METRIC_LABELS",
    "OURS",
    "OURS_MODEL",
    "OURS_OWN",
    "PAPER",
    "RADAR_SELLERS",
    "TABLES",
    "TABLE_METRICS",
    "ExampleRun",
    "Offer",
    "Which",
    "format_cell",
    "implied_violations",
    "published",
    "side_by_side",
    "table",
    "to_latex",
    "to_markdown",
    "wide_records",
]

ARXIV = "2607.05863"

Which = Literal["in_distribution", "ood_diverse"]

PAPER = "paper"
OURS = "ours (scripted)"
OURS_MODEL = "ours (language model)"
OURS_OWN = "ours (own player)"

EPISODES = 256
"""Episodes behind one row: 128 held-out products, twice each (table 7; the caption of table 9)."""

DEAL_ONLY: frozenset[str] = frozenset({"surplus_ratio", "top_buyer_rate"})
"""Metrics over episodes that end in a deal; the paper does not print their n."""

RADAR_SELLERS: tuple[str, ...] = (
    "Qwen3-30B-A3B-Instruct-2507-trained",
    "Qwen3-30B-A3B-Instruct-2507-untrained",
    "DeepSeek-V3.1-thinking",
    "Kimi-K2.6-thinking",
)
"""The four series of figure 3, in its order."""

_WHICH_FILE: dict[str, str] = {"in_distribution": "table9", "ood_diverse": "table10"}
_FILES = ("table9", "table10", "table11", "table12", "table13", "closing_rank", "settings", "sellers")
_DERIVED = ("table1", "table2", "table4", "table5", "table6", "table7", "table8", "figure3", "figure10")

TABLES: tuple[str, ...] = _FILES + _DERIVED
"""Every name that ``table`` knows. Tables 1 and 2 are the means of tables 9 and 10; figure 3 is part of table 1."""

_TEXT_COLUMNS = frozenset(
    {"seller", "params", "reference", "regime", "setting", "value", "buyer_type", "run", "codename"}
)


class Offer(NamedTuple):
    """One price in one channel. An answer to the seller's turn-t message carries turn t + 1 (section 14)."""

    turn: int
    buyer: int
    side: Literal["bid", "ask", "deal"]
    cents: int


@dataclass(frozen=True)
class ExampleRun:
    """One of the two example runs on ``baby-products_17`` (sections 14.1 to 14.3, table 13). Money in cents."""

    name: str
    section: str
    budgets: tuple[int, ...]
    """Hidden budget by buyer, in slot order."""
    openings: tuple[int, ...]
    """The regulated first offers."""
    later: tuple[Offer, ...]
    """The prices after the openings in order, the closing one last."""
    codename: str = "baby-products_17"
    list_cents: int = 3499
    cost_cents: int = 1875

    @property
    def ranks(self) -> tuple[int, ...]:
        """Budget rank by buyer; 1 is the largest budget."""
        return tuple(1 + sum(other > budget for other in self.budgets) for budget in self.budgets)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every price of the transcript in order, openings first and the closing one last."""
        return (*(Offer(1, buyer, "bid", cents) for buyer, cents in enumerate(self.openings, 1)), *self.later)

    @property
    def deal(self) -> Offer:
        """The closing move: both runs end with a deal."""
        return self.later[-1]

    @property
    def reward(self) -> float:
        """Equation (1) for a deal: the share of list price minus cost that the seller keeps, at most 1."""
        return min(1.0, (self.deal.cents - self.cost_cents) / (self.list_cents - self.cost_cents))


EXAMPLE_UNTRAINED = ExampleRun(
    name="untrained",
    section="14.2",
    budgets=(2540, 1813, 4011),
    openings=(1050, 905, 933),
    later=(
        Offer(1, 1, "ask", 2200),
        Offer(2, 1, "bid", 1800),
        Offer(2, 1, "ask", 2000),
        Offer(3, 1, "bid", 1900),
        Offer(3, 1, "deal", 1900),
    ),
)

EXAMPLE_TRAINED = ExampleRun(
    name="trained",
    section="14.3",
    budgets=(1764, 3837, 2583),
    openings=(995, 1045, 928),
    later=(
        Offer(1, 2, "ask", 3499),
        Offer(2, 2, "bid", 1800),
        Offer(2, 1, "ask", 3499),
        Offer(3, 1, "bid", 995),
        Offer(3, 3, "ask", 3499),
        Offer(4, 3, "bid", 1000),
        Offer(4, 2, "ask", 3499),
        Offer(5, 2, "bid", 3250),
        Offer(5, 2, "deal", 3250),
    ),
)


def _read(path: Path) -> pd.DataFrame:
    """Read one of the CSV files: text columns stay text (a seller may be called "None"), the others become numbers."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise NegolabError(f"published table not found: {path}") from None
    numbers = [str(name) for name in frame.columns if name not in _TEXT_COLUMNS]
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in numbers})


def table(name: str) -> pd.DataFrame:
    """A published table by name (see ``TABLES``): ``table("table9")``, ``table("table6")``, ``table("figure3")``.

    Rates are fractions, money is cents, ``_se`` a standard error; an unpublished cell is NaN. The figures' frames are
    ready to plot and carry ``source``; figure 10's also holds shares that follow from the stated ones, and ``derived``
    says which.
    Raises ``NegolabError`` for a name that is not in ``TABLES``.
    """
    if name not in TABLES:
        raise NegolabError(f"unknown table {name!r} of arXiv {ARXIV}; known: {', '.join(TABLES)}")
    folder = data_dir() / "papers" / ARXIV
    if name in _FILES:
        return _read(folder / f"{name}.csv")
    if name in ("table1", "table2"):
        full = table("table9" if name == "table1" else "table10")
        return full[["seller", "params", *TABLE_METRICS]]
    if name == "figure3":
        means = table("table1").set_index("seller").loc[list(RADAR_SELLERS)].reset_index()
        return means.assign(sell_above_cost_accuracy=1 - means["below_cost_rate"], source=PAPER)
    if name == "figure10":
        return _with_remainder(table("closing_rank")).assign(source=PAPER)
    if name == "table4":
        return table("sellers")
    settings = table("settings")
    return settings[settings["table"] == int(name.removeprefix("table"))].reset_index(drop=True)


def _with_remainder(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by rank; a row's single unstated share becomes what the stated ones leave of 1, and ``derived`` names it.

    ``derived`` is None where all are stated, or too few.
    """
    import pandas as pd

    ranks, records = ("rank1", "rank2", "rank3"), []
    for row in shares.to_dict("records"):
        unstated = [rank for rank in ranks if missing(row[rank])]
        derived = unstated[0] if len(unstated) == 1 else None
        if derived is not None:
            row[derived] = round(1 - sum(row[rank] for rank in ranks if rank != derived), 3)
        records.append({**row, "derived": derived})
    return pd.DataFrame(records)


def implied_violations(which: Which) -> pd.DataFrame:
    """Total violation rate of each published seller, which the paper leaves out, from its other numbers.

    Reward is +ratio on deals, 0 without one and -1 on a violation (equation 1), so the means obey
    ``reward = deal_rate * surplus_ratio - violation_rate``. ``tolerance`` is what rounding in print can shift it by.
    """
    rows = table(_file(which))
    implied = rows["deal_rate"] * rows["surplus_ratio"] - rows["reward"]
    tolerance = 0.0005 * (1 + rows["deal_rate"] + rows["surplus_ratio"])
    return rows[["seller", "below_cost_rate"]].assign(violation_rate=implied, tolerance=tolerance)


def published(which: Which) -> list[dict[str, Any]]:
    """The paper's rows of table 9 or 10 in its order: ``seller``, ``source``, ``params``, and per metric the mean,
    ``_se`` and ``_n``, NaN where it prints none."""
    return [_paper_record(row) for row in table(_file(which)).to_dict("records")]


def side_by_side(ours: pd.DataFrame, which: Which, source: str | Mapping[str, str] = OURS) -> pd.DataFrame:
    """Our rows among the paper's, sorted by reward, every row marked ``"paper"`` or ``source`` (one for all, or by
    seller).

    ``ours`` is either wide (``seller`` and, per metric, ``reward``, ``reward_se``, ``reward_n``) or long (``seller``,
    ``metric``, ``mean``, ``se``, ``n``, as in ``metrics.csv``). Absent metrics become NaN. The result is wide, with
    the metrics in the paper's column order.
    """
    import pandas as pd

    if "seller" not in ours.columns:
        raise NegolabError(f"a table of results needs a column 'seller'; found: {', '.join(map(str, ours.columns))}")
    records = published(which)
    for row in wide_records(ours):
        records.append(_our_record(row, source if isinstance(source, str) else source[str(row["seller"])]))
    for record in records:
        for part, value in (("", 1 - record["below_cost_rate"]), ("_se", record["below_cost_rate_se"])):
            if missing(record["sell_above_cost_accuracy" + part]):
                record["sell_above_cost_accuracy" + part] = value
        if missing(record["sell_above_cost_accuracy_n"]):
            record["sell_above_cost_accuracy_n"] = record["below_cost_rate_n"]
    columns = ["seller", "source", "params", *(m + part for m in METRICS for part in ("", "_se", "_n"))]
    frame = pd.DataFrame(records, columns=columns)
    return frame.sort_values("reward", ascending=False, kind="stable", na_position="last", ignore_index=True)


def _file(which: str) -> str:
    if which not in _WHICH_FILE:
        raise NegolabError(f"unknown regime {which!r}; the paper has {' and '.join(_WHICH_FILE)}")
    return _WHICH_FILE[which]


def _paper_record(row: dict[Any, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"seller": row["seller"], "source": PAPER, "params": row["params"]}
    for metric in METRICS:
        published = metric in TABLE_METRICS
        record[metric] = number(row.get(metric))
        record[metric + "_se"] = number(row.get(metric + "_se"))
        record[metric + "_n"] = float(EPISODES) if published and metric not in DEAL_ONLY else float("nan")
    return record


def _our_record(row: dict[Any, Any], source: str) -> dict[str, Any]:
    params = row.get("params")
    record: dict[str, Any] = {
        "seller": str(row["seller"]),
        "source": source,
        "params": "" if missing(params) else str(params),
    }
    for metric in METRICS:
        for part in ("", "_se", "_n"):
            record[metric + part] = number(row.get(metric + part))
    return record


def wide_records(ours: pd.DataFrame) -> list[dict[Any, Any]]:
    """Rows of a table of results, wide or long as ``side_by_side`` takes it, each with ``metric``, ``_se``, ``_n``."""
    if not {"metric", "mean"} <= set(ours.columns):
        return ours.to_dict("records")
    by_seller: dict[str, dict[Any, Any]] = {}
    for row in ours.to_dict("records"):
        record = by_seller.setdefault(str(row["seller"]), {"seller": row["seller"]})
        record |= {row["metric"]: row["mean"], f"{row['metric']}_se": row.get("se"), f"{row['metric']}_n": row.get("n")}
    return list(by_seller.values())
