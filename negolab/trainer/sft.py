"""A run of supervised fine-tuning, from its settings to a model that plays: read, choose, learn, save, go on.

Everything that can be checked is checked before weights are read, and everything else before the run folder appears. On
a processor a run that was stopped and resumed writes the same ``metrics.csv`` and the same weights as one that was not.

``OUT/model`` is always a whole model: ``--seller transformers:OUT/model`` plays it, and ``negolab train`` goes on from
it. With an adapter its weights hold the adapter, and ``OUT/adapter`` the adapter alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.errors import NegolabError
from negolab.policies.fingerprint import fingerprint
from negolab.policies.spec import TransformersSpec, located
from negolab.trainer import checkpoints, records
from negolab.trainer.loop import _PACKAGES, MODEL, Say, _check_packages, _interrupts, _load
from negolab.trainer.sft_data import SftData, build, order_of
from negolab.trainer.sft_settings import SftSettings

if TYPE_CHECKING:
    from negolab.trainer.sft_trainer import SampleTrainer

ADAPTER = "adapter"
"""The adapter's folder within the run's, where one is trained."""
COLUMNS = ("step", "epoch", "loss", "accuracy", "grad_norm", "learning_rate", "samples", "tokens", "learnt_tokens")
"""Of ``metrics.csv``. ``loss``: mean over the step's learnt tokens, in nats; ``accuracy``: share of them that were the
model's first choice, averaged over micro-batches."""
HELD_OUT = ("step", "loss", "accuracy", "samples", "learnt_tokens")
"""Of ``eval.csv``: the weights after ``step`` steps on held-out products."""
TIMES = ("step", "seconds", "tokens_per_second")


@dataclass(frozen=True, slots=True)
class Tuned:
    """A run that is over."""

    folder: Path
    steps: int
    steps_now: int
    """Steps of this start."""
    seconds: float
    """Of these steps, evaluations and checkpoints included."""
    first_loss: float | None
    last_loss: float | None
    """Mean losses of the first and the last tenth of this start's steps, in nats per learnt token."""


def tune(settings: SftSettings, out: str | Path, *, say: Say | None = None, progress: bool | None = None) -> Tuned:
    """Run or resume a run of supervised fine-tuning in ``out``.

    ``say`` gets lines for the user, the data's statistics first; ``progress``: show a bar, None: only on a terminal.
    Raises ``NegolabError`` for whatever its user can mend, ``KeyboardInterrupt`` when interrupted, after a checkpoint
    of the last whole step.
    """
    folder, say = Path(out), say or (lambda line: None)
    if not settings.model:
        raise NegolabError("model names nothing to train; give --model: a folder with a model, or a name on the hub")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise NegolabError("negolab sft runs in one process; start it without accelerate or torchrun")
    _check_packages(settings.lora is not None)
    records.check_place(folder)
    settings = replace(settings, model=located(settings.model))
    data = read(settings)
    for line in data.lines():
        say(line)
    steps = steps_of(settings, len(data.train))
    order = order_of(data.train, settings.batch, steps, settings.seed)
    model, tokenizer, adapter = _load(settings, say)  # type: ignore[arg-type]
    run = _Run(settings, folder, data, order, model, tokenizer, adapter, say, progress)
    with records.locked(folder):
        return run.go()


def read(settings: SftSettings) -> SftData:
    """What would be learnt from: needs the model's tokenizer and configuration, not its weights.

    Raises ``NegolabError`` for the first thing that is wrong.
    """
    from negolab.policies.chat_template import ChatFormat, load_tokenizer
    from negolab.policies.hf_model import context_of, load_config

    spec = TransformersSpec(model=located(settings.model), revision=settings.revision)
    context = context_of(load_config(spec))
    if settings.max_length is not None and settings.max_length > context:
        raise NegolabError(f"max_length is {settings.max_length:,}; the model's context is {context:,}")
    return build(settings, ChatFormat(load_tokenizer(spec.model, spec.revision), settings.thinking), context)


def steps_of(settings: SftSettings, samples: int) -> int:
    """Optimiser steps of a run. Raises ``NegolabError`` where warm-up would be longer."""
    steps = settings.steps or max(1, int(settings.epochs * samples / settings.batch + 1e-9))
    if settings.warmup_steps > steps:
        raise NegolabError(f"warmup_steps {settings.warmup_steps} is above the {steps} steps that there are")
    return steps


