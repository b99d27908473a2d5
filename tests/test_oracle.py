"""The oracle matching against trying every matching, with ties in plenty; its criteria, bounds and relabellings."""

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negolab import oracle
from negolab.money import MAX_CENTS
from negolab.oracle import Matching, assign, best_matching, clipped_surplus, most_surplus

Market = tuple[list[list[int]], list[int], list[int]]


def surplus_of(market: Market, pairs) -> int:
    """Worked out pair by pair from the definition."""
    valuations, lists, costs = market
    return sum(max(0, min(valuations[b - 1][j - 1], lists[j - 1]) - costs[j - 1]) for b, j in pairs)


def every_matching(market: Market) -> Iterator[frozenset[tuple[int, int]]]:
    """Every one-to-one matching of pairs with surplus, by choosing for buyer after buyer an item or none."""
    valuations, lists, _ = market

    def choose(buyer: int, free: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
        if buyer > len(valuations):
            yield ()
            return
        for rest in choose(buyer + 1, free):
            yield rest
        for item in free:
            if surplus_of(market, [(buyer, item)]):
                for rest in choose(buyer + 1, tuple(j for j in free if j != item)):
                    yield ((buyer, item), *rest)

    return map(frozenset, choose(1, tuple(range(1, len(lists) + 1))))


def brute_force(market: Market, preferred) -> tuple[int, int, int]:
    """The best (surplus, shared pairs, minus number of pairs)."""
    return max((surplus_of(market, pairs), len(pairs & preferred), -len(pairs)) for pairs in every_matching(market))


def key(market: Market, found: Matching, preferred) -> tuple[int, int, int]:
    """The criteria of what was found, which must be a valid matching and say its own surplus."""
    buyers, items = [b for b, _ in found.pairs], [j for _, j in found.pairs]
    assert len({*buyers}) == len(buyers) and len({*items}) == len(items)
    assert list(found.pairs) == sorted(found.pairs)
    assert all(surplus_of(market, [pair]) > 0 for pair in found.pairs)
    assert found.surplus_cents == surplus_of(market, found.pairs)
    return found.surplus_cents, len({*found.pairs} & preferred), -len(found.pairs)


def draw(rng: random.Random, n: int, m: int, largest: int) -> tuple[Market, set[tuple[int, int]]]:
    """A market with ties where ``largest`` is small, and some preferred pairs."""
    costs = [rng.randint(0, largest) for _ in range(m)]
    lists = [cost + rng.randint(0, largest) for cost in costs]
    valuations = [[rng.randint(0, 2 * largest) for _ in range(m)] for _ in range(n)]
    preferred = {(b, j) for b in range(1, n + 1) for j in range(1, m + 1) if rng.random() < 0.3}
    return (valuations, lists, costs), preferred


@st.composite
def markets(draw_: st.DrawFn, side: int = 4) -> tuple[Market, set[tuple[int, int]]]:
    n, m = draw_(st.integers(0, side)), draw_(st.integers(0, side))
    cents = st.one_of(st.integers(0, 4), st.integers(0, MAX_CENTS))
    costs = draw_(st.lists(cents, min_size=m, max_size=m))
    lists = draw_(st.lists(cents, min_size=m, max_size=m))
    valuations = [draw_(st.lists(cents, min_size=m, max_size=m)) for _ in range(n)]
    every = [(b, j) for b in range(1, n + 1) for j in range(1, m + 1)]
    preferred = draw_(st.sets(st.sampled_from(every))) if every else set()
    return (valuations, lists, costs), preferred


# -- the best matching ----------------------------------------------------------------------------------------------


@given(markets())
@settings(max_examples=300, deadline=None)
def test_all_three_criteria_as_by_trying_every_matching(case):
    market, preferred = case
    assert key(market, best_matching(*market, preferred), preferred) == brute_force(market, preferred)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (5, 3), (3, 5), (4, 4), (1, 6), (6, 1), (5, 5)])
def test_seeded_markets_full_of_ties(shape):
    rng = random.Random(f"ties {shape}")
    several = 0
    for _ in range(60 if max(shape) < 5 else 20):
        market, preferred = draw(rng, *shape, largest=rng.choice((1, 2, 3, 10)))
        best = brute_force(market, preferred)
        several += sum(surplus_of(market, pairs) == best[0] for pairs in every_matching(market)) > 1
        assert key(market, best_matching(*market, preferred), preferred) == best
    assert several > 0  # else the test would be one of markets without ties


