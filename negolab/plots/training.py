"""Training curves: the analogues of figures 4 to 9 of 2607.05863, and of the buyer's curves of 2604.09855.

The paper's steps are not ours. Both run along the same axis by the share of training that is done: below stand our
steps, above the paper's at the same share. The paper's curves are not published as numbers; what its text says of them
stands as hollow marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from negolab.papers import bilateral
from negolab.papers.tables import METRIC_LABELS
from negolab.papers.training import Phase, same_share
from negolab.plots.style import BLUE, DARK, MID, ORANGE, STYLE, VERMILLION, caption, column, no_data

LABELS: Mapping[str, str] = {**bilateral.METRIC_LABELS, **METRIC_LABELS}
"""Of both papers' metrics."""
_WHOLE_RANGE = ("deal_rate", "top_buyer_rate", "violation_rate")
"""Drawn from 0 to 1 whatever the data; other rates from 0 to just above their largest value."""
_TINTS = ("#DCE9F5", "#FBEBD9", "#DDF1E8", "#F1E4EF")
_HATCHES = ("", "..", "//", "\\\\")


@dataclass(frozen=True)
class Axis:
    """The common axis: how many steps there are here and there, and what each side is called."""

    steps: int
    """Of our run."""
    paper_steps: int
    ours: str
    """Such as ``pocket model (small scale)``."""
    paper: str
    """Such as ``paper (30B)``."""
    arxiv: str
    where: str = ""
    """Where in the paper the marks are from."""


@mpl.rc_context(STYLE)
def training_curve(
    metric: str,
    curves: pd.DataFrame,
    held_out: pd.DataFrame,
    axis: Axis,
    *,
    marks: pd.DataFrame | None = None,
    published: Sequence[tuple[float, float, float]] = (),
    phases: Sequence[Phase] = (),
    paper_phases: Sequence[Phase] = (),
    also: str = "",
    title: str = "",
) -> Figure:
    """One metric over training; ``also``: a second one of ours, as its moving mean only.

    ``curves``: ``metric, step, mean, se, moving, n, of`` (a row per step, ``of``: whether ``n`` counts episodes or
    seeds); ``held_out``: ``metric, step, mean, se, n, of``. ``marks``: ``metric, first_step, last_step, low, high`` in
    the paper's steps. ``published``: the paper's held-out results as (share of training, mean, standard error or NaN).
    ``phases`` are ours and shaded; where the ``paper_phases`` end, a dotted line stands.
    """
    fig = Figure(figsize=(9.6, 4.4), layout="constrained")
    ax = fig.add_subplot()
    fig.suptitle(title or LABELS.get(metric, metric), x=0.01, ha="left", fontsize=10.5)
    mine, tests = curves[curves["metric"] == metric], held_out[held_out["metric"] == metric]
    said = None if marks is None else marks[(marks["metric"] == metric) & marks["low"].notna()]
    keys = _phases(ax, phases, paper_phases, axis)
    keys += _curve(ax, mine, axis) + _also(ax, curves, also)
    keys += _held_out(ax, tests, axis)
    keys += _paper(ax, said, published, axis)
    if not np.isfinite(column(mine, "mean")).any() and not np.isfinite(column(tests, "mean")).any():
        ax.text(0.5, 0.5, "no data of ours", transform=ax.transAxes, ha="center", va="center", color=MID, fontsize=11)
    _frame(ax, metric, axis)
    if keys:
        ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    caption(fig, _caption(mine, tests, axis, bool(published) or (said is not None and len(said) > 0)))
    return fig


