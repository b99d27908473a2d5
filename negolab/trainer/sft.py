"""A run of supervised fine-tuning, from its settings to a model that plays: read, choose, learn, save, go on.

Everything that can be checked is checked before weights are read, and everything else before the run folder appears. On
a processor a run that was stopped and resumed writes the same ``metrics.csv`` and the same weights as one that was not.

``OUT/model`` is always a whole model: ``--seller transformers:OUT/model`` plays it, and ``negolab train`` goes on from
it. With an adapter its weights hold the adapter, and ``OUT/adapter`` the adapter alone.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from negolab.errors import NegolabError
from negolab.pocket.words import SPOKEN
from negolab.policies.fingerprint import fingerprint
from negolab.policies.spec import TransformersSpec
from negolab.trainer import checkpoints, records
from negolab.trainer.interrupts import interrupts
from negolab.trainer.preparation import Say, check_packages, described, load_model, settled
from negolab.trainer.progress import counted
from negolab.trainer.sft_data import SftData, build, order_of, sources_of
from negolab.trainer.sft_settings import SftSettings
from negolab.trainer.start import MODEL, Start

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

    ``say`` gets lines for the user, the data's statistics first; ``progress``: show it, None: as
    ``progress.Progress`` finds right.
    Raises ``NegolabError`` for whatever its user can mend, ``KeyboardInterrupt`` when interrupted, after a checkpoint
    of the last whole step.
    """
    folder, say = Path(out), say or (lambda line: None)
    if not settings.model:
        raise NegolabError("model names nothing to train; give --model: a folder with a model, or a name on the hub")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise NegolabError("negolab sft runs in one process; start it without accelerate or torchrun")
    given, settings = settings, _settled(settings)
    records.check_place(folder)
    steps = _finished(settings, folder)
    if steps is not None:
        say(f"{folder} is complete: {counted(steps, 'step')}")
        return Tuned(folder, steps, 0, 0.0, None, None)
    check_packages(settings)
    data = read(settings)
    if settings.words != given.words and settings.words == "pocket":
        say("Scripted players speak in the few words that this model knows (words: pocket).")
    for line in data.lines():
        say(line)
    steps = steps_of(settings, len(data.train))
    order = order_of(data.train, settings.batch, steps, settings.seed)
    run = _Run(settings, folder, data, order, load_model(settings, say), say, progress)
    with records.locked(folder):
        return run.go()


def read(settings: SftSettings) -> SftData:
    """What would be learnt from: needs the model's tokenizer and configuration, not its weights.

    Raises ``NegolabError`` for the first thing that is wrong.
    """
    from negolab.policies.chat_template import ChatFormat, load_tokenizer
    from negolab.policies.hf_model import context_of, load_config

    settings = _settled(settings)
    spec = TransformersSpec(model=settings.model, revision=settings.revision)
    context = context_of(load_config(spec))
    if settings.max_length is not None and settings.max_length > context:
        raise NegolabError(f"max_length is {settings.max_length:,}; the model's context is {context:,}")
    return build(settings, ChatFormat(load_tokenizer(spec.model, spec.revision), settings.thinking), context)


def _settled(settings: SftSettings) -> SftSettings:
    """With the model where it lies, and ``words`` that it can write."""
    settings = settled(settings)
    if settings.words != "auto" or not settings.weighted_regimes():
        return settings
    return replace(settings, words="pocket" if _is_pocket(Path(settings.model)) else "plain")


def _is_pocket(folder: Path) -> bool:
    """Whether most of what pocket models may say are tokens of the model in ``folder``. One on the hub, which is not
    fetched for this, is taken for none."""
    try:
        content = (folder / "tokenizer.json").read_bytes()
    except OSError:
        return False
    phrases = [json.dumps(phrase, ensure_ascii=False).encode() for phrase in SPOKEN]
    return sum(phrase in content for phrase in phrases) > len(phrases) / 2


def steps_of(settings: SftSettings, samples: int) -> int:
    """Optimiser steps of a run. Raises ``NegolabError`` where warm-up would be longer."""
    steps = settings.steps or max(1, int(settings.epochs * samples / settings.batch + 1e-9))
    if settings.warmup_steps > steps:
        raise NegolabError(f"warmup_steps {settings.warmup_steps} is above the run's {counted(steps, 'step')}")
    return steps