@pytest.mark.parametrize("largest", [1, 3, 1000])
def test_six_by_six(largest):
    rng = random.Random(largest)
    for _ in range(2):
        market, preferred = draw(rng, 6, 6, largest)
        assert key(market, best_matching(*market, preferred), preferred) == brute_force(market, preferred)


def test_worked_by_hand():
    # Both items are worth more to buyer 1, who can have one of them only: 90 + 40, not 90 + 20.
    valuations, lists, costs = [[100, 200], [60, 130]], [95, 150], [10, 50]
    assert clipped_surplus(valuations, lists, costs) == [[85, 100], [50, 80]]
    assert best_matching(valuations, lists, costs) == Matching(((1, 1), (2, 2)), 165)
    assert most_surplus(valuations, lists, costs, 1) == 100


def test_pairs_the_seller_proposed_decide_between_equals():
    same = [[50, 50], [50, 50]], [60, 60], [20, 20]
    assert best_matching(*same, {(1, 2), (2, 1)}).pairs == ((1, 2), (2, 1))
    assert best_matching(*same, {(1, 1)}).pairs == ((1, 1), (2, 2))
    # One cent more outweighs every proposal.
    dearer = [[51, 50], [50, 50]], [60, 60], [20, 20]
    assert best_matching(*dearer, {(1, 2), (2, 1)}).pairs == ((1, 1), (2, 2))
    # A proposal without surplus is no reason to match.
    assert best_matching([[20, 50]], [60, 60], [20, 20], {(1, 1)}).pairs == ((1, 2),)


def test_among_equals_the_one_with_fewer_pairs():
    # One sale at a surplus of 10, or two at 5 each: the share of pairs that was proposed depends on which is taken.
    market = [[10, 5], [5, 0]], [100, 100], [0, 0]
    assert best_matching(*market) == Matching(((1, 1),), 10)
    assert best_matching(*market, {(1, 2)}) == Matching(((1, 2), (2, 1)), 10)
    assert best_matching(*market, {(1, 1), (1, 2)}) == Matching(((1, 1),), 10)
    assert best_matching([[5, 10], [0, 5]], [100, 100], [0, 0]) == Matching(((1, 2),), 10)


@pytest.mark.parametrize("blocks", [1, 2])
def test_fewest_pairs_where_equals_come_in_several_sizes(blocks):
    # Blocks of two buyers and two items, worth [[x + y, x], [y, 0]] and nothing across: each is one sale or two.
    rng = random.Random(blocks)
    size, several = 2 * blocks, 0
    for _ in range(40):
        valuations = [[0] * size for _ in range(size)]
        buyers, items = rng.sample(range(size), size), rng.sample(range(size), size)
        for at in range(0, size, 2):
            (b, c), (i, j), x, y = buyers[at : at + 2], items[at : at + 2], rng.randint(1, 9), rng.randint(1, 9)
            valuations[b][i], valuations[b][j], valuations[c][i] = x + y, x, y
        market, preferred = (valuations, [20] * size, [0] * size), draw(rng, size, size, 1)[1]
        best = brute_force(market, preferred)
        equals = [pairs for pairs in every_matching(market) if surplus_of(market, pairs) == best[0]]
        several += len({len(pairs) for pairs in equals if len(pairs & preferred) == best[1]}) > 1
        assert key(market, best_matching(*market, preferred), preferred) == best
    assert several > 20


@pytest.mark.parametrize(
    "market",
    [
        ([], [], []),
        ([], [5, 6], [1, 2]),
        ([[], []], [], []),
        ([[], [], [], [], []], [], []),
        ([[4, 4], [5, 3]], [10, 10], [5, 5]),
        ([[9, 9]], [5, 3], [5, 4]),
    ],
)
def test_nothing_to_gain_is_the_empty_matching(market):
    assert best_matching(*market) == Matching((), 0)
    assert [most_surplus(*market, deals) for deals in (0, 1, 2, 9)] == [0, 0, 0, 0]


