"""How negotiations of the trade game are drawn (2604.16472, its authors' code): laws, cheap items, records, knobs."""

import json
import time
from dataclasses import replace

import pytest

from negolab.errors import NegolabError
from negolab.scenario import Regime, Scenario, Schedule, draw, regime
from trade_games import LAPTOP

LOW, HIGH = 100_000_000, 180_000_000
WIDE = replace(LAPTOP, listing=replace(LAPTOP.listing, list_cents=HIGH), cost_cents=LOW)


def drawn(count=4000, product=WIDE, **knobs) -> list[Scenario]:
    chosen = regime("trade", **knobs)
    return [draw(chosen, product, seed=3, rep=rep) for rep in range(count)]


def room(gains: str, reserve: int) -> tuple[float, float]:
    """Where the buyer's value lies, from the paper's authors' code."""
    bottom, top = 0.4 * LOW, HIGH + 0.1 * (HIGH - LOW)
    return {"gft": (reserve, top), "ngft": (bottom, reserve), "any": (bottom, top)}[gains]


@pytest.mark.parametrize("way", ["redraw", "conditional"])
@pytest.mark.parametrize("gains", ["gft", "ngft", "any"])
def test_values_have_the_laws_of_the_papers_code(gains, way):
    stats = pytest.importorskip("scipy.stats")
    games = drawn(gains=gains, trade_draw=way)
    sellers = [(game.reserve / LOW - 0.6) / 0.3 for game in games]
    assert min(sellers) > -1e-6 and max(sellers) < 1 + 1e-6
    assert stats.kstest(sellers, "uniform").pvalue > 1e-3
    # Whatever s is, b is uniform on what is left: so the two ways have one law, once s is given.
    buyers = []
    for game in games:
        bottom, top = room(gains, game.reserve)
        buyers.append((game.budgets[0] - bottom) / (top - bottom))
        difference = game.budgets[0] - game.reserve
        assert {"gft": difference > 1, "ngft": difference < -1, "any": True}[gains]
    assert stats.kstest(buyers, "uniform").pvalue > 1e-3
    halves = [[b for b, s in zip(buyers, sellers, strict=True) if (s < 0.5) == low] for low in (True, False)]
    assert stats.ks_2samp(*halves).pvalue > 1e-3


def test_both_ways_share_the_sellers_value_and_differ_only_in_how_the_buyers_is_found():
    stats = pytest.importorskip("scipy.stats")
    for gains in ("gft", "ngft"):
        a, b = drawn(gains=gains), drawn(gains=gains, trade_draw="conditional")
        assert [game.reserve for game in a] == [game.reserve for game in b]
        assert [game.keys for game in a] == [game.keys for game in b]
        assert stats.ks_2samp([game.budgets[0] for game in a], [game.budgets[0] for game in b]).pvalue > 1e-3
    assert drawn(200, gains="any") == drawn(200, gains="any", trade_draw="conditional")


def test_values_cover_the_whole_range_and_any_has_both_kinds():
    games = drawn(gains="any")
    above = sum(game.budgets[0] > game.reserve for game in games) / len(games)
    assert above == pytest.approx((1.88 - 0.75) / (1.88 - 0.4), abs=0.03)  # the mean of (top - s) / (top - bottom)
    values = [game.budgets[0] / LOW for game in games]
    assert min(values) < 0.41 and max(values) > 1.87


def test_a_draw_depends_on_its_address_alone():
    chosen = regime("trade", gains="gft")
    first = draw(chosen, WIDE, seed=3, rep=7, episode=5)
    assert draw(chosen, WIDE, seed=3, rep=7) == first._replace(episode=0)
    for other in (
        draw(chosen, WIDE, seed=4, rep=7),
        draw(chosen, WIDE, seed=3, rep=8),
        draw(chosen, replace(WIDE, listing=replace(WIDE.listing, codename="other_1")), seed=3, rep=7),
    ):
        assert other.reserve != first.reserve and other.keys != first.keys
    assert (first.game, first.protocol, first.buyer_types, first.openings) == ("trade", "tools", ("trader",), None)
    assert first.message_budget == first.per_buyer_cap == 10 and first.n_buyers == first.n_items == 1


