"""Keys and values: of the batch under way, and of conversations between their turns.

A batch's tensors are allocated once and written in place, at each row's own positions: rows of different length need
no padding, and a conversation continues where its last turn ended. Between turns each conversation's part is kept, as
far as the memory allowed for it goes; what is found again is decided by token ids alone.

Every tensor is (rows, heads, positions, width of a head), one pair for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from negolab.policies.chat_template import Conversation

Ids = np.ndarray
Pair = tuple[Any, Any]


def common(a: Ids, b: Ids) -> int:
    """How many ids two sequences begin with in common."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


@dataclass
class _Aim:
    """Where the next forward pass reads and writes."""

    rows: slice = field(default_factory=lambda: slice(0, 0))
    row_index: Any = None
    """(rows, 1)"""
    slots: Any = None
    """(rows, new tokens): the position that each token's key and value get."""
    width: int = 0
    """Positions that are read."""
    past: int = 0


class Block:
    """The batch under way: ``rows`` conversations of up to ``length`` tokens."""

    def __init__(self, layers: int, rows: int, length: int, device: Any) -> None:
        from transformers.cache_utils import Cache

        self.rows, self.length, self.device = rows, length, device
        self.aim = _Aim()
        self.layers = [_layer_type()(self) for _ in range(layers)]
        self.cache = Cache(layers=self.layers)
        """What the model is given."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for layer in self.layers for t in (layer.keys, layer.values) if t is not None)

    def point(self, first: int, slots: Any, width: int, past: int) -> None:
        """The next pass is of ``len(slots)`` rows from ``first`` on. ``slots`` (rows, new tokens): where to write;
        ``width``: positions to read; ``past``: how many of them hold earlier tokens, if the same for all rows."""
        import torch

        rows = torch.arange(first, first + len(slots), device=self.device)[:, None]
        self.aim = _Aim(slice(first, first + len(slots)), rows, slots, width, past)

    @property
    def junk(self) -> int:
        """A position that nobody reads, for padding."""
        return self.length

    def put(self, row: int, pairs: Sequence[Pair], tokens: int) -> None:
        """Copy the first ``tokens`` positions of one conversation's (heads, positions, width) tensors into a row."""
        for layer, (keys, values) in zip(self.layers, pairs, strict=True):
            layer.allocate(keys[None], values[None])
            layer.keys[row, :, :tokens] = keys[:, :tokens]
            layer.values[row, :, :tokens] = values[:, :tokens]

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy positions from one row to another."""
        for layer in self.layers:
            layer.keys[target, :, start:stop] = layer.keys[source, :, start:stop]
            layer.values[target, :, start:stop] = layer.values[source, :, start:stop]

    def take(self, row: int, tokens: int) -> list[Pair]:
        """A copy of one row's first ``tokens`` positions."""
        return [(k.keys[row, :, :tokens].clone(), k.values[row, :, :tokens].clone()) for k in self.layers]

    def bytes_of(self, tokens: int) -> int:
        """Bytes of ``tokens`` positions of one row."""
        per = sum(t[0, :, 0].nbytes for layer in self.layers for t in (layer.keys, layer.values))
        return int(per) * tokens

    def grow(self, length: int) -> None:
        """Make room for ``length`` positions."""
        import torch

        if length <= self.length:
            return
        for layer in self.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = torch.zeros((*old.shape[:2], length + 1, old.shape[3]), dtype=old.dtype, device=old.device)
                new[:, :, : self.length] = old[:, :, : self.length]
                setattr(layer, name, new)
        self.length = length

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some rows only, in the order given."""
        import torch

        at = torch.tensor(list(rows), device=self.device)
        for layer in self.layers:
            layer.keys, layer.values = layer.keys.index_select(0, at), layer.values.index_select(0, at)
        self.rows = len(rows)


@cache
def _layer_type() -> type[Any]:
    """A layer of a ``Block`` as transformers wants it; made here, since its base class is a vendor's."""
    import torch
    from transformers.cache_utils import CacheLayerMixin

    class Layer(CacheLayerMixin):
        is_sliding = False

        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block = block
            self.is_initialized = True
            self.keys: Any = None
            self.values: Any = None

        def allocate(self, keys: Any, values: Any) -> None:
            if self.keys is None:
                rows, length = self.block.rows, self.block.length + 1
                self.keys, self.values = (
                    torch.zeros((rows, t.shape[1], length, t.shape[3]), dtype=t.dtype, device=t.device)
                    for t in (keys, values)
                )

        def lazy_initialization(self, *args: Any) -> None: ...

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Pair:
            self.allocate(key_states, value_states)
            aim = self.block.aim
            self.keys.transpose(1, 2)[aim.row_index, aim.slots] = key_states.transpose(1, 2)
            self.values.transpose(1, 2)[aim.row_index, aim.slots] = value_states.transpose(1, 2)
            return self.keys[aim.rows, :, : aim.width], self.values[aim.rows, :, : aim.width]

        def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
            return self.block.aim.width, 0

        def get_seq_length(self, *args: Any) -> int:
            return self.block.aim.past

        def get_max_length(self) -> int:
            return -1

        get_max_cache_shape = get_max_length  # its name before transformers 5.9

    return Layer


