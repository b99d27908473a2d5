"""arXiv 2604.16472, bilateral trade by tool calls: published tables, what follows from them, and the paper's claims.

The numbers lie in ``data/papers/2604.16472/*.csv`` (from the paper, CC BY 4.0); ``SOURCE.md`` there gives the table of
every file, what was changed, and the paper's oddities. Rates, shares and spreads are fractions. A cell that was not at
hand is empty; those of table 14 that follow from others are marked ``DERIVED`` here and stand in no file.

Rows have the names of ``tournament_table``, so the paper's models and ours fit into one table. This module may be
imported without pandas; only ``table`` needs it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from negolab.errors import NegolabError
from negolab.papers.multi_buyer import OURS, PAPER
from negolab.papers.multi_item import DERIVED, STATED
from negolab.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

ARXIV = "2604.16472"
LICENCE = "tables of arXiv 2604.16472 (Bergemann, Ghili, Hu, Li, Yang), CC BY 4.0, adapted"
"""To stand below a table or figure that shows its numbers."""
TABLES: tuple[str, ...] = ("models", "tools", "settings", *(f"table{number}" for number in range(14, 39)))
"""Files of published numbers; ``table14`` is the paper's table 14."""
MODELS = ("o3", "Gemini-2.5-Pro", "GPT-4.1", "DeepSeek-V3", "Gemini-2.5-Flash")
"""The tournament's, in the order of tables 17 to 31."""
SURPLUS_TABLES: Mapping[str, str] = {model: f"table{22 + at}" for at, model in enumerate(MODELS)}
DEAL_TABLES: Mapping[str, str] = {model: f"table{27 + at}" for at, model in enumerate(MODELS)}
"""Buyer -> its table by quintile and seller."""

NEGOTIATIONS = 15_000
"""Of the whole tournament (abstract)."""
GFT_PER_PAIR, NGFT_PER_PAIR = 400, 200
"""Negotiations of an ordered pair with and without gains from trade: not stated, but all rates are whole counts of
them, and 25 pairs make ``NEGOTIATIONS``."""

VIOLATIONS = ("self_violation_gft", "opponent_violation_gft", "self_violation_ngft", "opponent_violation_ngft")
"""Columns of table 14."""
QUINTILES = ("q1", "q2", "q3", "q4", "q5")
"""Columns of the tables by quintile; Q1 holds the lowest reservation prices."""
AXES = ("ir_compliance", "surplus_share", "deal_rate_gft", "anchoring", "consistency", "pressure_resistance")
"""Of the profiles, tables 17 and 18; higher is better on all."""

_TEXTS = frozenset(
    {"model", "full_name", "provider", "tool", "parameters", "effect", "stage", "setting", "value", "source"}
    | {"role", "buyer", "seller", "opponent", "quintile"}
)


class Cell(NamedTuple):
    """One published number."""

    value: float
    trust: str
    """``STATED`` or ``DERIVED``."""
    source: str
    """The table, or from which others it follows."""


def rows(name: str) -> list[dict[str, Any]]:
    """A published table by name (see ``TABLES``): text, numbers as float, None for a cell that was not at hand.

    Raises ``NegolabError`` for another name, or where the file is missing.
    """
    if name not in TABLES:
        raise NegolabError(f"unknown table {name!r} of arXiv {ARXIV}; known: {', '.join(TABLES)}")
    path = data_dir() / "papers" / ARXIV / f"{name}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            read = list(csv.DictReader(file))
    except FileNotFoundError:
        raise NegolabError(f"published table not found: {path}") from None
    return [{key: cell if key in _TEXTS else _number(cell) for key, cell in row.items()} for row in read]


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def table(name: str) -> pd.DataFrame:
    """The same as a frame; NaN for a cell that was not at hand."""
    import pandas as pd

    frame = pd.DataFrame(rows(name))
    return frame.assign(**{c: pd.to_numeric(frame[c]) for c in map(str, frame.columns) if c not in _TEXTS})


def settings(stage: str, model: str) -> dict[str, str]:
    """Hyper-parameters of table 12 (``sft``) or 13 (``grpo``) for ``Qwen3-8B`` or ``Qwen3-14B``, as text by name.

    Raises ``NegolabError`` for any other.
    """
    read = rows("settings")
    found = {row["setting"]: row["value"] for row in read if (row["stage"], row["model"]) == (stage, model)}
    if not found:
        known = dict.fromkeys(f"{row['stage']} of {row['model']}" for row in read)
        raise NegolabError(f"no settings of arXiv {ARXIV} for {stage} of {model}; known: {', '.join(known)}")
    return found


# -- table 14, completed ----------------------------------------------------------------------------------------------


def violations() -> dict[tuple[str, str], dict[str, Cell]]:
    """(Model, role) -> column of table 14 -> what is known: stated cells, and those that follow.

    Own rates are 1 less two axes of tables 17 and 18. Opponents' with gains from trade are the rates of either side
    (the mean over table 21's quintiles) less the own. Over the whole tournament the rates that one role induces sum to
    the own rates of the other: where a single cell of such a column is missing, it is the difference. Rates are whole
    counts of all negotiations in a role; derived ones are rounded to those.
    """
    cells: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows("table14"):
        stated = {column: Cell(row[column], STATED, "table 14") for column in VIOLATIONS if row[column] is not None}
        cells[row["model"], row["role"]] = stated
    for number in (17, 18):
        for row in rows(f"table{number}"):
            mine = cells[row["model"], row["role"]]
            source = f"from table {number}"
            _derive(mine, "self_violation_gft", 1 - row["ir_compliance"], source)
            _derive(mine, "self_violation_ngft", 1 - row["pressure_resistance"], source)
    for row in rows("table21"):
        mine = cells[row["model"], row["role"]]
        either = sum(row[q] for q in QUINTILES) / len(QUINTILES)
        _derive(mine, "opponent_violation_gft", either - mine["self_violation_gft"].value, "from table 21")
    for role, other in (("buyer", "seller"), ("seller", "buyer")):
        column = [mine for (_, who), mine in cells.items() if who == role]
        missing = [mine for mine in column if "opponent_violation_ngft" not in mine]
        if len(missing) == 1:
            total = sum(mine["self_violation_ngft"].value for (_, who), mine in cells.items() if who == other)
            known = sum(mine["opponent_violation_ngft"].value for mine in column if mine is not missing[0])
            _derive(missing[0], "opponent_violation_ngft", total - known, "from the sums of tables 14, 17 and 18")
    return cells


