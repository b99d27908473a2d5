"""Tables for the terminal and for files: fixed columns, no wrapping, the same text in a pipe."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from negolab.statistics import Estimate


def note(text: str) -> None:
    """One line on standard error. A reader that has gone away must not end the work."""
    with suppress(OSError, ValueError):
        print(" ".join(text.split()), file=sys.stderr, flush=True)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as aligned text; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float | None, digits: int = 4) -> str:
    """``n/a`` for what does not exist."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def metrics_table(found: Mapping[str, Estimate]) -> str:
    """Metrics with mean, both standard errors and n; metrics without any episode are left out but counted."""
    shown = {name: e for name, e in found.items() if e.n > 0}
    rows = [["metric", "mean", "se", "se_clustered", "n"]]
    rows += [[name, number(e.mean), number(e.se), number(e.se_clustered), str(e.n)] for name, e in shown.items()]
    empty = [name for name in found if name not in shown]
    return columns(rows) + (f"\nn/a (no episode in the denominator): {', '.join(empty)}" if empty else "")


def metrics_csv(found: Mapping[str, Estimate]) -> str:
    """``metric,mean,se,se_clustered,n``; ``n/a`` where a value does not exist."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["metric", "mean", "se", "se_clustered", "n"])
    for name, e in found.items():
        table.writerow([name, *["n/a" if v is None else repr(v) for v in e[:3]], e.n])
    return text.getvalue()
