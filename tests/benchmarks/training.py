"""How fast training is: negolab's loss against TRL's usual one, its sampler against plain ``generate``, a whole step.

    python tests/benchmarks/training.py                                           # the laptop profile's batch
    python tests/benchmarks/training.py --groups 4 --group-size 4 --repeats 1     # under a minute

One batch of the profile's markets is played by its model; then, in this process:

* loss: forward and backward of the batch's rows, without an optimiser step. Four sides: ours (micro-batches by tokens,
  sorted by length, own tokens scored, rows without an advantage left out); ours with those rows; then also with TRL's
  scoring of every token; TRL itself, which makes its own batch of the same replies (prompts padded on the left, all
  else on the right, in order, as many rows in each micro-batch) and computes its own loss. TRL's micro-batches hold
  about as many rows as ours do on average, or ``--trl-rows``. Loss and gradient of all must agree, or the run fails.
* rollout: the sampler, which keeps keys and values between turns, against ``generate`` that reads every conversation
  anew, all of them in one batch. Same markets; the words differ, since the two draw otherwise, so the ratio is of the
  time for each reply. Only ours computes log-probabilities, which training needs.
* step: ``negolab.trainer.loop.train`` for as many steps as repeats, without evaluations.

Sides take turns in each repeat, every other time in the opposite order, and a ratio is of one repeat: what disturbs the
machine for long disturbs all sides. Given are medians with ranges, of wall-clock and of CPU time. Processor only.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from losses import Batch, Ours, Theirs, difference
from rollouts import Plain

from negolab.errors import NegolabError
from negolab.policies.model import LanguageModel
from negolab.policies.spec import located
from negolab.trainer.settings import TrainSettings, load_profile

PARTS = ("rollout", "rows", "loss", "optimiser", "whole")
Say = Callable[[str], object]


class Spent(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def spent(call: Callable[[], object]) -> Spent:
    """What a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def alternated(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[Spent]]:
    """Each side's times, ``repeats`` of them, the order turned round every time."""
    found: dict[str, list[Spent]] = {name: [] for name in sides}
    for at in range(repeats):
        for name in list(sides)[:: 1 - 2 * (at % 2)]:
            found[name].append(spent(sides[name]))
    return found


