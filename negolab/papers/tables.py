"""Tables as the papers print them: ``mean ± standard error (n)``, the best of a group marked, as Markdown or LaTeX.

Knows metrics by name and rows as mappings, nothing of runs or published files. A row holds, per metric, ``reward``,
``reward_se`` and ``reward_n``; what does not exist is None or NaN and prints as ``n/a``. Where ``reward_trust`` is
``"derived"``, a published number follows from others and is marked by ``DERIVED_MARK``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

METRIC_LABELS: dict[str, str] = {
    "reward": "Reward",
    "surplus_ratio": "Seller Surplus Extraction Ratio",
    "deal_rate": "Deal Rate",
    "distinct_buyers": "Distinct Buyers Engaged",
    "top_buyer_rate": "Deal on Top Buyer Rate",
    "below_cost_rate": "Sell-Below-Cost Error Rate",
    "violation_rate": "Violation Rate (all kinds)",
    "sell_above_cost_accuracy": "Sell-Above-Cost Accuracy",
}
"""Column name -> the paper's label, in the order of tables 1 and 9. Violations of all kinds are not published."""

METRICS: tuple[str, ...] = tuple(METRIC_LABELS)

TABLE_METRICS: tuple[str, ...] = METRICS[:6]
"""The six metric columns of tables 1, 2, 9 and 10."""

ITEM_METRIC_LABELS: dict[str, str] = {
    "reward": METRIC_LABELS["reward"],
    "item_deal_rate": "Item Deal Rate",
    "violation_rate": "Violation Rate (all kinds)",
    "surplus_ratio": METRIC_LABELS["surplus_ratio"],
    "optimal_pair_coverage": "Optimal-Pair Offer Coverage Rate",
    "top_buyer_rate": METRIC_LABELS["top_buyer_rate"],
}
"""The same for the market of several items: the six metrics of 2609.33289, section 6, in its order."""

DERIVED_MARK = "†"
"""Behind a published number that is not stated, but follows from others."""

LOWER_IS_BETTER: frozenset[str] = frozenset({"below_cost_rate", "violation_rate"})


class Cell(NamedTuple):
    """One cell of a printed table."""

    text: str
    place: int = 0
    """1: the best of its column and group; 2: the second best; 0: neither."""


class Grid(NamedTuple):
    """A table ready to be written in any notation."""

    head: Sequence[str]
    body: Sequence[Sequence[Cell]]
    numeric: frozenset[int] = frozenset()
    """Columns that are set to the right."""
    rules: frozenset[int] = frozenset()
    """Rows of the body above which a line may be drawn: a new group begins."""


def missing(value: Any) -> bool:
    """Whether a value is none: None, NaN or pandas' NA."""
    return value is None or repr(value) == "<NA>" or value != value


def number(value: Any) -> float:
    """A cell's value as a float, NaN where it is missing."""
    return float("nan") if missing(value) else float(value)


def _digits(metric: str, value: float, signed: bool = True) -> str:
    """Print as the paper does: signed ratios with three digits, rates in per cent with one, counts with two."""
    if metric in ("reward", "surplus_ratio"):
        return f"{value:+z.3f}" if signed else f"{value:.3f}"
    if metric == "distinct_buyers":
        return f"{value:.2f}"
    if metric in ("top_buyer_rate", "optimal_pair_coverage"):
        return f"{value:.3f}"
    return f"{100 * value:.1f}%"


def format_cell(metric: str, mean: float | None, se: float | None = math.nan, n: float | None = math.nan) -> str:
    """``mean ± se (n)``: "n/a" for a mean without episodes or the error of a single one; an unknown n is left out."""
    if missing(mean):
        return "n/a"
    error = "n/a" if missing(se) else _digits(metric, number(se), signed=False)
    count = "" if n is None or missing(n) else f" ({int(n)})"
    return f"{_digits(metric, number(mean))} ± {error}{count}"


def places(values: Sequence[float], metric: str) -> list[int]:
    """1 for the best printed value, 2 for the next, else 0; equal in print is equal, and one value alone is no best."""
    seen = [None if missing(v) else float(_digits(metric, v).rstrip("%")) for v in values]
    order = sorted({v for v in seen if v is not None}, reverse=metric not in LOWER_IS_BETTER)
    if sum(v is not None for v in seen) < 2:
        return [0] * len(seen)
    return [0 if v is None or order.index(v) > 1 else order.index(v) + 1 for v in seen]


def heading(metric: str) -> str:
    """A metric's label with the direction in which it is better."""
    return (METRIC_LABELS | ITEM_METRIC_LABELS).get(metric, metric) + (" ↓" if metric in LOWER_IS_BETTER else " ↑")