@given(markets(side=6), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_other_labels_change_nothing_that_is_reported(case, rng):
    market, preferred = case
    valuations, lists, costs = market
    buyers, items = list(range(len(valuations))), list(range(len(lists)))
    rng.shuffle(buyers)
    rng.shuffle(items)
    moved = [[valuations[b][j] for j in items] for b in buyers], [lists[j] for j in items], [costs[j] for j in items]
    moved_preferred = {(buyers.index(b - 1) + 1, items.index(j - 1) + 1) for b, j in preferred}
    plain, relabelled = best_matching(*market, preferred), best_matching(*moved, moved_preferred)
    assert key(market, plain, preferred) == key(moved, relabelled, moved_preferred)
    for deals in range(4):
        assert most_surplus(*market, deals) == most_surplus(*moved, deals)


@pytest.mark.parametrize(("n", "m"), [(50, 20), (20, 50), (50, 3), (3, 20), (20, 20)])
def test_never_below_any_valid_matching_in_large_markets(n, m):
    rng = random.Random(n * 100 + m)
    for largest in (3, 30_000, MAX_CENTS // 2):
        market, preferred = draw(rng, n, m, largest)
        best = best_matching(*market, preferred)
        plain = best_matching(*market)
        assert best.surplus_cents == plain.surplus_cents == most_surplus(*market, min(n, m))
        assert len({*best.pairs} & preferred) >= len({*plain.pairs} & preferred)
        assert key(market, best, preferred)[0] == best.surplus_cents
        for _ in range(200):
            pairs = list(
                zip(rng.sample(range(1, n + 1), min(n, m)), rng.sample(range(1, m + 1), min(n, m)), strict=True)
            )
            pairs = pairs[: rng.randint(0, len(pairs))]
            assert surplus_of(market, pairs) <= best.surplus_cents
            assert surplus_of(market, pairs) <= most_surplus(*market, len(pairs))


@pytest.mark.parametrize(("n", "m"), [(50, 20), (20, 50), (20, 20)])
def test_a_planted_best_matching_is_found_to_the_pair(n, m):
    # Cents that differ by one at the largest amounts: floats of fewer than 53 exact bits would confuse them.
    rng = random.Random(n + m)
    size = min(n, m)
    planted = set(zip(rng.sample(range(1, n + 1), size), rng.sample(range(1, m + 1), size), strict=True))
    valuations = [[MAX_CENTS - ((b, j) not in planted) for j in range(1, m + 1)] for b in range(1, n + 1)]
    others = {(b, j) for b in range(1, n + 1) for j in range(1, m + 1)} - planted
    found = best_matching(valuations, [MAX_CENTS] * m, [0] * m, others)
    assert {*found.pairs} == planted and found.surplus_cents == size * MAX_CENTS


# -- with few messages ----------------------------------------------------------------------------------------------


@given(markets(), st.integers(0, 6))
@settings(max_examples=250, deadline=None)
def test_at_most_so_many_deals_as_by_trying_every_matching(case, deals):
    market, _ = case
    expected = max(surplus_of(market, pairs) for pairs in every_matching(market) if len(pairs) <= deals)
    assert most_surplus(*market, deals) == expected


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (5, 5), (6, 4)])
def test_few_deals_in_seeded_markets(shape):
    rng = random.Random(f"few {shape}")
    for _ in range(10):
        market, _ = draw(rng, *shape, largest=rng.choice((2, 20, 5000)))
        most: dict[int, int] = {}
        for pairs in every_matching(market):
            most[len(pairs)] = max(most.get(len(pairs), 0), surplus_of(market, pairs))
        for deals in range(8):
            assert most_surplus(*market, deals) == max(best for size, best in most.items() if size <= deals)


def test_two_deals_are_not_the_best_three_without_the_worst():
    # The best three are worth 9 each; the best two, 10 each, are none of them.
    market = [[10, 9, 0], [0, 10, 9], [9, 0, 0]], [10] * 3, [0] * 3
    assert best_matching(*market).pairs == ((1, 2), (2, 3), (3, 1))
    assert [most_surplus(*market, deals) for deals in range(5)] == [0, 10, 20, 27, 27]


@pytest.mark.parametrize(("n", "m"), [(50, 20), (20, 50), (20, 20)])
def test_each_further_deal_adds_less(n, m):
    market, _ = draw(random.Random(n * m), n, m, 30_000)
    bounds = [most_surplus(*market, deals) for deals in range(min(n, m) + 2)]
    steps = [after - before for before, after in pairwise(bounds)]
    assert steps == sorted(steps, reverse=True) and steps[-1] == 0 < steps[0]
    assert bounds[-1] == best_matching(*market).surplus_cents


