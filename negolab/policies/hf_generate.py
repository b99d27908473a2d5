"""One batch of replies: prefill what is new of each prompt, then token by token until every reply is over.

Two ways through the model. ``CachedRunner`` keeps keys and values in tensors of its own and computes of a prompt only
what neither the conversation's last turn nor another row of the batch has computed; it is for models all of whose
layers attend to everything before. ``PlainRunner`` is for all others: transformers' own cache, nothing reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from negolab.policies.chat_template import Conversation
from negolab.policies.engine import Sampling
from negolab.policies.hf_model import Model
from negolab.policies.kv_cache import Block, Kept, Store, common
from negolab.policies.sampling import draw
from negolab.seeds import uniform

_SHARED = 64
"""Tokens from which on a beginning is copied from another row instead of being computed again."""
_GROWTH = 256
"""Positions that are allocated beyond the longest prompt at first, and when these are used up."""


@dataclass
class Row:
    """One reply wanted, and what there is of it."""

    conversation: Conversation
    adapter: str
    ids: list[int]
    """The prompt."""
    limit: int
    """Most tokens to sample."""
    sampling: Sampling
    seed: int
    allowed: Callable[[Sequence[int]], Any] | None = None
    """Told what was sampled so far: the tokens that may come next (a list or tensor of ids), or None for all."""
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reused: int = 0
    """Tokens of the prompt that the conversation's last turn had computed."""
    shared: int = 0
    """Tokens of the prompt that another conversation had computed."""


@dataclass
class Counts:
    """What an engine has done so far."""

    prompt_tokens: int = 0
    computed: int = 0
    reused: int = 0
    shared: int = 0
    sampled: int = 0
    batches: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    peak_bytes: int = 0


class Runner(Protocol):
    """The model's side of a batch."""

    rows: list[Row]
    """In the runner's order."""

    def prefill(self) -> Iterator[tuple[list[int], Any]]:
        """Go through all prompts: some rows' places and their logits (rows, vocabulary) at a time."""
        ...

    def step(self, tokens: Sequence[int]) -> Any:
        """One more token for each row: the logits (rows, vocabulary) behind it."""
        ...

    def save(self, place: int) -> None:
        """The row at ``place`` is over."""
        ...

    def keep(self, places: Sequence[int]) -> bool:
        """Go on with some rows only; False where that is not worth it."""
        ...


def generate(runner: Runner, stop: frozenset[int], finished: Callable[[Row], None], counts: Counts) -> None:
    """Sample every row to its end: a token of ``stop``, or its limit. ``finished`` is called once for each row.

    Raises ``ValueError`` where the model's output is not a number.
    """
    started = time.perf_counter()
    for places, logits in runner.prefill():
        _sample([runner.rows[place] for place in places], logits)
    now = time.perf_counter()
    counts.prefill_seconds += now - started
    rows = runner.rows
    live = [True] * len(rows)  # by place: whether the row still goes on
    while True:
        for place, row in enumerate(rows):
            if live[place] and (row.out[-1] in stop or len(row.out) >= row.limit):
                live[place] = False
                runner.save(place)
                finished(row)
        going = [place for place, goes in enumerate(live) if goes]
        if not going:
            break
        # Dropping rows copies the others: done when half are over.
        if 2 * len(going) <= len(rows) and runner.keep(going):
            rows, live = runner.rows, [True] * len(going)
            going = list(range(len(rows)))
        logits = runner.step([row.out[-1] for row in rows])
        if len(going) < len(rows):
            logits = logits[going]
        _sample([rows[place] for place in going], logits)
    counts.decode_seconds += time.perf_counter() - now


def _sample(rows: Sequence[Row], logits: Any) -> None:
    for at, row in enumerate(rows):
        allowed = None if row.allowed is None else row.allowed(row.out)
        if allowed is not None:
            kept = logits[at, allowed]
            logits[at] = float("-inf")
            logits[at, allowed] = kept
    uniforms = [uniform(row.seed, len(row.out)) for row in rows]
    tokens, logprobs = draw(logits, [row.sampling for row in rows], uniforms)
    for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
        row.out.append(token)
        row.logprobs.append(logprob)


@dataclass
class _Start:
    """How one row begins: what is copied from where, and in which wave the rest is computed."""

    row: Row
    ids: np.ndarray
    kept: Kept | None = None
    have: int = 0
    """Positions that need not be computed."""
    donor: int | None = None
    """Place in the plan of the row whose first ``have`` positions are copied."""
    wave: int = 0


