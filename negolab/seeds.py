"""Randomness by address: every draw is a function of (run seed, purpose, product, repetition), never of order.

Scenario draws use ``numpy.random.Generator`` (one per episode). Scripted players need a few numbers per reply, where
building a generator (19 microseconds measured) would cost more than the whole turn; they use the stateless SplitMix64
mixer instead (Steele, Lea, Flood 2014), which also makes a resumed or re-asked reply identical by construction.
"""

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """One SplitMix64 output: a 64-bit integer that looks random in ``value``."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, draw: int) -> float:
    """The ``draw``-th uniform number in [0, 1) of the stream named by ``seed``."""
    return (mix(seed + draw * _GOLDEN) >> 11) * (1.0 / (1 << 53))


def text_key(text: str) -> int:
    """A stable 64-bit integer for a codename, so that a product's market does not depend on which others are played."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
