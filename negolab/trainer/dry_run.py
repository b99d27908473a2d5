"""``negolab train --dry-run``: every setting held against the others, and what the run will need; loads no weights.

Everything that would stop a run later and can be known now is one clear error; the rest is told in lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from negolab.catalog import find_data
from negolab.clusters import ClusterCatalog
from negolab.errors import NegolabError
from negolab.policies.memory import GIB
from negolab.policies.registry import make_bilateral, make_trader
from negolab.policies.spec import VllmSpec
from negolab.trainer import estimate, gpu
from negolab.trainer.buyer_task import BuyerOptions
from negolab.trainer.lengths import CHARACTERS_PER_TOKEN, LEARNER_REPLY, Lengths, lengths_of, opponents_of
from negolab.trainer.preparation import catalog_of, check_sampler
from negolab.trainer.progress import counted
from negolab.trainer.settings import TrainSettings
from negolab.trainer.trade_task import TradeOptions
from negolab.trainer.vllm_sampler import ENGINE, learner_spec, sharing

_NO_GPU = (
    "No GPU here: memory and time on a processor are not estimated (the first steps of the run itself tell its time); "
    "--gpu KIND estimates for a GPU."
)
_SPARE = 0.02
"""Share of a GPU's memory that should stay free: allocators lose some of it between pieces."""


def dry_run(settings: TrainSettings, box: gpu.Box | None = None, out: str | Path | None = None) -> list[str]:
    """What a run would do and need, in lines for people.

    ``box``: the GPUs (None: those that are here, or one that is assumed); ``out``: where the run would be written.
    Raises ``NegolabError`` for settings that cannot work together, or not on these GPUs.
    """
    if not settings.model:
        raise NegolabError("model names nothing to train; give a folder with a model, or a name on the hub")
    settings = replace(settings, data=find_data(settings.data))
    config, box = estimate.config_of(settings.model), box or gpu.box_here()
    check_sampler(settings)
    if settings.task == "buyer":
        seller = BuyerOptions.from_mapping(settings.task_options).seller
        if isinstance(seller, str):
            make_bilateral("seller", seller)
    if settings.task == "trade":
        traders = TradeOptions.from_mapping(settings.task_options)
        for player in (traders.opponent, *traders.unseen):
            if isinstance(player, str):
                make_trader("buyer" if traders.seat == "seller" else "seller", player)
    if settings.groups % box.gpus:
        raise NegolabError(
            f"groups {settings.groups} is no multiple of the {box.gpus} GPUs: each plays whole groups, as many as the "
            "others"
        )
    lines = [*_what(settings, config), *_schedule(settings)]
    if box.absent and settings.sampler != "vllm":
        return [_NO_GPU, *lines, *_disk(settings, config, out)]
    lines.insert(0, box.line())
    lengths = lengths_of(settings)
    lines += _lengths(settings, lengths)
    room, told = _memory(settings, config, box, lengths)
    return [*lines, *told, *_time(settings, config, box, lengths, room), *_disk(settings, config, out)]


def _what(settings: TrainSettings, config: Mapping[str, Any]) -> list[str]:
    trained = estimate.trained_of(settings, config)
    if settings.lora is None:
        return [f"Trained: all {trained.all_parameters:,} parameters of {settings.model}."]
    return trained.lines()


def _schedule(settings: TrainSettings) -> list[str]:
    """Steps, epochs, the rate, and when evaluations and checkpoints come."""
    catalog = catalog_of(settings)
    units = len(catalog.split(settings.train_split))
    what = "Clusters" if isinstance(catalog, ClusterCatalog) else "Products"
    episodes = settings.groups * settings.group_size
    epoch = units // settings.groups if units >= settings.groups else units / settings.groups
    decays = "constant" if settings.schedule == "constant" else f"falling to 0 ({settings.schedule})"
    warm = f" after {counted(settings.warmup_steps, 'step')} of warm-up" if settings.warmup_steps else ""
    lines = [
        f"Schedule: {counted(settings.steps, 'step')} of {counted(settings.groups, 'market')} x {settings.group_size} "
        f"rollouts = {episodes:,} episodes, {settings.steps * episodes:,} in all; "
        f"{counted(settings.sub_steps, 'optimiser step')} each, "
        f"{settings.steps * settings.sub_steps} in all.",
        f"{what}: {units} to train on, {settings.steps / epoch:.3g} times over.",
        f"Learning rate: {settings.learning_rate:g}, {decays}{warm}. Loss {settings.loss}, ratio within "
        f"{settings.clip_low:g} and {settings.clip_high:g}.",
    ]
    if settings.eval_every:
        times = len({*range(0, settings.steps, settings.eval_every), settings.steps})
        each = counted(_evaluation(settings), "episode")
        lines.append(f"Evaluations: {times} of {each}, every {counted(settings.eval_every, 'step')}.")
    saved = len({*range(settings.save_every, settings.steps + 1, settings.save_every), settings.steps})
    stay = settings.keep_checkpoints
    lines.append(
        f"Checkpoints: {saved}" + (f", of which the last {stay} stay." if 0 < stay < saved else ", which all stay.")
    )
    return lines


