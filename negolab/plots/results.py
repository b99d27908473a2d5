"""Figures of results by seller: the skill radar (figure 3), closing ranks (figure 10), bars of tables 1, 2, 9, 10."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from negolab.papers.multi_buyer import LOWER_IS_BETTER, METRIC_LABELS, PAPER, TABLE_METRICS
from negolab.plots.style import (
    BLUE,
    DARK,
    GREEN,
    LIGHT,
    MID,
    ORANGE,
    PURPLE,
    SERIES,
    STYLE,
    caption,
    column,
    names,
    no_data,
    sources,
    whose,
)

_RANKS = LinearSegmentedColormap.from_list("ranks", ["#08306B", "#2F7AB8", "#93C4E3", "#D3D6DA", "#8F959C"])

RADAR_AXES: tuple[str, ...] = ("reward", "top_buyer_rate", "sell_above_cost_accuracy", "deal_rate", "surplus_ratio")
"""The axes of figure 3, clockwise from the top."""

RADAR_FLOOR = -0.2
"""Value at the radar's centre: rewards can be negative, and one below this is drawn at the centre and named."""


@mpl.rc_context(STYLE)
def skill_radar(rows: pd.DataFrame, title: str = "Seller skill profile") -> Figure:
    """Five skills by seller (figure 3 of the paper), the first row highlighted and its values written out.

    ``rows``: ``seller``, optional ``source``, and ``reward``, ``top_buyer_rate``, ``deal_rate``, ``surplus_ratio``,
    and ``sell_above_cost_accuracy`` or ``below_cost_rate`` (fractions); eight rows at most are drawn. Every axis runs
    from ``RADAR_FLOOR`` at the centre to 1 at the rim.
    """
    # Fixed places: automatic layout does not reckon with the labels around a polar axis.
    fig = Figure(figsize=(9.4, 5.5))
    fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawn = rows.iloc[: len(SERIES)]
    values = np.column_stack([column(drawn, axis) for axis in RADAR_AXES]).reshape(len(drawn), len(RADAR_AXES))
    accuracy = RADAR_AXES.index("sell_above_cost_accuracy")
    values[:, accuracy] = np.where(
        np.isnan(values[:, accuracy]), 1 - column(drawn, "below_cost_rate"), values[:, accuracy]
    )
    if not np.isfinite(values).any():
        no_data(fig.add_subplot())
        return fig
    ax = fig.add_axes((0.15, 0.13, 0.40, 0.40 * 9.4 / 5.5), projection="polar")
    _radar_frame(ax, values[0])
    angles = np.append(_ANGLES, _ANGLES[0])
    labels, notes = names(drawn), []
    for i, (label, row) in enumerate(zip(labels, values, strict=True)):
        colour, line, marker = SERIES[i]
        shown = np.clip(row, RADAR_FLOOR, 1)
        closed = np.append(shown, shown[0])
        ax.plot(
            angles, closed, color=colour, ls=line, marker=marker, ms=5, lw=2.2 if i == 0 else 1.4, label=label,
            zorder=5 - 0.1 * i, clip_on=False,
        )  # fmt: skip
        if i == 0 and np.isfinite(row).all():
            ax.fill(angles, closed, color=colour, alpha=0.10)
        notes += [f"{label}: no {METRIC_LABELS[a]}." for a, v in zip(RADAR_AXES, row, strict=True) if math.isnan(v)]
        notes += [f"{label}: reward {row[0]:+.2f}, drawn at the centre."] if row[0] < RADAR_FLOOR else []
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, [textwrap.fill(label, 38) for label in labels], loc="upper right", bbox_to_anchor=(0.995, 0.93))
    left_out = [f"Not drawn: {len(rows) - len(drawn)} more."] if len(rows) > len(drawn) else []
    scale = f"Every axis from {RADAR_FLOOR} (centre) to 1 (rim); dark ring: 0. Numbers: {labels[0]}."
    caption(fig, " ".join([scale, whose(sources(drawn), "figure 3 and table 1"), *left_out, *notes]))
    return fig


_ANGLES = np.linspace(0, 2 * np.pi, len(RADAR_AXES), endpoint=False)


