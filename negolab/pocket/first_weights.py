"""The weights that a pocket model begins with, random ones or another pocket model's.

The first embeddings are not all random. A number starts as waves of its value and of its logarithm, a buyer's phrases
share a part. That 37 lies between 36 and 38 need not be learnt from a million examples then; how numbers are compared,
and that they should be, is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from negolab.pocket import tokenizer
from negolab.seeds import generator

if TYPE_CHECKING:
    from negolab.pocket.settings import PocketSettings


LENGTH, LAST_NORM = 1.0, 2.0
"""Length of each first embedding, and first weights of the last norm. The embeddings are the output's weights as well:
at transformers' length of 0.2 no token can become likely before its own embedding has grown, which takes a number that
is seldom seen longer than the whole training (seen once each: at 0.2 two thirds of the costs were copied rightly after
1.7 million tokens; at 1.0, with drills besides, nearly all after 1.2 million)."""


def new_model(settings: PocketSettings, tok: Any) -> Any:
    """An untrained model with the first embeddings described above, in float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(settings.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tok),
            hidden_size=settings.hidden,
            intermediate_size=settings.feed_forward,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.hidden // settings.heads,
            max_position_embeddings=4096,
            rope_theta=10_000.0,
            tie_word_embeddings=True,
            attention_bias=False,
            pad_token_id=tok.pad_token_id,
            eos_token_id=tok.eos_token_id,
            bos_token_id=None,
            dtype="float32",
        )
    )
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        first = torch.from_numpy(first_embeddings(settings, tok, table.numpy().copy()))
        table.copy_(first)
        model.model.norm.weight.fill_(LAST_NORM)
    return model


def first_embeddings(settings: PocketSettings, tok: Any, table: np.ndarray) -> np.ndarray:
    """``table`` (vocabulary, hidden) with its rows for numbers and buyers' phrases replaced; all of one length."""
    g = generator(settings.seed, "pocket embeddings")
    hidden = table.shape[1]
    table *= LENGTH / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
    waves = g.standard_normal((_waves(0.0).size, hidden))
    parts: dict[str, np.ndarray] = {}
    kinds = {kind: g.standard_normal(hidden) for kind in ("whole", "group", "cents", "turn")}

    def unit(vector: Any) -> Any:
        return vector / np.linalg.norm(vector)

    def part(name: str) -> np.ndarray:
        if name not in parts:
            parts[name] = unit(g.standard_normal(hidden))
        return parts[name]

    for text, token in sorted(tok.get_vocab().items(), key=lambda pair: pair[1]):
        for kind, pattern in (("whole", "[0-9]+"), ("cents", r"\.[0-9]{2}"), ("turn", " @ turn [0-9]+")):
            if re.fullmatch(pattern, text):
                value = float(re.sub(r"[^0-9]", "", text))
                kind = "group" if kind == "whole" and text.startswith("0") and len(text) > 1 else kind
                made = 0.7 * unit(_waves(value) @ waves) + 0.3 * unit(kinds[kind]) + unit(g.standard_normal(hidden))
                table[token] = LENGTH * unit(made)
    for token, names in tokenizer.alike(tok):
        table[token] = LENGTH * unit(sum(part(name) for name in names) + 0.5 * unit(g.standard_normal(hidden)))
    return table


def _waves(value: float) -> np.ndarray:
    lengths = np.geomspace(2.3, 2500.0, 24)
    scales = np.geomspace(0.35, 14.0, 8)
    angles = np.concatenate([2 * math.pi * value / lengths, 2 * math.pi * math.log1p(value) / scales])
    return np.concatenate([np.sin(angles), np.cos(angles)])


def taken_over(old: Any, known: Mapping[str, int], model: Any, tok: Any) -> Any:
    """``model`` with the weights of ``old``. Tokens that today's tokenizer has and the old one lacked begin anew."""
    import torch

    rows = old.get_input_embeddings().weight.detach()
    table = model.get_input_embeddings().weight
    weights = {name: weight for name, weight in old.state_dict().items() if not name.endswith(_TABLES)}
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        for text, token in tok.get_vocab().items():
            if text in known:
                table[token] = rows[known[text]]
    return model


_TABLES = ("embed_tokens.weight", "lm_head.weight")