def _evaluation(settings: TrainSettings) -> int:
    """Episodes of one evaluation: on the held-out products in each regime, against each persona, or both kinds of the
    trade game against everybody."""
    held = len(catalog_of(settings).split(settings.eval_split)[: settings.eval_products])
    if settings.task == "buyer":
        games = len(BuyerOptions.from_mapping(settings.task_options).eval_personas)
    elif settings.task == "trade":
        games = len(TradeOptions.from_mapping(settings.task_options).evaluated())
    else:
        games = len(settings.regimes)
    return held * settings.eval_per_product * games


def _lengths(settings: TrainSettings, lengths: Lengths) -> list[str]:
    episodes = settings.groups * settings.group_size
    lines = [
        f"Lengths (from scripted episodes on these products, at {CHARACTERS_PER_TOKEN:g} characters a token): "
        f"the learner speaks {lengths.learner_turns:.1f} times in {lengths.learner_conversation:,.0f} tokens; the "
        f"longest conversation has {lengths.longest:,}.",
        f"Each step: {episodes * lengths.sampled:,.0f} tokens written by models, {episodes * lengths.read:,.0f} read, "
        f"{episodes * lengths.learner_turns * LEARNER_REPLY:,.0f} of the learner's own trained in "
        f"{episodes * lengths.learner_conversation:,.0f}.",
    ]
    if lengths.longest > settings.micro_batch_tokens:
        lines.append(
            f"The longest conversation is longer than micro_batch_tokens ({settings.micro_batch_tokens:,}) and goes "
            "through the model alone."
        )
    return lines