def middle(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def shown(values: Mapping[str, float], digits: int = 2) -> str:
    """As people read it."""
    return f"{values['median']:.{digits}f} ({values['least']:.{digits}f}-{values['most']:.{digits}f})"


def played(settings: TrainSettings, task: Any, sampler: Any) -> Batch:
    """Play the markets of the first step that has something to learn from, and make rows of them.

    Raises ``NegolabError`` where none of the first ten has, or an episode makes several rows (TRL takes one).
    """
    from negolab.trainer.advantages import advantages_of
    from negolab.trainer.batches import sub_steps_of
    from negolab.trainer.rows import rows_of

    for step in range(10):
        sampler.sync(step)
        episodes = sorted(task.play(task.markets(step), sampler.policy()), key=lambda e: e.scenario.episode)
        rewards = [task.reward(episode) for episode in episodes]
        values = advantages_of(rewards, settings.group_size, scale_by_std=settings.scale_by_std).values
        if any(values):
            break
    else:
        raise NegolabError("in ten steps every group's rewards were all the same: give a larger --group-size")
    rows = [row for at, episode in enumerate(episodes) for row in rows_of(episode, task.seat, at)]
    if [row.episode for row in rows] != list(range(len(episodes))):
        raise NegolabError(
            f"{len(episodes)} episodes made {len(rows)} rows; the comparison needs one of each, so a chat template "
            "that only appends and a learner that speaks in every episode"
        )
    return Batch(step, sub_steps_of(rows, values, settings.group_size, settings.sub_steps), rewards)


# -- loss -------------------------------------------------------------------------------------------------------------


def measure_loss(args: Any, settings: TrainSettings, model: Any, tokenizer: Any, batch: Batch, folder: Path) -> Any:
    """The loss's three sides."""
    given = model, tokenizer, settings, folder
    ours = Ours(*given, batch.parts)
    rows = args.trl_rows or max(1, round(ours.rows / ours.micro_batches))
    sides = {
        "ours": ours,
        "... every row": Ours(*given, batch.parts, every_row=True),
        "... and every token scored": Ours(*given, batch.parts, every_row=True, whole=True),
        "TRL": Theirs(*given, batch, rows),
    }
    apart = {name: difference(ours, side, model) for name, side in sides.items() if side is not ours}
    times = alternated({name: side.run for name, side in sides.items()}, args.repeats)
    model.zero_grad()
    found: dict[str, Any] = {}
    for name, side in sides.items():
        found[name] = {
            "rows": side.rows,
            "micro_batches": side.micro_batches,
            "positions": side.positions,
            "padded": 1 - side.tokens / side.positions,
            **compared(times[name], times["ours"]),
            "apart": apart.get(name),
        }
    return found


def compared(
    mine: Sequence[Spent], base: Sequence[Spent], units: Sequence[float] = (), per: Sequence[float] = ()
) -> Any:
    """A side's times, and their ratios to ``base``, repeat by repeat; of the time for one of ``units`` and ``per``
    where these are given."""
    found: dict[str, Any] = {}
    scale = [p / u for u, p in zip(units, per, strict=True)] if units else [1.0] * len(mine)
    for unit in ("wall", "cpu"):
        found[unit] = middle([getattr(one, unit) for one in mine])
        ratios = [s * getattr(m, unit) / getattr(b, unit) for s, m, b in zip(scale, mine, base, strict=True)]
        found[f"ratio_{unit}"] = middle(ratios)
    return found


# -- rollout ----------------------------------------------------------------------------------------------------------


class Sampling(Plain):
    """``generate`` that samples freely, as training does."""

    def _choice(self, prompts: Sequence[Any], width: int) -> dict[str, Any]:
        asked = prompts[0].sampling
        drawn = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": 0}
        return {"do_sample": True, **drawn, "eos_token_id": self._chat.end}


def measure_rollout(args: Any, settings: TrainSettings, task: Any, sampler: Any, step: int) -> Any:
    """Both sides play one step's markets."""
    import torch

    names = ("prompt_tokens", "computed", "sampled")
    counted: dict[str, list[dict[str, int]]] = {"ours": [], "generate": []}

    def play(side: str) -> None:
        sampler.sync(step)
        learner, engine = sampler.policy(), sampler.engine
        if side == "generate":
            torch.manual_seed(len(counted[side]))
            engine = Sampling(sampler.engine, None, settings.sampler_batch)
            learner = LanguageModel(learner.spec, engine)
        before = engine.report()
        episodes = list(task.play(task.markets(step), learner))
        after = engine.report()
        replies = sum(turn.seat == task.seat for episode in episodes for turn in episode.turns)
        numbers = {name: after[name] - before[name] for name in names}
        counted[side].append({"episodes": len(episodes), "replies": replies, **numbers})

    times = alternated({side: lambda side=side: play(side) for side in counted}, args.repeats)
    replies = {side: [one["replies"] for one in numbers] for side, numbers in counted.items()}
    found: dict[str, Any] = {}
    for side, numbers in counted.items():
        rates = [one["sampled"] / took.wall for one, took in zip(numbers, times[side], strict=True)]
        found[side] = {
            **{name: statistics.median(one[name] for one in numbers) for name in numbers[0]},
            "sampled_per_second": middle(rates),
            **compared(times[side], times["ours"], replies[side], replies["ours"]),
        }
    return found


# -- a whole step -----------------------------------------------------------------------------------------------------


def measure_step(args: Any, settings: TrainSettings, folder: Path) -> Any:
    """A training run's own account of its seconds, by part; the rest of ``whole`` is what lies between the parts."""
    from negolab.trainer.loop import train
    from negolab.trainer.records import TIMINGS

    changes = {"steps": args.repeats, "eval_every": 0, "save_every": args.repeats}
    train(settings.changed(changes), folder, progress=False)
    with (folder / TIMINGS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: middle([float(row[name]) for row in rows]) for name in PARTS}


# -- the whole --------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Any], say: Say) -> None:
    """Print what was measured."""
    say(f"{'loss and backward':<28}{'rows':>6}{'micro':>7}{'positions':>11}{'padded':>8}"
        f"{'wall s':>20}{'ratio':>20}{'CPU s':>20}{'ratio':>20}")  # fmt: skip
    for name, row in found["loss"].items():
        times = "".join(f"{shown(row[key]):>20}" for key in ("wall", "ratio_wall", "cpu", "ratio_cpu"))
        say(f"{name:<28}{row['rows']:>6}{row['micro_batches']:>7}{row['positions']:>11,}{row['padded']:>8.1%}{times}")
    for name, row in found["loss"].items():
        if row["apart"]:
            apart = row["apart"]
            say(
                f"  {name}, at most apart from ours: loss {apart['loss']:.1e} (of {apart['of']:.2g}), "
                f"gradient {apart['gradient']:.1e} of its largest entry"
            )
    say("")
    say(f"{'rollout':<10}{'episodes':>9}{'replies':>9}{'prompt':>11}{'computed':>10}{'sampled':>9}"
        f"{'sampled/s':>22}{'wall s':>20}{'ratio a reply':>20}{'CPU ratio':>20}")  # fmt: skip
    for name, row in found["rollout"].items():
        counts = f"{row['episodes']:>9.0f}{row['replies']:>9.0f}{row['prompt_tokens']:>11,.0f}{row['computed']:>10,.0f}"
        times = "".join(f"{shown(row[key]):>20}" for key in ("wall", "ratio_wall", "ratio_cpu"))
        say(f"{name:<10}{counts}{row['sampled']:>9,.0f}{shown(row['sampled_per_second'], 0):>22}{times}")
    say("")
    say("a whole step, wall s: " + ", ".join(f"{name} {shown(row)}" for name, row in found["step"].items()))


def measure(args: Any, settings: TrainSettings) -> dict[str, Any]:
    """Everything, as plain data. Raises ``NegolabError`` where it cannot be measured."""
    import torch

    from negolab.policies.chat_template import load_tokenizer
    from negolab.policies.hf_model import load_config, read_weights
    from negolab.policies.spec import TransformersSpec
    from negolab.trainer.loop import check_sampler, make_task
    from negolab.trainer.sampler import LiveSampler

    if torch.cuda.is_available():
        raise NegolabError("this measures the processor: hide the GPUs (CUDA_VISIBLE_DEVICES=)")
    check_sampler(settings)
    task = make_task(settings)
    spec = TransformersSpec(model=settings.model, revision=settings.revision, dtype="float32", device="cpu")
    tokenizer, model = load_tokenizer(settings.model, settings.revision), read_weights(spec, load_config(spec))
    sampler = LiveSampler(model, tokenizer, settings)
    with tempfile.TemporaryDirectory(prefix="negolab-bench-training-") as name:
        batch = played(settings, task, sampler)
        found = {
            "loss": measure_loss(args, settings, model, tokenizer, batch, Path(name) / "loss"),
            "rollout": measure_rollout(args, settings, task, sampler, batch.step),
            "step": measure_step(args, settings, Path(name) / "run"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "repeats": args.repeats,
        }
    sampler.close()
    task.close()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, then the same as one line of JSON."""
    parser = argparse.ArgumentParser(description="training's speed against TRL's usual way and plain generate")
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--groups", type=int, help="instead of the profile's")
    parser.add_argument("--group-size", type=int, help="instead of the profile's")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of each comparison, and steps")
    parser.add_argument("--trl-rows", type=int, default=0, help="rows of TRL's micro-batches; 0: as many as ours hold")
    args = parser.parse_args(argv)
    if args.repeats < 1 or args.trl_rows < 0:
        parser.error("--repeats must be at least 1 and --trl-rows at least 0")
    sizes = {"groups": args.groups, "group_size": args.group_size}
    try:
        settings = load_profile(args.profile, args.changes)
        settings = settings.changed({name: size for name, size in sizes.items() if size is not None})
        settings = settings.changed({"model": located(settings.model)})
        if settings.sampler != "transformers" or settings.lora is not None:
            raise NegolabError("measured are all weights and the sampler transformers: no lora, no other sampler")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # between TRL and transformers
            found = measure(args, settings)
    except NegolabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table(found, print)
    print(f"{found['threads']} threads, torch {found['torch']}; median (range) of {args.repeats} repeats")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