def _radar_frame(ax: Any, first: np.ndarray) -> None:
    """Rings, spokes, and beside each spoke its metric with the first series' value."""
    ax.set_theta_zero_location("N")
    ax.set_theta_direction(-1)
    ax.set_ylim(RADAR_FLOOR, 1)
    ax.set_xticks(_ANGLES, [""] * len(_ANGLES))
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"], fontsize=7, color=MID)
    ax.set_rlabel_position(36)
    ax.plot(np.linspace(0, 2 * np.pi, 181), np.zeros(181), color=MID, lw=0.9, zorder=1.5)
    ax.spines["polar"].set_color("#BBBBBB")
    for angle, axis, value in zip(_ANGLES, RADAR_AXES, first, strict=True):
        text = f"{value:+.3f}" if axis in ("reward", "surplus_ratio") else f"{100 * value:.1f}%"
        east, north = math.sin(angle), math.cos(angle)
        across = "center" if abs(east) < 0.1 else ("left" if east > 0 else "right")
        name = textwrap.fill(METRIC_LABELS[axis], 16)
        # The block of name and value hangs above the rim at the top, below it at the bottom.
        up = 16 * north - (4 if north < 0 else -2)
        common: Any = {"xy": (angle, 1.03), "textcoords": "offset points", "ha": across, "annotation_clip": False}
        ax.annotate(name, xytext=(10 * east, up), va="bottom", fontsize=8.5, color=DARK, **common)
        shown = "n/a" if math.isnan(value) else text
        ax.annotate(shown, xytext=(10 * east, up - 1), va="top", fontsize=8.5, color=BLUE, weight="bold", **common)


@mpl.rc_context(STYLE)
def closing_ranks(
    frame: pd.DataFrame,
    highlight: str | None = None,
    title: str = "Deals by the buyer's budget rank",
    of: str = "budget",
) -> Figure:
    """With which buyer, by budget rank, each seller closes: shares of its deals (figure 10 of the paper).

    ``frame``: ``seller``, ``rank1`` ... ``rankN`` (fractions of the deals, rank 1 the largest budget), optional
    ``source``, ``n`` (deals), and ``derived``, which names the column of a share that nobody stated but that follows
    from the row's others. The ``highlight`` seller stands on top, above a hairline. A share that is NaN is unknown:
    what the known shares leave is hatched. ``of``: what buyers are ranked by.
    """
    ranks = sorted((c for c in frame.columns if re.fullmatch(r"rank\d+", str(c))), key=lambda c: int(c[4:]))
    fig = Figure(figsize=(8.6, 1.9 + 0.30 * max(len(frame), 3)), layout="constrained")
    ax = fig.add_subplot()
    ax.set_title(title)
    if not ranks or not len(frame):
        no_data(ax)
        return fig
    if highlight is not None and (frame["seller"] == highlight).any():
        frame = frame.iloc[np.argsort([str(s) != highlight for s in frame["seller"]], kind="stable")]
        if len(frame) > 1:
            ax.axhline(0.5, color=DARK, lw=0.8)
    shares = np.column_stack([column(frame, rank) for rank in ranks])
    colours = [_RANKS(x) for x in np.linspace(0, 0.75 if len(ranks) < 5 else 1, len(ranks))]
    deals = column(frame, "n")
    for y, row in enumerate(shares):
        _rank_bar(ax, y, row, colours, deals[y])
    ax.set_yticks(range(len(frame)), names(frame))
    ax.set(xlim=(0, 1), ylim=(len(frame) - 0.45, -0.55), xlabel="share of the seller's deals")
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.tick_params(axis="y", length=0)
    ends = {0: f" (largest {of})", len(ranks) - 1: " (smallest)"} if len(ranks) > 1 else {}
    # With many buyers the shades speak for themselves: the ends and the middle are named.
    named = range(len(ranks)) if len(ranks) <= 8 else (0, len(ranks) // 2, len(ranks) - 1)
    keys = [Patch(fc=colours[i], label=f"rank {ranks[i][4:]}{ends.get(i, '')}") for i in named]
    unknown = np.isnan(shares)
    if (unknown.any(axis=1) & ~unknown.all(axis=1)).any():
        keys.append(Patch(fc="none", ec=LIGHT, hatch="////", label="other ranks, split not published"))
    fig.legend(handles=keys, loc="outside upper right", ncols=min(len(keys), 5))
    origin = whose(sources(frame), "figure 10 and section 6.3")
    caption(fig, f"Deals only. Shares in per cent; those under 4 are not written out. {_derived(frame)}{origin}")
    return fig


def _derived(frame: pd.DataFrame) -> str:
    """Which of the drawn shares were not stated but follow from the row's others."""
    named = frame["derived"] if "derived" in frame.columns else [None] * len(frame)
    found = [
        f"{row['seller']} rank {name[4:]}, {100 * row[name]:.1f}"
        for row, name in zip(frame.to_dict("records"), named, strict=True)
        if isinstance(name, str) and name in row
    ]
    return f"Not stated, but what the others leave of 100: {'; '.join(found)}. " if found else ""


def _rank_bar(ax: Axes, y: int, row: np.ndarray, colours: Sequence[tuple[float, ...]], deals: float) -> None:
    """One seller's stacked shares; what unknown shares must add up to is hatched."""
    if np.isfinite(deals):
        ax.text(1.01, y, f"n = {deals:.0f}", va="center", fontsize=7.5, color=MID, clip_on=False)
    if deals == 0 or np.isnan(row).all():
        ax.text(0.01, y, "no deals" if deals == 0 else "no data", va="center", color=MID, fontsize=8)
        return
    left = 0.0
    for share, colour in zip(row, colours, strict=True):
        if not share > 0:
            continue
        ax.barh(y, share, left=left, height=0.74, color=colour, edgecolor="white", linewidth=0.8)
        if share >= 0.04:
            ink = "white" if 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] < 0.5 else DARK
            ax.text(left + share / 2, y, f"{100 * share:.1f}", ha="center", va="center", fontsize=7.5, color=ink)
        left += share
    if np.isnan(row).any() and left < 0.9995:
        ax.barh(y, 1 - left, left=left, height=0.74, facecolor="none", edgecolor=LIGHT, hatch="////", linewidth=0.8)