@dataclass
class Kept:
    """One conversation between two of its turns."""

    ids: Ids
    """int32; the tokens whose keys and values these are."""
    pairs: list[Pair]
    """By layer, (heads, positions, width)."""
    nbytes: int
    used: int
    """When its last turn was, in batches."""


class Store:
    """Conversations between their turns, in at most ``limit`` bytes.

    When it is full, one makes room for a newcomer only if it was idle for longer than the newcomer itself: with turns
    taken in rotation, the plain rule (the least recently used goes) would throw each away just before it is wanted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.evicted = 0
        self.clock = 0
        self._kept: dict[tuple[Conversation, str], Kept] = {}
        self._last: dict[tuple[Conversation, str], int] = {}

    def best(self, conversation: Conversation, adapter: str, ids: Ids) -> tuple[Kept | None, int]:
        """What shares the longest beginning with ``ids`` among what the same adapter computed, and its length."""
        own = self._kept.get((conversation, adapter))
        if own is not None and (found := common(own.ids, ids)) == len(own.ids):
            return own, found
        best: tuple[Kept | None, int] = (None, 0)
        for (_, other), kept in self._kept.items():
            if other == adapter and min(len(kept.ids), len(ids)) > best[1] and kept.ids[best[1]] == ids[best[1]]:
                found = common(kept.ids, ids)
                if found > best[1]:
                    best = kept, found
        return best

    def get(self, conversation: Conversation, adapter: str) -> Kept | None:
        """What is kept of one conversation."""
        return self._kept.get((conversation, adapter))

    def drop(self, conversation: Conversation, adapter: str) -> None:
        """Its turn has come: what is kept is not needed any more."""
        kept = self._kept.pop((conversation, adapter), None)
        if kept is not None:
            self.nbytes -= kept.nbytes

    def admits(self, conversation: Conversation, adapter: str, nbytes: int) -> bool:
        """Make room for a conversation whose turn is over; False where there is none for it."""
        key = (conversation, adapter)
        before = self._last.get(key, -1)
        self._last[key] = self.clock
        self.drop(conversation, adapter)
        if nbytes > self.limit:
            return False
        colder = sorted((kept.used, name) for name, kept in self._kept.items() if kept.used < before)
        room = self.limit - self.nbytes
        if nbytes > room + sum(self._kept[name].nbytes for _, name in colder):
            return False
        for _, name in colder:
            if nbytes <= self.limit - self.nbytes:
                break
            self.drop(*name)
            self.evicted += 1
        return True

    def put(self, conversation: Conversation, adapter: str, ids: Ids, pairs: list[Pair], nbytes: int) -> None:
        """Keep what ``admits`` made room for."""
        self._kept[conversation, adapter] = Kept(ids, pairs, nbytes, self.clock)
        self.nbytes += nbytes

    def forget(self, conversation: Conversation) -> None:
        """The conversation is over, whatever adapters it used."""
        for key in [key for key in self._last if key[0] == conversation]:
            self.drop(*key)
            del self._last[key]

    def clear(self) -> None:
        """Give all memory back."""
        self._kept.clear()
        self._last.clear()
        self.nbytes = 0