# -- the bare algorithm ---------------------------------------------------------------------------------------------


@given(
    st.integers(0, 4).flatmap(
        lambda n: st.integers(0, 4).flatmap(
            lambda m: st.lists(st.lists(st.integers(-3, 5), min_size=m, max_size=m), min_size=n, max_size=n)
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_trying_all_ways_equals_scipy_equals_every_choice(rows):
    height, width = len(rows), len(rows[0]) if rows else 0
    if height > width:
        choices = (list(zip(p, range(width), strict=True)) for p in permutations(range(height), width))
    else:
        choices = (list(enumerate(p)) for p in permutations(range(width), height))
    expected = max(sum(max(0, rows[i][j]) for i, j in choice) for choice in choices)
    for pairs in (
        assign(rows),
        assign(np.array(rows).reshape(height, width)),
        oracle._try_all(rows, height, width),
        oracle._solve(rows) if rows else [],
    ):
        assert sum(rows[i][j] for i, j in pairs) == expected
        assert all(rows[i][j] > 0 for i, j in pairs) and pairs == sorted(pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


def test_estimates_are_floats_and_may_rule_pairs_out():
    estimates = np.array([[0.5, -np.inf, 0.1], [-2.0, 0.25, 0.2]])
    assert assign(estimates) == [(0, 0), (1, 1)]
    assert assign(np.full((4, 5), -np.inf)) == [] == assign(np.zeros((3, 3)))
    wide = np.zeros((2, 5))
    wide[0, 4] = wide[1, 4] = 1.0
    wide[1, 0] = 0.5
    assert assign(wide) == [(0, 4), (1, 0)]
    assert all(type(i) is int and type(j) is int for i, j in assign(wide))


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(size, wrong):
    rows = [[1.0] * size for _ in range(size)]
    rows[1][1] = wrong
    with pytest.raises(ValueError, match=str(wrong)):
        assign(rows)


def test_weights_that_are_no_matrix():
    with pytest.raises(ValueError, match="different lengths"):
        assign([[1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match="1 dimensions"):
        assign(np.ones(3))


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([[1, 2]], [3], [1]), "buyer 1 has 2 valuations; there are 1 items"),
        (([[1, 2]], [3, 3], [1]), "2 list prices and 1 costs"),
        (([[1, -2]], [3, 3], [1, 1]), "valuations of buyer 1: -2 cents"),
        (([[1, 2]], [3, MAX_CENTS + 1], [1, 1]), f"list prices: {MAX_CENTS + 1} cents"),
        (([[1, 2]], [3, 3], [1, 1], {(0, 1)}), "no pair of buyer 0 and item 1"),
        (([[1, 2]], [3, 3], [1, 1], {(1, 3)}), "no pair of buyer 1 and item 3: buyers are 1..1, items 1..2"),
    ],
)
def test_bad_arguments(arguments, said):
    with pytest.raises(ValueError, match=said):
        best_matching(*arguments)


def test_amounts_are_integers_and_deals_not_negative():
    with pytest.raises(TypeError):
        best_matching([[1.5]], [3], [1])  # type: ignore[list-item]
    assert best_matching([[np.int64(5)]], [np.int64(9)], [np.int64(1)]) == Matching(((1, 1),), 4)
    with pytest.raises(ValueError, match="at most -1 deals"):
        most_surplus([[1]], [3], [1], -1)


def test_a_market_too_large_to_be_exact_is_refused():
    size = next(n for n in range(1000, 1100) if MAX_CENTS * (n + 1) ** 2 >= oracle.MAX_WEIGHT)
    assert size == 1061  # one more than the documented limit
    row = [MAX_CENTS] * size
    with pytest.raises(ValueError, match=r"1061 x 1061 pairs .* cannot be matched exactly"):
        best_matching([row] * size, row, [0] * size)
    assert len(best_matching([row] * 2, row, [0] * size).pairs) == 2


# -- what it loads --------------------------------------------------------------------------------------------------


def test_three_by_three_needs_no_scipy():
    code = (
        "import sys; from negolab import oracle\n"
        "market = ([[5, 6, 7]] * 3, [9] * 3, [1] * 3)\n"
        "oracle.best_matching(*market); oracle.most_surplus(*market, 3)\n"
        "print('scipy' in sys.modules, 'numpy' in sys.modules)\n"
        "oracle.most_surplus(*market, 2); print('scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