class _Run:
    """One start of a run."""

    def __init__(
        self,
        settings: SftSettings,
        folder: Path,
        data: SftData,
        order: Sequence[int],
        model: Any,
        tokenizer: Any,
        adapter: dict[str, Any],
        say: Say,
        progress: bool | None,
    ) -> None:
        self.settings, self.folder, self.data, self.order = settings, folder, data, order
        self.model, self.tokenizer = model, tokenizer
        self.say, self.progress = say, progress
        self.steps = len(order) // settings.batch
        self.manifest = self._manifest(adapter)
        self.metrics = records.Table(folder / records.METRICS, COLUMNS)
        self.timings = records.Table(folder / records.TIMINGS, TIMES)
        self.held_out = records.Table(folder / records.EVALUATIONS, HELD_OUT)
        self.losses: list[float] = []
        self.began = self.stepped = time.perf_counter()
        self.bar: Any = None
        self.trainer: SampleTrainer

    def _manifest(self, adapter: dict[str, Any]) -> dict[str, Any]:
        settings = self.settings.to_json()
        base = fingerprint(self.settings.model, str(getattr(self.model.config, "_commit_hash", None) or ""))
        settings["model"] = base["model"]
        for name in ("runs", "data"):  # paths; what they hold is in the data's own description
            del settings[name]
        names = [*_PACKAGES, *(["peft"] if self.settings.lora is not None else [])]
        more = {
            "base": base,
            "steps": self.steps,
            "trained_parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "adapter": adapter,
            "dtype": str(next(self.model.parameters()).dtype).removeprefix("torch."),
            "versions": {name: importlib.metadata.version(name) for name in names},
        }
        return records.new_manifest(settings, {"name": "sft", **self.data.manifest()}, more)

    def go(self) -> Tuned:
        """See ``tune``."""
        from negolab.trainer.sft_trainer import SampleTrainer

        folder, steps = self.folder, self.steps
        for line in records.open_manifest(folder, self.manifest):
            self.say(line)
        done, path = checkpoints.newest(folder) or (0, None)
        if done >= steps and self._kept():
            self.say(f"{folder} is complete: {steps} steps")
            return self._tuned()
        self.metrics.cut(done)
        self.timings.cut(done)
        self.held_out.cut(done + (done > 0))  # measured after ``done`` steps, before their checkpoint
        made = SampleTrainer(
            self.model, self.tokenizer, self.settings, folder, self.data.train, self.order, self._after
        )
        self.trainer = made
        if done:
            self.say(f"going on after step {done} of {steps}")
        self.began = time.perf_counter()
        with self._bar(done), _interrupts(made) as caught:
            try:
                if not done:
                    self._measure(0)
                if done < steps:
                    made.train(resume_from_checkpoint=None if path is None else str(path))
                else:
                    made._load_from_checkpoint(str(path))
            except KeyboardInterrupt:
                self._save_interrupted()
                raise
            if caught:
                caught[0]()
            self._keep_model()
        return self._tuned()

    def _tuned(self) -> Tuned:
        part = max(1, len(self.losses) // 10)
        first, last = self.losses[:part], self.losses[-part:]
        return Tuned(
            self.folder,
            self.steps,
            len(self.losses),
            time.perf_counter() - self.began,
            sum(first) / part if first else None,
            sum(last) / part if last else None,
        )

    def _kept(self) -> bool:
        whole = not self.settings.merge and self.settings.lora is not None
        name = Path(ADAPTER) / "adapter_config.json" if whole else Path(MODEL) / "config.json"
        return (self.folder / name).is_file()

    def _save_interrupted(self) -> None:
        trainer = self.trainer
        if trainer.updating or trainer.optimizer is None or trainer.steps_done in checkpoints.complete(self.folder):
            return
        if trainer.steps_done > 0:
            trainer.save_now()

    def _after(self, step: int, numbers: dict[str, float]) -> dict[str, float]:
        """The step is over: write it down."""
        batch = self.settings.batch
        samples = [self.data.train[at] for at in self.order[step * batch : (step + 1) * batch]]
        row: dict[str, Any] = {
            "step": step,
            "epoch": (step + 1) * batch / len(self.data.train),
            "samples": batch,
            "tokens": sum(map(len, samples)),
            "learnt_tokens": sum(int(sample.own.sum()) for sample in samples),
            **numbers,
        }
        self.metrics.append([row])
        self.losses.append(row["loss"])
        now = time.perf_counter()
        seconds = now - self.stepped
        self.timings.append(
            [{"step": step, "seconds": round(seconds, 3), "tokens_per_second": round(row["tokens"] / seconds)}]
        )
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {row['loss']:.4f}", False)
            self.bar.update()
        every = self.settings.eval_every
        if every and ((step + 1) % every == 0 or step + 1 == self.steps):
            row |= {f"held_out/{name}": value for name, value in self._measure(step + 1).items()}
        self.stepped = time.perf_counter()
        return {name: float(value) for name, value in row.items()}

    def _measure(self, step: int) -> dict[str, float]:
        """The weights after ``step`` steps on what is held out."""
        self.stepped = time.perf_counter()
        if not self.data.held_out or not self.settings.eval_every:
            return {}
        loss, accuracy = self.trainer.measure(self.data.held_out)
        learnt = sum(int(sample.own.sum()) for sample in self.data.held_out)
        row = {"step": step, "loss": loss, "accuracy": accuracy, "samples": len(self.data.held_out)}
        self.held_out.cut(step)
        self.held_out.append([{**row, "learnt_tokens": learnt}])
        return {"loss": loss, "accuracy": accuracy}

    def _keep_model(self) -> None:
        """The trained model as a folder that players can be made of, and its adapter as another."""
        from negolab.policies.hf_model import quiet
        from negolab.trainer import lora

        model = self.model
        if self.settings.lora is not None:
            lora.save(model, self.folder / ADAPTER)
            if not self.settings.merge:
                return
            with quiet():
                model = model.merge_and_unload()
        place, half = self.folder / MODEL, self.folder / (MODEL + ".saving")
        shutil.rmtree(half, ignore_errors=True)
        with quiet():
            model.save_pretrained(half)
            self.tokenizer.save_pretrained(half)
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)

    @contextmanager
    def _bar(self, done: int) -> Iterator[None]:
        from tqdm import tqdm

        self.stepped = time.perf_counter()
        disable = None if self.progress is None else not self.progress
        with tqdm(total=self.steps, initial=done, unit="step", disable=disable) as self.bar:
            yield
