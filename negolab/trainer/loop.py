"""A training run, from its settings to the trained model: play, learn, evaluate, save, and go on where it stopped.

Everything that can be checked is checked before torch is loaded, and everything else before the run folder appears.
On a processor a run that was stopped and resumed writes the same ``metrics.csv`` and the same weights as one that was
not: markets and replies are functions of (seed, step), and a step that had no checkpoint is cut off and played again.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.catalog import find_data, load_catalog
from negolab.errors import NegolabError
from negolab.metrics import Summary
from negolab.policies.chat_template import first_line
from negolab.policies.fingerprint import fingerprint
from negolab.policies.spec import located
from negolab.trainer import checkpoints, evaluation, records
from negolab.trainer.advantages import advantages_of
from negolab.trainer.batches import SubStep, sub_steps_of
from negolab.trainer.lora import serving_problem
from negolab.trainer.processes import Processes, together
from negolab.trainer.rows import RowStatistics, rows_of, statistics_of
from negolab.trainer.settings import TrainSettings
from negolab.trainer.task import SellerTask, Task, Weighted

if TYPE_CHECKING:
    from negolab.trainer.grpo import RowTrainer
    from negolab.trainer.sampler import Sampler

MODEL = "model"
"""The trained model's folder within the run's."""
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets")
_STATISTICS = ("equal_groups", "rows", "rows_per_episode", "fork_fraction", "trained_tokens", "row_tokens", "nll")
_NUMBERS = (
    *("loss", "grad_norm", "grad_norm_max", "learning_rate", "entropy", "ratio_mean", "ratio_min", "ratio_max"),
    *("kl_sampler", "clip_low_fraction", "clip_high_fraction", "mismatch_mean", "mismatch_max"),
)
_PROBED = ("probe_mean", "probe_max")
"""How far a sampler with weights of its own is from the trainer; see ``trainer.probe``."""
SECONDS = ("rollout", "rows", "loss", "optimiser", "evaluation", "save", "whole")
"""Of ``timings.csv``; ``save`` is the checkpoint before the step."""
Say = Callable[[str], object]


@dataclass(slots=True)
class Trained:
    """A run that is over."""

    folder: Path
    steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Sums over the steps of this start, by ``SECONDS``."""
    steps_now: int = 0
    """Steps of this start."""


def make_task(settings: TrainSettings) -> Task:
    """What is learnt, with the data it needs. Raises ``NegolabError`` for the first thing that is wrong."""
    catalog = load_catalog(find_data(settings.data))
    common: dict[str, Any] = {
        "seed": settings.seed,
        "groups": settings.groups,
        "group_size": settings.group_size,
        "buyers": settings.opponents(),
        "train_split": settings.train_split,
        "eval_split": settings.eval_split,
        "eval_products": settings.eval_products,
        "eval_per_product": settings.eval_per_product,
    }
    if settings.task == "buyer":
        made: Task = importlib.import_module("negolab.trainer.buyer_task").make_buyer_task(settings, catalog)
        return made
    if settings.task_options:
        raise NegolabError(f"task_options: the task seller knows none, not {', '.join(settings.task_options)}")
    regimes = [Weighted(chosen, weight) for chosen, weight in settings.weighted_regimes()]
    return SellerTask(catalog, regimes, **common)


def train(settings: TrainSettings, out: str | Path, *, say: Say | None = None, progress: bool | None = None) -> Trained:
    """Run or resume a training run in ``out``.

    ``say`` gets lines for the user; ``progress``: show a bar, None: only on a terminal. Raises ``NegolabError`` for
    whatever its user can mend, ``KeyboardInterrupt`` when interrupted, after a checkpoint of the last whole step.
    """
    folder, say = Path(out), say or (lambda line: None)
    if not settings.model:
        raise NegolabError("model names nothing to train; give a folder with a model, or a name on the hub")
    settings = replace(settings, model=located(settings.model))
    _check_packages(settings.lora is not None)
    check_sampler(settings)
    records.check_place(folder)
    processes = together(settings)
    if not processes.main:
        say, progress = (lambda line: None), False
    with closing(make_task(settings)) as task:
        model, tokenizer, adapter = _load(settings, say)
        run = _Run(settings, folder, task, model, tokenizer, adapter, processes, say, progress)
        with closing(run.sampler):
            for line in task.check(run.sampler.policy()):
                run.say(line)
            with records.locked(folder) if processes.main else nullcontext():
                return run.play()