def _plan(rows: Sequence[Row], store: Store) -> list[_Start]:
    """Rows in the order in which they are computed, each with the cheapest beginning.

    In the order of their ids, the row that shares most with another one stands beside it.
    """
    starts = []
    for row in rows:
        ids = np.asarray(row.ids, dtype=np.int32)
        kept, have = store.best(row.conversation, row.adapter, ids)
        # At least the last token must be computed: its logits are wanted.
        starts.append(_Start(row, ids, kept, min(have, len(ids) - 1)))
    starts.sort(key=lambda start: (start.row.adapter, start.row.ids))
    shared = [0] + [common(a.ids, b.ids) if a.row.adapter == b.row.adapter else 0 for a, b in pairwise(starts)]
    for place, start in enumerate(starts):
        most = min(shared[place], len(start.ids) - 1)
        if most < start.have + _SHARED:
            continue
        # The first row that shares nearly as much: its wave is the earliest.
        donor, least, enough = place - 1, shared[place], max(0.95 * most, start.have + _SHARED)
        for at in range(place - 1, 0, -1):
            least = min(least, shared[at])
            if least < enough:
                break
            donor, most = at - 1, min(least, len(start.ids) - 1)
        start.kept, start.have, start.donor = None, most, donor
        start.wave = starts[donor].wave + 1
    order = sorted(range(len(starts)), key=lambda at: (starts[at].wave, len(starts[at].ids) - starts[at].have))
    where = {old: new for new, old in enumerate(order)}
    for start in starts:
        start.donor = None if start.donor is None else where[start.donor]
    return [starts[at] for at in order]


class CachedRunner:
    """See the module. ``store`` is given what was computed when a row is over."""

    def __init__(self, model: Model, rows: Sequence[Row], store: Store, counts: Counts) -> None:
        import torch

        self._model, self._store, self._counts = model, store, counts
        self._torch = torch
        store.clock += 1
        self._plan = _plan(rows, store)
        self.rows = [start.row for start in self._plan]
        longest = max(len(row.ids) for row in self.rows)
        self._block = Block(model.layers, len(rows), longest + min(_GROWTH, max(r.limit for r in rows)), model.device)
        self._lengths = [0] * len(rows)
        for place, start in enumerate(self._plan):
            row = start.row
            if start.kept is not None and start.have:
                self._block.put(place, start.kept.pairs, start.have)
                own = start.kept is store.get(row.conversation, row.adapter)
                row.reused, row.shared = (start.have, 0) if own else (0, start.have)
            elif start.donor is not None:
                row.shared = start.have
            self._seen()
            start.kept = None
            store.drop(row.conversation, row.adapter)
            self._count(row, len(row.ids) - start.have)

    def _count(self, row: Row, computed: int) -> None:
        counts = self._counts
        counts.prompt_tokens += len(row.ids)
        counts.computed += computed
        counts.reused += row.reused
        counts.shared += row.shared

    def prefill(self) -> Iterator[tuple[list[int], Any]]:
        """See ``Runner``."""
        for places in self._groups():
            for place in places:
                donor = self._plan[place].donor
                if donor is not None:
                    self._block.copy(donor, place, 0, self._plan[place].have)
            yield places, self._extend(places)
        self._seen()

    def _groups(self) -> Iterator[list[int]]:
        """Neighbours of one wave that need about as much, as many as one pass should take."""
        group: list[int] = []
        for place, start in enumerate(self._plan):
            new = len(start.ids) - start.have
            first = self._plan[group[0]] if group else start
            if group and (first.wave != start.wave or new * (len(group) + 1) > self._model.pass_tokens):
                yield group
                group = []
            group.append(place)
        if group:
            yield group

    def _extend(self, places: Sequence[int]) -> Any:
        """Compute what is missing of some neighbours' prompts; their logits behind the last token."""
        starts = [self._plan[place] for place in places]
        if len(starts) == 1:  # one long prompt goes in pieces
            start, step = starts[0], self._model.piece_tokens
            ends = [*range(start.have + step, len(start.ids), step), len(start.ids)]
        else:
            ends = [0]
        logits = None
        for end in ends:
            logits = self._pass(places[0], [(s.have, s.ids[s.have : end or len(s.ids)]) for s in starts])
            for place, start in zip(places, starts, strict=True):
                start.have = self._lengths[place] = end or len(start.ids)
        return logits

    def _pass(self, first: int, parts: Sequence[tuple[int, np.ndarray]]) -> Any:
        """Forward for neighbours from ``first`` on, each with (positions held, new ids); padded on the left, so that
        the last column is everybody's last token."""
        torch, block = self._torch, self._block
        n, q = len(parts), max(len(ids) for _, ids in parts)
        tokens = np.zeros((n, q), dtype=np.int64)
        positions = np.zeros((n, q), dtype=np.int64)
        slots = np.full((n, q), block.junk, dtype=np.int64)
        for at, (have, ids) in enumerate(parts):
            tokens[at, q - len(ids) :] = ids
            positions[at, q - len(ids) :] = slots[at, q - len(ids) :] = np.arange(have, have + len(ids))
        width = max(have + len(ids) for have, ids in parts)
        device = self._model.device
        at = torch.from_numpy(positions).to(device)
        block.point(first, torch.from_numpy(slots).to(device), width, width - q)
        # Padding sees position 0, which every row has: something finite. Without padding and with nothing before,
        # the plain causal mask is the faster one.
        plain = width == q and all(len(ids) == q for _, ids in parts)
        mask = None if plain else torch.arange(width, device=device) <= at[:, None, :, None]
        adapters = [row.adapter for row in self.rows[first : first + n]]
        return self._model.forward(torch.from_numpy(tokens).to(device), at, mask, block.cache, adapters)[0]

    def step(self, tokens: Sequence[int]) -> Any:
        """See ``Runner``."""
        torch, block, device = self._torch, self._block, self._model.device
        width = max(self._lengths) + 1
        if width > block.length:
            block.grow(width - 1 + _GROWTH)
            self._seen()
        at = torch.tensor(self._lengths, device=device)[:, None]
        block.point(0, at, width, width - 1)
        mask = torch.arange(width, device=device) <= at[:, None, :, None]
        ids = torch.tensor(list(tokens), device=device)[:, None]
        logits, _ = self._model.forward(ids, at, mask, block.cache, [row.adapter for row in self.rows])
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def save(self, place: int) -> None:
        """Keep what is there of the conversation: all but the last token has keys and values."""
        row, length = self.rows[place], self._lengths[place]
        nbytes = self._block.bytes_of(length)
        if self._store.admits(row.conversation, row.adapter, nbytes):
            ids = np.asarray([*row.ids, *row.out][:length], dtype=np.int32)
            self._store.put(row.conversation, row.adapter, ids, self._block.take(place, length), nbytes)
            self._seen()

    def keep(self, places: Sequence[int]) -> bool:
        """See ``Runner``."""
        self._block.keep(places)
        self.rows = [self.rows[place] for place in places]
        self._lengths = [self._lengths[place] for place in places]
        return True

    def _seen(self) -> None:
        self._counts.peak_bytes = max(self._counts.peak_bytes, self._block.nbytes + self._store.nbytes)


