"""The sides of ``training.py`` that compute a batch's loss and gradient, and whether they agree.

TRL's side is all TRL: it makes its batch of the same replies through ``rollout_func``, and its loss is its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from negolab.errors import NegolabError
from negolab.trainer.settings import TrainSettings

AGREE = 1e-4
"""Largest difference between two sides' gradients, as a share of the largest entry: float32 in another order of sums
stays far below it."""


class Batch(NamedTuple):
    """One step's episodes as training sees them."""

    step: int
    """Whose markets they are."""
    parts: list[Any]
    """Sub-steps, see ``trainer.batches``."""
    rewards: list[float]
    """By episode."""


class Ours:
    """The package's own trainer over the batch; ``whole``: with TRL's scoring of every token; ``every_row``: also of
    rows without an advantage."""

    def __init__(
        self, model: Any, tokenizer: Any, settings: TrainSettings, folder: Path, parts: Any, *, whole: bool = False,
        every_row: bool = False,
    ) -> None:  # fmt: skip
        from trl import GRPOTrainer

        from negolab.trainer.batches import SubStep
        from negolab.trainer.grpo import RowTrainer

        class Whole(RowTrainer):
            def _get_per_token_logps_and_entropies(self, *given: Any, **options: Any) -> Any:
                return GRPOTrainer._get_per_token_logps_and_entropies(self, *given, **options)

        if every_row:  # not 0 here, so not left out, but 0 in float32
            parts = [SubStep(part.rows, [advantage or 1e-300 for advantage in part.advantages]) for part in parts]
        self._trainer = (Whole if whole else RowTrainer)(model, tokenizer, settings, folder, lambda step: parts)
        self._trainer.current_gradient_accumulation_steps = 1
        self._sub_steps = len(parts)
        micro = [batch for part in parts for batch in self._trainer._micro_batches(part)]
        self.rows = sum(len(batch["advantages"]) for batch in micro)
        self.micro_batches = len(micro)
        self.positions = sum(1 + batch["completion_ids"].shape[1] for batch in micro for _ in batch["advantages"])
        self.tokens = sum(len(row) for part in parts for row, a in zip(part.rows, part.advantages, strict=True) if a)

    def run(self, note: Callable[[float], object] = lambda loss: None) -> None:
        """Every sub-step's loss and gradient; ``note`` is told of each while the gradient is there."""
        trainer = self._trainer
        for at in range(self._sub_steps):
            trainer.state.global_step = at
            trainer.model.zero_grad()
            note(float(trainer.training_step(trainer.model, [])))
        trainer._watched.clear()


class Theirs:
    """TRL's own trainer, its own batches, its own loss; a generation batch for each sub-step."""

    def __init__(
        self, model: Any, tokenizer: Any, settings: TrainSettings, folder: Path, batch: Batch, rows: int
    ) -> None:
        """``rows``: in a micro-batch; the nearest number is taken that divides a sub-step's."""
        from trl.trainer.utils import split_tensor_dict

        self._model = model
        self._made: list[tuple[Any, list[Any]]] = []
        self.rows = self.micro_batches = self.positions = self.tokens = 0
        for part in batch.parts:
            n = len(part.rows)
            each = min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: (abs(d - rows), d))
            trainer = _trl(model, tokenizer, settings, folder, part, batch.rewards, each)
            made = trainer._generate_and_score_completions(
                [{"prompt": f"market {at // settings.group_size}"} for at in range(n)]
            )
            # TRL would take the trainer's own of before the step. The sampler's, as on our side.
            made["old_per_token_logps"] = made.pop("sampling_per_token_logps")
            self._made.append((trainer, split_tensor_dict(made, n // each)))
            masks = made["prompt_mask"], made["completion_mask"]
            self.rows += n
            self.micro_batches += n // each
            self.positions += sum(mask.numel() for mask in masks)
            self.tokens += sum(int(mask.sum()) for mask in masks)
        self.each = each

    def run(self, note: Callable[[float], object] = lambda loss: None) -> None:
        """See ``Ours.run``."""
        self._model.train()
        for trainer, micro in self._made:
            self._model.zero_grad()
            total = 0.0
            for inputs in micro:
                with trainer.compute_loss_context_manager():
                    loss = trainer.compute_loss(self._model, inputs)
                trainer.accelerator.backward(loss)
                total += float(loss.detach())
            note(total)
            trainer._metrics["train"].clear()


def _trl(
    model: Any, tokenizer: Any, settings: TrainSettings, folder: Path, part: Any, rewards: Sequence[float], each: int
) -> Any:
    """A ``GRPOTrainer`` as TRL's documentation sets one up for replies that were made elsewhere."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        first = [row.own.index(True) for row in part.rows]
        cut = list(zip(part.rows, first, strict=True))
        return {
            "prompt_ids": [row.ids[:at] for row, at in cut],
            "completion_ids": [row.ids[at:] for row, at in cut],
            "logprobs": [row.logprobs[at:] for row, at in cut],
            "env_mask": [[int(own) for own in row.own[at:]] for row, at in cut],
            "paid": [rewards[row.episode] for row in part.rows],
        }

    def reward(paid: list[float], **rest: Any) -> list[float]:
        return paid

    steps = len(part.rows) // each
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=each,
        gradient_accumulation_steps=steps,
        num_generations=settings.group_size,
        loss_type=settings.loss,
        epsilon=min(1.0, max(0.0, 1.0 - settings.clip_low)),
        epsilon_high=settings.clip_high if settings.loss == "cispo" else settings.clip_high - 1.0,
        beta=0.0,
        scale_rewards="group" if settings.scale_by_std else "none",
        temperature=settings.temperature,
        activation_checkpointing=settings.gradient_checkpointing,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func")
        made = GRPOTrainer(
            model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=tokenizer,
            rollout_func=rollout,
        )
    made.current_gradient_accumulation_steps = steps
    return made


def difference(first: Any, second: Any, model: Any) -> dict[str, float]:
    """How far two sides' losses and gradients are apart at most, the latter as a share of the largest entry; ``of`` is
    the largest loss. Raises ``NegolabError`` beyond ``AGREE``."""
    import torch

    found: list[list[tuple[float, Any]]] = []
    for side in (first, second):
        seen: list[tuple[float, Any]] = []

        def note(loss: float, seen: list[tuple[float, Any]] = seen) -> None:
            seen.append((loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).clone()))

        side.run(note)
        found.append(seen)
    pairs = list(zip(*found, strict=True))
    largest = max(float(mine.abs().max()) for (_, mine), _ in pairs)  # a sub-step may have nothing to learn
    of = max(abs(loss) for (loss, _), _ in pairs)
    losses = [abs(one - two) for (one, _), (two, _) in pairs]
    gradients = [float((one - two).abs().max()) / largest for (_, one), (_, two) in pairs]
    if not all(value <= AGREE for value in [*losses, *gradients]):  # true of what is not a number, too
        raise NegolabError(
            f"the sides compute different things: losses {losses}, of up to {of:.3g}, and gradients {gradients}, as "
            f"shares of the largest entry, are apart; allowed: {AGREE:.0e}"
        )
    return {"of": of, "loss": max(losses), "gradient": max(gradients)}
