"""Group-relative advantages over episodes (2607.05863, section 4; table 5, group size).

An episode's advantage is its reward less the mean of its group, the rollouts of one market. The paper says no more;
its training service does not divide by the standard deviation, so that is off unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from negolab.errors import NegolabError

TINY = 1e-4
"""Added to a standard deviation before dividing by it, as TRL does: rewards that differ by rounding stay harmless."""


class Advantages(NamedTuple):
    """One number per episode, in the order of the rewards."""

    values: list[float]
    equal_groups: int
    """Groups whose rewards are all the same: they teach nothing, their advantages are exactly 0."""
    groups: int


def advantages_of(rewards: Sequence[float], group_size: int, *, scale_by_std: bool = False) -> Advantages:
    """``rewards`` lie group by group, ``group_size`` each. ``scale_by_std``: divide by the group's sample standard
    deviation (n - 1) plus ``TINY``.

    Raises ``NegolabError`` naming the first episode whose reward is not finite; ``ValueError`` where the rewards do
    not fill groups of two or more.
    """
    if group_size < 2 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no groups of {group_size}")
    for at, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise NegolabError(f"episode {at} of the batch has reward {reward}; allowed: a finite number")
    values: list[float] = []
    equal = 0
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        if min(group) == max(group):  # the mean of equal numbers may be off by rounding
            values += [0.0] * group_size
            equal += 1
            continue
        mean = math.fsum(group) / group_size
        scale = 1.0
        if scale_by_std:
            scale = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (group_size - 1)) + TINY
        values += [(reward - mean) / scale for reward in group]
    return Advantages(values, equal, len(rewards) // group_size)
