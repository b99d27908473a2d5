"""Making the pocket model's base from nothing: a Qwen3 of a million parameters learns the protocol from scripted play.

Not TRL's SFTTrainer, which ``trainer/sft.py`` uses for models that exist: here every token has a weight of its own,
matrices are trained with Muon (several times fewer tokens than with AdamW at this size, measured), and batches are made
of texts of like length.

A run that was killed goes on after its last checkpoint (``unfinished.py``), on one machine and number of threads to the
same bytes as one that was not: examples are a function of the settings, and nothing else is drawn on the way.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from negolab.errors import NegolabError
from negolab.pocket import corpus, tokenizer, unfinished, words
from negolab.pocket.first_weights import new_model, taken_over
from negolab.pocket.muon import muon
from negolab.pocket.settings import PocketSettings
from negolab.pocket.teacher import BilateralTeacher, Teacher
from negolab.seeds import generator
from negolab.trainer import records
from negolab.trainer.interrupts import interrupts

SAVE_EVERY = 150
"""Steps between checkpoints: about three minutes on one core."""
_COLUMNS = ("step", "texts", "tokens", "loss_said", "loss_told", "seconds")


def batches(settings: PocketSettings, tok: Any, *, skip: int = 0, pool: int = 512) -> Iterator[list[corpus.Text]]:
    """Texts in batches of at most ``batch_tokens``, of like length within a batch, in a seeded order.

    The first ``skip`` texts, which must end a batch, are left out; whole pools of them are not even played.
    """
    for start in range(0, settings.episodes, pool):
        numbers = range(start, min(settings.episodes, start + pool))
        count = corpus.count(settings, numbers)
        if skip >= count:
            skip -= count
            continue
        found = sorted(corpus.examples(tok, settings, numbers), key=lambda text: len(text.ids))
        made: list[list[corpus.Text]] = [[]]
        for text in found:
            if made[-1] and (len(made[-1]) + 1) * len(text.ids) > settings.batch_tokens:
                made.append([])
            made[-1].append(text)
        order = generator(settings.seed, "pocket batches", start).permutation(len(made))
        for batch in (made[at] for at in order):
            if skip > 0:
                skip -= len(batch)
            else:
                yield batch


def pretrain(
    settings: PocketSettings,
    out: str | Path,
    *,
    start: str | Path | None = None,
    save_every: int = SAVE_EVERY,
    progress: bool | None = None,
    say: Callable[[str], object] = print,
) -> dict[str, float]:
    """Make the base in the folder ``out``, or go on making it: model, tokenizer, ``pretrain.json``, ``pretrain.csv``.

    ``start``: a pocket model's folder to go on from, with other examples (another seed); its record is kept.
    ``save_every``: steps between checkpoints. Returns the last losses, of a finished base those in its record. Raises
    ``NegolabError`` where ``out`` holds anything else or cannot be made, and where ``start`` is no pocket model;
    ``KeyboardInterrupt`` when interrupted, after a checkpoint of the last whole step.
    """
    import torch

    folder = Path(out)
    if start is not None and settings.seed in seeds_of(start):
        raise NegolabError(f"the model in {start} was made with seed {settings.seed}; go on with another")
    unfinished.check_place(folder)
    before = {} if start is None else _record(Path(start))
    made: dict[str, Any] = {"settings": asdict(settings), "teacher": Teacher().describe()}
    known = unfinished.finished(folder, {**made, "before": before or None})
    if known is not None:
        unfinished.clear(folder)
        say(f"{folder} is complete: {known['steps']} steps")
        return {name: known[name] for name in ("loss_said", "loss_told")}
    begun = {**made, "bilateral_teacher": BilateralTeacher().describe(), "start": _digest_of(start)}
    begun = unfinished.manifest(begun, torch.get_num_threads(), _versions())
    unfinished.compare(folder, begun)  # before the tokenizer, which takes a while
    tok = tokenizer.learn(corpus.shown(), words.SPOKEN)
    begun["tokenizer_sha256"] = hashlib.sha256(tok.backend_tokenizer.to_str().encode("utf-8")).hexdigest()
    unfinished.compare(folder, begun)
    run = _Learning(settings, _begin(settings, tok, start))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NegolabError(f"cannot make {folder}: {error.strerror or error}") from error
    with records.locked(folder / unfinished.UNFINISHED):
        unfinished.check_place(folder)
        if (folder / unfinished.RECORD).exists():
            raise NegolabError(f"{folder} was finished by another process meanwhile")
        run.go(folder, tok, begun, save_every, progress, say)
        found = run.keep(folder, tok, {**({"before": before} if before else {}), **made}, say)
    unfinished.clear(folder)
    return found


class _Learning:
    """A model that is being taught, and all that a checkpoint of it holds."""

    def __init__(self, settings: PocketSettings, model: Any) -> None:
        import torch

        self.settings, self.model = settings, model
        model.train()
        matrices: list[Any] = []
        others: list[Any] = []
        for name, weight in model.named_parameters():
            (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
        self.optimisers: list[Any] = [
            muon(matrices, lr=settings.muon_lr),
            torch.optim.AdamW(others, lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.total = corpus.count(settings, range(settings.episodes))
        """Texts to read."""
        self.step = self.seen = self.tokens = 0
        self.last, self.sums = np.zeros(2), np.zeros((2, 2))
        """Losses on what is said and told: means over the last row of ``rows`` (0: nothing was told, as in drills), and
        since then their sums and numbers of steps."""
        self.rows: list[dict[str, Any]] = []
        self.began = time.perf_counter()
        """When it would have begun, had it never been stopped."""
        self.updating = self.stop = False
        """As ``trainer.interrupts`` wants them: an interrupt waits for the end of a step."""

    def state(self) -> dict[str, Any]:
        """What ``restore`` goes on from to the same bytes."""
        return {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "counts": [self.step, self.seen, self.tokens],
            "losses": [self.last.tolist(), self.sums.tolist()],
            "rows": self.rows,
            "seconds": time.perf_counter() - self.began,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned in another process."""
        self.model.load_state_dict(state["model"])
        for optimiser, held in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(held)
        self.step, self.seen, self.tokens = state["counts"]
        self.last, self.sums = (np.array(values) for values in state["losses"])
        self.rows = list(state["rows"])
        self.began = time.perf_counter() - state["seconds"]

    def go(
        self,
        folder: Path,
        tok: Any,
        begun: Mapping[str, Any],
        save_every: int,
        progress: bool | None,
        say: Callable[[str], object],
    ) -> None:
        """Read all examples that are left. An interrupt leaves a checkpoint of the last whole step."""
        from tqdm import tqdm

        state, notes = unfinished.begin(folder, begun)
        if state is not None:
            self.restore(state)
            say(f"going on after step {self.step}: {self.seen:,} of {self.total:,} texts are read")
        for note in notes:
            say(note)
        saved = self.step
        table = records.Table(folder / "pretrain.csv", _COLUMNS)
        table.path.unlink(missing_ok=True)
        table.cut(0)
        table.append(self.rows)
        disable = None if progress is None else not progress
        with (
            tqdm(total=self.total, initial=self.seen, unit="text", disable=disable) as bar,
            interrupts(self) as waiting,
        ):
            try:
                for batch in batches(self.settings, tok, skip=self.seen):
                    self.updating = True
                    row = self._learn(batch)
                    self.updating = False
                    bar.update(len(batch))
                    if row:
                        table.append([row])
                        bar.set_postfix(said=f"{self.last[0]:.3f}", told=f"{self.last[1]:.3f}", refresh=False)
                    waiting.raise_caught()
                    if self.step % save_every == 0 or self.seen == self.total:
                        unfinished.save(folder, self.step, self.state())
                        saved = self.step
            except KeyboardInterrupt:
                if not self.updating and self.step > saved:
                    unfinished.save(folder, self.step, self.state())
                raise

    def _learn(self, batch: Sequence[corpus.Text]) -> dict[str, Any] | None:
        """One step; its row of ``pretrain.csv`` where it has one."""
        share = (1.0 - self.seen / self.total) * min(1.0, (self.step + 1) / 30)
        for optimiser, rate in zip(self.optimisers, (self.settings.muon_lr, self.settings.adamw_lr), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * share
        losses = np.array(_step(self.model, batch, self.optimisers))
        self.sums += (np.nan_to_num(losses), ~np.isnan(losses))
        self.step += 1
        self.seen += len(batch)
        self.tokens += sum(len(text.ids) for text in batch)
        if self.step % 50 and self.seen < self.total:
            return None
        self.last, self.sums = self.sums[0] / np.maximum(self.sums[1], 1.0), np.zeros((2, 2))
        said, told = (round(float(loss), 4) for loss in self.last)
        seconds = round(time.perf_counter() - self.began)
        self.rows.append(dict(zip(_COLUMNS, (self.step, self.seen, self.tokens, said, told, seconds), strict=True)))
        return self.rows[-1]

    def keep(self, folder: Path, tok: Any, made: Mapping[str, Any], say: Callable[[str], object]) -> dict[str, float]:
        """Save model, tokenizer and record, the record last; returns the last losses."""
        import torch

        from negolab.policies.hf_model import quiet

        seconds, model = time.perf_counter() - self.began, self.model
        model.eval()
        model.generation_config.eos_token_id = tok.eos_token_id
        model.generation_config.pad_token_id = tok.pad_token_id
        with quiet():
            model.save_pretrained(folder)
            tok.save_pretrained(folder)
        found = {"loss_said": round(float(self.last[0]), 4), "loss_told": round(float(self.last[1]), 4)}
        facts = {
            **made,
            "steps": self.step,
            "tokens": self.tokens,
            "parameters": model.num_parameters(),
            "vocabulary": len(tok),
            "seconds": round(seconds),
            **unfinished.resumed(folder),
            "threads": torch.get_num_threads(),
            **found,
            "versions": _versions(),
        }
        unfinished.finish(folder, facts)
        say(f"{self.step} steps, {self.tokens:,} tokens in {seconds:.0f} s; loss {found['loss_said']} on what is said")
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


def _record(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / unfinished.RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NegolabError(f"{folder} holds no pocket model to go on from: {error}") from None
    return found


def _digest_of(start: str | Path | None) -> str | None:
    from negolab.policies.fingerprint import fingerprint

    return None if start is None else fingerprint(str(start))["sha256"]


def _begin(settings: PocketSettings, tok: Any, start: str | Path | None) -> Any:
    """The model to begin with."""
    if start is None:
        return new_model(settings, tok)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(start)
    try:
        known = AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
        old = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise NegolabError(f"{folder} holds no pocket model to go on from: {error}") from None
    sizes = {
        **{"hidden": "hidden_size", "layers": "num_hidden_layers", "feed_forward": "intermediate_size"},
        **{"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"},
    }
    for mine, theirs in sizes.items():
        if getattr(settings, mine) != getattr(old.config, theirs):
            raise NegolabError(f"{folder} has {mine} {getattr(old.config, theirs)}, not {getattr(settings, mine)}")
    return taken_over(old, known, new_model(settings, tok), tok)


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
        return float(losses[own].mean()), float(losses[~own].mean()) if bool((~own).any()) else math.nan


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("negolab", "torch", "transformers", "tokenizers")}
