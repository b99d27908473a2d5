"""Randomness by address: every draw is a function of (run seed, purpose, product, repetition), never of order.

Scenario draws use a ``numpy.random.Generator`` on Philox, the counter-based generator: its key is a hash of the
address, and re-keying one generator takes a tenth of the time of building one. Scripted players need a few numbers per
reply; they use the stateless SplitMix64 mixer (Steele, Lea, Flood 2014), which also makes a re-asked or resumed reply
identical by construction.
"""

import hashlib
import struct
import threading
from typing import Any

import numpy as np

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


class _Keyed(threading.local):
    """One generator per thread, re-keyed for each address."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        # As new: counter 0, nothing buffered. In plain tuples, which numpy reads faster than its own arrays.
        self.words: dict[str, tuple[int, ...]] = {"counter": (0, 0, 0, 0), "key": (0, 0)}
        self.state: Any = {**self.bits.state, "state": self.words, "buffer": (0, 0, 0, 0)}


_keyed = _Keyed()
_key_of = struct.Struct("<2Q16x").unpack  # the first 128 bits of a SHA-256


def generator(*address: int | str) -> np.random.Generator:
    """The generator of an address such as ``(seed, "market", codename, rep)``.

    The object is shared: use it up before the next call in the same thread.
    """
    keyed = _keyed
    keyed.words["key"] = _key_of(hashlib.sha256(repr(address).encode("utf-8", "surrogatepass")).digest())
    keyed.bits.state = keyed.state
    return keyed.generator
