"""Figures of a tournament of the trade game: the analogues of figures 4 to 12 and 21 to 29 of arXiv 2604.16472.

Rows are those of ``tournament_table`` and ``papers.trade``; ours have a ``source``. Where the paper's numbers of the
same quantity are known they are drawn beside ours, in panels of their own: other traders, on other products.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from negolab.papers import trade
from negolab.papers.multi_buyer import PAPER
from negolab.plots.style import BLUE, DARK, LIGHT, MID, ORANGE, SERIES, STYLE, VERMILLION, caption, no_data
from negolab.tournament_report import LABELS, OUTCOMES, TIERS, VIOLATIONS, sentence, text_of
from negolab.tournament_table import HEAT_MAPS, ROLES, matrix

if TYPE_CHECKING:
    from negolab.tournament_report import Shown

Rows = Sequence[Mapping[str, Any]]

_ROLE_LOOKS = {"buyer": (BLUE, "", "o"), "seller": (ORANGE, "////", "s")}
_HUE = LinearSegmentedColormap.from_list("from zero", ["#F3F6F9", "#93C4E3", "#2F7AB8", "#08306B"])
_SIGNED = LinearSegmentedColormap.from_list("signed", [VERMILLION, "#F3C9A8", "#F7F7F7", "#93C4E3", BLUE])
_NAME = 16
"""Characters of a name before it is broken."""


def _value(value: Any) -> float:
    return math.nan if value is None else float(value)


def _short(name: str, width: int = _NAME) -> str:
    return "\n".join(textwrap.wrap(name, width, break_long_words=False)[:3]) or name


def _whose(rows: Rows) -> str:
    """``ours (scripted)``, or all kinds of ours that are among the rows."""
    kinds = dict.fromkeys(_mark(str(row.get("source", ""))) for row in rows)
    return f"ours ({', '.join(kind for kind in kinds if kind)})" if any(kinds) else "ours"


def _name(row: Mapping[str, Any], rows: Rows) -> str:
    """The trader, with its kind where the rows' kinds differ."""
    mark = re.search(r"\((.+)\)", str(row.get("source", "")))
    mixed = len({other.get("source") for other in rows}) > 1
    return f"{row['model']} [{mark[1]}]" if mixed and mark else str(row["model"])


def _percentages(metric: str) -> bool:
    return text_of(metric, 0.5).endswith("%")


def _ticks(axis: Any, metric: str) -> None:
    """Ticks in the metric's unit."""
    if _percentages(metric):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.3g}%"))
    elif "utility" in metric:
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"-${-v:,.0f}" if v < 0 else f"${v:,.0f}"))


def _mark(source: str) -> str:
    return re.sub(r"ours \((.*)\)", r"\1", source)


# -- heat maps --------------------------------------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def trade_heat_maps(pairs: Rows, metrics: Sequence[str], title: str = "", note: str = "") -> Figure:
    """One panel per metric, sellers down and buyers across (figures 21 to 29).

    ``pairs``: rows of ``seller``, ``buyer``, ``metric``, ``mean``. A pair without an observation is crossed out.
    """
    grids = [matrix(pairs, metric) for metric in metrics]
    size = max([len(rows) for rows in grids] + [len(row["by_buyer"]) for rows in grids for row in rows] + [2])
    fig = Figure(figsize=(1.6 + len(metrics) * (1.9 + 0.62 * size), 2.1 + 0.5 * size), layout="constrained")
    if title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    axes = fig.subplots(1, max(len(metrics), 1), squeeze=False)[0]
    for ax, metric, rows in zip(axes, metrics, grids, strict=False):
        ax.set_title(LABELS.get(metric, metric))
        values = np.array([[_value(v) for v in row["by_buyer"].values()] for row in rows], dtype=float)
        if not rows or not np.isfinite(values).any():
            no_data(ax)
            continue
        _heat_map(ax, values, metric)
        ax.set_xticks(range(len(rows[0]["by_buyer"])), [_short(name) for name in rows[0]["by_buyer"]], rotation=35)
        ax.set_yticks(range(len(rows)), [_short(row["seller"]) for row in rows])
        for label in ax.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
        ax.set(xlabel="buyer", ylabel="seller")
    if note:
        caption(fig, note)
    return fig


