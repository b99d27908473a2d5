"""Does what plays follow what is trained? Log-probabilities of fixed tokens by the sampler and by the trainer.

An adapter that never reaches the sampler looks like staleness for weeks: rewards stand still, nothing fails. So before
the first rollout the weights are changed on purpose and by much, the sampler must show the change, and they are put
back (``prove``); and after every step both are asked for the same tokens (``Probe.check``). On real rollouts the
trainer's own ``mismatch_mean`` and ``mismatch_max`` say the same of every sampled token, and since the loss takes the
sampler's log-probabilities for the old ones, its bounded ratio also corrects what little they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from negolab.errors import NegolabError

LIMITS = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""How far the mean of |sampler - trainer| over the tokens may be, in nats, by number format of the weights. Float32 as
measured on processors, with room; in 16 bits two libraries round differently in every layer, and with experts a token
may even be sent to others: there the limit is set to catch a wrong adapter, not a rounding."""
MESSAGES = (
    {"role": "user", "content": "You sell a lamp. List price: $34.99. Your cost: $18.75. Buyer 1 offers $9.95."},
    {"role": "assistant", "content": "Thought: Far below cost.\nTalk: I can do $30.00.\nAction: [SELL] $30.00"},
    {"role": "user", "content": "Buyer 1 now offers $21.50. Seller messages remaining: 4."},
)
"""The tokens are these messages' as the model's chat template writes them."""
_SHIFT = 0.02
"""What is added to every element of B (or of the last norm) to see whether it arrives; four times as much where that
moves hardly anything, and again."""


class Agreement(NamedTuple):
    """Sampler against trainer, over the tokens; in nats."""

    mean: float
    """Mean of |sampler - trainer|."""
    worst: float
    moved_trainer: float
    """Mean of |now - at the first check|."""
    moved_sampler: float


class Probe:
    """One run's fixed tokens, and what was said of them before."""

    def __init__(self, ids: Sequence[int], dtype: str) -> None:
        """``ids``: two tokens or more; ``dtype``: the weights' number format, by which the limit is chosen."""
        self.ids = list(ids)
        self.limit = LIMITS[dtype]
        self._first: tuple[list[float], list[float], float] | None = None

    def check(self, step: int, sampler: Sequence[float], trainer: Sequence[float]) -> Agreement:
        """Hold the log-probabilities of all tokens but the first against each other, after ``step`` steps.

        Raises ``NegolabError`` naming step and numbers where they differ by more than the limit, where one is not
        finite, and where the trainer has moved but the sampler has not moved at all.
        """
        if not all(map(math.isfinite, [*sampler, *trainer])):
            raise NegolabError(f"step {step}: a log-probability of the probe is not finite; the weights are broken")
        mean, worst = _distance(sampler, trainer)
        if self._first is None:
            self._first = (list(sampler), list(trainer), mean)
        first_sampler, first_trainer, noise = self._first
        moved_sampler, moved_trainer = _distance(sampler, first_sampler)[0], _distance(trainer, first_trainer)[0]
        found = Agreement(mean, worst, moved_trainer, moved_sampler)
        if moved_sampler == 0 and moved_trainer > max(2 * noise, 1e-5):
            raise NegolabError(
                f"step {step}: the trainer's log-probabilities have moved by {moved_trainer:.2g} on average, the "
                f"sampler's not at all: what is trained does not reach the sampler ({self._numbers(found)})"
            )
        if mean > self.limit:
            raise NegolabError(
                f"step {step}: sampler and trainer are not the same model: {self._numbers(found)}, at most "
                f"{self.limit:g} on average is allowed"
            )
        return found

    def _numbers(self, found: Agreement) -> str:
        return f"log-probabilities of {len(self.ids) - 1} tokens differ by {found.mean:.2g}, {found.worst:.2g} at most"


def _distance(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return math.fsum(gaps) / len(gaps), max(gaps)


def trainer_logprobs(model: Any, ids: Sequence[int]) -> list[float]:
    """The trainer's log-probabilities of ``ids`` from the second on, at temperature 1, without dropout. Where weights
    are spread over processes all must call this."""
    import torch

    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        with torch.no_grad():
            given = torch.tensor([list(ids)], device=device)
            logits = model(input_ids=given).logits[0, :-1].float()
            found = logits.log_softmax(-1).gather(1, given[0, 1:, None])[:, 0]
    finally:
        model.train(training)
    return [float(value) for value in found]


def prove(model: Any, probe: Probe, hand_over: Callable[[], None], ask: Callable[[], list[float]]) -> Agreement | None:
    """Change what is trained by much, hand it over, and see the sampler change alike; then put it back.

    ``hand_over`` gives the weights as they are to the sampler, ``ask`` returns its log-probabilities of the probe's
    tokens. Returns how well they agreed in the changed state; None where weights are spread by DeepSpeed, which keeps
    them out of reach. Afterwards weights and sampler are as before. Raises ``NegolabError`` where the change does not
    arrive.
    """
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return None
    base_sampler, base_trainer = ask(), trainer_logprobs(model, probe.ids)
    noise, _ = _distance(base_sampler, base_trainer)
    found = None
    for shift in (_SHIFT, 4 * _SHIFT, 16 * _SHIFT):
        with _changed(model, shift):
            hand_over()
            sampler, trainer = ask(), trainer_logprobs(model, probe.ids)
        found = Agreement(
            *_distance(sampler, trainer), _distance(trainer, base_trainer)[0], _distance(sampler, base_sampler)[0]
        )
        if found.moved_trainer > max(20 * noise, 1e-3):
            break
    hand_over()
    assert found is not None
    far = max(probe.limit, found.moved_trainer / 2)
    if found.moved_sampler < found.moved_trainer / 2 or found.mean > far:
        raise NegolabError(
            f"before the first rollout: weights changed on purpose moved the trainer's log-probabilities by "
            f"{found.moved_trainer:.2g} on average, the sampler's by {found.moved_sampler:.2g}: what is trained does "
            "not reach the sampler"
        )
    return found


@contextmanager
def _changed(model: Any, shift: float) -> Iterator[None]:
    """Trained weights that decide every token, moved by ``shift``; the very same bits afterwards."""
    import torch

    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    chosen = [p for name, p in trained if ".lora_B." in name] or [p for name, p in trained if p.dim() == 1][-1:]
    kept = [p.detach().clone() for p in chosen]
    with torch.no_grad():
        for parameter in chosen:
            parameter.add_(shift)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(chosen, kept, strict=True):
                parameter.copy_(before)
