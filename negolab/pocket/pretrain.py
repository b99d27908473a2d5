"""Making the pocket model's base from nothing: a Qwen3 of a million parameters learns the protocol from scripted play.

Not TRL's SFTTrainer, which ``trainer/sft.py`` uses for models that exist: here every token has a weight of its own,
matrices are trained with Muon (several times fewer tokens than with AdamW at this size, measured), and batches are made
of texts of like length.

The first embeddings are not all random. A number starts as waves of its value and of its logarithm, a buyer's phrases
share a part. That 37 lies between 36 and 38 need not be learnt from a million examples then; how numbers are compared,
and that they should be, is.
"""

from __future__ import annotations

import csv
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from negolab.errors import NegolabError
from negolab.pocket import corpus, tokenizer, words
from negolab.pocket.muon import muon
from negolab.pocket.teacher import Teacher
from negolab.seeds import generator


@dataclass(frozen=True, slots=True)
class PocketSettings:
    """What decides the base model, to the last bit on one machine and number of threads."""

    seed: int = 0
    episodes: int = 24_000
    """Scripted episodes to learn from, each read once."""
    hidden: int = 128
    """Width of the model."""
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 384
    batch_tokens: int = 6_000
    """Most tokens in one step, padding included."""
    muon_lr: float = 0.02
    """First learning rate of the matrices; it falls linearly to zero."""
    adamw_lr: float = 3e-3
    """First learning rate of the embeddings and norms."""
    told: float = 0.2
    """Weight in the loss of what a seat is told, beside 1 for what it says."""


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
    return model


def first_embeddings(settings: PocketSettings, tok: Any, table: np.ndarray) -> np.ndarray:
    """``table`` (vocabulary, hidden) with its rows for numbers and buyers' phrases replaced; all of one length."""
    g = generator(settings.seed, "pocket embeddings")
    hidden = table.shape[1]
    size = float(np.linalg.norm(table, axis=1).mean())
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
                made = unit(_waves(value) @ waves) + 0.5 * unit(kinds[kind]) + 0.8 * unit(g.standard_normal(hidden))
                table[token] = size * unit(made)
    for token, names in tokenizer.alike(tok):
        table[token] = size * unit(sum(part(name) for name in names) + 0.5 * unit(g.standard_normal(hidden)))
    return table


def _waves(value: float) -> np.ndarray:
    lengths = np.geomspace(2.3, 2500.0, 24)
    scales = np.geomspace(0.35, 14.0, 8)
    angles = np.concatenate([2 * math.pi * value / lengths, 2 * math.pi * math.log1p(value) / scales])
    return np.concatenate([np.sin(angles), np.cos(angles)])


def batches(settings: PocketSettings, tok: Any, pool: int = 512) -> Iterator[list[corpus.Text]]:
    """Texts in batches of at most ``batch_tokens``, of like length within a batch, in a seeded order."""
    for start in range(0, settings.episodes, pool):
        numbers = range(start, min(settings.episodes, start + pool))
        found = sorted(corpus.texts(tok, settings.seed, numbers, settings.told), key=lambda text: len(text.ids))
        made: list[list[corpus.Text]] = [[]]
        for text in found:
            if made[-1] and (len(made[-1]) + 1) * len(text.ids) > settings.batch_tokens:
                made.append([])
            made[-1].append(text)
        order = generator(settings.seed, "pocket batches", start).permutation(len(made))
        yield from (made[at] for at in order)


