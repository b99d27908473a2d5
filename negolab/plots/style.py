"""The one style of all figures, saving, and the small helpers they share."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from negolab.errors import NegolabError
from negolab.papers.multi_buyer import ARXIV, PAPER

# Any: the stubs of some matplotlib versions accept nothing but a mapping of literal keys.
STYLE: Any = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.6,
    # A price is written with a dollar sign; two of them in one title would otherwise be read as a formula.
    "text.parse_math": False,
    "text.usetex": False,
    # The same figure is the same file.
    "svg.hashsalt": "negolab",
}

BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7"
DARK, MID, LIGHT = "#222222", "#777777", "#B8BEC6"

SERIES = (
    (BLUE, "-", "o"),
    (SKY, "--", "s"),
    (VERMILLION, "-.", "^"),
    (ORANGE, ":", "D"),
    (GREEN, (0, (5, 1, 1, 1, 1, 1)), "v"),
    (PURPLE, (0, (3, 1)), "P"),
    (DARK, (0, (1, 1)), "X"),
    (MID, "-", "*"),
)


@dataclass(frozen=True)
class SavedFigure:
    """The files of one figure. As a notebook cell's last value it shows the PNG."""

    paths: tuple[Path, ...]
    size: tuple[int, int]
    """Width and height on screen, in CSS pixels."""

    def __repr__(self) -> str:  # a notebook keeps it beside the picture
        return f"SavedFigure({', '.join(path.name for path in self.paths)})"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]] | None:
        for path in self.paths:
            if path.suffix == ".png":
                return path.read_bytes(), {"width": self.size[0], "height": self.size[1]}
        return None


def save(fig: Figure, folder: str | Path, name: str, formats: Sequence[str] = ("png", "svg")) -> SavedFigure:
    """Write ``folder/name.png`` (150 dpi) and ``.svg`` (also ``pdf`` on request), then close the figure.

    The files carry no date, so the same data give the same bytes. Raises ``NegolabError`` when they cannot be written.
    """
    if not name.strip(".") or Path(name).name != name:
        raise NegolabError(f"not a figure name: {name!r} (a file name without folder or suffix)")
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = tuple(Path(folder) / f"{name}.{kind}" for kind in formats)
    width, height = fig.get_size_inches()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE), warnings.catch_warnings():
            # A seller's name may hold characters that the font lacks: boxes in the figure, no reason to warn.
            warnings.filterwarnings("ignore", message=r"Glyph .* missing")
            for kind, path in zip(formats, paths, strict=True):
                fig.savefig(path, format=kind, metadata=undated.get(kind))
    except (OSError, ValueError) as error:
        raise NegolabError(f"cannot write figure {name!r} to {folder}: {error}") from None
    finally:
        plt.close(fig)
    return SavedFigure(paths, (round(96 * width), round(96 * height)))


def caption(fig: Figure, text: str) -> None:
    lines = textwrap.wrap(text, width=int(fig.get_size_inches()[0] * 17))
    fig.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color="#444444")


def no_data(ax: Axes, text: str = "no data") -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=MID, fontsize=11)
    ax.grid(False)
    ax.set(xticks=[], yticks=[])


def number(value: Any) -> float:
    return float(pd.to_numeric(value, errors="coerce"))


def column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """One column as floats; NaN where it is absent or holds no finite number."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def sources(frame: pd.DataFrame, default: str = "") -> list[str]:
    return [str(s) for s in frame["source"]] if "source" in frame.columns else [default] * len(frame)


def names(frame: pd.DataFrame) -> list[str]:
    """Row labels: the seller, and "scripted" (or whatever stands in the brackets of ours) beside our own."""
    labels = []
    for seller, source in zip(frame["seller"], sources(frame), strict=True):
        mark = re.search(r"\((.+)\)", source)
        labels.append(f"{seller}  [{mark[1]}]" if mark else f"{seller}")
    return labels


def whose(sources: Iterable[str], tables: str, arxiv: str = ARXIV) -> str:
    """The caption's sentence on where the numbers come from."""
    present = dict.fromkeys(sources)
    parts = ["Some rows: source not stated."] if "" in present else []
    parts += [f'"{s}": this project\'s runs.' for s in present if s and s != PAPER]
    return " ".join(([f"Paper: arXiv {arxiv}, {tables}."] if PAPER in present else []) + parts)


def dollar_ticks(axis: Any, log: bool) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"${value:,.2f}".removesuffix(".00")))
    if log:
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0)))
        axis.set_minor_formatter(NullFormatter())
