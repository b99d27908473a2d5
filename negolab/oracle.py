"""The best one-to-one matching of buyers and items: arXiv 2609.33289, section 6.4 and appendix B.1.

Who sees all valuations can say which buyer should have got which item. The worth of a pair is its *clipped surplus*
``max(0, min(V_ij, L_j) - C_j)``: what is left above the cost when buyer i pays its whole valuation, at most the list
price. The oracle matching gives each buyer at most one item and each item to at most one buyer and makes the sum as
large as it can be; a pair without surplus is never matched, so that the empty matching is the best one where there is
nothing to gain.

Often several matchings are best. The paper takes the one that shares most pairs with what the seller proposed. That
does not yet settle its offer coverage, because best matchings may differ in size (one sale at 10 cents, or two at 5):
among the matchings left, ours is one with the fewest pairs, in the seller's favour as the paper's choice is. Surplus,
shared pairs and size are thus properties of the market alone: other labels for buyers or items do not change them.
Which of several matchings equal in all three is returned is not specified, but equal input gives an equal answer.

Everything here is a pure function. Amounts are integer cents and every result is exact: the criteria are packed into
one integer weight per pair, and a market whose weights do not fit is an error (``MAX_WEIGHT``). The assignment problem
itself is solved by scipy's ``linear_sum_assignment``, or by trying all six ways where no side has more than three:
that takes half the time, and scipy, which takes long to load, is not needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import chain, permutations
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from negolab.money import MAX_CENTS

if TYPE_CHECKING:
    import numpy as np

Pair = tuple[int, int]

MAX_WEIGHT = 2**50
"""Integer weights must be below this in absolute value.

scipy computes in float64, whose integers are exact up to 2**53. As every row reaches every column directly, neither a
dual variable of its algorithm nor the length of a path on its way ever exceeds eight times the largest weight.
``best_matching`` packs three criteria and needs ``largest surplus * (min(N, M) + 1)**2 < MAX_WEIGHT``: with surpluses
up to ``MAX_CENTS``, 1,060 buyers or items on the smaller side.
"""

_TINY = 3
"""Up to so many rows and columns all ways are tried: at 3 x 3 that takes half the time, without loading scipy."""


class Matching(NamedTuple):
    """Which buyer gets which item, and what that is worth."""

    pairs: tuple[Pair, ...]
    """(buyer, item), both counted from 1, sorted."""
    surplus_cents: int
    """The sum of the pairs' clipped surpluses."""


def clipped_surplus(
    valuations: Sequence[Sequence[int]], list_cents: Sequence[int], cost_cents: Sequence[int]
) -> list[list[int]]:
    """``max(0, min(V_ij, L_j) - C_j)`` in cents, by buyer, then item: N x M, from the valuations of the same shape.

    Raises ``ValueError`` for lengths that do not fit and for an amount outside 0 to ``MAX_CENTS``; ``TypeError`` for
    one that is no integer.
    """
    lists, costs = _amounts(list_cents, "list prices"), _amounts(cost_cents, "costs")
    if len(lists) != len(costs):
        raise ValueError(f"{len(lists)} list prices and {len(costs)} costs; every item has one of each")
    surplus = []
    for buyer, row in enumerate(valuations, 1):
        if len(row) != len(lists):
            raise ValueError(f"buyer {buyer} has {len(row)} valuations; there are {len(lists)} items")
        rows = zip(_amounts(row, f"valuations of buyer {buyer}"), lists, costs, strict=True)
        surplus.append([max(0, min(v, price) - cost) for v, price, cost in rows])
    return surplus


def best_matching(
    valuations: Sequence[Sequence[int]],
    list_cents: Sequence[int],
    cost_cents: Sequence[int],
    preferred: Collection[Pair] = (),
) -> Matching:
    """The matching with most clipped surplus; among those with most pairs of ``preferred``, then with fewest pairs.

    ``valuations`` is N x M (by buyer, then item), ``list_cents`` and ``cost_cents`` have one entry for each item;
    all in cents. ``preferred`` holds (buyer, item), counted from 1: the pairs that the seller proposed. A preferred
    pair without surplus is not matched all the same.

    Raises ``ValueError`` as ``clipped_surplus`` does, for a preferred pair that does not exist, and where the three
    criteria do not fit one exact weight (see ``MAX_WEIGHT``).
    """
    surplus = clipped_surplus(valuations, list_cents, cost_cents)
    n, m = len(surplus), len(list_cents)
    for buyer, item in preferred:
        if not (1 <= buyer <= n and 1 <= item <= m):
            raise ValueError(f"no pair of buyer {buyer} and item {item}: buyers are 1..{n}, items 1..{m}")
    # A matching has fewer than `base` pairs, so no number of shared pairs outweighs a cent, and no size a shared pair.
    base = min(n, m) + 1
    shared = {*preferred}
    weights = [
        [(cents * base + ((buyer, item) in shared)) * base - 1 if cents else 0 for item, cents in enumerate(row, 1)]
        for buyer, row in enumerate(surplus, 1)
    ]
    pairs = _exact(weights)
    return Matching(tuple((i + 1, j + 1) for i, j in pairs), sum(surplus[i][j] for i, j in pairs))


