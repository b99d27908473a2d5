"""Markets as they are drawn: distributions, addresses, knobs, seats' own randomness, and what a schedule is."""

import itertools
import json
import random
from collections import Counter

import pytest

from markets import CODE, ONE_ITEM, openings_of, text_of
from negolab.catalog import Listing, Product
from negolab.environment import SELLER, Request
from negolab.errors import NegolabError
from negolab.money import round_cents
from negolab.policies.base import Reply
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, OOD_DIVERSE, REGIMES, Scenario, Schedule, draw, regime

LIST = 100_000_000  # a ratio can be read off to eight digits
TIERS = IN_DISTRIBUTION.budget_tiers


def product(list_cents: int = LIST, codename: str = CODE) -> Product:
    """An invented product."""
    return Product(Listing(codename, "A thing", "Plain.", "things", list_cents), max(1, list_cents // 2))


def markets(drawn=IN_DISTRIBUTION, count: int = 6000, item: Product | None = None, seed: int = 0) -> list[Scenario]:
    """So many repetitions on one product."""
    item = item or product()
    return [draw(drawn, item, seed=seed, rep=rep) for rep in range(count)]


@pytest.fixture(scope="module")
def drawn() -> list[Scenario]:
    """Six thousand markets of the paper's regime."""
    return markets()


@pytest.fixture(scope="module")
def diverse() -> list[Scenario]:
    """Four thousand markets of the diverse regime."""
    return markets(OOD_DIVERSE, 4000)


def tier_of(ratio: float, tiers=TIERS) -> int:
    """Index of the tier that a budget lies in (to the rounding of a cent)."""
    (found,) = [i for i, (low, high) in enumerate(tiers) if low - 1e-8 <= ratio <= high + 1e-8]
    return found


def assert_even(found, outcomes) -> None:
    """Chi-square against equal frequencies; the bound is eight standard deviations out, so only a bias crosses it."""
    counts, outcomes = Counter(found), list(outcomes)
    assert set(counts) <= set(outcomes)
    expected, free = len(found) / len(outcomes), len(outcomes) - 1
    statistic = sum((counts[o] - expected) ** 2 / expected for o in outcomes)
    assert statistic < free + 8 * (2 * free) ** 0.5, (statistic, counts)


def assert_uniform(values, low: float, high: float) -> None:
    """Every value lies in [low, high], and twenty equal cells are hit equally often."""
    assert low - 1e-8 <= min(values) and max(values) <= high + 1e-8
    assert_even([min(19, max(0, int(20 * (v - low) / (high - low)))) for v in values], range(20))


def assert_unrelated(first, second) -> None:
    """Correlation within five standard errors of none."""
    n, a, b = len(first), sum(first) / len(first), sum(second) / len(second)
    both = sum((x - a) * (y - b) for x, y in zip(first, second, strict=True))
    each = sum((x - a) ** 2 for x in first) * sum((y - b) ** 2 for y in second)
    assert abs(both / each**0.5) < 5 / n**0.5


# -- distributions ----------------------------------------------------------------------------------------------------


def test_every_permutation_of_the_tiers_is_as_frequent_as_another(drawn):
    orders = [tuple(tier_of(b / LIST) for b in s.budgets) for s in drawn]
    assert_even(orders, itertools.permutations(range(3)))


def test_the_paper_s_tiers_and_openings():
    assert TIERS == ((0.40, 0.55), (0.65, 0.80), (1.00, 1.15)) and IN_DISTRIBUTION.first_offer == (0.25, 0.30)
    assert OOD_DIVERSE.budget_tiers == ((0.40, 1.15),) and OOD_DIVERSE.first_offer is None
    sizes = [(r.n_buyers, r.per_buyer_cap, r.message_budget) for r in (IN_DISTRIBUTION, OOD_DIVERSE)]
    assert sizes == [(3, 3, 7), (5, 3, 9)]
    assert IN_DISTRIBUTION.buyer_types == ("iter-60",)
    assert OOD_DIVERSE.buyer_types == ("iter-50", "iter-60", "iter-70")


@pytest.mark.parametrize("slot", range(3))
def test_budgets_are_uniform_inside_their_tier_and_openings_in_theirs(slot, drawn):
    ratios = [s.budgets[slot] / LIST for s in drawn]
    for tier, (low, high) in enumerate(TIERS):
        assert_uniform([r for r in ratios if tier_of(r) == tier], low, high)
    assert_uniform([openings_of(s)[slot] / LIST for s in drawn], 0.25, 0.30)


def test_one_wide_tier_is_filled_by_every_slot(diverse):
    for slot in range(5):
        assert_uniform([s.budgets[slot] / LIST for s in diverse], 0.40, 1.15)
    assert all(s.openings is None for s in diverse)


@pytest.mark.parametrize("slot", range(5))
def test_buyer_types_are_uniform_over_the_pool(slot, diverse):
    assert_even([s.buyer_types[slot] for s in diverse], OOD_DIVERSE.buyer_types)


def test_buyer_types_of_two_slots_do_not_go_together(diverse):
    assert_even([s.buyer_types[:2] for s in diverse], itertools.product(OOD_DIVERSE.buyer_types, repeat=2))


def test_what_is_drawn_for_a_slot_is_drawn_independently():
    """Place in the tier, place of the tier, opening and type, of one slot and of two."""
    spread = OOD_DIVERSE.override(n_buyers=3, budget_tiers=TIERS, first_offer=(0.1, 0.2))
    columns: dict[str, list[float]] = {}
    for s in markets(spread, 4000):
        for slot in (0, 1):
            ratio = s.budgets[slot] / LIST
            tier = tier_of(ratio)
            facts = {"tier": tier, "place": ratio - TIERS[tier][0], "opening": openings_of(s)[slot]}
            for name, value in (facts | {"type": spread.buyer_types.index(s.buyer_types[slot])}).items():
                columns.setdefault(f"{name} {slot}", []).append(value)
    for first, second in itertools.combinations(columns, 2):
        if (first, second) != ("tier 0", "tier 1"):  # a permutation
            assert_unrelated(columns[first], columns[second])


def test_more_buyers_than_tiers_take_them_in_turn():
    wide = IN_DISTRIBUTION.override(n_buyers=5)
    seen = [tuple(tier_of(b / LIST) for b in s.budgets) for s in markets(wide, 3000)]
    assert {tuple(sorted(tiers)) for tiers in seen} == {(0, 0, 1, 1, 2)}
    assert_even(seen, set(itertools.permutations((0, 0, 1, 1, 2))))


def test_fewer_buyers_than_tiers_take_the_first_ones():
    seen = [tuple(tier_of(b / LIST) for b in s.budgets) for s in markets(IN_DISTRIBUTION.override(n_buyers=2), 1000)]
    assert_even(seen, [(0, 1), (1, 0)])


def test_an_opening_never_exceeds_its_own_buyers_budget():
    """Openings above every budget are the budgets; where the ranges overlap some are cut and the others are not."""
    assert all(openings_of(s) == s.budgets for s in markets(IN_DISTRIBUTION.override(first_offer=(1.2, 1.3)), 50))
    free, cut = IN_DISTRIBUTION.override(budget_tiers=((5, 6),)), IN_DISTRIBUTION.override(budget_tiers=((0.26, 0.29),))
    whole = 0
    for a, b in zip(markets(free, 300), markets(cut, 300), strict=True):
        assert openings_of(b) == tuple(map(min, openings_of(a), b.budgets))
        whole += a.openings == b.openings
    assert 0 < whole < 300


# -- cents ------------------------------------------------------------------------------------------------------------


def test_halves_are_rounded_up():
    assert [round_cents(v) for v in (0.0, 0.49, 0.5, 1.5, 2.5, 3.5, 3498.5, 3498.49)] == [0, 0, 1, 2, 3, 4, 3499, 3498]


@pytest.mark.parametrize(("list_cents", "half"), [(1, 1), (3, 2), (5, 3), (9, 5), (3497, 1749), (3499, 1750)])
def test_a_budget_and_an_opening_at_exactly_half_a_cent(list_cents, half):
    odd = IN_DISTRIBUTION.override(budget_tiers=((0.5, 0.5),), first_offer=(0.5, 0.5))
    scenario = draw(odd, product(list_cents), seed=0, rep=0)
    assert scenario.budgets == openings_of(scenario) == (half,) * 3


def test_nothing_is_free_however_cheap_the_product():
    tiny = IN_DISTRIBUTION.override(budget_tiers=((0.001, 0.002),), first_offer=(0.001, 0.001))
    scenario = draw(tiny, product(100), seed=0, rep=0)
    assert scenario.budgets == openings_of(scenario) == (1, 1, 1)


# -- addresses --------------------------------------------------------------------------------------------------------


def drawn_part(scenario: Scenario) -> tuple:
    """What chance decides."""
    return scenario.budgets, scenario.openings, scenario.buyer_types, scenario.keys


def test_seed_repetition_and_codename_make_the_market_and_the_place_in_the_run_does_not():
    first = draw(IN_DISTRIBUTION, product(), seed=1, rep=2)
    assert draw(IN_DISTRIBUTION, product(), seed=1, rep=2, episode=9) == first._replace(episode=9)
    others = [
        draw(IN_DISTRIBUTION, product(), seed=2, rep=2),
        draw(IN_DISTRIBUTION, product(), seed=1, rep=3),
        draw(IN_DISTRIBUTION, product(), seed=2, rep=1),
        draw(IN_DISTRIBUTION, product(), seed=12, rep=0),
        draw(IN_DISTRIBUTION, product(codename="baby-products_18"), seed=1, rep=2),
        draw(IN_DISTRIBUTION, product(codename="baby-products_172"), seed=1, rep=2),
    ]
    everything = [first, *others]
    for part in ("budgets", "openings", "keys"):
        assert len({getattr(s, part) for s in everything}) == len(everything), part


def test_the_order_of_draws_does_not_matter():
    item = product()
    forward = [draw(OOD_DIVERSE, item, seed=3, rep=rep) for rep in range(20)]
    backward = [draw(OOD_DIVERSE, item, seed=3, rep=rep) for rep in reversed(range(20))]
    assert forward == backward[::-1]


def test_two_hundred_products_draw_markets_of_their_own():
    schedule = Schedule(IN_DISTRIBUTION, [product(codename=f"things_{i}") for i in range(200)], seed=0, per_product=2)
    for part in ("budgets", "openings", "keys"):
        assert len({getattr(s, part) for s in schedule}) == 400, part


def test_the_list_price_only_scales_the_market():
    small, large = (draw(IN_DISTRIBUTION, product(cents), seed=0, rep=0) for cents in (LIST // 10, LIST))
    assert small.keys == large.keys
    for a, b in zip(small.budgets + openings_of(small), large.budgets + openings_of(large), strict=True):
        assert a * 10 == pytest.approx(b, abs=10)


@pytest.mark.parametrize(
    ("knobs", "changed"),
    [
        ({"first_offer": "free"}, {"openings"}),
        ({"first_offer": (0.1, 0.2)}, {"openings"}),
        ({"per_buyer_cap": 9}, {"per_buyer_cap"}),
        ({"message_budget": 2}, {"message_budget"}),
        ({"buyer_types": ("a", "b")}, {"buyer_types"}),
        ({"budget_tiers": ((0.5, 0.9),)}, {"valuations"}),
        ({"name": "other"}, {"regime"}),
    ],
    ids=str,
)
def test_a_knob_changes_what_it_names_and_nothing_else(knobs, changed):
    for rep in range(20):
        item = product()
        a, b = (draw(r, item, seed=0, rep=rep) for r in (IN_DISTRIBUTION, IN_DISTRIBUTION.override(**knobs)))
        assert {f for f in Scenario._fields if getattr(a, f) != getattr(b, f)} == changed


# -- regimes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knob", "top"), [("n_buyers", "1,000"), ("per_buyer_cap", "1,000"), ("message_budget", "100,000")]
)
def test_counts_out_of_range_are_named(knob, top):
    most = int(top.replace(",", ""))
    for value in (0, -1, most + 1, 2.0, "3", True):
        with pytest.raises(NegolabError) as found:
            regime("in_distribution", **{knob: value})
        told = f"regime in_distribution: {knob} is {value!r}; allowed: a whole number from 1 to {top}"
        assert str(found.value) == told
    for value in (1, most):
        assert getattr(regime("in_distribution", **{knob: value}), knob) == value


INTERVALS = [
    ((0.0, 0.5), "0.0-0.5; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((-0.1, 0.5), "-0.1-0.5; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((0.6, 0.5), "0.6-0.5; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((0.6, 100.5), "0.6-100.5; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((float("nan"), 0.5), "nan-0.5; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((0.5, float("nan")), "0.5-nan; allowed: 0 < low <= high <= 100, as fractions of the list price"),
    ((0.5,), "is (0.5,); allowed: two numbers, low and high"),
    ((0.5, 0.6, 0.7), "is (0.5, 0.6, 0.7); allowed: two numbers, low and high"),
    (("0.5", 0.6), "is ('0.5', 0.6); allowed: two numbers, low and high"),
    (0.5, "is 0.5; allowed: two numbers, low and high"),
]


@pytest.mark.parametrize(("interval", "told"), INTERVALS, ids=repr)
def test_intervals_that_are_none_are_named(interval, told):
    with pytest.raises(NegolabError) as found:
        regime("in_distribution", budget_tiers=((0.4, 0.5), interval))
    assert str(found.value) == f"regime in_distribution: budget tier {told}"
    with pytest.raises(NegolabError) as found:
        regime("in_distribution", first_offer=interval)
    assert str(found.value) == f"regime in_distribution: first_offer {told}"


def test_intervals_at_the_edge_of_what_is_allowed():
    edge = regime("in_distribution", budget_tiers=((1e-9, 100), (1, 1)), first_offer=(100.0, 100))
    assert edge.budget_tiers == ((1e-9, 100), (1, 1)) and edge.first_offer == (100.0, 100)


@pytest.mark.parametrize("value", [(), "0.4-0.5", 3])
def test_no_tier_at_all(value):
    with pytest.raises(NegolabError) as found:
        regime("in_distribution", budget_tiers=value)
    assert str(found.value) == (
        "regime in_distribution: budget_tiers is empty; give at least one interval such as 0.40-1.15"
    )


@pytest.mark.parametrize("value", [(), "iter-60", ("",), ("iter-60", 7)])
def test_no_buyer_type(value):
    with pytest.raises(NegolabError) as found:
        regime("in_distribution", buyer_types=value)
    assert str(found.value) == f"regime in_distribution: buyer_types is {value!r}; give at least one type"


def test_names_that_do_not_exist():
    with pytest.raises(NegolabError) as found:
        regime("mars")
    assert str(found.value) == f"unknown regime 'mars'; allowed: {', '.join(REGIMES)}, bilateral, trade"
    assert list(ONE_ITEM) == ["in_distribution", "ood_diverse"]
    with pytest.raises(NegolabError) as found:
        regime("in_distribution", zeal=1, appetite=2)
    assert str(found.value) == (
        "unknown regime knob 'appetite'; allowed: budget_tiers, buyer_correlation, buyer_types, first_offer, "
        "first_offer_rate, gains, game, item_correlation, message_budget, n_buyers, n_items, name, per_buyer_cap, "
        "personas, protocol, reject, trade_draw"
    )


def test_override_keeps_what_is_not_named_and_takes_lists():
    assert regime("in_distribution", n_buyers=None, first_offer=None) == IN_DISTRIBUTION
    assert regime("in_distribution", first_offer="free").first_offer is None
    lists = regime("ood_diverse", budget_tiers=[[0.4, 0.5], [0.6, 0.7]], first_offer=[0.1, 0.2], buyer_types=["x"])
    assert lists.budget_tiers == ((0.4, 0.5), (0.6, 0.7)) and lists.first_offer == (0.1, 0.2)
    assert lists.buyer_types == ("x",) and lists.n_buyers == 5 and hash(lists)
    assert json.loads(json.dumps(lists.to_json())) == {
        "name": "ood_diverse",
        "n_buyers": 5,
        "per_buyer_cap": 3,
        "message_budget": 9,
        "budget_tiers": [[0.4, 0.5], [0.6, 0.7]],
        "first_offer": [0.1, 0.2],
        "buyer_types": ["x"],
    }


@pytest.mark.parametrize(("t", "told"), [(8, False), (9, True), (10, True)])
def test_a_seller_that_can_exhaust_everybody_is_warned_of(t, told):
    text = f"T = {t} is not below N x K = 9: the seller can exhaust every buyer, so the paper's trade-off "
    expected = (text + "(T < N x K) is gone",) if told else ()
    assert regime("in_distribution", message_budget=t).warnings == expected
    assert all(r.warnings == () for r in REGIMES.values())


# -- schedules --------------------------------------------------------------------------------------------------------


def test_a_schedule_is_a_sequence_product_by_product():
    items = [product(codename=f"things_{i}") for i in range(4)]
    schedule = Schedule(OOD_DIVERSE, items, seed=5, per_product=3)
    expected = [draw(OOD_DIVERSE, items[i // 3], seed=5, rep=i % 3, episode=i) for i in range(12)]
    assert len(schedule) == 12 and list(schedule) == expected and list(reversed(schedule)) == expected[::-1]
    assert [schedule[i] for i in (11, 0, 4)] == [expected[i] for i in (11, 0, 4)]
    for part in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, -1), slice(1, 100, 4), slice(9, 3)):
        assert schedule[part] == expected[part]
    for index in (12, -1, 10**9):
        with pytest.raises(IndexError):
            schedule[index]
    once = Schedule(OOD_DIVERSE, items, seed=5)
    assert len(once) == 4 and [s.keys for s in once] == [s.keys for s in expected[::3]]


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, None])
def test_seeds_that_are_none(value):
    with pytest.raises(NegolabError) as found:
        Schedule(IN_DISTRIBUTION, [product()], seed=value)
    assert str(found.value) == f"seed is {value!r}; allowed: a whole number from 0 to 9223372036854775807"


@pytest.mark.parametrize("value", [0, -1, 1_000_001, 1.0, "1", True])
def test_repetitions_that_are_none(value):
    with pytest.raises(NegolabError) as found:
        Schedule(IN_DISTRIBUTION, [product()], seed=0, per_product=value)
    assert str(found.value) == f"per-product is {value!r}; allowed: a whole number from 1 to 1,000,000"


def test_schedules_at_the_edge_of_what_is_allowed():
    schedule = Schedule(IN_DISTRIBUTION, [product()], seed=2**63 - 1, per_product=1_000_000)
    assert len(schedule) == 1_000_000 and schedule[999_999].rep == 999_999
    with pytest.raises(NegolabError, match="nothing to play: the catalogue or the chosen split is empty"):
        Schedule(IN_DISTRIBUTION, [], seed=0)


# -- scenarios --------------------------------------------------------------------------------------------------------


def test_equal_budgets_share_the_better_rank():
    base = draw(OOD_DIVERSE, product(), seed=0, rep=0)
    for budgets, ranks in (
        ((5, 4, 3, 2, 1), [1, 2, 3, 4, 5]),
        ((7, 9, 7, 3, 9), [3, 1, 3, 5, 1]),
        ((2, 2, 2, 2, 2), [1, 1, 1, 1, 1]),
        ((1, 2, 2, 2, 3), [5, 2, 2, 2, 1]),
    ):
        assert [base._replace(valuations=tuple(zip(budgets))).rank(b) for b in range(1, 6)] == ranks


@pytest.mark.parametrize("name", ONE_ITEM)
def test_a_scenario_comes_back_from_its_record(name):
    item = product(3499)
    scenario = draw(REGIMES[name], item, seed=4, rep=2, episode=17)
    stored = json.loads(json.dumps(scenario.to_json()))
    assert list(stored) == [
        *("rep", "regime", "per_buyer_cap", "message_budget", "buyer_types", "keys"),
        *("unit", "list_cents", "cost_cents", "budgets", "openings"),
    ]
    again = Scenario.from_json(17, stored, {CODE: item})
    assert again == scenario and hash(again) == hash(scenario) and again.n_buyers == REGIMES[name].n_buyers


@pytest.mark.parametrize("field", ["list_cents", "cost_cents"])
def test_a_scenario_of_another_product_is_not_read(field):
    item = product(3499)
    stored = draw(IN_DISTRIBUTION, item, seed=0, rep=0).to_json()
    stored[field] += 1
    shown = (CODE, stored["list_cents"], stored["cost_cents"])
    with pytest.raises(ValueError) as found:
        Scenario.from_json(0, stored, {CODE: item})
    assert str(found.value) == f"scenario {shown} does not match product {CODE}"
    other = {**draw(IN_DISTRIBUTION, item, seed=0, rep=0).to_json(), "unit": "other_1"}
    with pytest.raises(ValueError) as found:
        Scenario.from_json(0, other, {"other_1": item})
    assert str(found.value) == f"scenario ('other_1', 3499, 1749) does not match product {CODE}"
    with pytest.raises(KeyError, match="other_1"):
        Scenario.from_json(0, other, {CODE: item})


# -- each seat's own randomness ---------------------------------------------------------------------------------------


def test_every_seat_has_a_word_of_its_own(drawn, diverse):
    for s in drawn + diverse:
        assert len(s.keys) == s.n_buyers + 1 and all(0 <= key < 2**64 for key in s.keys)
    some = drawn[:2000] + markets(count=2000, item=product(codename="things_2")) + markets(count=2000, seed=1)
    words = [key for s in some for key in s.keys]
    assert len(set(words)) == len(words)
    for bit in range(62):  # every bit that both 63- and 64-bit words have is as often set as not
        assert abs(sum(word >> bit & 1 for word in words) - len(words) / 2) < 4 * len(words) ** 0.5


def test_no_seats_word_follows_from_anothers(drawn):
    """Neither a constant added nor one xor-ed leads from a seat to another in two markets."""
    for lead in (lambda a, b: (b - a) % 2**64, lambda a, b: a ^ b):
        seen = [lead(a, b) for s in drawn for a, b in itertools.combinations(s.keys, 2)]
        assert len(set(seen)) == len(seen)
    for a, b in itertools.combinations(range(4), 2):
        assert_unrelated([s.keys[a] for s in drawn], [s.keys[b] for s in drawn])


class Fixed:
    """Speaks fixed texts, ``texts[seat][number of own replies]``, and keeps what it was asked."""

    name = "fixed"

    def __init__(self, texts: dict[int, list[str]]) -> None:
        self.texts, self.asked = texts, []

    def describe(self) -> dict[str, str]:
        """Nothing but a name."""
        return {"name": self.name}

    def reply(self, requests) -> list[Reply]:
        """The next text of each seat."""
        self.asked += requests
        return [Reply(self.texts[r.seat][len(r.view.own)]) for r in requests]


def asked(scenario: Scenario, *moves: tuple[int, str, int | None, int | None]) -> dict[int, list[Request]]:
    """Play moves (seat, verb, cents, target) and give back every seat's requests."""
    texts: dict[int, list[str]] = {}
    for seat, *move in moves:
        texts.setdefault(seat, []).append(text_of(seat, *move))
    player = Fixed(texts)
    (episode,) = play([scenario], player, dict.fromkeys(scenario.buyer_types, player))
    assert len(episode.turns) == len(moves) and not episode.notes
    return {seat: [r for r in player.asked if r.seat == seat] for seat in range(scenario.n_buyers + 1)}


ASKS = [(0, "SELL", 3499, 2), (2, "BUY", 1500, None), (0, "SELL", 3400, 2), (2, "BUY", 1600, None)]
QUIT = (0, "QUIT", None, None)


def opened(scenario: Scenario) -> list[tuple[int, str, int, None]]:
    """Every buyer's regulated opening."""
    return [(seat, "BUY", cents, None) for seat, cents in enumerate(openings_of(scenario), 1)]


def a_market(seed: int = 0, n: int = 3) -> Scenario:
    """A drawn market on a caddy at $34.99."""
    return draw(IN_DISTRIBUTION.override(n_buyers=n, budget_tiers=((0.9, 1.1),)), product(3499), seed=seed, rep=0)


def test_a_seat_is_asked_with_its_own_word():
    scenario = a_market()
    found = asked(scenario, *opened(scenario), *ASKS, QUIT)
    assert [len(found[seat]) for seat in range(4)] == [3, 1, 3, 1]
    for seat, requests in found.items():
        assert {r.seat_seed for r in requests} == {scenario.keys[seat]}
    seeds = [r.seed for requests in found.values() for r in requests]
    assert len(set(seeds)) == len(seeds) and not set(seeds) & set(scenario.keys)


def test_a_replys_seed_is_a_function_of_the_seats_word_and_of_its_own_replies():
    """Whatever the others do, and however many they are: the sellers of two markets share only their word."""
    small, large = a_market(1), a_market(2, n=5)
    large = large._replace(keys=(small.keys[0], *large.keys[1:]))
    elsewhere = [(0, "SELL", 3000, 1), (1, "BUY", 1400, None), (0, "SELL", 3000, 4), (4, "QUIT", None, None)]
    first, second = asked(small, *opened(small), *ASKS, QUIT), asked(large, *opened(large), *elsewhere, QUIT)
    assert [r.seed for r in first[SELLER]] == [r.seed for r in second[SELLER]]
    other = asked(small._replace(keys=(small.keys[0] + 1, *small.keys[1:])), *opened(small), *ASKS, QUIT)
    assert [r.seed for r in other[SELLER]] != [r.seed for r in first[SELLER]]
    assert [r.seed for r in other[2]] == [r.seed for r in first[2]]


def test_a_buyer_is_asked_the_same_whatever_happens_in_other_channels():
    scenario = a_market()
    alone = asked(scenario, *opened(scenario), *ASKS, QUIT)
    between = asked(
        scenario,
        *opened(scenario),
        (0, "SELL", 3100, 1),
        (1, "BUY", 1200, None),
        ASKS[0],
        ASKS[1],
        (0, "SELL", 3200, 3),
        (3, "QUIT", None, None),
        (0, "SELL", 3000, 1),
        (1, "BUY", 1300, None),
        ASKS[2],
        ASKS[3],
        (0, "SELL", 2900, 1),
        (1, "DEAL", 2900, None),
    )
    assert len(alone[2]) == 3
    for a, b in zip(alone[2], between[2], strict=True):
        for field in Request._fields:
            assert getattr(a, field) == getattr(b, field), field
        for field in a.view._fields:
            assert getattr(a.view, field) == getattr(b.view, field), field


def test_a_buyer_is_asked_the_same_whatever_the_others_are():
    """Other buyers, the cost, T and the seller's word: nothing of it reaches Buyer 2."""
    scenario = a_market()
    b, o, k = scenario.valuations, scenario.openings, scenario.keys
    other = scenario._replace(
        products=(Product(scenario.product.listing, 77),),
        message_budget=4,
        valuations=((2000,), b[1], (1900,), (2500,)),
        openings=((801,), o[1], (802,), (803,)),
        buyer_types=("iter-50", scenario.buyer_types[1], "iter-70", "iter-50"),
        keys=(1, 2, k[2], 4, 5),
        rep=8,
        regime="another",
    )
    assert asked(scenario, *opened(scenario), *ASKS, QUIT)[2] == asked(other, *opened(other), *ASKS, QUIT)[2]


class Openers(Fixed):
    """Buyers that make their regulated opening."""

    def reply(self, requests) -> list[Reply]:
        """The opening."""
        self.asked += requests
        return [Reply(text_of(r.seat, "BUY", r.view.opening, None)) for r in requests]


def test_a_request_cannot_be_told_from_the_order_of_play():
    """The same markets in another order: each seat gets the same requests."""
    scenarios = [a_market(seed)._replace(episode=seed) for seed in range(6)]
    found = []
    for sequence in (scenarios, random.Random(0).sample(scenarios, 6)):
        buyers = Openers({})
        list(play(sequence, Fixed({0: [text_of(*QUIT)]}), {"iter-60": buyers}))
        found.append({(r.episode, r.seat): r for r in buyers.asked})
    assert found[0] == found[1] and len(found[0]) == 18
