"""TRL's ``GRPOTrainer`` fed with ready-made rows: the loss, optimiser, accelerate and checkpoints stay TRL's.

TRL generates one completion for each prompt and cuts it out of a conversation by itself; a negotiation has several
replies, other speakers, and sometimes several rows. So the one place where TRL makes its batch is replaced, and with it
how the batch is cut up: micro-batches hold rows of similar length and are bounded by tokens, whatever their number.

Old log-probabilities are those that the sampler drew the tokens with: no second forward pass, and how far the trainer's
own lie from them is measured in the first sub-step, where the weights are the same.

The paper's CISPO bounds the ratio on both sides (section 9.2, table 5: 0.8 and 6.0); TRL has the upper bound only. The
lower one is put in by moving the old log-probability of a token whose ratio is below it, which has no gradient.

This module imports TRL when it is imported: import it inside functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils

from negolab.errors import NegolabError
from negolab.trainer.batches import SubStep, inert, packed, tensors_of
from negolab.trainer.settings import TrainSettings
from negolab.trainer.trl_common import StepTrainer, common_arguments

Source = Callable[[int], list[SubStep]]
"""Told a step, gives its sub-steps."""
Finished = Callable[[int, dict[str, float]], dict[str, float]]
"""Told a step and the trainer's numbers of it, gives what trackers get."""


def config_of(settings: TrainSettings, folder: Path) -> GRPOConfig:
    """The settings as TRL takes them. ``folder`` is the run's."""
    # TRL states bounds as distances from 1, except CISPO's upper one.
    high = settings.clip_high if settings.loss == "cispo" else settings.clip_high - 1.0
    return GRPOConfig(
        **common_arguments(settings, folder) | {"warmup_steps": settings.warmup_steps * settings.sub_steps},
        max_steps=settings.steps * settings.sub_steps,
        # These three only satisfy TRL's arithmetic: batches are cut by ``batches.packed``.
        per_device_train_batch_size=2,
        num_generations=2,
        steps_per_generation=settings.sub_steps,
        gradient_accumulation_steps=1,
        loss_type=settings.loss,
        epsilon=min(1.0, max(0.0, 1.0 - settings.clip_low)),
        epsilon_high=high,
        importance_sampling_level="token",
        beta=0.0,
        scale_rewards="none",
        temperature=settings.temperature,
        mask_truncated_completions=False,
        ignore_data_skip=True,
        remove_unused_columns=False,
    )


class _Watched(NamedTuple):
    """Sums over the trained tokens of one micro-batch, as a tensor each."""

    sums: torch.Tensor
    """Tokens, ratio, entropy, k3 divergence, below the lower bound, above the upper one, |trainer - sampler|."""
    extremes: torch.Tensor
    """Largest ratio, largest of minus the ratio, largest |trainer - sampler|."""
    first: bool
    """Of the first sub-step."""


