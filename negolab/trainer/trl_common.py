"""What the two trainers on top of TRL have in common: how settings become TRL's, and checkpoints that are whole.

``transformers`` writes its checkpoint where ``checkpoints.saving`` says; a run saves at the steps that its settings
name, and when it is interrupted. This module imports transformers when it is imported: import it inside functions.
"""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from negolab.policies.hf_model import quiet
from negolab.trainer import checkpoints
from negolab.trainer.learning import LearningSettings

# Its name until transformers renamed it.
_CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in {option.name for option in fields(TrainingArguments)}
)


def common_arguments(settings: LearningSettings, folder: Path) -> dict[str, Any]:
    """What ``TrainingArguments`` takes of any training. ``folder`` is the run's. Steps are the caller's, who may count
    otherwise: ``warmup_steps`` are one optimiser step each here."""
    gpu = torch.cuda.is_available()
    schedule = settings.schedule
    if schedule == "constant" and settings.warmup_steps:
        schedule = "constant_with_warmup"
    return {
        "output_dir": str(folder),
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": schedule,
        "warmup_steps": settings.warmup_steps,
        "optim": "adamw_torch",
        "adam_beta1": settings.adam_betas[0],
        "adam_beta2": settings.adam_betas[1],
        "adam_epsilon": settings.adam_eps,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        _CHECKPOINTING: settings.gradient_checkpointing,
        "use_cpu": not gpu,
        "bf16": gpu and settings.dtype != "float32",
        "seed": settings.seed % 2**32,
        "report_to": list(settings.report_to) or "none",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
        "log_level": "error",
        "dataloader_pin_memory": False,
    }


class StepTrainer(Trainer):
    """A trainer of whole steps, each of ``per_step`` optimiser steps. Goes before TRL's class among the bases."""

    _tag_names = ("trl", "negolab")
    settings: LearningSettings
    per_step = 1
    _saving: Path | None = None

    def begin(self, settings: LearningSettings, folder: Path) -> None:
        """To be called when TRL's own ``__init__`` is over. ``folder``: the run's, for checkpoints."""
        self.remove_callback(PrinterCallback)
        self.add_callback(_Boundaries(self))
        self.settings = settings
        self.updating = False
        """A step is under way that has changed weights or begun to: they belong to no step."""
        self.stop = False
        """End after the step under way, with a checkpoint."""
        self.seconds = {"save": 0.0}
        """``save``: since the step before was written down, which its checkpoint follows."""
        self._folder = folder

    @property
    def steps_done(self) -> int:
        """Whole steps behind the weights."""
        return int(self.state.global_step) // self.per_step

    def _send_telemetry(self) -> None:
        """TRL tells its makers of every trainer; nobody here was asked."""

    def save_now(self) -> None:
        """A checkpoint of the weights as they are. Only between steps, and by all processes."""
        if self.updating:
            raise ValueError("a step is under way: the weights belong to none")
        self._save_checkpoint(self.model_wrapped, None)

    def stopped(self) -> bool:
        """Whether any process of the run is to stop, as all of them know from now on."""
        if self.accelerator.num_processes > 1:
            mine = torch.tensor([float(self.stop)], device=self.accelerator.device)
            self.stop = bool(self.accelerator.gather(mine).max() > 0)
        return self.stop

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        started = time.perf_counter()
        main, wait = self.accelerator.is_main_process, self.accelerator.wait_for_everyone
        with checkpoints.saving(self._folder, self.steps_done, main=main, wait=wait) as place:
            self._saving = place
            try:
                with quiet():
                    Trainer._save_checkpoint(self, model, trial)
            finally:
                self._saving = None
        if main:
            checkpoints.prune(self._folder, self.settings.keep_checkpoints)
        self.seconds["save"] += time.perf_counter() - started

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving or self._folder)


class _Boundaries(TrainerCallback):
    """Saves after the steps that want it, and stops there when told to."""

    def __init__(self, trainer: StepTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        """After an optimiser step."""
        trainer = self._trainer
        if state.global_step % trainer.per_step == 0:
            stop = trainer.stopped()
            control.should_training_stop |= stop
            done, last = trainer.steps_done, state.global_step == args.max_steps
            control.should_save = done % trainer.settings.save_every == 0 or last or stop
        return control