def warmed(settings: SftSettings, steps: int) -> SftSettings:
    """With the warm-up of a run of ``steps`` in steps, where it is given as a ratio; rounded up, as TRL would."""
    if not settings.warmup_ratio:
        return settings
    return replace(settings, warmup_ratio=0.0, warmup_steps=math.ceil(settings.warmup_ratio * steps - 1e-9))


def _finished(settings: SftSettings, folder: Path) -> int | None:
    """The steps of this run where ``folder`` holds all of it, as far as can be told in a second; None where it does
    not, or the whole manifest must be held against it, with data and model in memory."""
    base = fingerprint(settings.model)
    known = records.begun_as(folder, _told(settings, base), base)
    if known is None or settings.split not in records.SPLITS or not _kept(settings, folder):
        return None
    done, _ = checkpoints.newest(folder) or (0, None)
    steps = known.get("steps")
    if type(steps) is not int or done < steps:
        return None
    sources = [orjson.loads(orjson.dumps(source.facts)) for source in sources_of(settings)]
    return steps if sources == known["task"].get("sources") else None


def _told(settings: SftSettings, base: Mapping[str, str]) -> dict[str, Any]:
    """Settings as the manifest holds them."""
    plain = {**settings.to_json(), "model": base["model"]}
    if plain["words"] == "auto":  # nobody speaks
        plain["words"] = "plain"
    for name in ("runs", "data"):  # paths; what they hold is in the data's own description
        del plain[name]
    return plain


def _kept(settings: SftSettings, folder: Path) -> bool:
    """Whether what was trained was saved."""
    alone = not settings.merge and settings.lora is not None
    return (folder / (Path(ADAPTER) / "adapter_config.json" if alone else Path(MODEL) / "config.json")).is_file()


class _Run(Start):
    """One start of a run."""

    def __init__(
        self,
        settings: SftSettings,
        folder: Path,
        data: SftData,
        order: Sequence[int],
        loaded: tuple[Any, Any, dict[str, Any]],
        say: Say,
        progress: bool | None,
    ) -> None:
        """``loaded``: see ``preparation.load_model``."""
        model, tokenizer, adapter = loaded
        super().__init__(folder, len(order) // settings.batch, model, tokenizer, progress)
        self.settings, self.data, self.order, self.say = settings, data, order, say
        self.manifest = self._manifest(adapter)
        self.metrics = records.Table(folder / records.METRICS, COLUMNS)
        self.timings = records.Table(folder / records.TIMINGS, TIMES)
        self.held_out = records.Table(folder / records.EVALUATIONS, HELD_OUT)
        self.losses: list[float] = []
        self.began = self.stepped = time.perf_counter()

    def _manifest(self, adapter: dict[str, Any]) -> dict[str, Any]:
        more = {**described(self.settings, self.model, adapter), "steps": self.steps}
        return records.new_manifest(_told(self.settings, more["base"]), {"name": "sft", **self.data.manifest()}, more)

    def go(self) -> Tuned:
        """See ``tune``."""
        from negolab.trainer.sft_trainer import SampleTrainer

        folder, steps = self.folder, self.steps
        for line in records.open_manifest(folder, self.manifest):
            self.say(line)
        done, path = checkpoints.newest(folder) or (0, None)
        if done >= steps and _kept(self.settings, folder):
            self.say(f"{folder} is complete: {counted(steps, 'step')}")
            return self._tuned()
        self.metrics.cut(done)
        self.timings.cut(done)
        self.held_out.cut(done + (done > 0))  # measured after ``done`` steps, before their checkpoint
        made = SampleTrainer(
            self.model, self.tokenizer, warmed(self.settings, steps), folder, self.data.train, self.order, self._after
        )
        self.trainer = made
        if done:
            self.say(f"going on after step {done} of {steps}")
        self.began = self.stepped = time.perf_counter()
        with self.showing(done), interrupts(made) as caught:
            try:
                if not done:
                    self._measure(0)
                if done < steps:
                    made.train(resume_from_checkpoint=None if path is None else str(path))
                else:
                    made._load_from_checkpoint(str(path))
                caught.raise_caught()
            except KeyboardInterrupt:
                self.save_whole_steps()
                raise
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
        self.advance(f"loss {row['loss']:.4f}")
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
        self.tell("measuring on held-out products")
        loss, accuracy = self.trainer.measure(self.data.held_out)
        self.tell(f"held-out loss {loss:.4f}")
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
        self.keep(model.save_pretrained)