def pretrain(
    settings: PocketSettings,
    out: str | Path,
    *,
    start: str | Path | None = None,
    progress: bool | None = None,
    say: Callable[[str], object] = print,
) -> dict[str, float]:
    """Make the base in the folder ``out``: model, tokenizer, ``pretrain.json`` and ``pretrain.csv``.

    ``start``: a pocket model's folder to go on from, with other examples (another seed); its record is kept.
    Returns the last losses. Raises ``NegolabError`` where ``out`` exists already or cannot be made, and where ``start``
    is no pocket model.
    """
    import torch
    from tqdm import tqdm

    if start is not None and settings.seed in seeds_of(start):
        raise NegolabError(f"the model in {start} was made with seed {settings.seed}; go on with another")
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "not empty" if folder.is_dir() else "a file"
        raise NegolabError(f"{folder} is {what}; give a folder that does not exist yet")
    tok, model, before = _begin(settings, start)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NegolabError(f"cannot make {folder}: {error.strerror or error}") from error
    model.train()
    matrices: list[Any] = []
    others: list[Any] = []
    for name, weight in model.named_parameters():
        (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
    optimisers: list[Any] = [
        muon(matrices, lr=settings.muon_lr),
        torch.optim.AdamW(others, lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    started, tokens, step = time.perf_counter(), 0, 0
    seen, total = 0, sum(1 for _ in corpus.numbers(range(settings.episodes)))
    last, sums = np.zeros(3), np.zeros(3)
    with (
        (folder / "pretrain.csv").open("w", encoding="utf-8", newline="") as file,
        tqdm(total=total, unit="text", disable=None if progress is None else not progress) as bar,
    ):
        log = csv.writer(file)
        log.writerow(["step", "texts", "tokens", "loss_said", "loss_told", "seconds"])
        for batch in batches(settings, tok):
            share = (1.0 - seen / total) * min(1.0, (step + 1) / 30)
            for optimiser, rate in zip(optimisers, (settings.muon_lr, settings.adamw_lr), strict=True):
                for group in optimiser.param_groups:
                    group["lr"] = rate * share
            sums += (*_step(model, batch, optimisers), 1.0)
            seen += len(batch)
            step += 1
            tokens += sum(len(text.ids) for text in batch)
            bar.update(len(batch))
            if step % 50 == 0 or seen == total:
                last, sums = sums / sums[2], np.zeros(3)
                log.writerow([step, seen, tokens, *np.round(last[:2], 4), round(time.perf_counter() - started)])
                file.flush()
                bar.set_postfix(said=f"{last[0]:.3f}", told=f"{last[1]:.3f}", refresh=False)
    seconds = time.perf_counter() - started
    model.eval()
    model.generation_config.eos_token_id = tok.eos_token_id
    model.generation_config.pad_token_id = tok.pad_token_id
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    found = {"loss_said": round(float(last[0]), 4), "loss_told": round(float(last[1]), 4)}
    facts = {
        **({"before": before} if before else {}),
        "settings": asdict(settings),
        "teacher": Teacher().describe(),
        "steps": step,
        "tokens": tokens,
        "parameters": model.num_parameters(),
        "vocabulary": len(tok),
        "seconds": round(seconds),
        "threads": torch.get_num_threads(),
        **found,
        "versions": _versions(),
    }
    (folder / "pretrain.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    say(f"{step} steps, {tokens:,} tokens in {seconds:.0f} s; loss {found['loss_said']} on what is said")
    return found


def seeds_of(folder: str | Path) -> list[int]:
    """The seeds of the examples that a pocket model has read, the last first; none where they are not known."""
    found = []
    try:
        record = json.loads((Path(folder) / "pretrain.json").read_text(encoding="utf-8"))
        while record:
            found.append(int(record["settings"]["seed"]))
            record = record.get("before")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return found


def _begin(settings: PocketSettings, start: str | Path | None) -> tuple[Any, Any, dict[str, Any]]:
    """Tokenizer and model to begin with, and the record of how they were made, if they were."""
    if start is None:
        tok = tokenizer.learn(corpus.shown(), words.SPOKEN)
        return tok, new_model(settings, tok), {}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(start)
    try:
        before = json.loads((folder / "pretrain.json").read_text(encoding="utf-8"))
        known = AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
        old = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True)
    except (OSError, ValueError) as error:
        raise NegolabError(f"{folder} holds no pocket model to go on from: {error}") from None
    sizes = {"hidden": "hidden_size", "layers": "num_hidden_layers", "feed_forward": "intermediate_size"}
    for mine, theirs in sizes.items():
        if getattr(settings, mine) != getattr(old.config, theirs):
            raise NegolabError(f"{folder} has {mine} {getattr(old.config, theirs)}, not {getattr(settings, mine)}")
    tok = tokenizer.learn(corpus.shown(), words.SPOKEN)
    return tok, _taken_over(old, known, new_model(settings, tok), tok), before


def _taken_over(old: Any, known: Mapping[str, int], model: Any, tok: Any) -> Any:
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


def _step(model: Any, batch: Sequence[corpus.Text], optimisers: Sequence[Any]) -> tuple[float, float]:
    import torch

    width = max(len(text.ids) for text in batch)
    ids = np.zeros((len(batch), width), dtype=np.int64)
    weights = np.zeros((len(batch), width), dtype=np.float32)
    for at, text in enumerate(batch):  # padded on the right: under a causal mask nobody sees the padding
        ids[at, : len(text.ids)], weights[at, : len(text.ids)] = text.ids, text.weights
    inputs, wanted = torch.from_numpy(ids), torch.from_numpy(weights[:, 1:])
    counted = wanted > 0
    hidden = model.model(input_ids=inputs).last_hidden_state[:, :-1][counted]
    losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), inputs[:, 1:][counted], reduction="none")
    weight = wanted[counted]
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    own = weight >= 1.0
    with torch.no_grad():
        return float(losses[own].mean()), float(losses[~own].mean()) if bool((~own).any()) else 0.0


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("negolab", "torch", "transformers", "tokenizers")}
