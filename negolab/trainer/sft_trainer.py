"""TRL's ``SFTTrainer`` with ready-made samples: the loss, optimiser, accelerate and checkpoints stay TRL's.

TRL would tokenise conversations anew and find the assistant's tokens through marks that few chat templates have; it is
given token ids and labels instead (``labels`` are used as they are, -100 counts nothing). Nothing is packed or cut, and
the batches are ours: in the order of ``sft_data.order_of``, the same after a resumption.

This module imports TRL when it is imported: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from negolab.trainer.sft_data import Sample
from negolab.trainer.sft_settings import SftSettings
from negolab.trainer.trl_common import StepTrainer, common_arguments

IGNORED = -100
"""The label of a token that does not count in the loss."""

Finished = Callable[[int, dict[str, float]], dict[str, float]]
"""Told a step and the trainer's numbers of it, gives what trackers get."""


def config_of(settings: SftSettings, folder: Path, steps: int) -> SFTConfig:
    """The settings as TRL takes them. ``folder`` is the run's."""
    return SFTConfig(
        **common_arguments(settings, folder),
        max_steps=steps,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch // settings.micro_batch,
        loss_type="nll",
        router_aux_loss_coef=0.0,  # the loss is of what was said, and nothing else
        max_length=None,
        packing=False,
        padding_free=False,
        shuffle_dataset=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def dataset_of(samples: Sequence[Sample]) -> Dataset:
    """Token ids and labels as TRL takes them."""
    labels = [np.where(sample.own, sample.ids, IGNORED) for sample in samples]
    return Dataset.from_dict({"input_ids": [sample.ids for sample in samples], "labels": labels})


class SampleTrainer(StepTrainer, SFTTrainer):
    """See the module. ``finished`` is told of every step before its checkpoint."""

    settings: SftSettings

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: SftSettings,
        folder: Path,
        samples: Sequence[Sample],
        order: Sequence[int],
        finished: Finished = lambda step, numbers: numbers,
    ) -> None:
        """``model``: of transformers or peft, in memory; ``folder``: the run's, for checkpoints; ``order``: places in
        ``samples``, ``settings.batch`` for each step."""
        args = config_of(settings, folder, len(order) // settings.batch)
        before = _router_settings(model)
        super().__init__(
            model=model,
            args=args,
            train_dataset=dataset_of(samples),
            processing_class=tokenizer,
        )
        for name, value in before.items():  # what the model's files say stays as it was
            setattr(model.config.get_text_config(), name, value)
        self.begin(settings, folder)
        # TRL's loss takes the number of items of the whole step itself, whatever the model's own loss takes.
        self.model_accepts_loss_kwargs = True
        self._finished, self._order = finished, list(order)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The whole run's order: a resumption skips what was done."""
        return self._order

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        """One micro-batch forward and backward. Returns its share of the step's loss."""
        self.updating = True
        return super().training_step(*args, **options)

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Mean loss and share of first choices over all learnt tokens of ``samples``, with the weights as they are."""
        was = self.model.training
        self.model.eval()
        rows = dataset_of(sorted(samples, key=len))
        sums = torch.zeros(3, dtype=torch.float64)
        for start in range(0, len(rows), self.settings.micro_batch):
            batch = self.data_collator(
                [rows[at] for at in range(start, min(start + self.settings.micro_batch, len(rows)))]
            )
            batch = self._prepare_inputs(batch)
            with self.compute_loss_context_manager():
                found = self.model(**batch, use_cache=False, fused_lm_head=True)
            parts = (-found.log_probs.double().sum(), found.is_top1.sum(), found.label_mask.sum())
            sums += torch.stack([part.double().cpu() for part in parts])
        self.model.train(was)
        return float(sums[0] / sums[2]), float(sums[1] / sums[2])

    # -- logging --------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called after every optimiser step, and with a summary at the end, which is not wanted."""
        found = self._metrics["train"]
        accuracy = found.get("mean_token_accuracy", [])
        kept = ("loss", "grad_norm", "learning_rate")
        numbers: dict[str, float] = {name: float(logs[name]) for name in kept if name in logs}
        numbers["accuracy"] = sum(accuracy) / len(accuracy) if accuracy else 0.0
        found.clear()
        if "grad_norm" not in logs:
            return
        made = self._finished(self.steps_done - 1, numbers)
        self.updating = False
        Trainer.log(self, dict(made))


def _router_settings(model: Any) -> dict[str, Any]:
    """What TRL changes in the configuration of a mixture of experts."""
    config = model.config.get_text_config()
    names = ("output_router_logits", "router_aux_loss_coef")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}