@mpl.rc_context(STYLE)
def training_overview(
    metrics: Sequence[str],
    curves: pd.DataFrame,
    held_out: pd.DataFrame,
    axis: Axis,
    *,
    marks: pd.DataFrame | None = None,
    phases: Sequence[Phase] = (),
    paper_phases: Sequence[Phase] = (),
    title: str = "",
) -> Figure:
    """Several metrics in one figure, a panel each; arguments as ``training_curve``."""
    columns = min(3, max(1, len(metrics)))
    lines = max(1, math.ceil(len(metrics) / columns))
    fig = Figure(figsize=(3.7 * columns, 1.6 + 2.5 * lines), layout="constrained")
    # The legend takes the place of a caption: automatic layout would draw one over the other.
    note = f"below: our steps; above: the steps of {axis.paper} at the same share of training"
    fig.suptitle(f"{title}\n{note}".strip(), x=0.01, ha="left", fontsize=10.5)
    keys: dict[str, Any] = {}
    for k, ax in enumerate(fig.subplots(lines, columns, squeeze=False).flat):
        if k >= len(metrics):
            if k:
                ax.set_visible(False)
            else:
                no_data(ax)
            continue
        metric = metrics[k]
        said = None if marks is None else marks[(marks["metric"] == metric) & marks["low"].notna()]
        drawn = _phases(ax, phases, paper_phases, axis)
        drawn += _curve(ax, curves[curves["metric"] == metric], axis)
        drawn += _held_out(ax, held_out[held_out["metric"] == metric], axis)
        drawn += _paper(ax, said, (), axis)
        keys |= {str(key.get_label()): key for key in drawn}
        ax.set_title(LABELS.get(metric, metric), fontsize=8.5)
        _frame(ax, metric, axis, labels=False)
    if keys:
        fig.legend(handles=list(keys.values()), loc="outside lower left", ncols=3)
    return fig


# -- parts ----------------------------------------------------------------------------------------------------------


def _phases(ax: Axes, phases: Sequence[Phase], paper: Sequence[Phase], axis: Axis) -> list[Any]:
    keys: list[Any] = []
    for phase in phases:
        look: dict[str, Any] = {"fc": _TINTS[(phase.number - 1) % 4], "ec": "#FFFFFF", "lw": 0}
        look["hatch"] = _HATCHES[(phase.number - 1) % 4]
        ax.axvspan(phase.first, phase.last, zorder=0, **look)
        middle = (phase.first + phase.last) / 2
        ax.text(middle, 0.99, str(phase.number), transform=ax.get_xaxis_transform(), ha="center", va="top", color=MID)
        keys.append(Patch(label=f"our phase {phase.number}: {phase.name}, {phase.first}–{phase.last}", **look))
    for phase in paper[:-1]:
        at = same_share(phase.last, axis.paper_steps, axis.steps)
        ax.axvline(at, color=DARK, lw=0.9, ls=":", zorder=1)
    if len(paper) > 1:
        ends = ", ".join(str(phase.last) for phase in paper[:-1])
        keys.append(Line2D([], [], color=DARK, lw=0.9, ls=":", label=f"the paper's phases end (its steps {ends})"))
    return keys


def _curve(ax: Axes, mine: pd.DataFrame, axis: Axis) -> list[Any]:
    steps, means, errors = column(mine, "step"), column(mine, "mean"), column(mine, "se")
    if not np.isfinite(means).any():
        return []
    ax.fill_between(steps, means - errors, means + errors, color=BLUE, alpha=0.18, lw=0, zorder=2)
    ax.plot(steps, means, color=BLUE, lw=0.7, alpha=0.75, zorder=3, marker="." if len(mine) < 3 else "", ms=4)
    ax.plot(steps, column(mine, "moving"), color=BLUE, lw=1.8, zorder=4)
    return [
        Line2D([], [], color=BLUE, lw=0.7, label=f"{axis.ours}: rollouts of each step"),
        Line2D([], [], color=BLUE, lw=1.8, label="moving mean of these"),
    ]


def _also(ax: Axes, curves: pd.DataFrame, metric: str) -> list[Any]:
    other = curves[curves["metric"] == metric]
    if not np.isfinite(column(other, "moving")).any():
        return []
    look: dict[str, Any] = {"color": MID, "lw": 1.4, "ls": "--"}
    ax.plot(column(other, "step"), column(other, "moving"), zorder=3, **look)
    return [Line2D([], [], label=f"ours, {LABELS.get(metric, metric)}: moving mean", **look)]


def _held_out(ax: Axes, tests: pd.DataFrame, axis: Axis) -> list[Any]:
    means = column(tests, "mean")
    if not np.isfinite(means).any():
        return []
    look: dict[str, Any] = {"color": ORANGE, "marker": "o", "ms": 5, "mec": DARK, "mew": 0.5}
    steps, errors = column(tests, "step"), np.nan_to_num(column(tests, "se"))
    ax.errorbar(steps, means, yerr=errors, fmt="none", ecolor=DARK, elinewidth=1, capsize=2, zorder=6)
    ax.plot(steps, means, ls="none", zorder=6, clip_on=False, **look)  # a whole marker also at 0 and at 100 %
    return [Line2D([], [], ls="none", label=f"{axis.ours}: held-out products", **look)]