def _check_packages(lora: bool) -> None:
    for name in (*_PACKAGES, *(["peft"] if lora else [])):
        if importlib.util.find_spec(name) is None:
            raise NegolabError(f"training needs the package {name}: pip install 'negolab[train]'")


def check_sampler(settings: TrainSettings) -> None:
    """Raise ``NegolabError`` for settings that the learner cannot play with. Needs neither torch nor vLLM."""
    module = "vllm_sampler" if settings.sampler == "vllm" else "sampler"
    importlib.import_module(f"negolab.trainer.{module}").learner_spec(settings)
    if settings.lora is not None:
        problem = serving_problem(settings.lora, settings.sampler)
        if problem:
            raise NegolabError(problem)


def _check_trackers(names: Sequence[str]) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise NegolabError(f"report_to names {name!r}; allowed: {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:  # what it needs is not installed
            raise NegolabError(f"report_to names {name!r}, which cannot be used: {first_line(error)}") from None


def _load(settings: TrainSettings, say: Say) -> tuple[Any, Any, dict[str, Any]]:
    """The model to train, on its device, its tokenizer, and what its adapter is made of, if it has one.

    Raises ``NegolabError`` where they cannot be read.
    """
    import torch

    from negolab.policies.chat_template import load_tokenizer
    from negolab.policies.hf_model import load_config, read_weights
    from negolab.policies.spec import TransformersSpec

    _check_trackers(settings.report_to)
    gpu = torch.cuda.is_available()
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpu and settings.lora is not None else "float32"
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu"
    spec = TransformersSpec(model=settings.model, revision=settings.revision, dtype=dtype, device=device)
    tokenizer = load_tokenizer(settings.model, settings.revision)
    model = read_weights(spec, load_config(spec))
    if settings.lora is None:
        return model, tokenizer, {}
    from negolab.trainer.lora import attach

    model, trained = attach(model, settings.lora, settings.seed % 2**32)
    for line in trained.lines():
        say(line)
    return model, tokenizer, trained.manifest()


class _Run:
    """One start of a run."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        task: Task,
        model: Any,
        tokenizer: Any,
        adapter: dict[str, Any],
        processes: Processes,
        say: Say,
        progress: bool | None,
    ) -> None:
        self.settings, self.folder, self.task, self.processes = settings, folder, task, processes
        self.model, self.tokenizer = model, tokenizer
        self.say, self.progress = say, progress
        self.sampler = self._make_sampler()  # before the manifest: it may play opponents otherwise than they would
        self.manifest = self._manifest(adapter)
        probed = _PROBED if settings.sampler == "vllm" else ()
        columns = ("step", "episodes", "reward_se", *task.metrics, *_STATISTICS, *_NUMBERS, *probed)
        self.metrics = records.Table(folder / records.METRICS, columns)
        self.timings = records.Table(folder / records.TIMINGS, ("step", *SECONDS, "sampled_tokens"))
        self.evaluations = records.Table(folder / records.EVALUATIONS, evaluation.COLUMNS)
        self.row: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.began = time.perf_counter()
        self.total = Trained(folder, settings.steps, dict.fromkeys(SECONDS, 0.0))
        self.bar: Any = None
        self.trainer: RowTrainer

    def _manifest(self, adapter: dict[str, Any]) -> dict[str, Any]:
        settings = self.settings.to_json()
        commit = str(getattr(self.model.config, "_commit_hash", None) or "")
        base = fingerprint(self.settings.model, commit)
        settings["model"] = base["model"]
        del settings["data"]  # contained in the task
        names = [*_PACKAGES, *(["peft"] if self.settings.lora is not None else [])]
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        more = {
            "base": base,
            "trained_parameters": trained,
            "adapter": adapter,
            "dtype": str(next(self.model.parameters()).dtype).removeprefix("torch."),
            "versions": {name: importlib.metadata.version(name) for name in names},
        }
        return records.new_manifest(settings, self.task.describe(), more)

    # -- the run --------------------------------------------------------------------------------------------------

    def play(self) -> Trained:
        """See ``train``."""
        from negolab.trainer.grpo import RowTrainer

        settings, folder = self.settings, self.folder
        for line in self.processes.from_main(lambda: list(records.open_manifest(folder, self.manifest))):
            self.say(line)
        found = checkpoints.newest(folder)
        done, path = found or (0, None)
        if done >= settings.steps and self._finished_before():
            self.say(f"{folder} is complete: {settings.steps} steps")
            return self.total
        self.processes.from_main(lambda: self._cut(done))
        self.trainer = RowTrainer(self.model, self.tokenizer, settings, folder, self._step, self._after)
        if done:
            self.say(f"going on after step {done} of {settings.steps}")
        with self._bar(done), _interrupts(self.trainer) as caught:
            try:
                if done < settings.steps:
                    self.trainer.train(resume_from_checkpoint=None if path is None else str(path))
                else:
                    self.trainer._load_from_checkpoint(str(path))
            except KeyboardInterrupt:
                self._save_interrupted()
                raise
            self.total.seconds["save"] += self.trainer.seconds["save"]  # the last checkpoint's
            if caught:
                caught[0]()
            self._evaluate(settings.steps)
            self._keep_model()
        return self.total

    def _make_sampler(self) -> Sampler:
        if self.settings.sampler == "vllm":
            module = importlib.import_module("negolab.trainer.vllm_sampler")
            made = module.VllmSampler(self.model, self.tokenizer, self.settings)
            for name in made.adopt(self.task.opponents):
                self.say(f"{name} is played by the learner's engine")
            found: Sampler = made
            return found
        from negolab.trainer.sampler import LiveSampler

        return LiveSampler(self.model, self.tokenizer, self.settings)

    def _finished_before(self) -> bool:
        return (self.folder / MODEL / "config.json").is_file() or (
            self.folder / MODEL / "adapter_config.json"
        ).is_file()

    def _cut(self, done: int) -> None:
        """Drop what will be played again: steps from ``done`` on, and evaluations after so many."""
        for table in (self.metrics, self.timings, self.evaluations):
            table.cut(done)
        evaluation.cut(self.folder, done)

    def _save_interrupted(self) -> None:
        trainer = self.trainer
        if trainer.updating or trainer.optimizer is None or trainer.steps_done in checkpoints.complete(self.folder):
            return
        if trainer.steps_done > 0:
            trainer.save_now()

    # -- a step ---------------------------------------------------------------------------------------------------

    def _step(self, step: int) -> list[SubStep]:
        """Play the markets of a step and make training data of them."""
        settings, task = self.settings, self.task
        self.seconds = dict.fromkeys(SECONDS, 0.0)
        self.began = time.perf_counter()
        if settings.eval_every and step % settings.eval_every == 0:
            self._evaluate(step)
        started = time.perf_counter()
        self.sampler.sync(step)
        mine = self.processes.groups(task.markets(step), settings.group_size)
        played_here = list(task.play(mine, self.sampler.policy()))
        episodes = sorted(self.processes.gathered(played_here), key=lambda e: e.scenario.episode)
        played = time.perf_counter()
        advantages = advantages_of(
            [task.reward(episode) for episode in episodes], settings.group_size, scale_by_std=settings.scale_by_std
        )
        rows = [row for at, episode in enumerate(episodes) for row in rows_of(episode, task.seat, at)]
        statistics = statistics_of(rows, episodes, task.seat)
        summary = Summary(task.metrics)
        for episode in episodes:
            summary.add(episode)
        found = summary.estimates()
        self.row = {
            "step": step,
            "episodes": len(episodes),
            "reward_se": found["reward"].se,
            **{name: estimate.mean for name, estimate in found.items()},
            **_statistics(statistics),
            "equal_groups": advantages.equal_groups,
            **getattr(self.sampler, "numbers", {}),
        }
        parts = sub_steps_of(rows, advantages.values, settings.group_size, settings.sub_steps)
        self.seconds |= {"rollout": played - started, "rows": time.perf_counter() - played}
        return [self.processes.rows(part) for part in parts]

    def _after(self, step: int, numbers: dict[str, float]) -> dict[str, float]:
        """The step is over: write it down."""
        from negolab.trainer.grpo import as_numbers

        row = {**self.row, **numbers}
        if self.processes.main:
            self.metrics.append([row])
        seconds = self.seconds | {name: self.trainer.seconds[name] for name in ("loss", "optimiser")}
        seconds["save"] = self.trainer.seconds["save"]
        seconds["whole"] = time.perf_counter() - self.began + seconds["save"]
        kept = {name: round(value, 3) for name, value in seconds.items()}
        if self.processes.main:
            self.timings.append([{"step": step, **kept, "sampled_tokens": self.row["trained_tokens"]}])
        for name, value in seconds.items():
            self.total.seconds[name] += value
        self.total.steps_now += 1
        if self.bar is not None:
            self.bar.set_postfix_str(f"reward {row['reward']:+.3f}, violations {row['violation_rate']:.3f}", False)
            self.bar.update()
        return as_numbers({**row, **{f"seconds/{name}": value for name, value in kept.items()}})

    def _evaluate(self, step: int) -> None:
        """The learner after ``step`` steps on held-out products."""
        settings = self.settings
        if not settings.eval_every:
            return
        started = time.perf_counter()
        self.sampler.sync(step)
        learner = self.sampler.policy(settings.eval_temperature)
        training, main = self.manifest["manifest_sha256"], self.processes.main
        if main:
            self.evaluations.cut(step)
        rows = evaluation.evaluate(self.task, learner, self.folder, step, training, self.processes)
        if main:
            self.evaluations.append(rows)
        self.seconds["evaluation"] = time.perf_counter() - started
        if step == settings.steps:
            self.total.seconds["evaluation"] += self.seconds["evaluation"]

    def _keep_model(self) -> None:
        """The trained model as a folder that players can be made of."""
        from negolab.policies.hf_model import quiet
        from negolab.trainer import lora

        place, half = self.folder / MODEL, self.folder / (MODEL + ".saving")
        main = self.processes.main
        with quiet():
            if self.settings.lora is not None:
                lora.save(self.model, half, write=main)
            elif main:
                shutil.rmtree(half, ignore_errors=True)
                self.model.save_pretrained(half)
            if not main:
                return
            self.tokenizer.save_pretrained(half)
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)

    @contextmanager
    def _bar(self, done: int) -> Iterator[None]:
        from tqdm import tqdm

        disable = None if self.progress is None else not self.progress
        with tqdm(total=self.settings.steps, initial=done, unit="step", disable=disable) as self.bar:
            yield


def _statistics(found: RowStatistics) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "rows_per_episode": found.rows_per_episode,
        "fork_fraction": found.fork_fraction,
        "trained_tokens": found.trained,
        "row_tokens": found.tokens,
        "nll": found.nll / found.trained if found.trained else None,
    }


@contextmanager
def _interrupts(trainer: RowTrainer) -> Iterator[list[Callable[[], object]]]:
    """The first interrupt ends the run after the step under way where its weights are being changed, at once where
    they are not; a second one ends it at once. The list then holds what raises the interrupt."""
    caught: list[Callable[[], object]] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handler(number: int, frame: Any) -> None:
        usual = before[signal.Signals(number)]
        if not callable(usual):
            raise KeyboardInterrupt
        if trainer.updating and not caught:
            trainer.stop = True
            caught.append(lambda: usual(number, frame))
            return
        usual(number, frame)

    for number, usual in before.items():
        if callable(usual):
            signal.signal(number, handler)
    try:
        yield caught
    finally:
        for number, usual in before.items():
            with suppress(ValueError, TypeError):
                signal.signal(number, usual)
