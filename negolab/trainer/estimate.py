"""What a training run will need, from settings and shapes alone: tokens, memory of each GPU, time, disk.

Nothing is loaded: shapes come from the model's ``config.json`` (or from the published facts below), lengths from
``trainer.lengths``. Everything is an estimate; each formula stands in the
docstring of the function that applies it, each number that was assumed and not computed is a constant with a name.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.memory import Memory, estimate, shape_of
from negolab.policies.spec import VllmSpec, located
from negolab.trainer.gpu import Box
from negolab.trainer.lengths import Lengths
from negolab.trainer.lora import Trained, planned
from negolab.trainer.settings import TrainSettings

READ_EFFICIENCY = 0.5
"""Share of the memory's bandwidth that decoding reaches. Assumed."""
PREFILL_EFFICIENCY = 0.4
"""Share of the peak operations that reading prompts reaches. Assumed."""
TRAIN_EFFICIENCY = 0.12
"""Share of the peak operations that training reaches: small experts and short rows keep it low. Assumed."""
_GATHERED = 2
"""Layers whose whole weights a sharded trainer holds at once."""
_LOGIT = 8
"""Bytes for each entry of the logits: themselves and their gradient in 16 bits, one copy in 32."""

_QWEN3 = {
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

FACTS: Mapping[str, Mapping[str, Any]] = {
    # config.json as published with the weights (table 3's model), for machines that have not fetched it yet.
    "Qwen/Qwen3-30B-A3B-Instruct-2507": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    # Those of 2604.16472's learners.
    "Qwen/Qwen3-8B": {**_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
    "Qwen/Qwen3-14B": {
        **_QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
    },
}


def config_of(model: str) -> Mapping[str, Any]:
    """A model's ``config.json`` without the network: from its folder (of a pocket model: its name will do), a cache of
    the hub, or ``FACTS``.

    Raises ``NegolabError`` where none of these has it.
    """
    place = Path(located(model))
    path = place / "config.json"
    if not path.is_file() and not place.is_dir():
        if importlib.util.find_spec("huggingface_hub") is None:  # without the extra: no cache to look into
            if model in FACTS:
                return FACTS[model]
            raise NegolabError(
                f"the shapes of {model} are not known here: pip install 'negolab[train]', or give a folder"
            )
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(model, "config.json")
        except HFValidationError:
            raise NegolabError(f"the model {model} is no folder, and no name on the hub") from None
        if not isinstance(cached, str):
            if model in FACTS:
                return FACTS[model]
            raise NegolabError(
                f"the shapes of {model} are not known here: fetch it first (hf download {model} config.json), or give "
                f"a folder; known without: {', '.join(FACTS)}"
            )
        path = Path(cached)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NegolabError(f"the model {model}: its config.json cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise NegolabError(f"the model {model}: its config.json holds no settings")
    return found


# -- memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes that the trainer takes on each GPU."""

    weights: int
    trained: int
    activations: int
    logits: int
    gathered: int
    tokens: int
    """Tokens of the largest forward pass that was counted."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.trained + self.activations + self.logits + self.gathered


def trained_of(settings: TrainSettings, config: Mapping[str, Any]) -> Trained:
    """What is trained: the adapter, or all weights."""
    if settings.lora is not None:
        return planned(config, settings.lora)
    return Trained((), shape_of(config).parameters)


def trainer_memory(settings: TrainSettings, config: Mapping[str, Any], gpus: int, longest: int) -> TrainerMemory:
    """Bytes on each of ``gpus`` GPUs, weights and optimiser spread over them where there is more than one.

    * weights: parameters x 2 bytes (4 in float32), a share of 1/gpus
    * trained: 16 bytes for each trained parameter (value, gradient, Adam's two moments, 32 bits each), 1/gpus; for all
      weights in float32 their values are the weights themselves: 12
    * activations, m tokens at once (``micro_batch_tokens``, or a longer row alone): layers x m x hidden x 2 bytes kept
      with gradient checkpointing and one layer's inside (m x (10 hidden + widest) x 4); without, all layers' insides
    * logits: m x vocabulary x ``_LOGIT`` bytes
    * gathered: the whole weights of ``_GATHERED`` layers, where they are spread
    """
    shape = shape_of(config)
    size = 4 if _whole_in_float32(settings) else 2
    tokens = max(settings.micro_batch_tokens, longest)
    inside = tokens * (10 * shape.hidden + shape.wide) * 4
    kept = shape.layers * tokens * shape.hidden * 2
    layer = (shape.parameters - 2 * shape.vocabulary * shape.hidden) // shape.layers
    if settings.lora is not None:
        trained = 16 * planned(config, settings.lora).parameters
    else:
        trained = 12 * shape.parameters
    return TrainerMemory(
        weights=shape.parameters * size // gpus,
        trained=trained // gpus,
        activations=kept + inside if settings.gradient_checkpointing else shape.layers * inside,
        logits=tokens * shape.vocabulary * _LOGIT,
        gathered=_GATHERED * layer * size if gpus > 1 else 0,
        tokens=tokens,
    )


def _whole_in_float32(settings: TrainSettings) -> bool:
    return settings.dtype == "float32" or (settings.dtype == "auto" and settings.lora is None)


def engine_memory(spec: VllmSpec, config: Mapping[str, Any], length: int) -> Memory:
    """What the sampler's engine holds on its GPU (``policies.memory.estimate``), with conversations of ``length``
    tokens."""
    options = {"dtype": spec.dtype, "tensor_parallel": spec.tensor_parallel, "batch": spec.batch}
    return estimate(config, length=length, **options)  # type: ignore[arg-type]


# -- time and disk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    reading: float
    writing: float
    training: float
    at_once: float
    """Conversations that one GPU decodes together."""

    @property
    def total(self) -> float:
        """Rollout and training, one after the other."""
        return self.reading + self.writing + self.training


def step_time(
    settings: TrainSettings, config: Mapping[str, Any], box: Box, lengths: Lengths, room: int, gpus: int
) -> StepTime:
    """Seconds of one step on ``gpus`` GPUs, each of which plays and trains 1/gpus of the episodes.

    * reading: 2 x active parameters x tokens read / (operations x ``PREFILL_EFFICIENCY``)
    * writing: tokens written / n x (bytes of the weights that n rows touch + n x keys and values) / (bandwidth x
      ``READ_EFFICIENCY``), n the conversations at once (``room``: what the memory holds); of E experts, k a token, n
      rows touch 1 - (1 - k/E)^n
    * training: operations for each token and active parameter: 2 forward, 2 backward through frozen weights (4 where
      all are trained), 2 more with gradient checkpointing, 2 for log-probabilities before the first of several
      sub-steps; / (operations x ``TRAIN_EFFICIENCY``)
    """
    shape = shape_of(config)
    episodes = settings.groups * settings.group_size / gpus
    seats = 1 + (lengths.opponent_turns > 0)
    at_once = max(1.0, min(settings.sampler_batch, room, episodes * seats))
    experts = int(config.get("num_experts") or 0)
    chosen = int(config.get("num_experts_per_tok") or 0)
    share = 1 - (1 - chosen / experts) ** at_once if experts else 1.0
    always = shape.active - shape.layers * chosen * 3 * shape.hidden * int(config.get("moe_intermediate_size") or 0)
    touched = 2 * (always + share * (shape.parameters - always)) if experts else 2 * shape.parameters
    cached = shape.kv_bytes(int(lengths.learner_conversation), 2)
    one_pass = (touched + at_once * cached) / (box.bandwidth * READ_EFFICIENCY)
    for_each = 2 + (4 if settings.lora is None else 2)
    for_each += 2 * settings.gradient_checkpointing + 2 * (settings.sub_steps > 1)
    trained = episodes * lengths.learner_conversation
    return StepTime(
        reading=episodes * lengths.read * 2 * shape.active / (box.flops * PREFILL_EFFICIENCY),
        writing=episodes * lengths.sampled / at_once * one_pass,
        training=trained * for_each * shape.active / (box.flops * TRAIN_EFFICIENCY),
        at_once=at_once,
    )


def checkpoint_bytes(settings: TrainSettings, config: Mapping[str, Any]) -> int:
    """Bytes of one checkpoint: for each trained parameter its value and Adam's two moments, 32 bits each."""
    trained = trained_of(settings, config)
    return 12 * (trained.parameters if settings.lora is not None else trained.all_parameters)
