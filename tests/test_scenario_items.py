"""Markets of several items as they are drawn: which items, what they are worth to whom, openings, addresses, knobs."""

import itertools
import json
import math
from collections import Counter

import pytest

from item_markets import cluster
from negolab.catalog import Listing, Product
from negolab.clusters import Cluster, load_clusters
from negolab.errors import NegolabError
from negolab.metrics import summarise
from negolab.money import MAX_CENTS
from negolab.policies.registry import make_buyers, make_seller
from negolab.rollout import play
from negolab.scenario import (
    BILATERAL,
    IN_DISTRIBUTION,
    MULTI_PRODUCT,
    MULTI_PRODUCT_OOD,
    OOD_DIVERSE,
    Regime,
    Scenario,
    Schedule,
    draw,
    regime,
)
from test_scenario import assert_even, assert_uniform, assert_unrelated

LAMPS = cluster()
MULTI = (MULTI_PRODUCT, *MULTI_PRODUCT_OOD)
OPEN_TWICE = regime("multi_product", n_items=2, n_buyers=2)


def drawn_many(drawn_from: Regime, count: int = 4000, unit: Cluster = LAMPS, seed: int = 0) -> list[Scenario]:
    return [draw(drawn_from, unit, seed=seed, rep=rep) for rep in range(count)]


def ratios(scenario: Scenario) -> list[list[float]]:
    """Valuations as fractions of the list price, by buyer and item."""
    lists = [product.listing.list_cents for product in scenario.products]
    return [[worth / price for worth, price in zip(row, lists, strict=True)] for row in scenario.valuations]


def correlation(pairs) -> float:
    """Pearson's, of pairs of numbers."""
    first, second = zip(*pairs, strict=True)
    n, a, b = len(first), sum(first) / len(first), sum(second) / len(second)
    both = sum((x - a) * (y - b) for x, y in zip(first, second, strict=True)) / n
    spread = [sum((x - mean) ** 2 for x in values) / n for values, mean in ((first, a), (second, b))]
    return both / math.sqrt(spread[0] * spread[1])


@pytest.fixture(scope="module")
def drawn() -> list[Scenario]:
    """Six thousand markets of the paper's regime on one cluster of five."""
    return drawn_many(MULTI_PRODUCT, 6000)


# -- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n", "m", "k", "t", "types"),
    [
        ("multi_product", 3, 3, 3, 7, ("iter-60",)),
        ("multi_varied", 3, 3, 3, 7, ("iter-50", "iter-60", "iter-70")),
        ("multi_expanded", 5, 5, 3, 12, ("iter-50", "iter-60", "iter-70")),
        ("multi_item_heavy", 3, 5, 3, 7, ("iter-50", "iter-60", "iter-70")),
        ("multi_buyer_heavy", 5, 3, 3, 9, ("iter-50", "iter-60", "iter-70")),
        ("multi_item_correlation", 3, 3, 3, 7, ("iter-50", "iter-60", "iter-70")),
    ],
)
def test_the_sizes_of_the_named_regimes(name, n, m, k, t, types):
    found = regime(name)
    assert (found.n_buyers, found.n_items, found.per_buyer_cap, found.message_budget) == (n, m, k, t)
    assert found.buyer_types == types and found.warnings == () and found.protocol == "tags"
    assert (found.first_offer, found.first_offer_rate, found.budget_tiers) == ((0.25, 0.3), 0.5, ((0.4, 1.15),))
    assert found.item_correlation == (0.8 if name == "multi_item_correlation" else 0) and not found.buyer_correlation
    assert Regime.from_json(json.loads(json.dumps(found.to_json()))) == found
    scenario = draw(found, LAMPS, seed=1, rep=0)
    assert (scenario.n_buyers, scenario.n_items, scenario.unit, scenario.regime) == (n, m, "lamps", name)
    assert (scenario.per_buyer_cap, scenario.message_budget, scenario.protocol) == (k, t, "tags")
    assert len(scenario.keys) == n + 1 and set(scenario.buyer_types) <= set(types)


def test_items_are_drawn_without_replacement_in_every_order_alike(drawn):
    chosen = [tuple(product.listing.codename for product in scenario.products) for scenario in drawn]
    assert_even(chosen, itertools.permutations([p.listing.codename for p in LAMPS.products], 3))