@pytest.mark.parametrize("low", [1, 2, 3, 5, 9, 10, 15, 40, 100])
@pytest.mark.parametrize("gains", ["gft", "ngft", "any"])
@pytest.mark.parametrize("way", ["redraw", "conditional"])
def test_cheap_items(low, gains, way):
    cheap = replace(WIDE, listing=replace(WIDE.listing, list_cents=low + 1), cost_cents=low)
    chosen = regime("trade", gains=gains, trade_draw=way)
    try:
        schedule = Schedule(chosen, [cheap], seed=1, per_product=200)
    except NegolabError as error:
        # Nothing from 0.4 L up lies a cent and more below 0.6 L, or nothing up to the top a cent and more above 0.9 L.
        assert (gains == "ngft" and low < 10) or (gains == "gft" and low <= 5)
        assert LAPTOP.listing.codename in str(error) and "more than a cent" in str(error)
        return
    for game in schedule:  # what the schedule lets in can be drawn, all of it
        assert game.reserve >= 1 and game.budgets[0] >= 1
        assert round(0.6 * low) - 1 <= game.reserve <= round(0.9 * low) + 1
        difference = game.budgets[0] - game.reserve
        assert {"gft": difference >= 2, "ngft": difference <= -2, "any": True}[gains]


def test_a_value_that_hardly_fits_is_still_found():
    far = replace(WIDE, listing=replace(WIDE.listing, list_cents=900_000_000), cost_cents=100)
    start = time.perf_counter()
    games = drawn(20, far, gains="ngft")
    assert time.perf_counter() - start < 2
    assert all(40 <= game.budgets[0] <= game.reserve - 2 for game in games)


def test_published_listings_can_all_be_drawn(real_data_dir):
    from negolab.catalog import load_catalog

    products = load_catalog(real_data_dir).products
    for gains, above in (("gft", True), ("ngft", False)):
        games = list(Schedule(regime("trade", gains=gains), products, seed=2))
        assert len(games) == 930 and all((game.budgets[0] > game.reserve) == above for game in games)


@pytest.mark.parametrize("knobs", [{}, {"gains": "gft"}, {"gains": "ngft", "trade_draw": "conditional"}])
def test_regimes_and_scenarios_come_back_from_their_records(knobs):
    chosen = regime("trade", **knobs)
    assert Regime.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    scenario = draw(chosen, LAPTOP, seed=5, rep=1, episode=4)
    stored = json.loads(json.dumps(scenario.to_json()))
    assert Scenario.from_json(4, stored, {LAPTOP.listing.codename: LAPTOP}) == scenario
    assert stored["reserve"] == scenario.reserve and stored["game"] == "trade"


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"gains": "both"}, "gft, ngft, any"),
        ({"trade_draw": "uniform"}, "redraw, conditional"),
        ({"n_buyers": 2}, "one buyer"),
        ({"n_items": 2, "protocol": "tags"}, "one item"),
        ({"protocol": "lines"}, "tools"),
        ({"first_offer": (0.2, 0.3)}, "no regulated first offer"),
        ({"message_budget": 9}, "must be equal"),
        ({"message_budget": 0, "per_buyer_cap": 0}, "whole number"),
        ({"reject": True}, "bilateral"),
        ({"personas": ("begging",)}, "bilateral"),
    ],
)
def test_bad_knobs(knobs, says):
    with pytest.raises(NegolabError, match=says):
        regime("trade", **knobs)


def test_knobs_of_the_trade_game_are_its_own():
    for name in ("in_distribution", "bilateral"):
        with pytest.raises(NegolabError, match="knobs of the trade game"):
            regime(name, gains="gft")
    with pytest.raises(NegolabError, match="tools are how the trade game is played"):
        regime("in_distribution", protocol="tools")
