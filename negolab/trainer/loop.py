"""A training run, from its settings to the trained model: play, learn, evaluate, save, and go on where it stopped.

Everything that can be checked is checked before torch is loaded, and everything else before the run folder appears.
On a processor a run that was stopped and resumed writes the same ``metrics.csv`` and the same weights as one that was
not: markets and replies are functions of (seed, step), and a step that had no checkpoint is cut off and played again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from negolab.catalog import AUTO, SAMPLE
from negolab.errors import NegolabError
from negolab.metrics import Summary
from negolab.policies.fingerprint import fingerprint
from negolab.trainer import checkpoints, evaluation, records
from negolab.trainer.advantages import advantages_of
from negolab.trainer.batches import SubStep, sub_steps_of
from negolab.trainer.interrupts import Interrupts, interrupts
from negolab.trainer.preparation import (
    Say,
    catalog_of,
    check_packages,
    check_sampler,
    described,
    load_model,
    make_sampler,
    make_task,
    settled,
)
from negolab.trainer.processes import Elsewhere, Processes, as_known, known_to_all, together
from negolab.trainer.progress import counted
from negolab.trainer.rows import RowStatistics, rows_of, statistics_of
from negolab.trainer.settings import TrainSettings
from negolab.trainer.start import MODEL, Start
from negolab.trainer.task import Task

if TYPE_CHECKING:
    from negolab.trainer.sampler import Sampler

T = TypeVar("T")
_STATISTICS = ("equal_groups", "rows", "rows_per_episode", "fork_fraction", "trained_tokens", "row_tokens", "nll")
_NUMBERS = (
    *("loss", "grad_norm", "grad_norm_max", "learning_rate", "entropy", "ratio_mean", "ratio_min", "ratio_max"),
    *("kl_sampler", "clip_low_fraction", "clip_high_fraction", "mismatch_mean", "mismatch_max"),
)
_PROBED = ("probe_mean", "probe_max")
"""How far a sampler with weights of its own is from the trainer; see ``trainer.probe``."""
SECONDS = ("rollout", "rows", "loss", "optimiser", "evaluation", "save", "whole")
"""Of ``timings.csv``; ``save`` is the checkpoint before the step."""
# How engines that play an evaluation say what is kept of it: of a training step other things are.
_PROMISE = re.compile(r"; what was \w+ is kept, run the same command again to go on$")


@dataclass(slots=True)
class Trained:
    """A run that is over."""

    folder: Path
    steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Sums over the steps of this start, by ``SECONDS``."""
    steps_now: int = 0
    """Steps of this start."""


def train(settings: TrainSettings, out: str | Path, *, say: Say | None = None, progress: bool | None = None) -> Trained:
    """Run or resume a training run in ``out``.

    ``say`` gets lines for the user; ``progress``: show it, None: as ``progress.Progress`` finds right. Raises
    ``NegolabError`` for whatever its user can mend, ``KeyboardInterrupt`` when interrupted, after a checkpoint of the
    last whole step.
    """
    folder, say = Path(out), say or (lambda line: None)
    if not settings.model:
        raise NegolabError("model names nothing to train; give a folder with a model, or a name on the hub")
    settings = settled(settings)
    records.check_place(folder)
    if _is_finished(settings, folder):
        if os.environ.get("RANK", "0") == "0":
            say(_complete(folder, settings.steps))
        return Trained(folder, settings.steps)
    check_packages(settings)
    check_sampler(settings)
    processes = together(settings)
    if not processes.main:
        say, progress = (lambda line: None), False
    with processes.guarded(), closing(make_task(settings)) as task:
        model, tokenizer, adapter = load_model(settings, say)
        sampler = make_sampler(settings, model, tokenizer, task, say)  # may change who plays the opponents
        with closing(sampler), ExitStack() as held:
            run = _Run(settings, folder, task, sampler, (model, tokenizer, adapter), processes, say, progress)
            for line in processes.agreed(lambda: task.check(sampler.policy())):
                say(line)
            processes.from_main(lambda: held.enter_context(records.locked(folder)))
            return run.play()


def _is_finished(settings: TrainSettings, folder: Path) -> bool:
    """Whether ``folder`` holds this run and all of it, as far as can be told in a second: where not, the whole manifest
    is held against it later, with the model in memory."""
    done, _ = checkpoints.newest(folder) or (0, None)
    if done < settings.steps or not _kept(folder):
        return False
    base = fingerprint(settings.model)
    known = records.begun_as(folder, _told(settings, base), base)
    if known is None or any(split not in records.SPLITS for split in (settings.train_split, settings.eval_split)):
        return False
    catalog, data = catalog_of(settings), known["task"].get("data")
    return isinstance(data, dict) and data.get("sha256") == catalog.data_sha256


def _told(settings: TrainSettings, base: Mapping[str, str]) -> dict[str, Any]:
    """Settings as the manifest holds them."""
    plain = {**settings.to_json(), "model": base["model"]}
    del plain["data"]  # contained in the task
    return plain


def _kept(folder: Path) -> bool:
    """Whether the trained model was saved."""
    return any((folder / MODEL / name).is_file() for name in ("config.json", "adapter_config.json"))


def _complete(folder: Path, steps: int) -> str:
    return f"{folder} is complete: {counted(steps, 'step')}"