def test_a_market_of_the_whole_cluster_is_a_shuffled_one():
    chosen = [scenario.products for scenario in drawn_many(regime("multi_item_heavy"), 3000)]
    assert all(set(products) == set(LAMPS.products) for products in chosen)
    assert_even(chosen, itertools.permutations(LAMPS.products))


@pytest.mark.parametrize(("buyer", "item"), [*itertools.product(range(3), range(3))])
def test_valuations_are_uniform_and_of_nothing_else(buyer, item, drawn):
    values = [ratios(scenario)[buyer][item] for scenario in drawn]
    assert_uniform(values, 0.4, 1.15)
    for other in [(b, i) for b in range(3) for i in range(3) if (b, i) > (buyer, item)]:
        assert_unrelated(values, [ratios(scenario)[other[0]][other[1]] for scenario in drawn])


def test_valuations_have_nothing_to_do_with_which_item_it_is():
    """An item's place and identity say nothing about what it is worth."""
    markets = drawn_many(OPEN_TWICE, 6000)
    assert_unrelated([s.products[0].listing.list_cents for s in markets], [ratios(s)[0][0] for s in markets])


def test_a_tier_holds_for_all_items_of_its_buyer():
    tiers = ((0.4, 0.5), (0.7, 0.8), (1.0, 1.1))
    markets = drawn_many(regime("multi_product", budget_tiers=tiers), 3000)
    orders = []
    for scenario in markets:
        places = [
            {[low <= r + 1e-8 and r - 1e-8 <= high for low, high in tiers].index(True) for r in row}
            for row in ratios(scenario)
        ]
        assert all(len(place) == 1 for place in places)
        orders.append(tuple(place.pop() for place in places))
    assert_even(orders, itertools.permutations(range(3)))


# -- openings ---------------------------------------------------------------------------------------------------------


def test_half_of_the_openings_are_regulated_buyer_by_buyer(drawn):
    free = (None, None, None)
    patterns = [tuple(row is not None for row in scenario.openings or free) for scenario in drawn]
    assert_even(patterns, itertools.product((False, True), repeat=3))
    assert all(scenario.openings is None for scenario, pattern in zip(drawn, patterns, strict=True) if not any(pattern))


def test_regulated_openings_are_uniform_for_every_item(drawn):
    for item in range(3):
        found = [
            row[item] / scenario.products[item].listing.list_cents
            for scenario in drawn
            for row in scenario.openings or ()
            if row is not None
        ]
        assert_uniform(found, 0.25, 0.30)


def test_whether_an_opening_is_regulated_says_nothing_about_valuations(drawn):
    regulated = [float(s.openings is not None and s.openings[0] is not None) for s in drawn]
    for item in range(3):
        assert_unrelated(regulated, [ratios(s)[0][item] for s in drawn])


def test_an_opening_never_exceeds_the_valuation_of_its_item():
    markets = drawn_many(regime("multi_product", first_offer=[0.3, 1.3], first_offer_rate=1), 500)
    rows = [rows for s in markets for rows in zip(s.openings, s.valuations, strict=True)]
    capped = [fixed == worth for row in rows for fixed, worth in zip(*row, strict=True)]
    assert all(fixed <= worth for row in rows for fixed, worth in zip(*row, strict=True))
    assert 0.2 < sum(capped) / len(capped) < 0.8


@pytest.mark.parametrize("unit", [LAMPS, LAMPS.products[0]], ids=["cluster", "product"])
def test_the_rate_of_regulated_openings(unit):
    """Also for a single product, whose old regimes have the rate of one."""

    def share(rate):
        markets = drawn_many(IN_DISTRIBUTION.override(first_offer_rate=rate), 2000, unit)
        return sum(row is not None for s in markets for row in s.openings or (None,) * 3) / 6000

    assert share(0) == 0 and share(1) == 1
    assert abs(share(0.2) - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 6000)
    assert draw(IN_DISTRIBUTION.override(first_offer_rate=0), unit, seed=0, rep=0).openings is None