def most_surplus(
    valuations: Sequence[Sequence[int]], list_cents: Sequence[int], cost_cents: Sequence[int], deals: int
) -> int:
    """The most clipped surplus in cents that a matching of at most ``deals`` pairs can have.

    Every sale costs the seller at least one message, so this bounds what can be earned with so many messages by a
    seller who knows all valuations. Arguments and errors as for ``best_matching``; ``ValueError`` for ``deals`` < 0.
    """
    if deals < 0:
        raise ValueError(f"at most {deals} deals; the number must not be negative")
    surplus = clipped_surplus(valuations, list_cents, cost_cents)
    n, m = len(surplus), len(list_cents)
    if deals == 0 or not (n and m):
        return 0
    if deals == 1:
        return max(map(max, surplus))
    if deals >= min(n, m):
        return sum(surplus[i][j] for i, j in _exact(surplus))
    # Exactly `deals` pairs, which is no restriction where all weights are 0 or more: the other buyers and the other
    # items are kept busy by dummies. Two dummies together would free one real pair more, which is worth at most the
    # largest weight: a higher price than that forbids it.
    forbidden = -1 - max(map(max, surplus))
    padded = [[*row, *[0] * (n - deals)] for row in surplus]
    padded += [[0] * m + [forbidden] * (n - deals) for _ in range(m - deals)]
    return sum(padded[i][j] for i, j in _exact(padded, dropping=False))


def assign(weights: np.ndarray | Sequence[Sequence[float]]) -> list[Pair]:
    """The pairs (row, column), counted from 0 and sorted, that no other one-to-one choice exceeds in total weight.

    ``weights`` is a matrix of integers or floats, such as a seller's estimates of the surplus. Only pairs of positive
    weight are chosen. Integers below ``MAX_WEIGHT`` are exact; floats up to rounding. Raises ``ValueError`` for what
    is not a matrix, and for NaN or infinity (minus infinity may stand for "not this pair").
    """
    rows: Sequence[Sequence[float]]
    if isinstance(weights, (list, tuple)):
        rows = weights
    else:
        rows = weights.tolist()  # type: ignore[union-attr]
        if weights.ndim != 2:  # type: ignore[union-attr]
            raise ValueError(f"weights of {weights.ndim} dimensions; a matrix has two")  # type: ignore[union-attr]
    height, width = len(rows), len(rows[0]) if rows else 0
    if height and {*map(len, rows)} != {width}:
        raise ValueError("the rows of the weights have different lengths")
    if not sum(map(sum, rows)) < inf:  # what is infinite or NaN makes the sum so
        for weight in chain.from_iterable(rows):
            if not weight < inf:
                raise ValueError(f"a weight is {weight}; allowed are finite numbers and minus infinity")
    return _try_all(rows, height, width) if height <= _TINY and width <= _TINY else _solve(weights)


def _amounts(values: Sequence[int], what: str) -> list[int]:
    """The amounts as Python's integers, which do not overflow."""
    cents = [index(value) for value in values]
    if cents and not (min(cents) >= 0 and max(cents) <= MAX_CENTS):
        wrong = next(c for c in cents if not 0 <= c <= MAX_CENTS)
        raise ValueError(f"{what}: {wrong} cents; allowed are 0 to {MAX_CENTS}")
    return cents


def _exact(weights: Sequence[Sequence[int]], dropping: bool = True) -> list[Pair]:
    """Best pairs of integer weights; ``ValueError`` where float64 could not hold all intermediate sums.

    Without ``dropping`` every row or every column gets a partner, also one of negative weight.
    """
    largest = max((abs(value) for row in weights for value in row), default=0)
    if largest >= MAX_WEIGHT:
        n, m = len(weights), len(weights[0])
        raise ValueError(
            f"{n} x {m} pairs with weights up to {largest} cannot be matched exactly: only below {MAX_WEIGHT} they can"
        )
    return assign(weights) if dropping else _solve(weights, dropping=False)


@cache
def _ways(height: int, width: int) -> tuple[tuple[Pair, ...], ...]:
    """Every way to give each member of the smaller side a partner."""
    if height <= width:
        return tuple(tuple(enumerate(chosen)) for chosen in permutations(range(width), height))
    return tuple(tuple(sorted((i, j) for j, i in way)) for way in _ways(width, height))


def _try_all(rows: Sequence[Sequence[float]], height: int, width: int) -> list[Pair]:
    """``assign`` for a tiny matrix: the first of the best ways."""
    most = -1.0
    best: tuple[Pair, ...] = ()
    for way in _ways(height, width):
        total = 0.0
        for i, j in way:
            weight = rows[i][j]
            if weight > 0:
                total += weight
        if total > most:
            most, best = total, way
    return [(i, j) for i, j in best if rows[i][j] > 0]


def _solve(weights: Any, dropping: bool = True) -> list[Pair]:
    """``assign`` by scipy."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    matrix = np.asarray(weights, dtype=float)
    if dropping:
        matrix = np.maximum(matrix, 0.0)  # no partner is as good as one that is worth nothing
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(i, j) for i, j in pairs if not dropping or matrix[i, j] > 0]
