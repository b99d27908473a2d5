"""What a cell shows as its last value: a figure just as its file will look, or a page in a frame of its own."""

from __future__ import annotations

import html
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure as a cell's last value."""

    png: bytes
    size: tuple[int, int]
    """Width and height on screen, in CSS pixels."""

    def __repr__(self) -> str:  # a notebook keeps it beside the picture: not the bytes once more
        return f"Picture({self.size[0]} x {self.size[1]})"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png, {"width": self.size[0], "height": self.size[1]}


def show(figure: Figure) -> Picture:
    """Show a figure in a notebook just as its file will look; nothing is kept on disk."""
    from negolab import plots

    with tempfile.TemporaryDirectory() as folder:
        saved = plots.save(figure, folder, "figure", formats=("png",))
        return Picture(saved.paths[0].read_bytes(), saved.size)


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page as a cell's last value, in a frame of its own so that its styles stay its own."""

    source: str
    height: int = 640

    def __repr__(self) -> str:
        return f"Page({len(self.source):,} characters)"

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(self.source)}"></iframe>'