# -- correlation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "buyer"), [(0.0, 0.0), (0.8, 0.0), (0.3, 0.0), (0.0, 0.6), (0.5, 0.3), (1.0, 0.0), (0.0, 1.0), (0.9, 0.1)]
)
def test_valuations_correlate_as_the_knobs_say_and_stay_uniform(item, buyer):
    """Of two uniform numbers with a Gaussian copula of correlation r the correlation is 6 / pi asin(r / 2)."""
    markets = drawn_many(regime("multi_product", item_correlation=item, buyer_correlation=buyer), 5000)
    table = [ratios(s) for s in markets]
    # Rounding to whole cents is nothing beside five standard errors.
    near = 5 / math.sqrt(len(table))
    same_item = correlation([(row[0][2], row[1][2]) for row in table])
    same_buyer = correlation([(row[2][0], row[2][1]) for row in table])
    neither = correlation([(row[0][0], row[1][1]) for row in table])
    assert abs(same_item - 6 / math.pi * math.asin(item / 2)) < near
    assert abs(same_buyer - 6 / math.pi * math.asin(buyer / 2)) < near
    assert abs(neither) < near
    for i, j in ((0, 0), (2, 1)):
        assert_uniform([row[i][j] for row in table], 0.4, 1.15)


def test_with_full_correlation_all_buyers_agree_on_an_item():
    for scenario in drawn_many(regime("multi_product", item_correlation=1), 100):
        assert all(len(set(column)) == 1 for column in zip(*scenario.valuations, strict=True))
        assert len({round(r, 6) for r in ratios(scenario)[0]}) == 3


def test_all_ways_to_share_a_correlation_of_one_can_be_drawn():
    """1 - a - b is below zero for some of them, in floating point."""
    below = 0
    for percent in range(101):
        a, b = percent / 100, (100 - percent) / 100
        below += 1 - a - b < 0
        draw(regime("multi_product", item_correlation=a, buyer_correlation=b), LAMPS, seed=0, rep=0)
    assert below > 0


# -- addresses --------------------------------------------------------------------------------------------------------


def test_a_market_is_a_function_of_seed_cluster_and_repetition():
    base = draw(MULTI_PRODUCT, LAMPS, seed=5, rep=2, episode=9)
    assert draw(MULTI_PRODUCT, LAMPS, seed=5, rep=2, episode=9) == base
    assert draw(MULTI_PRODUCT, LAMPS, seed=5, rep=2, episode=1)._replace(episode=9) == base
    others = [
        draw(MULTI_PRODUCT, LAMPS, seed=6, rep=2),
        draw(MULTI_PRODUCT, LAMPS, seed=5, rep=3),
        draw(MULTI_PRODUCT, cluster("other"), seed=5, rep=2),
    ]
    assert len({s.keys for s in (base, *others)}) == 4
    assert len({s.valuations for s in (base, *others)}) == 4


def test_the_order_of_draws_does_not_matter():
    schedule = Schedule(MULTI_PRODUCT, [LAMPS, cluster("desks")], seed=3, per_product=4)
    forward = list(schedule)
    draw(OOD_DIVERSE, LAMPS.products[0], seed=3, rep=0)
    assert [schedule[at] for at in reversed(range(8))] == forward[::-1]
    assert [s.episode for s in forward] == list(range(8))
    assert [(s.unit, s.rep) for s in forward] == [(u, rep) for u in ("lamps", "desks") for rep in range(4)]
    assert schedule.products == [*LAMPS.products, *cluster("desks").products]


@pytest.mark.parametrize(("first", "second"), [((0, 0), (0, 1)), ((0, 0), (1, 0))])
def test_seeds_and_repetitions_have_nothing_to_do_with_each_other(first, second):
    names = [cluster(f"lamps-{at}") for at in range(2000)]
    one, two = ([draw(OPEN_TWICE, unit, seed=seed, rep=rep) for unit in names] for seed, rep in (first, second))
    for i, j in itertools.product(range(2), range(2)):
        assert_unrelated([ratios(s)[i][j] for s in one], [ratios(s)[i][j] for s in two])
    together = Counter(
        (a.unit == b.unit, [p.listing.codename for p in a.products] == [p.listing.codename for p in b.products])
        for a, b in zip(one, two, strict=True)
    )
    # Twenty ordered pairs of five items: the same one comes twice in one of twenty.
    assert abs(together[True, True] / 2000 - 1 / 20) < 5 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize(
    ("knobs", "changed"),
    [
        ({"item_correlation": 0.5}, {"valuations", "openings"}),  # an opening is held to the valuation
        ({"buyer_correlation": 0.5}, {"valuations", "openings"}),
        ({"budget_tiers": [[0.6, 0.9]]}, {"valuations", "openings"}),
        ({"first_offer": [0.1, 0.2]}, {"openings"}),
        ({"first_offer_rate": 0.9}, {"openings"}),
        ({"first_offer": "free"}, {"openings"}),
        ({"buyer_types": ["a", "b"]}, {"buyer_types"}),
        ({"per_buyer_cap": 2}, {"per_buyer_cap"}),
        ({"message_budget": 5}, {"message_budget"}),
    ],
)
def test_a_knob_changes_what_it_names_and_nothing_else(knobs, changed):
    found = set()
    for rep in range(30):
        was = draw(MULTI_PRODUCT, LAMPS, seed=0, rep=rep)
        now = draw(MULTI_PRODUCT.override(**knobs), LAMPS, seed=0, rep=rep)
        found |= {name for name, a, b in zip(Scenario._fields, was, now, strict=True) if a != b}
    assert found <= changed and found >= changed - {"openings" if len(changed) > 1 else ""}


