"""Tables of what is said of an episode as a whole: their shape, and how a terminal shows them in a fixed width."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from negolab.transcripts.characters import printable

_GAP, _LINES, _NARROWEST = 2, 3, 20


class Table(NamedTuple):
    """Rows of text under a title; terminal and page lay it out."""

    title: str
    aside: str
    """What the title needs beside it; may be empty."""
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    """A line for the page below the table."""
    legend: str = ""
    """What the marks in the cells mean and what was left out; shown below the table everywhere."""
    secret: bool = True
    """Nobody sees this, or not everybody."""
    by_buyer: bool = True
    """Row k is Buyer k's, and has its colour."""
    numbers: frozenset[int] = frozenset()
    """Columns that are set to the right."""
    free: int | None = None
    """A column of words, which may take several lines, or be cut."""


def table_lines(table: Table, width: int) -> list[tuple[int, str]]:
    """The table in lines of at most ``width`` columns where that can be: the number of the row each line belongs to (0
    for the head), and the line.

    A column of words takes what is left, in three lines, and is cut there. A table that is still too wide is shown in
    blocks one below the other, which repeat the first column and hold as many of the others as fit.
    """
    rows = [tuple(printable(cell).replace("\n", " ") for cell in row) for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    if table.free is not None:
        others = sum(widths) - widths[table.free]
        left = width - _GAP * len(widths) - others
        widths[table.free] = min(widths[table.free], max(left, _NARROWEST))
    lines: list[tuple[int, str]] = []
    blocks = _blocks(widths, width)
    for block in blocks:
        if block is not blocks[0]:
            lines += [(0, ""), (0, f"  {table.title}, continued:")]
        for number, row in enumerate(rows):
            cells = [_cell(row[i], widths[i], i == table.free) for i in block]
            for at in range(max(map(len, cells))):
                parts = [cell[at] if at < len(cell) else "" for cell in cells]
                shown = [
                    part.rjust(widths[i]) if i in table.numbers else part.ljust(widths[i])
                    for i, part in zip(block, parts, strict=True)
                ]
                lines.append((number, (" " * _GAP + (" " * _GAP).join(shown)).rstrip()))
    return lines


def _cell(text: str, width: int, free: bool) -> list[str]:
    if not free:
        return [text]
    return textwrap.wrap(text, width, max_lines=_LINES, placeholder="...", break_on_hyphens=False) or [""]


def _blocks(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each block; the first column is in all of them."""
    blocks, used = [[0]], _GAP + widths[0]
    for column in range(1, len(widths)):
        more = _GAP + widths[column]
        if used + more > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = _GAP + widths[0]
        blocks[-1].append(column)
        used += more
    return blocks