def _paper(
    ax: Axes, marks: pd.DataFrame | None, published: Sequence[tuple[float, float, float]], axis: Axis
) -> list[Any]:
    keys: list[Any] = []
    look: dict[str, Any] = {"mec": VERMILLION, "mfc": "none", "mew": 1.3, "ls": "none", "ms": 7}
    drawn = [] if marks is None else marks.to_dict("records")
    for row in drawn:
        first, last = (same_share(row[name], axis.paper_steps, axis.steps) for name in ("first_step", "last_step"))
        if (first, row["low"]) == (last, row["high"]):
            ax.plot([first], [row["low"]], marker="D", zorder=7, clip_on=False, **look)
        else:
            size = (last - first, row["high"] - row["low"])
            ax.add_patch(Rectangle((first, row["low"]), *size, fc="none", ec=VERMILLION, lw=1.2, ls="--", zorder=7))
            ax.update_datalim([(first, row["low"]), (last, row["high"])])
    points = [r for r in drawn if r["first_step"] == r["last_step"] and r["low"] == r["high"]]
    if points:
        keys.append(Line2D([], [], marker="D", label=f"{axis.paper}: its text at marked steps", **look))
    if len(points) < len(drawn):
        keys.append(Patch(fc="none", ec=VERMILLION, ls="--", label=f"{axis.paper}: ranges as reported"))
    for share, mean, error in published:
        known = None if math.isnan(error) else [error]
        ax.errorbar([share * axis.steps], [mean], yerr=known, marker="s", ecolor=VERMILLION, elinewidth=1, capsize=2,
                    zorder=7, clip_on=False, **look)  # fmt: skip
    if published:
        keys.append(Line2D([], [], marker="s", label=f"{axis.paper}: held-out products", **look))
    return keys


def _frame(ax: Axes, metric: str, axis: Axis, labels: bool = True) -> None:
    """Limits, grid and the two step axes; ``labels``: say which is which."""
    ax.set_xlim(-0.015 * axis.steps, 1.015 * axis.steps)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ratio = axis.paper_steps / axis.steps
    above = ax.secondary_xaxis("top", functions=(lambda x: np.asarray(x) * ratio, lambda x: np.asarray(x) / ratio))
    if labels:
        ax.set_xlabel(f"our step (of {axis.steps})")
        above.set_xlabel(f"the paper's step (of {axis.paper_steps}) at the same share of training", fontsize=8)
    above.xaxis.set_major_locator(MultipleLocator(12 if axis.paper_steps == 72 else 10))
    ax.grid(axis="y")
    low, high = ax.get_ylim()
    if metric.endswith("_rate"):
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_ylim(*((-0.02, 1.06) if metric in _WHOLE_RANGE else (-0.01, max(0.05, 1.08 * high))))
    elif metric == "distinct_buyers":
        ax.set_ylim(0, max(3.15, high))
    elif metric.endswith("_ratio"):
        ax.set_ylim(min(0.0, low), max(1.05, high))
    else:
        ax.set_ylim(low, high + 0.05 * (high - low))
        ax.axhline(0, color=MID, lw=0.8, zorder=1)


def _caption(mine: pd.DataFrame, tests: pd.DataFrame, axis: Axis, published: bool) -> str:
    """What lines, bands and points are, with their n, and where the paper's numbers are from."""
    parts = []
    if len(mine):
        seeds = int(mine["n"].max()) if mine["of"].iloc[0] == "seeds" else 1
        few = mine["n"].dropna()
        counted = f"{int(few.min())} to {int(few.max())}" if len(few) and few.min() != few.max() else ""
        counted = counted or (f"{int(few.max())}" if len(few) else "not recorded")
        if mine["of"].iloc[0] == "seeds":
            parts.append(f"Thin line: mean over n = {seeds} seeds, band and bars: one standard error over the seeds.")
        else:
            band = "band: one standard error" if np.isfinite(column(mine, "se")).any() else "no error is recorded"
            parts.append(f"Thin line: one run, episodes of a step: n {counted}; {band}.")
    if len(tests):
        few = tests["n"].dropna()
        of = tests["of"].iloc[0]
        parts.append(f"Held-out points: n = {int(few.min()) if len(few) else 0} {of}.")
    where = f"arXiv {axis.arxiv}{', ' + axis.where if axis.where else ''}"
    parts.append(f"Paper: {where}; {'errors are shown where stated' if published else 'no number is known'}.")
    return " ".join(parts)
