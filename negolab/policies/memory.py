"""How much memory a model takes, from its configuration alone: told before anything is loaded.

Weights are counted from the shapes that ``config.json`` gives (dense and mixture-of-experts decoders, tied embeddings,
latent attention), or taken from the safetensors files where these are there. Keys and values are counted per token
from the heads that are stored (grouped-query and latent attention, sliding windows, layers without any). What the
forward pass needs beside them is a margin by rule of thumb, not a measurement: engines profile it when they start.
Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from negolab.errors import NegolabError

GIB = 1 << 30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STEP = 16_384
"""Tokens of one forward pass at most: vLLM's own default on a large GPU, for engines in process."""
_CPU_STEP = 4_096
_RUNTIME = 1.5 * GIB
"""What CUDA, its graphs and the communication between GPUs take, whatever the model."""


class Shape(NamedTuple):
    """What decides a decoder's size. Counts are of elements, lengths of tokens."""

    parameters: int
    """All of them, tied embeddings once."""
    active: int
    """Those that one token goes through: fewer than all where there are experts."""
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    """Heads whose keys and values are stored; 1 with latent attention, which every GPU stores whole."""
    kv_width: int
    """Numbers stored per stored head, layer and token: a key and a value, or the one latent vector."""
    latent: bool
    full_layers: int
    """Layers that store every token."""
    window_layers: int
    """Layers that store the last ``window`` tokens."""
    window: int
    wide: int
    """Widest intermediate result of one token."""
    context: int
    """Longest conversation that the model was made for; 0 where the configuration does not say."""

    def kv_bytes(self, tokens: int, dtype_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of one conversation's keys and values on each GPU."""
        heads = 1 if self.latent else max(1, -(-self.kv_heads // tensor_parallel))
        stored = self.full_layers * tokens + self.window_layers * min(tokens, self.window)
        return stored * heads * self.kv_width * dtype_bytes


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape that a ``config.json`` describes. Raises ``NegolabError`` where it says too little."""
    text = _text_config(config)
    hidden, layers = _need(text, "hidden_size"), _need(text, "num_hidden_layers")
    heads = _need(text, "num_attention_heads")
    vocabulary = _need(text, "vocab_size")
    kv_heads = _number(text, "num_key_value_heads") or heads
    head = _number(text, "head_dim") or hidden // heads
    attention, kv_heads, kv_width, latent = _attention(text, hidden, heads, kv_heads, head)
    dense = 3 * hidden * (_number(text, "intermediate_size") or 4 * hidden)
    sparse_layers, sparse, routed, wide = _experts(text, hidden, layers)
    common = layers * (attention + 2 * hidden) + hidden  # the norms with it
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    embedding = vocabulary * hidden
    others = common + (layers - sparse_layers) * dense + embedding * (1 if tied else 2)
    full, windowed = _layer_kinds(text, layers)
    return Shape(
        parameters=others + sparse_layers * sparse,
        active=others + sparse_layers * routed,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        kv_width=kv_width,
        latent=latent,
        full_layers=full,
        window_layers=windowed,
        window=_number(text, "sliding_window"),
        wide=max(wide, 2 * (_number(text, "intermediate_size") or 4 * hidden) if layers > sparse_layers else 0),
        context=_number(text, "max_position_embeddings"),
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a model that also sees or hears."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and "hidden_size" in inner else config


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _need(config: Mapping[str, Any], name: str) -> int:
    value = _number(config, name)
    if not value:
        raise NegolabError(f"the model's config.json gives no {name} (a whole number above 0), so its size is unknown")
    return value


def _attention(
    text: Mapping[str, Any], hidden: int, heads: int, kv_heads: int, head: int
) -> tuple[int, int, int, bool]:
    """Weights of one attention layer; stored heads, numbers stored per head and token; whether it is latent."""
    rank = _number(text, "kv_lora_rank")
    if rank:  # multi-head latent attention: one compressed vector and one rotary key per token
        rope = _number(text, "qk_rope_head_dim")
        plain, value = _number(text, "qk_nope_head_dim") or head, _number(text, "v_head_dim") or head
        q_rank = _number(text, "q_lora_rank")
        query = (hidden * q_rank + q_rank if q_rank else 0) + (q_rank or hidden) * heads * (plain + rope)
        down = hidden * (rank + rope) + rank
        return query + down + rank * heads * (plain + value) + heads * value * hidden, 1, rank + rope, True
    weights = 2 * hidden * heads * head + 2 * hidden * kv_heads * head
    if text.get("attention_bias") or text.get("model_type") in ("qwen2", "qwen2_moe"):
        weights += (heads + 2 * kv_heads) * head
    if text.get("model_type") in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2"):  # norms of queries and keys
        weights += 2 * head
    return weights, kv_heads, 2 * head, False


def _experts(text: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, int, int, int]:
    """Layers with experts; the weights of one, all and those a token goes through; widest intermediate result."""
    experts = _number(text, "num_experts", "num_local_experts", "n_routed_experts")
    if not experts:
        return 0, 0, 0, 0
    inner = _number(text, "moe_intermediate_size") or _need(text, "intermediate_size")
    chosen = min(experts, _number(text, "num_experts_per_tok", "num_experts_per_token") or 1)
    shared = _number(text, "shared_expert_intermediate_size") or _number(text, "n_shared_experts") * inner
    step = _number(text, "decoder_sparse_step") or 1
    dense_only = text.get("mlp_only_layers")
    left_out = {int(i) for i in dense_only} if isinstance(dense_only, Sequence) else set()
    first = _number(text, "first_k_dense_replace")
    sparse = sum(1 for i in range(layers) if i >= first and (i + 1) % step == 0 and i not in left_out)
    always = hidden * experts + 3 * hidden * shared
    one = 3 * hidden * inner
    return sparse, always + experts * one, always + chosen * one, chosen * (2 * inner + hidden)


def _layer_kinds(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """How many layers store every token, and how many only the last ones."""
    kinds = text.get("layer_types")
    if isinstance(kinds, Sequence) and len(kinds) == layers:
        window = sum(kind == "sliding_attention" for kind in kinds)
        return sum(kind == "full_attention" for kind in kinds), window if _number(text, "sliding_window") else 0
    if _number(text, "sliding_window") and text.get("use_sliding_window", True):
        return 0, layers
    return layers, 0


def stored_bytes(folder: str | Path) -> int:
    """Bytes of the weights in a folder's safetensors files; 0 where there are none or the folder is not there."""
    place = Path(folder)
    try:
        index = json.loads((place / "model.safetensors.index.json").read_text(encoding="utf-8"))
        total = index["metadata"]["total_size"]
        if isinstance(total, int | float) and total > 0:
            return int(total)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return sum(path.stat().st_size for path in place.glob("model*.safetensors"))


def number_format(config: Mapping[str, Any], dtype: str) -> str:
    """What vLLM computes in: ``dtype``, or for "auto" the configuration's own, 32 bits becoming 16."""
    if dtype != "auto":
        return dtype
    text = _text_config(config)
    own = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "")
    return own if own in ("bfloat16", "float16") else "bfloat16"


@dataclass(frozen=True)
class Memory:
    """What one GPU must hold, in bytes."""

    shape: Shape
    dtype: str
    tensor_parallel: int
    weights: int
    activations: int
    kv_token: int
    """Of one token of a long conversation, on each GPU."""
    kv_conversation: int
    """Of one conversation of ``length`` tokens."""
    length: int
    batch: int

    @property
    def fixed(self) -> int:
        """All but keys and values."""
        return self.weights + self.activations

    @property
    def wanted(self) -> int:
        """All, with ``batch`` conversations under way at once."""
        return self.fixed + self.batch * self.kv_conversation

    def fits(self, gpu: int, share: float) -> int:
        """Conversations of ``length`` tokens that a GPU of ``gpu`` bytes holds at once, ``share`` of it used."""
        return max(0, int(gpu * share - self.fixed) // max(1, self.kv_conversation))

    def line(self) -> str:
        """One line for people."""
        where = "" if self.tensor_parallel == 1 else f" on each of {self.tensor_parallel} GPUs"
        return (
            f"Memory, estimated{where}: weights {_gib(self.weights)} ({self.shape.parameters / 1e9:,.1f} billion "
            f"parameters, {self.dtype}), forward pass about {_gib(self.activations)}, keys and values "
            f"{self.kv_token:,} bytes a token, {_gib(self.batch * self.kv_conversation)} for {self.batch} "
            f"conversations of {self.length:,} tokens; together {_gib(self.wanted)}."
        )

    def sentences(self, gpu: int, share: float) -> list[str]:
        """What a user should know before a load on a GPU of ``gpu`` bytes. Raises ``NegolabError`` where it cannot
        fit."""
        room = self.fits(gpu, share)
        may = f"{share:g} of {_gib(gpu)}"
        if room < 1:
            more = _least_tensor_parallel(self, gpu, share)
            way = f"tensor_parallel {more}, " if more else ""
            raise NegolabError(
                f"the model does not fit: {_gib(self.fixed)} for weights and forward pass and "
                f"{_gib(self.kv_conversation)} for one conversation of {self.length:,} tokens, but {may} may be used; "
                f"give {way}a smaller max_model_len, or a smaller model"
            )
        told = f"{may} may be used: it fits, with {room:,} conversations at once."
        if room < self.batch:
            told = f"{told[:-1]} (batch is {self.batch}; what does not fit waits)."
        return [self.line(), told]


def estimate(
    config: Mapping[str, Any],
    *,
    dtype: str = "auto",
    tensor_parallel: int = 1,
    batch: int = 1,
    length: int = 0,
    weights_on_disk: int = 0,
    on_cpu: bool = False,
) -> Memory:
    """What each GPU must hold for ``batch`` conversations of ``length`` tokens (0: the model's context).

    ``weights_on_disk`` are the bytes of the safetensors files (``stored_bytes``), if known: exact also for quantised
    weights, which the shapes alone do not tell. ``on_cpu``: without what GPUs take besides. Raises ``NegolabError``
    where the configuration says too little.
    """
    shape = shape_of(config)
    used = number_format(config, dtype)
    size = _BYTES[used]
    weights = shape.parameters * size
    if weights_on_disk:
        on_disk = _BYTES.get(_own_format(config), size)
        # Files in another number format are converted when loaded; quantised ones stay as they are.
        weights = weights_on_disk if config.get("quantization_config") else weights_on_disk * size // on_disk
    length = length or shape.context or 4096
    activations = (_CPU_STEP if on_cpu else _STEP) * (10 * shape.hidden + shape.wide // tensor_parallel) * size
    activations += 2 * batch * shape.vocabulary * 4 + (0 if on_cpu else int(_RUNTIME))
    return Memory(
        shape=shape,
        dtype=used,
        tensor_parallel=tensor_parallel,
        weights=-(-weights // tensor_parallel),
        activations=activations,
        kv_token=shape.kv_bytes(1, size, tensor_parallel),
        kv_conversation=shape.kv_bytes(length, size, tensor_parallel),
        length=length,
        batch=batch,
    )


def _own_format(config: Mapping[str, Any]) -> str:
    text = _text_config(config)
    return str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "")


def _least_tensor_parallel(memory: Memory, gpu: int, share: float) -> int:
    """The fewest GPUs on which the model would fit, up to 8 and dividing its heads; 0 where none does."""
    shape, size = memory.shape, _BYTES[memory.dtype]
    total = memory.weights * memory.tensor_parallel
    for parts in (2, 4, 8):
        if parts > memory.tensor_parallel and shape.heads % parts == 0:
            per_gpu = total / parts + memory.activations + shape.kv_bytes(memory.length, size, parts)
            if per_gpu <= gpu * share:
                return parts
    return 0


def _gib(value: float) -> str:
    """Bytes as people read them."""
    return f"{value / GIB:,.1f} GiB" if value >= GIB / 10 else f"{value / (1 << 20):,.1f} MiB"
