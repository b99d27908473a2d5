"""Means and their errors, by hand and by the formulas written out."""

import math
import random
import statistics
import warnings

import pytest

from negolab.report import metrics_csv, metrics_table
from negolab.statistics import Accumulator, Estimate, estimate


def sandwich(values, clusters):
    """Cluster-robust standard error of a mean as regression software writes it: OLS on a constant, G / (G - 1)."""
    n, mean = len(values), statistics.fmean(values)
    groups = sorted(set(clusters))
    meat = math.fsum(
        math.fsum(v - mean for v, c in zip(values, clusters, strict=True) if c == group) ** 2 for group in groups
    )
    bread = 1 / n  # (X'X)^-1 of a column of ones
    return math.sqrt(len(groups) / (len(groups) - 1) * bread * meat * bread)


def test_by_hand():
    """Two products of two episodes: mean 2.5; deviations -1.5, -0.5, 0.5, 1.5; cluster sums -2 and 2."""
    found = estimate([1, 2, 3, 4], ["a", "a", "b", "b"])
    assert found.mean == 2.5 and found.n == 4
    assert found.se == pytest.approx(math.sqrt(5 / 3 / 4))  # s^2 = 5/3
    assert found.se_clustered == pytest.approx(math.sqrt(2 / 1 * (4 + 4)) / 4)  # exactly 1
    assert found.se_clustered == pytest.approx(1.0)


def test_clusters_of_unequal_size_by_hand():
    """0, 0, 0 in one, 4 in the other: mean 1; cluster sums of deviations -3 and 3."""
    found = estimate([0, 0, 0, 4], ["a", "a", "a", "b"])
    assert found.mean == 1 and found.se == pytest.approx(1.0)
    assert found.se_clustered == pytest.approx(math.sqrt(2 * 18) / 4)


def test_against_the_formulas_written_out():
    rng = random.Random(7)
    for _ in range(50):
        n = rng.randrange(2, 60)
        clusters = [rng.randrange(rng.randrange(2, 12)) for _ in range(n)]
        values = [rng.gauss(clusters[i], 1) for i in range(n)]
        found = estimate(values, clusters)
        assert found.mean == pytest.approx(statistics.fmean(values))
        assert found.se == pytest.approx(statistics.stdev(values) / math.sqrt(n))
        if len(set(clusters)) > 1:
            assert found.se_clustered == pytest.approx(sandwich(values, clusters))
        else:
            assert found.se_clustered is None


def test_with_every_observation_its_own_cluster_both_errors_are_one():
    values = [0.1, 0.7, -1.0, 0.4, 0.4]
    found = estimate(values, range(5))
    assert found.se_clustered == pytest.approx(found.se)


def test_what_does_not_exist_is_none_and_prints_as_n_a():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        none, one, single = estimate([], []), estimate([0.5], ["a"]), estimate([0.0, 1.0], ["a", "a"])
        assert none == Estimate(None, None, None, 0)
        assert one == Estimate(0.5, None, None, 1)
        assert single.se == pytest.approx(0.5) and single.se_clustered is None
        assert none.text() == "n/a (n = 0)" and one.text() == "+0.500 ± n/a (n = 1)"
        found = {"none": none, "one": one, "single": single}
        table, stored = metrics_table(found), metrics_csv(found)
    assert "nan" not in table + stored
    assert stored.splitlines()[1:3] == ["none,n/a,n/a,n/a,0", "one,0.5,n/a,n/a,1"]
    assert table.splitlines()[1].split() == ["one", "0.5000", "n/a", "n/a", "1"]
    assert table.endswith("n/a (no episode in the denominator): none")


def test_equal_values_have_no_error():
    assert estimate([0.1] * 1000, [i % 7 for i in range(1000)]).se == pytest.approx(0.0, abs=1e-12)
    assert estimate([-1.0] * 5, "aabbc")[:3] == (-1.0, 0.0, 0.0)


def test_large_means_keep_their_small_differences():
    found = estimate([1e9 + 1, 1e9 + 2, 1e9 + 3], "abc")
    assert found.se == pytest.approx(math.sqrt(1 / 3))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_refused(value):
    total = Accumulator()
    with pytest.raises(ValueError, match="for shoes_1"):
        total.add(value, "shoes_1")
    assert total.estimate().n == 0


def test_values_and_clusters_go_in_pairs():
    with pytest.raises(ValueError):
        estimate([1.0, 2.0], ["a"])