@mpl.rc_context(STYLE)
def benchmark_bars(
    frame: pd.DataFrame, metrics: Sequence[str] = TABLE_METRICS, title: str = "", tables: str = "tables 1, 2, 9, 10"
) -> Figure:
    """One panel per metric, one bar per seller, with standard errors (tables 1 and 9, or 2 and 10).

    ``frame``: ``seller``, ``source``, and per metric its mean and ``_se``, as ``side_by_side`` makes it. Rows are drawn
    in the frame's order; the paper's are grey, ours hatched, and of one colour and hatch for each source.
    """
    columns = min(3, max(len(metrics), 1))
    lines = max(1, math.ceil(len(metrics) / columns))
    fig = Figure(figsize=(3.0 + 2.5 * columns, 1.5 + lines * (0.9 + 0.17 * max(len(frame), 4))), layout="constrained")
    if title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    grid = fig.subplots(lines, columns, sharey=True, squeeze=False)
    of_row, places = sources(frame), np.arange(len(frame))
    looks = _looks(of_row)
    for k, ax in enumerate(grid.flat):
        if k >= len(metrics):
            if k:
                ax.set_visible(False)
            else:
                no_data(ax)
            continue
        metric = metrics[k]
        better = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
        note = "mean per episode" if metric == "distinct_buyers" else better
        ax.set_title(f"{METRIC_LABELS.get(metric, metric)}\n({note})", fontsize=8.5)
        means, errors = column(frame, metric), column(frame, metric + "_se")
        if len(frame):
            ax.set_yticks(places, names(frame))
            ax.set_ylim(len(frame) - 0.4, -0.6)
        if not np.isfinite(means).any():
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color=MID, fontsize=11)
            ax.set_xticks([])
            continue
        _bars(ax, means, errors, [looks[source] for source in of_row])
        if metric.endswith(("_rate", "_accuracy")):
            ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    keys = [Patch(label=source or "source not stated", **look) for source, look in looks.items()]
    if keys:
        fig.legend(handles=keys, loc="outside upper right", ncols=len(keys))
    caption(fig, f"Mean and one standard error; no whisker where none is published. {whose(of_row, tables)}")
    return fig


_OWN_LOOKS = ((BLUE, "////"), (ORANGE, "...."), (GREEN, "xxxx"), (PURPLE, "\\\\\\\\"))


def _looks(of_row: Sequence[str]) -> dict[str, Any]:
    """How each source's bars look, the paper's first."""
    own = [source for source in dict.fromkeys(of_row) if source != PAPER]
    looks: dict[str, Any] = {PAPER: {"fc": LIGHT, "ec": MID}} if PAPER in of_row else {}
    ordered = sorted(own, key=lambda source: "scripted" not in source)  # scripted ones keep theirs in every figure
    for at, source in enumerate(ordered):
        colour, hatch = _OWN_LOOKS[at % len(_OWN_LOOKS)]
        looks[source] = {"fc": colour, "ec": "white", "hatch": hatch}
    return looks


def _bars(ax: Axes, means: np.ndarray, errors: np.ndarray, looks: Sequence[Mapping[str, Any]]) -> None:
    for y, (mean, error, look) in enumerate(zip(means, errors, looks, strict=True)):
        if math.isnan(mean):
            ax.text(0, y, " n/a", va="center", fontsize=7, color=MID)
            continue
        ax.barh(y, mean, height=0.72, linewidth=0.5, **look)
        if np.isfinite(error):
            ax.errorbar(mean, y, xerr=error, fmt="none", ecolor=DARK, elinewidth=0.9, capsize=1.8)
    if not np.nan_to_num(means).any():
        ax.set_xlim(0, 1)
    ax.axvline(0, color=MID, lw=0.8)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0, labelsize=7.5)