def _memory(
    settings: TrainSettings, config: Mapping[str, Any], box: gpu.Box, lengths: Lengths
) -> tuple[int, list[str]]:
    """Conversations that the sampler holds at once on one GPU, and what is told. Raises ``NegolabError`` where trainer
    and sampler do not fit together."""
    trainer = estimate.trainer_memory(settings, config, box.gpus, lengths.longest)
    parts = {
        "weights": trainer.weights,
        "adapter and optimiser" if settings.lora is not None else "gradients and optimiser": trainer.trained,
        f"activations of {trainer.tokens:,} tokens": trainer.activations,
        "logits": trainer.logits,
        "gathered layers": trainer.gathered,
    }
    shown = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts.items() if value)
    lines = [f"Memory of each GPU, GiB: trainer {trainer.total / GIB:.1f} ({shown})."]
    if settings.sampler != "vllm":
        length = int(lengths.learner_conversation)
        kept = estimate.shape_of(config).kv_bytes(length, 2)
        room = max(1, int((box.memory * (1 - _SPARE) - trainer.total) // kept))
        if trainer.total > box.memory * (1 - _SPARE):
            raise NegolabError(_too_much(settings, box, trainer, 0))
        return room, [*lines, f"Rollouts share the trainer's weights; room for {room:,} conversations of {length:,}."]
    spec = learner_spec(settings)
    _check_engine(settings, config, spec, lengths)
    held = estimate.engine_memory(spec, config, int(lengths.learner_conversation))
    given = spec.gpu_memory * box.memory
    room = held.fits(box.memory, spec.gpu_memory)
    if room < 1:
        raise NegolabError(
            f"vLLM may use {given / GIB:.1f} GiB of each GPU (sampler_options.gpu_memory {spec.gpu_memory:g}), but "
            f"needs {held.fixed / GIB:.1f} for weights and forward pass, and some for conversations"
        )
    if trainer.total + given > box.memory * (1 - _SPARE):
        raise NegolabError(_too_much(settings, box, trainer, held.fixed))
    lines.append(
        f"  vLLM {given / GIB:.1f} (weights {held.weights / GIB:.1f}, forward pass {held.activations / GIB:.1f}, keys "
        f"and values {(given - held.fixed) / GIB:.1f}: {room:,} conversations of {held.length:,} tokens at once). "
        f"Together {(trainer.total + given) / GIB:.1f} of {box.memory / GIB:.1f}."
    )
    return room, lines + _opponents(settings)


def _too_much(settings: TrainSettings, box: gpu.Box, trainer: estimate.TrainerMemory, fixed: int) -> str:
    """What does not fit, and what would help."""
    free = box.memory * (1 - _SPARE) - trainer.total
    says = f"the trainer needs {trainer.total / GIB:.1f} GiB of each GPU's {box.memory / GIB:.1f}"
    ways = ["more GPUs, or larger ones"]
    if trainer.tokens == settings.micro_batch_tokens:
        ways.insert(0, f"micro_batch_tokens {max(256, trainer.tokens // 2)}")
    if settings.sampler != "vllm":
        return f"{says}: give {', or '.join(ways)}"
    if free > 1.02 * fixed:
        ways = [f"sampler_options.gpu_memory {int(free / box.memory * 100) / 100:g}"]
    given = learner_spec(settings).gpu_memory * box.memory
    return (
        f"{says}, which leaves vLLM {max(0.0, free) / GIB:.1f}; it is given {given / GIB:.1f} and needs more than "
        f"{fixed / GIB:.1f}: give {', or '.join(ways)}"
    )


def _check_engine(settings: TrainSettings, config: Mapping[str, Any], spec: VllmSpec, lengths: Lengths) -> None:
    shape = estimate.shape_of(config)
    context = spec.max_model_len or shape.context
    if shape.context and spec.max_model_len > shape.context:
        raise NegolabError(f"max_model_len is {spec.max_model_len:,}, but the model's context is {shape.context:,}")
    if lengths.longest + settings.max_tokens > context:
        raise NegolabError(
            f"the longest conversation has about {lengths.longest:,} tokens, and with max_tokens "
            f"{settings.max_tokens:,} that exceeds max_model_len {context:,}"
        )
    if spec.tensor_parallel != 1:
        raise NegolabError(
            f"sampler_options.tensor_parallel is {spec.tensor_parallel}; in training it must be 1: every process has "
            "an engine of its own on its own GPU"
        )


def _opponents(settings: TrainSettings) -> list[str]:
    lines = []
    for kind, spec in opponents_of(settings).items():
        one = f"The {kind} is" if settings.task == "buyer" else f"{kind.capitalize()} is"
        who = one if settings.task != "seller" else "Buyers are" if kind == "*" else f"Buyers of type {kind} are"
        where = "task_options" if settings.task != "seller" else "buyers"
        if sharing(settings, spec) is not None:
            lines.append(f"{who} played by the learner's engine, without its adapter.")
        elif spec.engine == "vllm":
            raise NegolabError(
                f"{where}, {kind}: vLLM would load a second model beside the learner's, which this estimate does not "
                f"know to fit ({_difference(settings, spec)}); let it share the learner's, or serve it elsewhere and "
                "give openai:NAME"
            )
    return lines


def _difference(settings: TrainSettings, spec: Any) -> str:
    """What keeps an opponent from the learner's engine."""
    if settings.lora is None:
        return "all weights are trained, so the learner's engine does not keep the model before training"
    mine, silent = learner_spec(settings), VllmSpec(model=spec.model)
    found = [
        f"{name}: {getattr(spec, name)!r} there, {getattr(mine, name)!r} for the learner"
        for name in ("model", *ENGINE)
        if getattr(spec, name) != getattr(mine, name)
        and (name == "model" or getattr(spec, name) != getattr(silent, name))
    ]
    return "; ".join(found)


def _time(settings: TrainSettings, config: Mapping[str, Any], box: gpu.Box, lengths: Lengths, room: int) -> list[str]:
    found = estimate.step_time(settings, config, box, lengths, room, box.gpus)
    hours = settings.steps * found.total / 3600
    lines = [
        f"Time of a step, seconds: reading {found.reading:.0f}, writing {found.writing:.0f} ({found.at_once:.0f} "
        f"conversations at once on each GPU), training {found.training:.0f}; {counted(settings.steps, 'step')} "
        f"{'takes' if settings.steps == 1 else 'take'} about {hours:.1f} hours.",
        "  These assume "
        f"{estimate.READ_EFFICIENCY:.0%} of the memory's bandwidth, {estimate.PREFILL_EFFICIENCY:.0%} of peak "
        f"operations for reading and {estimate.TRAIN_EFFICIENCY:.0%} for training, none of it measured here: expect "
        "to be wrong by a factor of two.",
    ]
    if settings.eval_every:
        times = len({*range(0, settings.steps, settings.eval_every), settings.steps})
        each = _evaluation(settings) / (settings.groups * settings.group_size)
        more = times * each * (found.reading + found.writing) / 3600
        lines.append(f"  Evaluations take about {more:.1f} hours more.")
    return lines


def _disk(settings: TrainSettings, config: Mapping[str, Any], out: str | Path | None) -> list[str]:
    each = estimate.checkpoint_bytes(settings, config)
    saved = len({*range(settings.save_every, settings.steps + 1, settings.save_every), settings.steps})
    kept = 1 + min(saved, settings.keep_checkpoints or saved)  # one more while it is being written
    line = f"Disk: {each / GIB:.2f} GiB a checkpoint, {kept * each / GIB:.1f} GiB at most."
    if out is None:
        return [line]
    place = Path(out).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < kept * each:
        raise NegolabError(
            f"--out {out}: {kept * each / GIB:.1f} GiB are needed for checkpoints, {free / GIB:.1f} are free"
        )
    return [f"{line} {free / GIB:.1f} GiB are free."]
