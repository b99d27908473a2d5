"""Figures of markets of several items (arXiv 2609.33289): clusters, valuations, the six metrics, suites, matchings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from negolab.papers.multi_buyer import PAPER
from negolab.papers.multi_item import ARXIV
from negolab.papers.tables import ITEM_METRIC_LABELS, LOWER_IS_BETTER
from negolab.plots.style import (
    BLUE,
    DARK,
    GREEN,
    LIGHT,
    MID,
    ORANGE,
    SKY,
    STYLE,
    VERMILLION,
    caption,
    column,
    dollar_ticks,
    names,
    no_data,
    sources,
    whose,
)

STAND_INS = 'Rows marked "[scripted]" are stand-ins by rule, no language models.'

_LOSS_GAIN = LinearSegmentedColormap.from_list("loss and gain", ["#D55E00", "#FFFFFF", "#0072B2"])
_WORTH = LinearSegmentedColormap.from_list("worth", ["#FFFFFF", "#CFE3F1", "#93C4E3"])


_POINTS = 1500
"""Points in one panel of a scatter plot at most."""


# -- clusters -------------------------------------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def cluster_prices(each: pd.DataFrame, per: pd.DataFrame, paper_spread: float, source: str = "clusters") -> Figure:
    """List prices by category on a logarithmic axis, every product a point and every cluster a line, the held-out
    category marked; and how far prices lie apart within a cluster.

    ``each``: one row per product with ``cluster``, ``category``, ``split``, ``list_cents``; ``per``: one per cluster
    with ``spread``. ``paper_spread`` is the paper's median. ``source`` names the clusters.
    """
    order = list(each.groupby("category")["list_cents"].median().sort_values(kind="stable").index) if len(each) else []
    fig = Figure(figsize=(9.4, 2.1 + 0.36 * max(len(order), 4)), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[2.1, 1])
    left.set_title("List prices by category")
    right.set_title("Prices within a cluster")
    if not order:
        no_data(left)
        no_data(right)
        return fig
    for y, category in enumerate(order):
        _category(left, y, each[each["category"] == category])
    held = {str(c) for c in each[each["split"] == "held_out"]["category"]}
    counts = each.groupby("category")["cluster"].nunique()
    marks = [f"{c} ({counts[c]}){'  held out' if c in held else ''}" for c in order]
    left.set_yticks(range(len(order)), marks)
    left.set(xscale="log", xlabel="list price (US dollars, log scale)", ylim=(-0.6, len(order) - 0.4))
    dollar_ticks(left.xaxis, log=True)
    left.tick_params(axis="y", length=0)
    left.grid(axis="x")
    spread = column(per, "spread")
    right.hist(
        spread, bins=np.linspace(1, max(4.0, float(np.nanmax(spread))), 25).tolist(), color=SKY, edgecolor="white"
    )
    median = float(np.nanmedian(spread))
    for value, colour, line in ((median, BLUE, "-"), (paper_spread, DARK, ":")):
        right.axvline(value, color=colour, ls=line, lw=1.5)
    right.set_title(f"Prices within a cluster\nmedian {median:.2f} (paper: {paper_spread:.2f}, dots)")
    right.set(xlabel="dearest / cheapest list price", ylabel="clusters")
    right.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    keys = [
        Line2D([], [], marker="o", ls="-", ms=3.5, lw=0.8, color=BLUE, label="a cluster and its products"),
        Line2D([], [], marker="o", ls="-", ms=3.5, lw=0.8, color=VERMILLION, label="of the held-out category"),
        Line2D([], [], marker="|", ls="", ms=12, mew=2, color=DARK, label="median of the category"),
    ]
    fig.legend(handles=keys if held else [keys[0], keys[2]], loc="outside upper left", ncols=3)
    caption(fig, f"{source}. In brackets: clusters. Paper: arXiv {ARXIV}, section 4.")
    return fig


def _category(ax: Axes, y: int, part: pd.DataFrame) -> None:
    clusters = list(part.groupby("cluster", sort=True))
    for at, (_, rows) in enumerate(clusters):
        height = y + 0.34 * (2 * (at + 0.5) / len(clusters) - 1)
        prices = np.sort(column(rows, "list_cents")) / 100
        colour = VERMILLION if (rows["split"] == "held_out").any() else BLUE
        ax.plot(prices, np.full(len(prices), height), color=colour, marker="o", ms=2.2, lw=0.5, alpha=0.75)
    median = float(np.median(column(part, "list_cents"))) / 100
    ax.plot([median, median], [y - 0.42, y + 0.42], color=DARK, lw=2)


@mpl.rc_context(STYLE)
def valuation_scatter(drawn: pd.DataFrame, measured: pd.DataFrame, source: str = "clusters") -> Figure:
    """What the correlation knobs do: above, two buyers' valuations of one item; below, one buyer's of two items.

    ``drawn``: ``knob``, ``first``, ``other_buyer``, ``other_item`` (valuations over list prices); ``measured``: per
    ``knob`` the correlation of normal scores and its error, as ``frames_clusters.correlations`` has them.
    """
    knobs = list(dict.fromkeys(drawn["knob"])) if "knob" in drawn.columns else []
    fig = Figure(figsize=(2.7 * max(len(knobs), 2) + 0.8, 6.0), layout="constrained")
    grid = fig.subplots(2, max(len(knobs), 1), sharex=True, sharey=True, squeeze=False)
    pairs = (
        ("other_buyer", "two buyers, one item", "Buyer 1, item 1", "Buyer 2, item 1"),
        ("other_item", "one buyer, two items", "Buyer 1, item 1", "Buyer 1, item 2"),
    )
    if not knobs:
        for ax in grid.flat:
            no_data(ax)
        return fig
    found = measured.set_index("knob")
    for k, knob in enumerate(knobs):
        part = drawn[drawn["knob"] == knob]
        for ax, (name, what, across, up) in zip(grid[:, k], pairs, strict=True):
            shown = part[:_POINTS]
            ax.scatter(shown["first"], shown[name], s=5, alpha=0.35, color=BLUE, linewidths=0, rasterized=True)
            r, error = found.loc[knob, f"{what}: measured"], found.loc[knob, f"{what}: standard error"]
            ax.set_title(f"{knob}\n{what}: {r:+z.3f} ± {error:.3f}", fontsize=8.5)
            ax.set(xlabel=across, ylabel=up if k == 0 else "", aspect="equal")
            ax.grid()
    how = "Axes: valuation / list price. Numbers: correlation of normal scores, which the knobs set, ± standard error"
    drawn_each = len(drawn) // len(knobs)
    points = f", of which {_POINTS} are shown" if drawn_each > _POINTS else ""
    caption(fig, f"{how}; {drawn_each} markets each{points}, drawn from {source}.")
    return fig


# -- results --------------------------------------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def item_benchmark(frame: pd.DataFrame, title: str = "", bound: float = math.nan) -> Figure:
    """The six metrics, one panel each: dots with errors for our sellers, rings for the paper's known cells.

    ``frame``: ``seller``, ``source`` and per metric its mean, ``_error`` and ``_trust``, as ``frames_items.table1``
    makes it; rows in its order. ``bound``: the mean reward that no seller can exceed on these markets.
    """
    fig = Figure(figsize=(9.6, 1.9 + 2 * (0.75 + 0.21 * max(len(frame), 4))), layout="constrained")
    if title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    of_row, places = sources(frame), np.arange(len(frame))
    for ax, (metric, label) in zip(fig.subplots(2, 3, sharey=True).flat, ITEM_METRIC_LABELS.items(), strict=True):
        better = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
        ax.set_title(f"{label}\n({better})", fontsize=8.5)
        if len(frame):
            ax.set_yticks(places, names(frame))
            ax.set_ylim(len(frame) - 0.4, -0.6)
        means, errors = column(frame, metric), column(frame, f"{metric}_error")
        if not np.isfinite(means).any():
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color=MID, fontsize=11)
            ax.set_xticks([])
            continue
        trusts = frame.get(f"{metric}_trust", pd.Series([""] * len(frame), dtype=str)).tolist()
        for y, (mean, error, source, trust) in enumerate(zip(means, errors, of_row, trusts, strict=True)):
            _dot(ax, y, float(mean), float(error), source == PAPER, trust == "derived")
        if metric == "reward" and np.isfinite(bound):
            ax.axvline(bound, color=GREEN, ls="--", lw=1.2)
        if metric != "reward" and metric != "surplus_ratio":
            ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            ax.set_xlim(-0.04, 1.04)
        ax.axvline(0, color=MID, lw=0.8)
        ax.grid(axis="x")
        ax.tick_params(axis="y", length=0, labelsize=7.5)
    fig.legend(handles=_benchmark_keys(of_row, np.isfinite(bound)), loc="outside upper right", ncols=4)
    what = "Dots: mean ± one standard error, the larger of the plain one and the one clustered by cluster."
    empty = " An empty row of a paper's seller: not published." if PAPER in of_row else ""
    tables = "table 1 and sections 7 and 8; no errors are published"
    caption(fig, f"{what}{empty} {STAND_INS} {whose(of_row, tables, ARXIV)}")
    return fig


def _dot(ax: Axes, y: int, mean: float, error: float, published: bool, derived: bool) -> None:
    if math.isnan(mean):
        if not published:
            ax.text(0, y, " n/a", va="center", fontsize=7, color=MID)
        return
    if published:
        ax.plot([mean], [y], marker="D" if derived else "s", ms=6, mfc="white", mec=DARK, ls="", zorder=4)
        return
    bar = error if math.isfinite(error) else None
    ax.errorbar(mean, y, xerr=bar, fmt="o", color=BLUE, ms=5.5, elinewidth=1.1, capsize=2.5, zorder=4)


def _benchmark_keys(of_row: Sequence[str], bounded: bool) -> list[Any]:
    own = [source for source in dict.fromkeys(of_row) if source != PAPER]
    keys: list[Any] = [Line2D([], [], marker="o", color=BLUE, ls="", label=" / ".join(own))] if own else []
    if PAPER in of_row:
        keys.append(Line2D([], [], marker="s", mfc="white", mec=DARK, ls="", label="paper, stated"))
        keys.append(Line2D([], [], marker="D", mfc="white", mec=DARK, ls="", label="paper, derived"))
    return keys + ([Line2D([], [], color=GREEN, ls="--", label="reward bound")] if bounded else [])


@mpl.rc_context(STYLE)
def suites(
    found: pd.DataFrame, margins: pd.DataFrame, title: str = "", seller: str = "screener", note: str = ""
) -> Figure:
    """Mean reward by suite and seller as a heat map, and ``seller``'s margins over the best baseline.

    ``found``: ``suite, seller, source, metric, mean``; ``margins``: ``suite, metric, baseline, margin, error, paper``,
    as ``frames_items`` has them. ``note``: what else the caption says.
    """
    rewards = found[found["metric"] == "reward"] if "metric" in found.columns else pd.DataFrame()
    order = list(dict.fromkeys(rewards["suite"])) if len(rewards) else []
    fig = Figure(figsize=(10.4, 2.3 + 0.55 * max(len(order), 4)), layout="constrained")
    if title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    left, right = fig.subplots(1, 2, width_ratios=[1.15, 1])
    left.set_title("Mean reward")
    right.set_title(f"{seller} minus the best baseline")
    if not order:
        no_data(left)
        no_data(right)
        return fig
    _heat(left, rewards, order)
    _margin_panel(right, margins, order)
    origin = whose([*sources(rewards), PAPER], "section 9.2: three of six margins of its trained seller", ARXIV)
    caption(
        fig,
        "Rewards of different suites cannot be compared: what can be earned differs. Margins: paired on the same "
        f"markets, ± one standard error (the larger of plain and clustered). {note} {STAND_INS} {origin}",
    )
    return fig


def _heat(ax: Axes, rewards: pd.DataFrame, order: Sequence[str]) -> None:
    sellers = list(dict.fromkeys(rewards["seller"]))
    labels = names(rewards.drop_duplicates("seller"))
    wide = rewards.pivot(index="suite", columns="seller", values="mean").reindex(index=list(order), columns=sellers)
    values = wide.to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    low, high = (min(float(known.min()), -0.01), max(float(known.max()), 0.01)) if known.size else (-1.0, 1.0)
    ax.imshow(values, cmap=_LOSS_GAIN, norm=TwoSlopeNorm(0, low, high), aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        ink = "white" if value > 0.75 * high or value < 0.75 * low else DARK
        ax.text(x, y, "n/a" if math.isnan(value) else f"{value:+.3f}", ha="center", va="center", fontsize=8, color=ink)
    ax.set_xticks(range(len(sellers)), [label.replace("  [", "\n[") for label in labels])
    ax.set_yticks(range(len(order)), order)
    ax.tick_params(length=0)


_MARGIN_LOOKS: Mapping[str, tuple[str, str]] = {
    "reward": (BLUE, "o"),
    "surplus_ratio": (ORANGE, "^"),
    "optimal_pair_coverage": (GREEN, "v"),
}


def _margin_panel(ax: Axes, margins: pd.DataFrame, order: Sequence[str]) -> None:
    if not len(margins):
        no_data(ax, "not played")
        return
    for row in margins.to_dict("records"):
        at = list(_MARGIN_LOOKS).index(row["metric"])
        y = order.index(row["suite"]) + (-0.08, 0.14, 0.36)[at]
        colour, marker = _MARGIN_LOOKS[row["metric"]]
        error = row["error"] if math.isfinite(row["error"]) else None
        ax.errorbar(row["margin"], y, xerr=error, fmt=marker, color=colour, ms=5.5, capsize=2.5, elinewidth=1.1)
        if math.isfinite(row["paper"]):
            ax.plot([row["paper"]], [y - 0.24], marker="s", ms=6, mfc="white", mec=DARK, ls="", zorder=4)
    ax.axvline(0, color=MID, lw=0.8)
    ax.set_yticks(range(len(order)), [""] * len(order))
    ax.set(ylim=(len(order) - 0.5, -0.5), xlabel="difference of means")
    for y in range(1, len(order)):
        ax.axhline(y - 0.5, color=LIGHT, lw=0.6)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    keys = [
        Line2D([], [], color=colour, marker=marker, ls="", label=ITEM_METRIC_LABELS[metric])
        for metric, (colour, marker) in _MARGIN_LOOKS.items()
    ]
    keys.append(Line2D([], [], marker="s", mfc="white", mec=DARK, ls="", label="paper, reward"))
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


# -- one market -----------------------------------------------------------------------------------------------------

Assigned = Mapping[tuple[int, int], int | None]
"""(buyer, item) from 1 -> the price in cents; None where there is none (a matching that nobody made)."""


@mpl.rc_context(STYLE)
def matchings(
    valuations: Sequence[Sequence[int]],
    list_cents: Sequence[int],
    cost_cents: Sequence[int],
    panels: Mapping[str, Assigned],
    title: str = "",
    note: str = "",
    stated: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """The valuations of one market, and who got what, one panel for each of ``panels`` side by side.

    A cell is what the item is worth to the buyer; hatched where that is below the cost, framed where the pair is
    matched, with the price below. ``valuations``: by buyer, then item, in cents. ``stated``: pairs whose valuation is
    published, printed bold. ``note`` is the caption.
    """
    count, n, m = max(len(panels), 1), len(valuations), len(list_cents)
    fig = Figure(figsize=(max(5.6, count * (0.8 + 0.78 * max(m, 2))), 2.2 + 0.52 * max(n, 2)), layout="constrained")
    axes = list(fig.subplots(1, count, squeeze=False).flat)
    if not panels or not n or not m:
        for ax in axes:
            no_data(ax)
        return fig
    for k, (ax, (name, assigned)) in enumerate(zip(axes, panels.items(), strict=True)):
        _matrix(ax, valuations, list_cents, cost_cents, assigned, stated)
        ax.set_title(name, fontsize=9)
        ax.set_yticks(range(n), [f"Buyer {i}" for i in range(1, n + 1)] if k == 0 else [""] * n)
    keys = [
        Patch(fc="none", ec=VERMILLION, lw=2, label="matched, with the price paid"),
        Patch(fc="none", ec=MID, hatch="////", label="worth less than its cost"),
    ]
    # The legend's title is the figure's: both then share one strip at the top.
    top = fig.legend(handles=keys, loc="outside upper left", ncols=2, title=title, title_fontsize=11)
    top.set_alignment("left")
    caption(fig, f"{note} Shade: valuation over list price.".strip())
    return fig


def _matrix(
    ax: Axes,
    valuations: Sequence[Sequence[int]],
    list_cents: Sequence[int],
    cost_cents: Sequence[int],
    assigned: Assigned,
    stated: Sequence[tuple[int, int]] | None,
) -> None:
    ratio = np.array(valuations, dtype=float) / np.array(list_cents, dtype=float)
    ax.imshow(ratio, cmap=_WORTH, vmin=0.3, vmax=1.2, aspect="auto")
    for i, row in enumerate(valuations):
        for j, value in enumerate(row):
            pair = (i + 1, j + 1)
            price = assigned.get(pair)
            weight = "bold" if stated is not None and pair in stated else "normal"
            style = "italic" if stated is not None and pair not in stated else "normal"
            up = 0.14 if price is not None else 0.0
            ax.text(j, i - up, f"{value / 100:,.2f}", ha="center", va="center", fontsize=8, weight=weight, style=style)
            if price is not None:
                ax.text(j, i + 0.24, f"at {price / 100:,.2f}", ha="center", va="center", fontsize=7, color=VERMILLION)
            if value < cost_cents[j]:
                ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fc="none", ec=LIGHT, hatch="///", lw=0))
            if pair in assigned:
                ax.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fc="none", ec=VERMILLION, lw=2, zorder=3))
    prices = enumerate(zip(list_cents, cost_cents, strict=True), 1)
    heads = [f"Item {j}\nlist {listed / 100:,.2f}\ncost {cost / 100:,.2f}" for j, (listed, cost) in prices]
    ax.set_xticks(range(len(list_cents)), heads, fontsize=7.5)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
