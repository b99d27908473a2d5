"""Means with their errors: naive and clustered standard errors, and paired comparisons.

Episodes of one product share its price range, so treating them as independent understates the error of a mean. Both
are reported: ``se`` is the papers' (sample standard deviation over the root of n: table 9's), ``se_clustered``
the cluster-robust one with products as clusters and the usual G / (G - 1) correction.

One pass, constant memory per cluster, so that a run of any length can be summarised while it is read.
"""

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean. ``mean`` is None at n = 0; an error is None where it does not exist (n = 1, a single cluster)."""

    mean: float | None
    se: float | None
    se_clustered: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """``+0.580 ± 0.026 (n = 256)`` for people; ``n/a`` for what does not exist."""
        if self.mean is None:
            return "n/a (n = 0)"
        se = "n/a" if self.se is None else f"{self.se:.{digits}f}"
        return f"{self.mean:+.{digits}f} ± {se} (n = {self.n})"


class Accumulator:
    """Running mean and errors of one quantity (Welford's update; per-cluster sums for the clustered error)."""

    __slots__ = ("_clusters", "_mean", "_squares", "_total", "n")

    def __init__(self) -> None:
        self.n = 0
        self._total = 0.0  # kept beside the running mean: sums of whole numbers, and so rates, stay exact
        self._mean = 0.0
        self._squares = 0.0
        self._clusters: dict[Hashable, list[float]] = {}

    def add(self, value: float, cluster: Hashable) -> None:
        """Count one observation. Raises ``ValueError`` for a value that is not finite: nothing may vanish silently."""
        if not math.isfinite(value):
            raise ValueError(f"a metric came out as {value} for {cluster}")
        self.n += 1
        self._total += value
        step = value - self._mean
        self._mean += step / self.n
        self._squares += step * (value - self._mean)
        sums = self._clusters.get(cluster)
        if sums is None:
            self._clusters[cluster] = [value, 1]
        else:
            sums[0] += value
            sums[1] += 1

    def estimate(self) -> Estimate:
        """The mean so far, with what errors can be had."""
        if self.n == 0:
            return Estimate(None, None, None, 0)
        mean = self._total / self.n
        if self.n == 1:
            return Estimate(mean, None, None, 1)
        se = math.sqrt(max(0.0, self._squares) / (self.n - 1) / self.n)
        groups, clustered = len(self._clusters), None
        if groups > 1:
            spread = math.fsum((total - count * mean) ** 2 for total, count in self._clusters.values())
            clustered = math.sqrt(groups / (groups - 1) * spread) / self.n
        return Estimate(mean, se, clustered, self.n)


def estimate(values: Iterable[float], clusters: Iterable[Hashable]) -> Estimate:
    """Mean and errors of ``values`` with the cluster of each."""
    total = Accumulator()
    for value, cluster in zip(values, clusters, strict=True):
        total.add(value, cluster)
    return total.estimate()