class RowTrainer(StepTrainer, GRPOTrainer):
    """See the module. ``source`` is asked once a step; ``finished`` is told of every step before its checkpoint."""

    settings: TrainSettings

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: TrainSettings,
        folder: Path,
        source: Source,
        finished: Finished = lambda step, numbers: numbers,
    ) -> None:
        """``model``: of transformers or peft, in memory; ``folder``: the run's, for checkpoints."""
        _without_dropout(model)
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=config_of(settings, folder),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=tokenizer,
        )
        self.begin(settings, folder)
        self.per_step = settings.sub_steps
        self.seconds |= {"loss": 0.0, "optimiser": 0.0}
        """``loss`` and ``optimiser``: since a step began."""
        self._buffered_inputs: Any = None
        self._source, self._finished = source, finished
        self._scored: dict[str, Any] | None = None
        self._watched: list[_Watched] = []
        self._updates: list[dict[str, float]] = []
        self._loss_ended = 0.0

    # -- where TRL makes its batch --------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Nothing but a count of optimiser steps: the data come from ``source``."""
        return DataLoader(range(self.args.max_steps), batch_size=1, collate_fn=list)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: it would be of the dataloader's numbers."""
        return 0

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        at = self.state.global_step % self.settings.sub_steps
        if at == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._generate_and_score_completions(generation_batch)
        return self._buffered_inputs[at]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """The micro-batches of each sub-step, on the processor; see ``_on_device``."""
        self.seconds |= {"loss": 0.0, "optimiser": 0.0}
        parts = self._source(self.steps_done)
        if self.settings.loss == "grpo":
            for part in parts:
                _check_one_row_each(part)
        return [self._micro_batches(part) for part in parts]

    def _micro_batches(self, part: SubStep) -> list[dict[str, Any]]:
        """What one sub-step computes: rows with an advantage, in micro-batches, as many on every process."""
        taught = [at for at, advantage in enumerate(part.advantages) if advantage != 0]
        packs = packed([len(part.rows[at]) for at in taught], self.settings.micro_batch_tokens)
        made = []
        for pack in packs:
            places = [taught[at] for at in pack]
            rows, advantages = [part.rows[at] for at in places], [part.advantages[at] for at in places]
            made.append(tensors_of(rows, advantages, "cpu", int(self._tokenizer.pad_token_id or 0)))
        world = self.accelerator.num_processes
        mine = torch.tensor([[len(made), part.trained, len(part.rows)]], device=self.accelerator.device)
        everybody = self.accelerator.gather(mine)
        most, trained, rows_in_all = int(everybody[:, 0].max()), int(everybody[:, 1].sum()), int(everybody[:, 2].sum())
        made += [inert("cpu") for _ in range(max(most, 1) - len(made))]
        for batch in made:
            # TRL divides by this, over the number of sub-steps: it thinks of the whole generation batch.
            batch["num_items_in_batch"] = torch.tensor(trained * self.args.steps_per_generation)
            batch["share"] = len(batch["advantages"]) * world / max(rows_in_all, 1)
        return made

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One sub-step: forward and backward for each micro-batch. Returns the loss."""
        micro_batches = self._prepare_inputs(inputs)
        started = time.perf_counter()
        self.updating = True
        model.train()
        total = torch.zeros((), device=self.accelerator.device)
        for at, batch in enumerate(micro_batches):
            last = at == len(micro_batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(model):
                batch = {k: v.to(total.device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, batch)
                if self.loss_type == "grpo":  # TRL's is the mean over the rows of a micro-batch
                    loss = loss * batch["share"]
                self.accelerator.backward(loss)
            total += loss.detach()
        self._step += 1
        self._loss_ended = time.perf_counter()
        self.seconds["loss"] += self._loss_ended - started
        return total

    # -- what TRL's loss lacks ------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self._scored = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._scored = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **options: Any
    ) -> Any:
        scored = self._scored
        if scored is None or options.get("compute_aux_loss"):
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **options
            )
        else:
            # As TRL does it, but for own tokens only: the others' log-probabilities would be thrown away, and with
            # a large vocabulary they are half of all the work.
            labels = input_ids.clone()
            labels[:, -logits_to_keep:].masked_fill_(scored["tool_mask"] == 0, -100)
            labels[:, :-logits_to_keep] = -100
            with self.accelerator.autocast(), _labelled_only():
                outputs = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
            found = outputs.log_probs[:, -logits_to_keep:], outputs.entropy[:, -logits_to_keep:], None
        if scored is not None:
            self._watch(scored, found[0].detach(), found[1].detach())
        return found

    @torch.no_grad()
    def _watch(self, inputs: dict[str, Any], logps: torch.Tensor, entropies: torch.Tensor) -> None:
        """Note how far the policy has moved, and bound the ratio from below where the loss is CISPO."""
        settings, own = self.settings, inputs["tool_mask"].bool()
        old = inputs["old_per_token_logps"]
        gap = torch.where(own, logps - old, 0.0)
        ratio = gap.exp()
        low, high = ratio < settings.clip_low, ratio > settings.clip_high
        if settings.loss == "cispo":
            moved = logps - torch.log(torch.tensor(settings.clip_low, device=logps.device).clamp(min=1e-30))
            inputs["old_per_token_logps"] = torch.where(low & own, moved, old)
        else:  # there a bound only acts on the side to which the advantage pulls
            pull = inputs["advantages"][:, None]
            low, high = low & (pull < 0), high & (pull > 0)
        each = (torch.ones_like(gap), ratio, entropies, ratio - 1 - gap, low, high, gap.abs())
        sums = torch.stack([torch.where(own, value.double(), 0.0).sum() for value in each])
        extremes = torch.stack(
            [torch.where(own, value, -torch.inf).max() for value in (ratio, -ratio, gap.abs())]
        ).double()
        self._watched.append(_Watched(sums, extremes, not self._updates))

    def _numbers(self) -> dict[str, float]:
        """The trainer's numbers of the step that has just ended, over all processes."""
        watched, self._watched = self._watched, []
        updates, self._updates = self._updates, []
        sums = torch.stack([w.sums for w in watched]).sum(0)
        begun = torch.stack([w.sums for w in watched if w.first]).sum(0)
        most = torch.stack([w.extremes for w in watched]).max(0).values
        at_first = torch.stack([w.extremes for w in watched if w.first]).max(0).values
        sums, begun = self.accelerator.reduce(torch.stack([sums, begun]))
        extremes = self.accelerator.gather(torch.stack([most[0], most[1], at_first[2]])[None]).max(0).values
        n, first_n = max(float(sums[0]), 1.0), max(float(begun[0]), 1.0)
        seen = float(sums[0]) > 0
        return {
            "loss": sum(update["loss"] for update in updates) / len(updates),
            "grad_norm": sum(update["grad_norm"] for update in updates) / len(updates),
            "grad_norm_max": max(update["grad_norm"] for update in updates),
            "learning_rate": updates[-1]["learning_rate"],
            "entropy": float(sums[2]) / n,
            "ratio_mean": float(sums[1]) / n if seen else 1.0,
            "ratio_min": -float(extremes[1]) if seen else 1.0,
            "ratio_max": float(extremes[0]) if seen else 1.0,
            "kl_sampler": float(sums[3]) / n,
            "clip_low_fraction": float(sums[4]) / n,
            "clip_high_fraction": float(sums[5]) / n,
            "mismatch_mean": float(begun[6]) / first_n,
            # The first sub-step alone may have nothing to learn from.
            "mismatch_max": float(extremes[2]) if float(begun[0]) > 0 else 0.0,
        }

    # -- logging ---------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL calls this after every optimiser step; trackers get one entry for each whole step."""
        self._metrics["train"].clear()
        if "grad_norm" not in logs:
            return
        self.seconds["optimiser"] += time.perf_counter() - self._loss_ended
        self._updates.append({name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate")})
        if len(self._updates) == self.settings.sub_steps:
            numbers = self._finished(self.steps_done - 1, self._numbers())
            self.updating = False
            self.seconds["save"] = 0.0
            Trainer.log(self, dict(numbers))


def _without_dropout(model: Any) -> None:
    """Switch the model's own dropout off: replies are sampled without it, and their ratios would be noise. What
    ``lora.dropout`` asks for stays."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and "lora_dropout" not in name:
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):  # as Llama and its like keep it
            module.attention_dropout = 0.0


@contextmanager
def _labelled_only() -> Iterator[None]:
    """TRL computes the logits of labelled positions only where it has kernels for GPUs, and of all positions elsewhere
    (for devices that compile each shape). A processor gains as much as a GPU does."""
    usual = getattr(utils, "_use_triton", None)
    if usual is None:  # another version of TRL: slower, the same numbers
        yield
        return
    utils._use_triton = lambda device: True
    try:
        yield
    finally:
        utils._use_triton = usual


def _no_reward(**given: Any) -> list[float]:
    """Rewards come with the episodes; TRL only wants to have a function for them."""
    raise NotImplementedError


def _check_one_row_each(part: SubStep) -> None:
    seen: set[int] = set()
    for row in part.rows:
        if row.episode in seen:
            raise NegolabError(
                f"loss grpo averages within each row, but episode {row.episode} of the batch makes several: the chat "
                "template rewrites earlier turns; use loss cispo or dapo"
            )
        seen.add(row.episode)


def as_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row of ``metrics.csv`` trackers can draw."""
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