def test_the_rate_leaves_the_prices_of_those_that_stay_regulated_alone():
    for rep in range(50):
        some = draw(MULTI_PRODUCT, LAMPS, seed=0, rep=rep)
        every = draw(MULTI_PRODUCT.override(first_offer_rate=1), LAMPS, seed=0, rep=rep)
        for fixed, row in zip(every.openings, some.openings or (None,) * 3, strict=True):
            assert row in (None, fixed)


def test_the_same_knobs_switch_nothing_of_a_single_products_market():
    """The draws of the old regimes stay what they were: the new rate only takes openings away."""
    item = LAMPS.products[0]
    for rep in range(50):
        was = draw(IN_DISTRIBUTION, item, seed=0, rep=rep)
        now = draw(IN_DISTRIBUTION.override(first_offer_rate=0.5), item, seed=0, rep=rep)
        assert was._replace(openings=None) == now._replace(openings=None)
        assert all(b in (None, a) for a, b in zip(was.openings, now.openings or (None,) * 3, strict=True))
        tags = draw(IN_DISTRIBUTION.override(protocol="tags"), item, seed=0, rep=rep)
        assert tags._replace(protocol="lines") == was


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "drawn_from", [*MULTI, regime("multi_product", n_items=1)], ids=lambda r: f"{r.name}-{r.n_items}"
)
def test_a_scenario_comes_back_from_its_record(drawn_from):
    known = {p.listing.codename: p for p in LAMPS.products}
    openings = set()
    for scenario in drawn_many(drawn_from, 20):
        data = json.loads(json.dumps(scenario.to_json()))
        assert Scenario.from_json(scenario.episode, data, known) == scenario
        openings.add(scenario.openings is None)
    assert openings == {True, False} or drawn_from.n_buyers == 5


@pytest.mark.parametrize("protocol", ["lines", "tags"])
def test_one_item_of_a_cluster_or_a_product_comes_back_in_either_protocol(protocol):
    known = {p.listing.codename: p for p in LAMPS.products}
    for unit in (LAMPS, LAMPS.products[1]):
        drawn_from = IN_DISTRIBUTION.override(protocol=protocol, first_offer_rate=0.5)
        for scenario in drawn_many(drawn_from, 20, unit):
            data = json.loads(json.dumps(scenario.to_json()))
            assert Scenario.from_json(0, data, known) == scenario


@pytest.mark.parametrize("at", [1, 2])
def test_a_scenario_of_items_with_other_money_is_not_read(at):
    scenario = draw(MULTI_PRODUCT, LAMPS, seed=0, rep=0)
    data = json.loads(json.dumps(scenario.to_json()))
    data["items"][2][at] += 1
    with pytest.raises(ValueError, match="does not match product"):
        Scenario.from_json(0, data, {p.listing.codename: p for p in LAMPS.products})
    with pytest.raises(KeyError):
        Scenario.from_json(0, scenario.to_json(), {})