def grid(
    rows: Sequence[Mapping[Any, Any]],
    metrics: Sequence[str],
    leading: Mapping[str, str],
    group: str = "source",
    unranked: Collection[str] = (),
) -> Grid:
    """Rows as a table: the ``leading`` columns (name -> heading) as they are, then one column per metric.

    Best and second best are judged within each value of the column ``group``, so that the paper's models, scripted
    players and one's own do not compete; in the groups ``unranked`` none is marked.
    """
    body = [[Cell(str(row[name])) for name in leading] for row in rows]
    groups = [str(row.get(group, "")) for row in rows]
    for metric in metrics:
        found = [0] * len(rows)
        for name in dict.fromkeys(groups):
            members = [i for i, other in enumerate(groups) if other == name and name not in unranked]
            marks = places([number(rows[i].get(metric)) for i in members], metric)
            for i, place in zip(members, marks, strict=True):
                found[i] = place
        for line, row, place in zip(body, rows, found, strict=True):
            text = format_cell(metric, *(number(row.get(metric + part)) for part in ("", "_se", "_n")))
            text += f" {DERIVED_MARK}" * (row.get(f"{metric}_trust") == "derived")
            line.append(Cell(text, place))
    numeric = frozenset(range(len(leading), len(leading) + len(metrics)))
    rules = frozenset(i for i in range(1, len(groups)) if groups[i] != groups[i - 1])
    return Grid([*leading.values(), *map(heading, metrics)], body, numeric, rules)


# -- notations ------------------------------------------------------------------------------------------------------

_MARKDOWN = str.maketrans({"|": "\\|", "*": "\\*", "<": "&lt;", "\n": " ", "\r": " "})


def markdown(table: Grid) -> str:
    """A table as Markdown: the best in bold, the second underlined. Names cannot change its columns."""
    wraps = ("{}", "**{}**", "<u>{}</u>")
    lines = [[name.translate(_MARKDOWN) for name in table.head]]
    lines.append(["---:" if i in table.numeric else "---" for i in range(len(table.head))])
    lines += [[wraps[cell.place].format(cell.text.translate(_MARKDOWN)) for cell in line] for line in table.body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


_LATEX = str.maketrans(
    {c: "\\" + c for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "×": r"$\times$"}
    | {
        "†": r"\textdagger{}",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "−": "$-$",
        "\u00a0": "~",
        "\n": " ",
        "\r": " ",
        "\t": " ",
    }
    # A bracket behind a row's end would be read as its option.
    | {"[": "{[}", "]": "{]}"}
)


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands. Letters of other scripts are kept: they need XeLaTeX or LuaLaTeX."""
    printable = "".join(c for c in text if c.isprintable() or c in "\n\r\t\u00a0")
    return printable.replace("--", "-\x00-").replace("--", "-\x00-").translate(_LATEX).replace("\x00", "{}")


def latex(table: Grid, comments: Sequence[str] = ()) -> str:
    """A table as a LaTeX ``tabular`` (needs ``booktabs``), with ``comments`` above it."""
    wraps = ("{}", "\\textbf{{{}}}", "\\underline{{{}}}")
    columns = "".join("r" if i in table.numeric else "l" for i in range(len(table.head)))
    lines = [f"% {' '.join(line.split())}" for line in comments]
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(map(escape_latex, table.head)), "\\midrule"]
    for i, line in enumerate(table.body):
        lines += ["\\midrule"] if i in table.rules else []
        lines.append(_latex_row(wraps[cell.place].format(escape_latex(cell.text)) for cell in line))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_row(cells: Any) -> str:
    return " & ".join(cells) + r" \\"


# -- frames ---------------------------------------------------------------------------------------------------------


def _of_frame(frame: pd.DataFrame, metrics: Sequence[str] | None, group: str) -> Grid:
    chosen = [m for m in METRICS if m in frame.columns] if metrics is None else list(metrics)
    leading = {c: c.capitalize() for c in ("seller", "source", "params") if c in frame.columns}
    # Its rows are sorted by reward, not by group: lines between groups would cut it to pieces.
    return grid(frame.to_dict("records"), chosen, leading, group)._replace(rules=frozenset())


def to_markdown(frame: pd.DataFrame, metrics: Sequence[str] | None = None, group: str = "source") -> str:
    """A ``multi_buyer.side_by_side`` frame as Markdown; best is judged within each value of ``group``."""
    return markdown(_of_frame(frame, metrics, group))


def to_latex(frame: pd.DataFrame, metrics: Sequence[str] | None = None, group: str = "source") -> str:
    """The same table as a LaTeX ``tabular``."""
    return latex(_of_frame(frame, metrics, group))
