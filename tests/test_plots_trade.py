"""Figures of a tournament, from rich and from degenerate numbers: drawn, labelled, the same bytes, nothing open."""

import warnings

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text

from negolab import plots
from negolab.papers import trade
from negolab.policies.scripted_traders import Trader
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.tournament_report import OUTCOMES, VIOLATIONS, shown
from negolab.tournament_table import HEAT_MAPS, Pair, collect

PROFILES = trade.published_profiles()


def pairs(traders: int, metric: str = "deal_rate_gft", mean: float | None = 0.5) -> list[dict[str, object]]:
    names = [f"trader-{i}" for i in range(traders)]
    return [{"seller": s, "buyer": b, "metric": metric, "mean": mean} for s in names for b in names]


def roles(traders: int, mean: float | None = 0.5, source: str = "ours (scripted)") -> list[dict[str, object]]:
    return [
        {"model": f"trader-{i}", "role": role, "metric": metric, "mean": mean, "source": source, "se_clustered": 0.01}
        for i in range(traders)
        for role in ("buyer", "seller")
        for metric in (*OUTCOMES, *VIOLATIONS)
    ]


def tiers(traders: int, mean: float | None = 0.5) -> list[dict[str, object]]:
    numbers = {f"{q}{part}": mean for q in trade.QUINTILES for part in ("", "_se_clustered")}
    return [
        {"model": f"t{i}", "role": r, "source": "x", **numbers} for i in range(traders) for r in ("buyer", "seller")
    ]


def profiles(traders: int, value: float | None = 0.5) -> list[dict[str, object]]:
    axes = {axis + part: value for axis in trade.AXES for part in ("", "_scaled")}
    return [{"model": f"t{i}", "role": "buyer", "source": "ours (scripted)", **axes} for i in range(traders)]


FIGURES = {
    "heat": lambda: plots.trade_heat_maps(pairs(5), ["deal_rate_gft"], "title", "note"),
    "heat twelve": lambda: plots.trade_heat_maps(pairs(12), ["deal_rate_gft"]),
    "heat one": lambda: plots.trade_heat_maps(pairs(1), ["deal_rate_gft"]),
    "heat none": lambda: plots.trade_heat_maps([], ["deal_rate_gft", "rounds_gft"]),
    "heat no metric": lambda: plots.trade_heat_maps(pairs(2), []),
    "heat unknown": lambda: plots.trade_heat_maps(pairs(2, mean=None), ["deal_rate_gft"]),
    "heat some": lambda: plots.trade_heat_maps(pairs(3)[:-2], ["deal_rate_gft"]),
    "heat losses": lambda: plots.trade_heat_maps(pairs(2, "buyer_utility_gft", -3.0), ["buyer_utility_gft"]),
    "heat zero": lambda: plots.trade_heat_maps(pairs(2, "any_violation_gft", 0.0), ["any_violation_gft"]),
    "radar": lambda: plots.trade_profiles(profiles(3), PROFILES, "buyer"),
    "radar none": lambda: plots.trade_profiles([], [], "seller"),
    "radar unknown": lambda: plots.trade_profiles(profiles(2, None), PROFILES, "buyer"),
    "radar twelve": lambda: plots.trade_profiles(profiles(12), PROFILES, "buyer"),
    "tiers": lambda: plots.trade_quintiles(tiers(4), trade.rows("table19"), "surplus_share"),
    "tiers alone": lambda: plots.trade_quintiles(tiers(4), [], "surplus_share"),
    "tiers none": lambda: plots.trade_quintiles([], [], "surplus_share"),
    "tiers unknown": lambda: plots.trade_quintiles(tiers(2, None), trade.rows("table19"), "deal_rate_gft"),
    "tiers zero": lambda: plots.trade_quintiles(tiers(2, 0.0), trade.rows("table21"), "any_violation_gft"),
    "bars": lambda: plots.trade_bars([*roles(5), *trade.published()], VIOLATIONS, "title"),
    "bars drivers": lambda: plots.trade_bars([*roles(5), *trade.published()], OUTCOMES[2:]),
    "bars none": lambda: plots.trade_bars([], OUTCOMES),
    "bars unknown": lambda: plots.trade_bars(roles(2, None), OUTCOMES),
    "bars zero": lambda: plots.trade_bars(roles(2, 0.0), OUTCOMES),
    "bars no metric": lambda: plots.trade_bars(roles(2), []),
}