class PlainRunner:
    """See the module. Rows are padded on the left, as transformers pads them."""

    def __init__(self, model: Model, rows: Sequence[Row], counts: Counts) -> None:
        self.rows = sorted(rows, key=lambda row: len(row.ids))
        self._model, self._counts = model, counts
        self._cache: Any = None  # the model makes one: some have a kind of their own
        self._mask: Any = None

    def prefill(self) -> Iterator[tuple[list[int], Any]]:
        """See ``Runner``."""
        import torch

        q = max(len(row.ids) for row in self.rows)
        ids = torch.tensor([[0] * (q - len(row.ids)) + row.ids for row in self.rows], device=self._model.device)
        seen = [[0] * (q - len(row.ids)) + [1] * len(row.ids) for row in self.rows]
        self._mask = torch.tensor(seen, device=self._model.device)
        total = sum(len(row.ids) for row in self.rows)
        self._counts.prompt_tokens += total
        self._counts.computed += total
        yield list(range(len(self.rows))), self._forward(ids)

    def step(self, tokens: Sequence[int]) -> Any:
        """See ``Runner``."""
        import torch

        ids = torch.tensor(list(tokens), device=self._model.device)[:, None]
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=1)
        return self._forward(ids)

    def _forward(self, ids: Any) -> Any:
        # Rows that are over go on counting: not beyond what the model has positions for.
        at = (self._mask.cumsum(dim=-1) - 1).clamp(0, self._model.context - 1)[:, -ids.shape[1] :]
        # One row needs no mask, and some models that keep a state instead of keys take none.
        mask = None if len(self.rows) == 1 else self._mask
        logits, self._cache = self._model.forward(ids, at, mask, self._cache, [row.adapter for row in self.rows])
        return logits

    def save(self, place: int) -> None:
        """Nothing is kept."""

    def keep(self, places: Sequence[int]) -> bool:
        """Rows that are over stay in the batch."""
        return False