def _derive(cells: dict[str, Cell], column: str, value: float, source: str) -> None:
    if column not in cells:
        count = len(MODELS) * (NGFT_PER_PAIR if column.endswith("_ngft") else GFT_PER_PAIR)
        cells[column] = Cell(round(value * count) / count, DERIVED, source)


# -- beside ours ------------------------------------------------------------------------------------------------------


def published() -> list[dict[str, Any]]:
    """Tables 14 and 16 as ``tournament_table.by_role`` has ours: rows of ``model``, ``role``, ``metric``, ``mean``,
    ``se`` and ``n`` (None: not stated), ``source`` and ``trust``."""
    found = []
    known = violations()
    for row in rows("table16"):
        model, role = row["model"], row["role"]
        drivers = {metric: Cell(value, STATED, "table 16") for metric, value in row.items() if metric not in _TEXTS}
        for metric, cell in {**known[model, role], **drivers}.items():
            mine = {"model": model, "role": role, "metric": metric, "mean": cell.value, "se": None, "n": None}
            found.append({**mine, "source": PAPER, "trust": cell.trust})
    return found


def side_by_side(ours: Sequence[Mapping[str, Any]], source: str = OURS) -> list[dict[str, Any]]:
    """Rows of ``tournament_table.by_role`` among the paper's: those metrics that the paper has, ours marked ``source``
    and ``"measured"``; by metric, role, and falling mean, what has none last."""
    paper = published()
    metrics = list(dict.fromkeys(row["metric"] for row in paper))
    mine = [{**row, "source": source, "trust": "measured"} for row in ours if row["metric"] in metrics]

    def place(row: Mapping[str, Any]) -> tuple[int, str, float]:
        mean = row["mean"]
        return metrics.index(row["metric"]), row["role"], float("inf") if mean is None else -mean

    return sorted(paper + mine, key=place)


def published_profiles() -> list[dict[str, Any]]:
    """Tables 17 and 18 as ``tournament_table.profiles`` has ours, min-max normalised among the paper's five."""
    return scaled([row for name in ("table17", "table18") for row in rows(name)])


def scaled(rows: Sequence[Mapping[str, Any]], axes: Sequence[str] = AXES) -> list[dict[str, Any]]:
    """Rows with each axis also min-max normalised among the rows of its role, as ``_scaled``: 0 the worst, 1 the best.

    Where all are equal nobody is behind, and all get 1. None stays None.
    """
    limits: dict[tuple[str, str], tuple[float, float]] = {}
    for role in {row["role"] for row in rows}:
        for axis in axes:
            known = [row[axis] for row in rows if row["role"] == role and row[axis] is not None]
            if known:
                limits[role, axis] = min(known), max(known)
    done = []
    for row in rows:
        extra: dict[str, float | None] = {}
        for axis in axes:
            value = row[axis]
            if value is None:
                extra[f"{axis}_scaled"] = None
                continue
            low, high = limits[row["role"], axis]
            extra[f"{axis}_scaled"] = (value - low) / (high - low) if high > low else 1.0
        done.append({**row, **extra})
    return done


# -- claims -----------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What the paper says it found, in our words."""

    name: str
    text: str
    source: str
    exceptions: tuple[str, ...] = ()
    """Cells of the paper's own tables that say otherwise."""


CLAIMS: tuple[Claim, ...] = (
    Claim("anchoring", "The seller that opens highest takes the largest share and closes most.", "abstract, table 16"),
    Claim("patience", "In both roles a larger share goes with longer talks.", "abstract, table 16"),
    Claim(
        "accommodating",
        "The buyer that concedes fastest has the smallest share and closes least.",
        "abstract, table 16",
    ),
    Claim(
        "price_tiers",
        "As buyers the two strongest keep their share over price tiers, the weakest does not.",
        "abstract, table 19",
    ),
    Claim(
        "induced_violations",
        "Without gains from trade o3 as buyer hardly violates, and makes others violate.",
        "figure 4, tables 14 and 15",
    ),
    Claim("sft_share", "SFT raises the share of the surplus, about twofold.", "abstract, tables 35 and 37"),
    Claim(
        "sft_deals",
        "SFT lowers the deal rate.",
        "abstract, tables 35 and 38",
        ("Qwen3-8B buyer vs GPT-4.1", "Qwen3-8B buyer vs o3-mini"),
    ),
    Claim(
        "rl_deals",
        "RL after SFT raises the deal rate again.",
        "abstract, tables 35 and 38",
        ("Qwen3-8B buyer vs GPT-4.1", "Qwen3-8B buyer vs o3-mini"),
    ),
    Claim("rl_share", "RL after SFT lowers the share of the surplus again.", "abstract, tables 35 and 37"),
    Claim("sft_tiers", "As buyer SFT narrows the spread over price tiers.", "abstract, figure 18, table 37"),
)
"""The findings of the tournament and of training that a run can be held against."""
