"""Muon for small matrices on a CPU: momentum whose update is made orthogonal (Jordan and others, 2024).

``torch.optim.Muon`` does the same in bfloat16, which CPUs emulate: it takes as long as the model's forward and backward
pass together, this a tenth of that. Matrices of one shape go through the iteration together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration, as published."""


def muon(matrices: Iterable[Any], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> Any:
    """A torch optimiser for two-dimensional weights (rows, columns); every one must have a gradient at each step."""
    import torch

    class Muon(torch.optim.Optimizer):
        """See ``muon``."""

        def __init__(self) -> None:
            super().__init__(list(matrices), {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            """One update."""
            for group in self.param_groups:
                shapes: dict[tuple[int, int], list[Any]] = {}
                for weight in group["params"]:
                    shapes.setdefault(tuple(weight.shape), []).append(weight)
                for weights in shapes.values():
                    updates = []
                    for weight in weights:
                        held = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                        held.lerp_(weight.grad, 1 - momentum)
                        updates.append(weight.grad.lerp(held, momentum))
                    scale = max(1.0, weights[0].shape[0] / weights[0].shape[1]) ** 0.5
                    for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                        weight.mul_(1 - group["lr"] * weight_decay).add_(update, alpha=-group["lr"] * scale)

    return Muon()


def orthogonal(matrices: Any, steps: int = 5) -> Any:
    """Nearly the orthogonal factors of ``matrices`` (n, rows, columns): singular values come close to 1."""
    a, b, c = _COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.transpose(1, 2)