class _Run(Start):
    """One start of a run."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        task: Task,
        sampler: Sampler,
        loaded: tuple[Any, Any, dict[str, Any]],
        processes: Processes,
        say: Say,
        progress: bool | None,
    ) -> None:
        """``loaded``: see ``preparation.load_model``."""
        model, tokenizer, adapter = loaded
        super().__init__(folder, settings.steps, model, tokenizer, progress)
        self.settings, self.task, self.sampler, self.processes = settings, task, sampler, processes
        self.say = say
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
        self.playing = False
        self.unplayed = False
        """What failed was playing: the weights belong to a step, and nothing of the next is written down."""
        self.caught: Interrupts

    def _manifest(self, adapter: dict[str, Any]) -> dict[str, Any]:
        more = described(self.settings, self.model, adapter)
        return records.new_manifest(_told(self.settings, more["base"]), self.task.describe(), more)

    def _plan(self) -> str:
        """What will be learnt from, in one line: a catalogue that was never fetched must not go unnoticed."""
        settings, told = self.settings, self.task.describe()
        unit = "cluster" if "train_clusters" in told else "product"
        unfetched = settings.data == AUTO and told["data"]["name"] == SAMPLE
        return (
            f"{counted(settings.steps, 'step')} of {counted(settings.groups, 'market')} x {settings.group_size} "
            f"episodes, {counted(told[f'train_{unit}s'], unit)} of {told['data']['name']} to learn from"
            + ("; the real ones are not here: negolab data fetch" if unfetched else "")
        )

    # -- the run --------------------------------------------------------------------------------------------------

    def play(self) -> Trained:
        """See ``train``."""
        from negolab.trainer.grpo import RowTrainer

        settings, folder = self.settings, self.folder
        for line in self.processes.from_main(lambda: list(records.open_manifest(folder, self.manifest))):
            self.say(line)
        found = checkpoints.newest(folder)
        done, path = found or (0, None)
        if done >= settings.steps and _kept(folder):
            self.say(_complete(folder, settings.steps))
            return self.total
        self.processes.from_main(lambda: self._cut(done))
        self.say(self._plan())
        self.trainer = RowTrainer(self.model, self.tokenizer, settings, folder, self._step, self._after)
        if done:
            self.say(f"going on after step {done} of {settings.steps}")
        # Several processes meet in a step again and again, and must leave it at the same place.
        must_wait = (lambda: not self.playing) if self.processes.world > 1 else None
        with self.showing(done), interrupts(self.trainer, must_wait) as self.caught:
            try:
                if done < settings.steps:
                    self.trainer.train(resume_from_checkpoint=None if path is None else str(path))
                else:
                    self.trainer._load_from_checkpoint(str(path))
                self.total.seconds["save"] += self.trainer.seconds["save"]  # the last checkpoint's
                self.caught.raise_caught()
                self._evaluate(settings.steps)
            except BaseException as error:
                self._save_before(error)
                raise
            self._keep_model()
        return self.total

    def _save_before(self, error: BaseException) -> None:
        """Nothing that was learnt is lost when playing fails or somebody interrupts it: save, then say so."""
        if not isinstance(error, KeyboardInterrupt) and not self.unplayed:
            return
        if self.processes.world == 1 or known_to_all(error):
            self.save_whole_steps()
        if not isinstance(error, NegolabError) or isinstance(error, Elsewhere):
            return
        found = checkpoints.newest(self.folder)
        if found is None:
            kept = "no step was finished, run the same command again to begin anew"
        else:
            are = "is" if found[0] == 1 else "are"
            kept = f"{found[0]} of {counted(self.steps, 'step')} {are} kept, run the same command again to go on"
        told = NegolabError(f"{_PROMISE.sub('', str(error))}; {kept}")
        raise as_known(told, error) from error

    def _cut(self, done: int) -> None:
        """Drop what will be played again: steps from ``done`` on, and evaluations after so many."""
        for table in (self.metrics, self.timings, self.evaluations):
            table.cut(done)
        evaluation.cut(self.folder, done)

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
        played_here = self._played(lambda: list(task.play(mine, self.sampler.policy())))
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

    def _played(self, play: Callable[[], T]) -> T:
        """What ``play`` returns here, once all processes have played; where one cannot, none goes on."""

        def playing() -> T:
            try:
                self.playing = True
                self.caught.raise_caught()  # came while this process could not leave
                return play()
            finally:
                self.playing = False

        self.unplayed = True
        found = self.processes.agreed(playing)
        self.unplayed = False
        return found

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
        told, name = ("violations", "violation_rate") if "violation_rate" in row else ("deals", "deal_rate")
        self.advance(f"reward {row['reward']:+.3f}, {told} {row[name]:.3f}")
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
        self.tell("evaluating on held-out products")
        rows = evaluation.evaluate(self.task, learner, self.folder, step, training, self.processes, self._played)
        if main:
            self.evaluations.append(rows)
            self.tell(f"evaluated: {_rewards(rows)}")
        self.seconds["evaluation"] = time.perf_counter() - started
        if step == settings.steps:
            self.total.seconds["evaluation"] += self.seconds["evaluation"]

    def _keep_model(self) -> None:
        from negolab.trainer import lora

        main = self.processes.main

        def write(place: Path) -> None:
            if self.settings.lora is not None:
                lora.save(self.model, place, write=main)
            elif main:
                self.model.save_pretrained(place)

        self.keep(write, main)


def _rewards(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rewards among the rows of ``eval.csv``, in words."""
    found = [row for row in rows if row["metric"] == "reward" and row["mean"] is not None]
    return ", ".join(
        f"{row['regime']} reward {row['mean']:+.3f}"
        + (f" ± {row['se']:.3f}" if row["se"] is not None else "")
        + f" (n = {row['n']})"
        for row in found
    )


def _statistics(found: RowStatistics) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "rows_per_episode": found.rows_per_episode,
        "fork_fraction": found.fork_fraction,
        "trained_tokens": found.trained,
        "row_tokens": found.tokens,
        "nll": found.nll / found.trained if found.trained else None,
    }
