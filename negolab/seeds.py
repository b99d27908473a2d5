"""Randomness by address: every draw is a function of (run seed, purpose, product, repetition), never of order.

Scenario draws use a ``numpy.random.Generator`` on Philox, the counter-based generator: its key is a hash of the
address, and re-keying one generator takes a tenth of the time of building one. Scripted players need a few numbers per
reply; they use the stateless SplitMix64 mixer (Steele, Lea, Flood 2014), which also makes a re-asked or resumed reply
identical by construction.
"""

import hashlib
import threading

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
        self.state = self.bits.state  # as new: counter 0, nothing buffered


_keyed = _Keyed()


def generator(*address: int | str) -> np.random.Generator:
    """The generator of an address such as ``(seed, "market", codename, rep)``.

    The object is shared: use it up before the next call in the same thread.
    """
    digest = hashlib.sha256(repr(address).encode("utf-8", "surrogatepass")).digest()
    _keyed.state["state"]["key"][:] = np.frombuffer(digest, dtype="<u8", count=2)
    _keyed.bits.state = _keyed.state
    return _keyed.generator