def _heat_map(ax: Axes, values: np.ndarray, metric: str) -> None:
    """Cells of one hue from light to dark, or where some are below zero of two, each cell with its number."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < 0:
        colours, most = _SIGNED, max(-low, high)
        scale = mpl.colors.Normalize(-most, most)
    else:
        low = 0.0 if "violation" in metric else low  # there nothing is nothing
        colours, scale = _HUE, mpl.colors.Normalize(low, high if high > low else low + 1.0)
    ax.imshow(np.ma.masked_invalid(values), cmap=colours, norm=scale, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        if math.isnan(value):
            ax.plot([x - 0.4, x + 0.4], [y - 0.4, y + 0.4], color=LIGHT, lw=1)
            continue
        red, green, blue, _ = colours(scale(value))
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else DARK
        ax.text(x, y, text_of(metric, value), ha="center", va="center", fontsize=7.5, color=ink)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


# -- profiles ---------------------------------------------------------------------------------------------------------

_ANGLES = np.linspace(0, 2 * np.pi, len(trade.AXES), endpoint=False)


@mpl.rc_context(STYLE)
def trade_profiles(ours: Rows, published: Rows, role: str, title: str = "", note: str = "") -> Figure:
    """Six axes by trader, ours to the left and the paper's to the right (figures 11 and 12).

    Rows have ``model``, ``role``, and each of ``papers.trade.AXES`` with its ``_scaled`` value, which is drawn: 0, the
    worst of its panel, lies on the inner ring. Eight traders at most are drawn.
    """
    # Fixed places: automatic layout does not reckon with the labels around a polar axis.
    fig = Figure(figsize=(10.2, 5.4))
    fig.suptitle(title or f"{role.capitalize()} profiles", x=0.01, ha="left", fontsize=11)
    panels = [(_whose(ours), [row for row in ours if row["role"] == role])]
    panels.append(("paper", [row for row in published if row["role"] == role]))
    for at, (name, rows) in enumerate(panels):
        place = (0.10 + 0.50 * at, 0.27, 0.30, 0.30 * 10.2 / 5.4)
        if not rows:
            no_data(fig.add_axes(place))
            continue
        ax: Any = fig.add_axes(place, projection="polar")
        _profile_frame(ax, rows)
        drawn = rows[: len(SERIES)]
        for i, row in enumerate(drawn):
            colour, line, marker = SERIES[i]
            scaled = [_value(row[f"{axis}_scaled"]) for axis in trade.AXES]
            ax.plot(
                np.append(_ANGLES, _ANGLES[0]), [*scaled, scaled[0]], color=colour, ls=line, marker=marker, ms=4.5,
                lw=1.5, label=_short(_name(row, rows), 24), clip_on=False, zorder=4 - 0.1 * i,
            )  # fmt: skip
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, fontsize=7.5, columnspacing=1.2)
        more = f", {len(rows) - len(drawn)} more are not drawn" if len(rows) > len(drawn) else ""
        fig.text(0.01 + 0.50 * at, 0.87, f"{name}{more}", fontsize=9.5, color=DARK)
    scale = "Each axis is scaled from the panel's worst (inner ring) to its best (rim), whose values stand beside it."
    caption(fig, f"{scale} {note}".strip())
    return fig


def _profile_frame(ax: Any, rows: Rows) -> None:
    """Rings, spokes, and beside each spoke its axis with the range of its values."""
    ax.set_theta_zero_location("N")
    ax.set_theta_direction(-1)
    ax.set_ylim(-0.25, 1)
    ax.set_xticks(_ANGLES, [""] * len(_ANGLES))
    ax.set_yticks([0, 0.5, 1], ["", "", ""])
    ax.plot(np.linspace(0, 2 * np.pi, 181), np.zeros(181), color=MID, lw=0.8, zorder=1.5)
    ax.spines["polar"].set_color("#BBBBBB")
    for angle, axis in zip(_ANGLES, trade.AXES, strict=True):
        known = [row[axis] for row in rows if row[axis] is not None]
        ends = f"{text_of(axis, min(known), unit=False)} to {text_of(axis, max(known))}" if known else "n/a"
        east, north = math.sin(angle), math.cos(angle)
        across = "center" if abs(east) < 0.1 else ("left" if east > 0 else "right")
        ax.annotate(
            f"{LABELS.get(axis, axis)}\n{ends}", (angle, 1.03), xytext=(9 * east, 9 * north - 2 * (north < 0)),
            textcoords="offset points", ha=across, va="bottom" if north > 0.9 else "top" if north < -0.9 else "center",
            fontsize=7.5, color=DARK, annotation_clip=False,
        )  # fmt: skip


# -- by quintile ------------------------------------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def trade_quintiles(ours: Rows, published: Rows, metric: str, title: str = "", note: str = "") -> Figure:
    """Lines over the quintiles of the own reservation price, by role; below ours the paper's (figures 8 to 10).

    Rows: ``model``, ``role``, ``q1`` to ``q5``, of ours also ``q1_se_clustered`` ...; eight traders are drawn at most.
    """
    groups = [(_whose(ours), ours), *([("paper", published)] if published else [])]
    fig = Figure(figsize=(9.4, 0.9 + 2.7 * len(groups)), layout="constrained")
    fig.suptitle(title or LABELS.get(metric, metric), x=0.01, ha="left", fontsize=11)
    shared: Any = "row" if "violation" in metric else True  # whose rates differ by orders of magnitude
    axes = fig.subplots(len(groups), len(ROLES), sharey=shared, sharex=True, squeeze=False)
    for line, (name, rows) in zip(axes, groups, strict=True):
        for ax, role in zip(line, ROLES, strict=True):
            ax.set_title(f"{role}s, {name}")
            mine = [row for row in rows if row["role"] == role][: len(SERIES)]
            if not mine:
                ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color=MID, fontsize=11)
                continue
            for i, row in enumerate(mine):
                colour, style, marker = SERIES[i]
                means = [_value(row[q]) for q in trade.QUINTILES]
                errors = [_value(row.get(f"{q}_se_clustered")) for q in trade.QUINTILES]
                places = np.arange(len(means)) + 0.05 * (i - (len(mine) - 1) / 2)
                ax.plot(places, means, color=colour, ls=style, marker=marker, ms=4.5, lw=1.4, label=_name(row, mine))
                if np.isfinite(errors).any():
                    ax.errorbar(places, means, yerr=errors, fmt="none", ecolor=colour, elinewidth=0.9, capsize=1.8)
            ax.set_xticks(range(len(trade.QUINTILES)), [q.upper() for q in trade.QUINTILES])
            ax.tick_params(labelbottom=True)
            ax.grid(axis="y")
            _ticks(ax.yaxis, metric)
        handles, labels = line[0].get_legend_handles_labels()
        if handles:
            line[-1].legend(handles, [_short(x, 22) for x in labels], loc="center left", bbox_to_anchor=(1.01, 0.5))
        if not any(np.nan_to_num(line_.get_ydata()).any() for ax in line for line_ in ax.lines):
            line[0].set_ylim(-0.02, 1)
    tiers = "Q1: the fifth of the scenarios with the side's lowest reservation prices. Whiskers: one standard error."
    caption(fig, f"{tiers} {note}".strip())
    return fig


# -- by role ----------------------------------------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def trade_bars(rows: Rows, metrics: Sequence[str], title: str = "", note: str = "") -> Figure:
    """One panel per metric, two bars per trader: as buyer and as seller (figures 4, 6 and 7). The paper's traders stand
    below ours, in paler bars.

    ``rows``: ``model``, ``role``, ``metric``, ``mean``, ``source``, optional ``se_clustered``.
    """
    found = {(row["source"], row["model"], row["role"], row["metric"]): row for row in rows if row["metric"] in metrics}
    who = list(dict.fromkeys((source, model) for source, model, _, _ in found))
    who.sort(key=lambda one: one[0] == PAPER)
    columns = 2 if len(metrics) == 4 else min(3, max(len(metrics), 1))
    lines = max(1, math.ceil(len(metrics) / columns))
    height = 1.2 + lines * (0.75 + 0.30 * max(len(who), 3))
    fig = Figure(figsize=(2.2 + 2.7 * columns, height), layout="constrained")
    fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    grid = fig.subplots(lines, columns, sharey=True, squeeze=False)
    for k, ax in enumerate(grid.flat):
        if k >= len(metrics):
            ax.set_visible(False)
            continue
        metric = metrics[k]
        ax.set_title(LABELS.get(metric, metric))
        mine = {key[:3]: row for key, row in found.items() if key[3] == metric and row["mean"] is not None}
        if not mine:
            no_data(ax)
            continue
        _role_bars(ax, mine, who)
        ax.set_yticks(range(len(who)), [f"{model} [{_mark(source)}]" if source else model for source, model in who])
        ax.set_ylim(len(who) - 0.4, -0.6)
        _ticks(ax.xaxis, metric)
        if not any(row["mean"] for row in mine.values()):
            ax.set_xlim(0, 1)
    keys = [
        mpl.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"as {role}")
        for role, (colour, hatch, _) in _ROLE_LOOKS.items()
    ]
    fig.legend(handles=keys, loc="outside upper right", ncols=2)
    caption(fig, f"Whiskers: one standard error; none is published. {note}".strip())
    return fig


def _role_bars(ax: Axes, rows: Mapping[Any, Mapping[str, Any]], who: Sequence[tuple[str, str]]) -> None:
    for y, (source, model) in enumerate(who):
        for offset, (role, (colour, hatch, _)) in zip((-0.2, 0.2), _ROLE_LOOKS.items(), strict=True):
            row = rows.get((source, model, role))
            if row is None:
                ax.text(0, y + offset, " n/a", va="center", fontsize=6.5, color=MID)
                continue
            pale = 0.45 if source == PAPER else 1.0
            ax.barh(y + offset, row["mean"], 0.38, color=colour, hatch=hatch, edgecolor="white", lw=0.5, alpha=pale)
            error = _value(row.get("se_clustered"))
            if math.isfinite(error):
                ax.errorbar(row["mean"], y + offset, xerr=error, fmt="none", ecolor=DARK, elinewidth=0.8, capsize=1.5)
    ours = sum(source != PAPER for source, _ in who)
    if 0 < ours < len(who):
        ax.axhline(ours - 0.5, color=MID, lw=0.8)
    ax.axvline(0, color=MID, lw=0.8)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)


# -- all of a tournament ----------------------------------------------------------------------------------------------


def figures(view: Shown) -> dict[str, Figure]:
    """Every figure of a tournament by its file's name, which begins with the number of the paper's."""
    kinds = _whose([{"source": source} for source in view.sources.values()])
    # What was played, and on which data, without the list of traders.
    note = f"Traders: {kinds}. {view.caption[0].partition('. ')[2]}"
    both = f"{note} Paper: {trade.LICENCE}."
    rows = [*view.roles, *({**row, "se_clustered": None} for row in trade.published())]
    scales = trade.published_profiles()
    titles = {8: "surplus_share", 9: "deal_rate_gft", 10: "any_violation_gft"}
    made = {
        "04_violations": trade_bars(rows, VIOLATIONS, "Violations of individual rationality", both),
        "05_violations_by_pair": trade_heat_maps(
            view.pairs, ("buyer_violation_ngft", "seller_violation_ngft"), "Who violates against whom", note
        ),
        "06_outcomes": trade_bars(rows, OUTCOMES[:2], "Surplus share and deal rate", both),
        "07_drivers": trade_bars(rows, OUTCOMES[2:], "Behavioural drivers", both),
    }
    for number, metric in titles.items():
        title = f"{sentence(LABELS[metric])}, by price quintile"
        made[f"{number:02d}_{metric}"] = trade_quintiles(
            view.tiers[metric], trade.rows(TIERS[metric]), metric, title, both
        )
    for number, role in ((11, "buyer"), (12, "seller")):
        made[f"{number}_{role}_profiles"] = trade_profiles(view.profiles, scales, role, note=both)
    for number, metrics in HEAT_MAPS.items():
        made[f"{number}_{metrics[0]}"] = trade_heat_maps(view.pairs, metrics, note=note)
    return made
