"""Drawing the next token, one row per reply, so that a draw depends on its own reply only.

Each row brings a number in [0, 1) of its own (``negolab.seeds.uniform`` of the reply's seed and the token's position),
and takes the token at which the cumulative distribution, in the order of the vocabulary, passes it. Who else is in the
batch, and how many, has no influence but through rounding in the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from negolab.policies.engine import Sampling


def draw(logits: Any, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """The next token of each row and its log-probability.

    ``logits``: float tensor (rows, vocabulary); ``uniforms``: one number in [0, 1) per row, not looked at where the
    temperature is 0. Probabilities are those after temperature and before truncation; greedy ones those at temperature
    1. Raises ``ValueError`` where a row holds no number above minus infinity, or one that is not a number.
    """
    import torch

    logits = logits.float()
    best = logits.max(dim=-1)
    if not bool(torch.isfinite(best.values).all()):
        raise ValueError("the model's output is not a number")
    temperature = torch.tensor([s.temperature or 1.0 for s in sampling], dtype=torch.float64, device=logits.device)
    # The largest becomes 0 first: dividing by a tiny temperature must not give infinity.
    scaled = ((logits - best.values[:, None]).double() / temperature[:, None]).float()
    logprobs = torch.log_softmax(scaled, dim=-1)
    chosen = best.indices.clone()
    drawn = [row for row, s in enumerate(sampling) if s.temperature > 0]
    if drawn:
        at = torch.tensor(drawn, device=logits.device)
        some = logprobs if len(drawn) == len(sampling) else logprobs[at]
        chosen[at] = _inverse(_truncated(some, [sampling[row] for row in drawn]), [uniforms[row] for row in drawn])
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    tokens: list[int] = chosen.tolist()
    values: list[float] = picked.tolist()
    return tokens, values


def _inverse(logprobs: Any, uniforms: Sequence[float]) -> Any:
    """Per row the token at which the cumulative distribution passes the row's number; (rows,) of int64."""
    import torch

    probabilities = logprobs.double().exp()
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    aim = torch.tensor(uniforms, dtype=torch.float64, device=logprobs.device)[:, None] * total
    found = torch.searchsorted(cumulative, aim, right=True)
    # Rounding may put the aim at the very total: then the last token that can be drawn at all.
    last = (probabilities > 0).long() * torch.arange(1, probabilities.shape[1] + 1, device=logprobs.device)
    return torch.minimum(found, last.max(dim=-1, keepdim=True).values - 1)[:, 0]


def _truncated(logprobs: Any, sampling: Sequence[Sampling]) -> Any:
    """Log-probabilities with what top-k and then top-p cut off at minus infinity, not renormalised."""
    import torch

    size = logprobs.shape[-1]
    if all(s.top_k in (0, size) and s.top_p >= 1 for s in sampling):
        return logprobs
    # A stable sort, so that of equal tokens the first in the vocabulary stay.
    values, order = logprobs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(size, device=logprobs.device)[None]
    top_k = torch.tensor([s.top_k or size for s in sampling], device=logprobs.device)[:, None]
    values = values.masked_fill(rank >= top_k, float("-inf"))
    probabilities = values.double().softmax(dim=-1)
    top_p = torch.tensor([s.top_p for s in sampling], dtype=torch.float64, device=logprobs.device)[:, None]
    # Kept: as many of the likeliest as reach top_p together, the one that reaches it included.
    before = probabilities.cumsum(dim=-1) - probabilities
    values = values.masked_fill((before >= top_p) & (top_p < 1) & (rank > 0), float("-inf"))
    return torch.empty_like(values).scatter_(1, order, values)