def test_ranks_are_by_item_and_equal_ones_share_the_better():
    scenario = draw(MULTI_PRODUCT, LAMPS, seed=0, rep=0)._replace(valuations=((5, 9, 7), (5, 8, 9), (4, 9, 8)))
    assert [[scenario.rank(buyer, item) for item in (1, 2, 3)] for buyer in (1, 2, 3)] == [
        [1, 1, 3],
        [1, 3, 1],
        [3, 1, 2],
    ]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"n_items": 0}, r"n_items is 0; allowed: a whole number from 1 to 100"),
        ({"n_items": 101}, r"n_items is 101"),
        ({"n_items": 2.0}, r"n_items is 2\.0"),
        ({"n_items": True}, r"n_items is True"),
        ({"protocol": "xml"}, r"protocol is 'xml'; allowed: lines, tags"),
        ({"protocol": "lines"}, r"3 items and protocol lines; several items need tags"),
        ({"first_offer_rate": 1.01}, r"first_offer_rate is 1\.01; allowed: a number from 0 to 1"),
        ({"first_offer_rate": -0.1}, r"first_offer_rate is -0\.1"),
        ({"first_offer_rate": True}, r"first_offer_rate is True"),
        ({"item_correlation": float("nan")}, r"item_correlation is nan"),
        ({"item_correlation": "0.8"}, r"item_correlation is '0\.8'"),
        ({"buyer_correlation": -0.5}, r"buyer_correlation is -0\.5"),
        ({"item_correlation": 0.8, "buyer_correlation": 0.3}, r"add up to more than 1"),
        ({"items": 3}, r"unknown regime knob 'items'"),
    ],
)
def test_bad_knobs_are_named(knobs, told):
    with pytest.raises(NegolabError, match=told):
        regime("multi_product", **knobs)


def test_too_small_a_cluster_is_named():
    small = cluster("pair", size=2)
    told = "cluster pair has 2 products; regime multi_product sells 3 of one"
    with pytest.raises(NegolabError, match=told):
        draw(MULTI_PRODUCT, small, seed=0, rep=0)
    with pytest.raises(NegolabError, match=told):
        Schedule(MULTI_PRODUCT, [LAMPS, small], seed=0)


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({}, "multi_product sells 3 items, which needs clusters"),
        ({"n_items": 1, "item_correlation": 0.5}, "multi_product has correlated valuations, which needs clusters"),
        ({"n_items": 1, "buyer_correlation": 0.5}, "multi_product has correlated valuations, which needs clusters"),
    ],
)
def test_products_are_no_clusters(knobs, told):
    wanted, item = regime("multi_product", **knobs), LAMPS.products[0]
    with pytest.raises(NegolabError, match=f"{told}; lamps_1 is a product"):
        draw(wanted, item, seed=0, rep=0)
    with pytest.raises(NegolabError, match=f"{told}; these are products"):
        Schedule(wanted, [LAMPS, item], seed=0)


def test_nothing_is_free_however_cheap_the_products():
    cheap = Cluster(
        "pins", "things", "pin", tuple(Product(Listing(f"pins_{j}", "Pin", "", "things", 2), 1) for j in range(3))
    )
    for scenario in drawn_many(
        regime("multi_product", first_offer=[0.01, 0.02], budget_tiers=[[0.01, 0.4]]), 50, cheap
    ):
        assert min(map(min, scenario.valuations)) >= 1
        assert all(min(row) >= 1 for row in scenario.openings or () if row is not None)


def test_nothing_is_worth_more_than_a_reply_can_name():
    """Valuations go up to 1.15 of a list price that may itself be the largest amount: the seller who knows them asks
    for them, and the metrics match by them."""
    dearest = [Product(Listing(f"dear_{at}", "Dear", "", "dear", MAX_CENTS - at), MAX_CENTS // 2) for at in range(3)]
    dear = Cluster("dear", "dear", "dear", tuple(dearest))
    markets = [*drawn_many(MULTI_PRODUCT, 40, dear), *drawn_many(regime("multi_product", n_items=1), 40, dearest[0])]
    worths = [worth for market in markets for row in market.valuations for worth in row]
    assert max(worths) == MAX_CENTS and worths.count(MAX_CENTS) > 20
    schedule = Schedule(MULTI_PRODUCT, [dear], seed=0, per_product=40)
    found = summarise(play(schedule, make_seller("oracle", schedule), make_buyers(["iter-60"], "tags")))
    assert found["violation_rate"].mean == 0.0 < (found["surplus_ratio"].mean or 0.0)


def test_a_game_of_two_is_not_drawn_from_clusters():
    with pytest.raises(NegolabError, match="the bilateral game is about one product, not about clusters"):
        Schedule(BILATERAL, load_clusters("sample").clusters[:2], seed=0)
