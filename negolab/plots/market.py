"""Figures of the market itself: the catalogue (figure 11), first offers (tables 11, 12), the prices of one episode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from negolab.papers.multi_buyer import OURS, PAPER
from negolab.plots.style import (
    BLUE,
    DARK,
    GREEN,
    LIGHT,
    MID,
    SERIES,
    SKY,
    STYLE,
    VERMILLION,
    caption,
    column,
    dollar_ticks,
    no_data,
    number,
    whose,
)


@mpl.rc_context(STYLE)
def catalog_distribution(frame: pd.DataFrame, source: str = "catalogue") -> Figure:
    """What the products are: number per category, list price and cost, cost over list (figure 11's analogue).

    ``frame``: one row per product with ``category``, ``list_cents``, ``cost_cents``. ``source`` names the catalogue.
    """
    fig = Figure(figsize=(9.4, 5.4), layout="constrained")
    axes = fig.subplot_mosaic([["count", "price"], ["count", "ratio"]], width_ratios=[1, 1.25])
    counts = (
        frame["category"].astype(str).value_counts(sort=False) if "category" in frame.columns else pd.Series(dtype=int)
    )
    names = sorted(counts.index, key=lambda c: (-counts[c], c))
    ax = axes["count"]
    ax.set_title("Products per category")
    if names:
        bars = ax.barh(
            range(len(names)), [counts[c] for c in names], height=0.7, color=SKY, edgecolor=BLUE, linewidth=0.6
        )
        ax.bar_label(bars, padding=2, fontsize=7.5)
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="products", xlim=(0, 1.15 * max(counts)))
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        ax.tick_params(axis="y", length=0)
    else:
        no_data(ax)
    _price_panel(axes["price"], frame)
    _ratio_panel(axes["ratio"], frame)
    both = "list = max(list, highest) price, cost = lowest price on record"
    caption(fig, f"{source}, {len(frame)} products; {both}. Dotted lines: medians.")
    return fig


def _price_panel(ax: Axes, frame: pd.DataFrame) -> None:
    ax.set_title("List price and cost")
    listed, cost = (values[values > 0] / 100 for values in (column(frame, "list_cents"), column(frame, "cost_cents")))
    if not listed.size or not cost.size:
        no_data(ax)
        return
    low, high = min(listed.min(), cost.min()), max(listed.max(), cost.max())
    bins = np.geomspace(low / 1.05, high * 1.05, 33).tolist()
    ax.hist(listed, bins=bins, color=SKY, alpha=0.75, label="list price")
    ax.hist(cost, bins=bins, histtype="step", color=DARK, lw=1.3, label="cost")
    for values, colour in ((listed, BLUE), (cost, DARK)):
        ax.axvline(float(np.median(values)), color=colour, ls=":", lw=1.3)
    ax.set_xscale("log")
    dollar_ticks(ax.xaxis, log=True)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set(xlabel="US dollars, log scale", ylabel="products")
    ax.legend(loc="upper right")


def _ratio_panel(ax: Axes, frame: pd.DataFrame) -> None:
    ax.set_title("Cost as a share of list price")
    listed, cost = column(frame, "list_cents"), column(frame, "cost_cents")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = cost / listed
    ratio = ratio[np.isfinite(ratio)]
    if not ratio.size:
        no_data(ax)
        return
    ax.hist(
        ratio, bins=np.linspace(0, max(1.0, float(ratio.max())), 41).tolist(), color=LIGHT, edgecolor=MID, linewidth=0.5
    )
    ax.axvline(float(np.median(ratio)), color=DARK, ls=":", lw=1.3)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set(xlabel="cost / list price", ylabel="products")


@mpl.rc_context(STYLE)
def first_offers(frame: pd.DataFrame, paper: pd.DataFrame | None = None, source: str = OURS) -> Figure:
    """How much a first offer tells: opening against hidden budget, both over list price, by buyer type (section 13).

    ``frame``: one row per buyer with ``buyer_type``, ``first_offer_ratio``, ``budget_ratio``. ``paper`` is table 12
    (``buyer_type``, ``first_offer_ratio``, ``first_offer_ratio_se``), drawn beside our means.
    """
    fig = Figure(figsize=(8.8, 4.2), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=[1.7, 1])
    left.set_title("First offer against hidden budget")
    right.set_title("Mean first offer by buyer type")
    offers, budgets = column(frame, "first_offer_ratio"), column(frame, "budget_ratio")
    of_type = (
        frame["buyer_type"].astype(str).to_numpy() if "buyer_type" in frame.columns else np.full(len(frame), "buyer")
    )
    known = np.isfinite(offers) & np.isfinite(budgets)
    types = sorted(set(of_type[known]))
    if types:
        edges = np.linspace(budgets[known].min(), budgets[known].max() + 1e-9, 9)
        for k, kind in enumerate(types):
            chosen = known & (of_type == kind)
            colour, line, marker = SERIES[(0, 2, 4, 3, 5, 6, 7, 1)[k % 8]]
            step = max(1, int(chosen.sum()) // 700)
            faint = 0.18 if chosen.sum() > 200 else 0.7  # a handful of points must be seen, thousands must not cover
            left.scatter(budgets[chosen][::step], offers[chosen][::step], s=7, color=colour, alpha=faint, linewidths=0)
            mids, means, errors = _binned(budgets[chosen], offers[chosen], edges)
            left.errorbar(mids, means, yerr=errors, color=colour, ls=line, marker=marker, ms=5, lw=1.4, label=kind)
        left.set(xlabel="hidden budget / list price", ylabel="first offer / list price")
        left.grid()
        left.legend(title="buyer type", title_fontsize=8, loc="upper left")
    else:
        no_data(left)
    _type_means(right, offers, of_type, paper, source)
    parts = [source] + ([PAPER] if paper is not None else [])
    reading = "Points: buyers (a sample). Lines: means of eight budget bands. Bars: one standard error."
    caption(fig, f"{reading} {whose(parts, 'table 12')}")
    return fig


def _binned(x: np.ndarray, y: np.ndarray, edges: np.ndarray) -> tuple[list[float], list[float], list[float]]:
    """Mean x, mean y and standard error of y per non-empty band; a band with one point has no error bar."""
    where = np.clip(np.digitize(x, edges) - 1, 0, len(edges) - 2)
    groups = [(x[where == b], y[where == b]) for b in range(len(edges) - 1) if (where == b).any()]
    errors = [float(b.std(ddof=1) / math.sqrt(len(b))) if len(b) > 1 else 0.0 for _, b in groups]
    return [float(a.mean()) for a, _ in groups], [float(b.mean()) for _, b in groups], errors


def _type_means(ax: Axes, offers: np.ndarray, of_type: np.ndarray, paper: pd.DataFrame | None, source: str) -> None:
    stated = {} if paper is None else {str(r["buyer_type"]): r for r in paper.to_dict("records")}
    known = np.isfinite(offers)
    types = sorted(set(of_type[known]) | set(stated))
    if not types:
        no_data(ax)
        return
    for k, kind in enumerate(types):
        mine = offers[known & (of_type == kind)]
        if mine.size:
            error = mine.std(ddof=1) / math.sqrt(mine.size) if mine.size > 1 else 0.0
            ax.errorbar(k + 0.09, mine.mean(), yerr=error, fmt="o", color=BLUE, ms=7, capsize=4)
        if kind in stated:
            mean, error = (number(stated[kind].get(c)) for c in ("first_offer_ratio", "first_offer_ratio_se"))
            ax.errorbar(k - 0.09, mean, yerr=np.nan_to_num(error), fmt="s", mfc="white", color=MID, ms=7, capsize=4)
    ax.set_xticks(range(len(types)), types)
    ax.set(xlim=(-0.6, len(types) - 0.4), ylabel="first offer / list price")
    ax.margins(y=0.25)
    ax.grid(axis="y")
    keys = [Line2D([], [], marker="s", mfc="white", color=MID, ls="", label="paper")] if stated else []
    keys += [Line2D([], [], marker="o", color=BLUE, ls="", label=source)] if known.any() else []
    ax.legend(handles=keys, loc="best")


_MAX_CHANNELS = 12
"""Panels in one episode figure; with more buyers the most active channels are drawn and the rest named by number."""


Mark = tuple[int, int, str, int | None]
"""Turn, buyer (0: no single one), what happened, cents (None where no price was named)."""


@mpl.rc_context(STYLE)
def episode_path(
    offers: Sequence[Mark],
    budgets: Sequence[int],
    cost_cents: int,
    list_cents: int,
    title: str = "Offers by channel",
    source: str = OURS,
) -> Figure:
    """What happened in one episode, one panel per buyer (the transcripts of section 14 as a picture).

    ``offers``: ``(turn, buyer from 1, what, cents)`` in order, where ``what`` is ``"bid"``, ``"ask"``, ``"deal"``,
    ``"quit"``, ``"violation"`` or ``"aborted"``. The last three may lack a price (None), and a buyer (0: the seller's
    own quit, or a reply that names no buyer), and then stand in every panel. ``budgets``: hidden budgets in cents by
    buyer. Lines mark the seller's cost, the list price and the buyer's budget.
    """
    busy = sorted(range(1, len(budgets) + 1), key=lambda b: (-sum(o[1] == b for o in offers), b))[:_MAX_CHANNELS]
    buyers = sorted(busy)
    columns = min(len(buyers), 5 if len(buyers) == 5 else 4) or 1
    lines = max(1, math.ceil(len(buyers) / columns))
    fig = Figure(figsize=(max(1.2 + 2.35 * columns, 5.5), 1.5 + 2.3 * lines), layout="constrained")
    grid = list(fig.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    if not buyers:
        grid[0].set_title(title)
        no_data(grid[0])
        return fig
    for k, ax in enumerate(grid):
        if k >= len(buyers):
            ax.set_visible(False)
            continue
        buyer = buyers[k]
        rank = 1 + sum(b > budgets[buyer - 1] for b in budgets)
        mine = [o for o in offers if o[1] in (buyer, 0)]
        heading = f"Buyer {buyer} (rank {rank}, budget ${budgets[buyer - 1] / 100:,.2f})"
        ax.set_title(heading + "".join(f"\n{_ending(o)}" for o in mine if o[1] and o[2] in _ENDINGS), fontsize=8.5)
        _channel(ax, mine, budgets[buyer - 1], cost_cents, list_cents)
        ax.set_xlabel("turn")
        if k % columns == 0:
            ax.set_ylabel("price (US dollars)")
    turns = [o[0] for o in offers] or [1]
    grid[0].set_xlim(min(turns) - 0.5, max(turns) + 0.5)
    grid[0].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    dollar_ticks(grid[0].yaxis, log=False)
    # The legend's title is the figure's: both then share one strip at the top.
    keys = _channel_keys([o for o in offers if o[1] in (0, *buyers)])
    ncols = 8 if columns > 2 else 3
    top = fig.legend(
        handles=keys, loc="outside upper left", ncols=ncols, title=title, title_fontsize=11, columnspacing=1.4
    )
    top.set_alignment("left")
    hidden = len(budgets) - len(buyers)
    left_out = f" {hidden} less active channels not drawn." if hidden else ""
    prices = f"List price ${list_cents / 100:,.2f}, cost ${cost_cents / 100:,.2f}."
    whole = "".join(f" {_ending(o).capitalize()}: no single channel." for o in offers if not o[1] and o[2] in _ENDINGS)
    caption(fig, f"{prices} Budgets are hidden from the seller.{whole}{left_out} {whose([source], 'section 14')}")
    return fig


_ENDINGS: Mapping[str, tuple[str, Any]] = {
    "deal": ("deal", {"color": GREEN, "marker": "*", "ms": 15, "mec": "white"}),
    "quit": ("quits", {"color": BLUE, "marker": "s", "ms": 9, "mfc": "white", "mew": 1.6}),
    "violation": ("violation", {"color": VERMILLION, "marker": "X", "ms": 12, "mec": DARK}),
    "aborted": ("no reply", {"color": MID, "marker": "D", "ms": 9, "mec": DARK}),
}
"""What ends a channel or the episode: its word in a heading, and its marker, each of a shape of its own."""


def _ending(mark: Mark) -> str:
    turn, buyer, what, cents = mark
    word = f"seller {_ENDINGS[what][0]}" if not buyer and what == "quit" else _ENDINGS[what][0]
    return word + ("" if cents is None else f" at ${cents / 100:,.2f}") + f" on turn {turn}"


def _channel(ax: Axes, offers: Sequence[Mark], budget: int, cost: int, listed: int) -> None:
    ax.axhline(listed / 100, color=MID, ls="--", lw=1)
    ax.axhline(cost / 100, color=DARK, ls="-", lw=1)
    ax.axhline(budget / 100, color=BLUE, ls=":", lw=1.4)
    for side, colour, marker, line in (("bid", BLUE, "o", "-"), ("ask", VERMILLION, "v", "-.")):
        path = [(turn, cents / 100) for turn, _, kind, cents in offers if kind == side and cents is not None]
        ax.plot([t for t, _ in path], [p for _, p in path], color=colour, marker=marker, ms=6, ls=line, lw=1.3)
    last: tuple[int, float] | None = None
    for turn, buyer, kind, cents in offers:
        if kind == "bid" and cents is not None:
            last = (turn, cents / 100)
        if kind not in _ENDINGS:
            continue
        look = _ENDINGS[kind][1]
        if not buyer:  # no single channel: a line through all of them, its marker on the upper edge
            ax.axvline(turn, color=look["color"], lw=1, ls=(0, (1, 2)))
            ax.plot([turn], [1], transform=ax.get_xaxis_transform(), ls="", zorder=5, clip_on=False, **look)
        elif cents is not None:
            ax.plot([turn], [cents / 100], ls="", zorder=5, **look)
        else:  # where the buyer stood when it left
            since, stood = last or (turn, cost / 100)
            ax.plot([since, turn], [stood, stood], color=look["color"], lw=1, ls=(0, (1, 2)))
            ax.plot([turn], [stood], ls="", zorder=5, **look)
    if not any(kind in ("bid", "ask", "deal") for _, _, kind, _ in offers):
        blank = {"fc": "white", "ec": "none"}
        ax.text(0.5, 0.5, "no offers", transform=ax.transAxes, ha="center", va="center", color=MID, bbox=blank)


def _channel_keys(offers: Sequence[Mark]) -> list[Line2D]:
    """The legend: of what can happen only what did."""
    happened = {
        "bid": Line2D([], [], color=BLUE, marker="o", label="bid"),
        "ask": Line2D([], [], color=VERMILLION, marker="v", ls="-.", label="ask"),
    }
    for kind, (_, look) in _ENDINGS.items():
        happened[kind] = Line2D([], [], ls="", label=kind, **{**look, "ms": min(look["ms"], 13)})
    kinds = {kind for _, _, kind, _ in offers}
    return [
        *(key for kind, key in happened.items() if kind in kinds),
        Line2D([], [], color=MID, ls="--", label="list price"),
        Line2D([], [], color=DARK, label="cost"),
        Line2D([], [], color=BLUE, ls=":", label="hidden budget"),
    ]
