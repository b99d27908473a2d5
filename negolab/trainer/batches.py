"""From a step's rows to what goes through the model: sub-steps, micro-batches, tensors.

A batch is split into sub-steps by whole groups (table 5, num substeps; each episode is used once). Within a sub-step
rows are sorted by length and packed up to a number of tokens, so that hardly anything is padding. With a loss that
weighs all trained tokens of a sub-step alike, how rows are packed changes nothing but rounding.

Rows whose advantage is exactly 0 have no gradient and are not computed; their tokens still count in the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from negolab.trainer.rows import Row


@dataclass(slots=True)
class SubStep:
    """What one optimiser step learns from."""

    rows: list[Row]
    advantages: list[float]
    """One for each row: its episode's."""
    trained: int = field(init=False)
    """Own tokens of all rows, also of those with advantage 0."""

    def __post_init__(self) -> None:
        self.trained = sum(row.trained for row in self.rows)


def sub_steps_of(rows: Sequence[Row], advantages: Sequence[float], group_size: int, sub_steps: int) -> list[SubStep]:
    """Split by whole groups into parts as equal as can be, the larger ones first.

    ``advantages``: one for each episode, group by group. ``rows`` name their episode. Raises ``ValueError`` where there
    are fewer groups than sub-steps.
    """
    groups = len(advantages) // group_size
    if groups < sub_steps:
        raise ValueError(f"{groups} groups cannot be split into {sub_steps} sub-steps")
    size, more = divmod(groups, sub_steps)
    made, first = [], 0
    for at in range(sub_steps):
        last = first + (size + (at < more)) * group_size
        mine = [row for row in rows if first <= row.episode < last]
        made.append(SubStep(mine, [advantages[row.episode] for row in mine]))
        first = last
    return made


def packed(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Places of rows by micro-batch: longest first, each micro-batch at most ``tokens`` with its padding, unless it is
    one row that is longer by itself."""
    made: list[list[int]] = []
    width = 0
    for place in sorted(range(len(lengths)), key=lambda at: (-lengths[at], at)):
        if made and width * (len(made[-1]) + 1) <= tokens:
            made[-1].append(place)
        else:
            made.append([place])
            width = lengths[place]
    return made


def tensors_of(rows: Sequence[Row], advantages: Sequence[float], device: Any, pad: int = 0) -> dict[str, Any]:
    """One micro-batch as TRL's loss takes it.

    The "prompt" is each row's first token, which nobody samples; all else, (rows, longest - 1), is the "completion",
    in which ``tool_mask`` marks what is trained. Rows are padded on the right only: no token sees what stands after
    it, so padding needs no attention mask, and attention without one is the fast kind.
    """
    import torch

    longest = max(max((len(row) for row in rows), default=2), 2)
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    own = torch.zeros((len(rows), longest), dtype=torch.long)
    logprobs = torch.zeros((len(rows), longest), dtype=torch.float32)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row.ids)
        own[at, : len(row)] = torch.tensor(row.own, dtype=torch.long)
        logprobs[at, : len(row)] = torch.tensor(row.logprobs)
    ids, own, logprobs = ids.to(device), own.to(device), logprobs.to(device)
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids[:, 1:],
        "completion_mask": torch.ones_like(ids[:, 1:]),
        "tool_mask": own[:, 1:],
        "old_per_token_logps": logprobs[:, 1:],
        "advantages": torch.tensor(list(advantages), dtype=torch.float32, device=device),
    }


def inert(device: Any) -> dict[str, Any]:
    """A micro-batch of one row without a trained token: gradients of exactly 0. For processes that have fewer
    micro-batches than others, and for sub-steps in which nothing can be learnt."""
    return tensors_of([Row(0, [0, 0], [False, False], [0.0, 0.0])], [0.0], device)