def texts(fig) -> list[str]:
    return [text.get_text() for text in fig.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("name", FIGURES)
def test_drawn_without_a_warning_and_closed(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = plots.save(FIGURES[name](), tmp_path, "figure")
    assert all(path.stat().st_size > 1000 for path in saved.paths) and plt.get_fignums() == []


@pytest.mark.parametrize("name", ["heat", "radar", "tiers", "bars"])
def test_same_numbers_same_bytes(tmp_path, name):
    one, two = (plots.save(FIGURES[name](), tmp_path / at, "figure") for at in "ab")
    assert [path.read_bytes() for path in one.paths] == [path.read_bytes() for path in two.paths]


def test_a_heat_map_has_sellers_down_and_buyers_across():
    rows = pairs(3)
    for at, row in enumerate(rows):
        row["mean"] = at / 10
    (ax,) = plots.trade_heat_maps(rows[:-1], ["deal_rate_gft"]).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("buyer", "seller")
    found = {text.get_position(): text.get_text() for text in ax.texts}
    assert found == {(x, y): f"{10 * (3 * y + x):.1f}%" for x in range(3) for y in range(3) if (x, y) != (2, 2)}
    assert len(ax.lines) == 1  # the pair without an observation is crossed out


def test_a_profile_is_drawn_as_it_is_scaled():
    ours, theirs = (ax for ax in plots.trade_profiles(profiles(1), PROFILES, "buyer").axes)
    o3 = next(row for row in PROFILES if row["model"] == "o3" and row["role"] == "buyer")
    line = next(line for line in theirs.lines if line.get_label() == "o3")
    assert list(line.get_ydata())[:-1] == [o3[f"{axis}_scaled"] for axis in trade.AXES]
    shown_texts = [text.get_text() for text in theirs.texts]
    assert "surplus share\n24.3 to 47.2%" in shown_texts and len(ours.texts) == len(trade.AXES)


def test_quintiles_are_the_papers_numbers_where_they_are_its():
    axes = plots.trade_quintiles(tiers(1), trade.rows("table19"), "surplus_share").axes
    (o3,) = [line for line in axes[2].lines if line.get_label() == "o3"]
    row = next(row for row in trade.rows("table19") if (row["model"], row["role"]) == ("o3", "buyer"))
    assert list(o3.get_ydata()) == [row[q] for q in trade.QUINTILES]
    assert [ax.get_title(loc="left") for ax in axes] == [
        "buyers, ours (x)",
        "sellers, ours (x)",
        "buyers, paper",
        "sellers, paper",
    ]


def test_bars_say_whose_they_are_and_what_is_not_known():
    fig = plots.trade_bars([*roles(1), *trade.published()], VIOLATIONS)
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert names[0] == "trader-0 [scripted]" and sorted(names[1:]) == sorted(f"{m} [paper]" for m in trade.MODELS)
    assert [text.get_text() for text in fig.axes[3].texts] == [" n/a"] * 3  # sellers' opponents, three of the paper's
    widths = [patch.get_width() for patch in fig.axes[0].patches]
    assert max(widths) == 0.5 and len(widths) == 12


def test_kinds_of_traders_are_named_where_they_differ():
    mixed = [*profiles(1), {**profiles(2)[1], "source": "ours (language model)"}]
    fig = plots.trade_profiles(mixed, PROFILES, "buyer")
    assert "ours (scripted, language model)" in texts(fig)
    assert {line.get_label() for line in fig.axes[0].lines} >= {"t0 [scripted]", "t1 [language model]"}


def test_every_figure_of_a_tournament_is_there_with_its_caption(sample_catalog):
    games = [
        (Pair(seller, buyer), episode)
        for kind in ("gft", "ngft")
        for seller in ("anchor", "irrational")
        for buyer in ("anchor", "irrational")
        for episode in play(
            Schedule(regime("trade", gains=kind), sample_catalog.products[:10], seed=0),
            Trader(seller),
            {"trader": Trader(buyer)},
        )
    ]
    view = shown(
        collect(games), dict.fromkeys(("anchor", "irrational"), "ours (scripted)"), ["T: who. 3 products of X."]
    )
    made = plots.tournament_figures(view)
    numbers = [int(name[:2]) for name in made]
    assert numbers == [*range(4, 13), *HEAT_MAPS] and len(set(made)) == len(made)
    for name, fig in made.items():
        caption = " ".join(fig.get_supxlabel().split())
        assert "Traders: ours (scripted). 3 products of X." in caption
        assert (trade.LICENCE in caption) == (int(name[:2]) < 21 and int(name[:2]) != 5)
        assert np.prod(fig.get_size_inches()) > 10
