"""The engine that computes in this process, through transformers: batches, caches between turns, LoRA adapters.

Generation is not ``model.generate``: that computes every prompt from its beginning, extends its cache by copying it
for each token, and draws all rows of a batch from one stream of random numbers. Here a conversation's keys and values
stay between its turns, and each token is drawn with a number of its reply's own, so that what is said does not depend
on who is in the batch (beyond rounding, in float32).
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.adapters import Adapter
from negolab.policies.chat_template import ChatFormat, Conversation, Conversations, load_tokenizer
from negolab.policies.engine import Completion, Done, Prompt, Sampling, split_reasoning
from negolab.policies.fingerprint import fingerprint
from negolab.policies.hf_generate import CachedRunner, Counts, PlainRunner, Row, Runner, generate
from negolab.policies.hf_model import (
    Given,
    Model,
    check_adapters,
    context_of,
    device_of,
    dtype_of,
    load_config,
    source,
)
from negolab.policies.kv_cache import Store
from negolab.policies.spec import TransformersSpec
from negolab.prompts.multi_buyer import Message

Allowed = Callable[[Prompt, Sequence[int]], Any]
"""Told of a prompt and what was sampled to it so far: the tokens that may come next (a list or tensor of ids), or None
for all."""


def make_engine(specs: Sequence[TransformersSpec]) -> TransformersEngine:
    """The engine for ``specs``, which may differ in sampling, thinking and adapter. Reads no weights yet.

    Raises ``NegolabError`` where a package is missing, or a model, adapter or device cannot be used.
    """
    return TransformersEngine(specs)


class TransformersEngine:
    """See the module, and ``policies.engine.TextEngine``."""

    def __init__(self, specs: Sequence[TransformersSpec], given: Given | None = None) -> None:
        """``given``: a model that is in memory already, whose weights may change between replies (``renew``)."""
        self._spec = specs[0]
        self._given = given
        self._names = list(dict.fromkeys(spec.adapter for spec in specs if spec.adapter and given is None))
        self._thinking = list(dict.fromkeys(spec.thinking for spec in specs))
        self.window = self._spec.batch
        self.allowed: Allowed | None = None
        """Holds replies to a grammar, where somebody sets it; for measurements, not offered to users."""
        self._adapters: dict[str, Adapter] = {}
        self._config: Any = None
        if given is not None:
            self._device = next(given.model.parameters()).device
            self._config = given.model.config
        else:
            self._device = device_of(self._spec)
            _, options = source(self._spec)
            # A GGUF file's configuration takes seconds to read.
            if "gguf_file" not in options:
                self._config = load_config(self._spec)
                self._adapters = check_adapters(self._names, self._config, self._spec.model)
        self._formats: dict[bool | None, Conversations] = {}
        self._model: Model | None = None
        self._fallback = ""
        self._store = Store(int(self._spec.cache_gb * 1e9))
        self._counts = Counts()
        self._waiting: list[tuple[Prompt, Done, float]] = []
        self._closed = False

    @property
    def config(self) -> Any:
        """The model's configuration."""
        if self._config is None:
            self._config = load_config(self._spec)
            self._adapters = check_adapters(self._names, self._config, self._spec.model)
        return self._config

    def conversations(self, thinking: bool | None) -> Conversations:
        """The tokens of open conversations in one mode of thinking. Raises ``NegolabError`` where the tokenizer or
        its chat template cannot be used."""
        if thinking not in self._formats:
            if not self._formats:
                given = self._given
                tokenizer = load_tokenizer(self._spec.model, self._spec.revision) if given is None else given.tokenizer
            else:
                tokenizer = next(iter(self._formats.values())).chat.tokenizer
            self._formats[thinking] = Conversations(ChatFormat(tokenizer, thinking))
        return self._formats[thinking]

    def check(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str]:
        """What a user should know before the weights are loaded, from the longest first prompts of a run.

        Raises ``NegolabError`` where one of them and ``max_tokens`` exceed the model's context.
        """
        told = []
        longest = 0
        for thinking in self._thinking:
            chat = self.conversations(thinking).chat
            told += [sentence for sentence in chat.sentences if sentence not in told]
            longest = max([longest, *[len(chat.ids(messages)) for messages in conversations]])
        context = context_of(self.config)
        if longest + max_tokens > context:
            raise NegolabError(
                f"transformers:{self._spec.model}: the longest first prompt has {longest:,} tokens, and with "
                f"max_tokens {max_tokens:,} that exceeds the model's context of {context:,}; give a smaller max_tokens"
            )
        told.append(f"Longest first prompt: {longest:,} tokens, of a context of {context:,}.")
        return told

    def describe(self) -> dict[str, Any]:
        """See ``TextEngine``."""
        chat = self.conversations(self._thinking[0]).chat
        commit = str(getattr(self.config, "_commit_hash", None) or "")
        names = ["torch", "transformers", *(["peft"] if self._adapters else [])]
        found: dict[str, Any] = {
            **fingerprint(self._spec.model, commit),
            "dtype": self._dtype(),
            "chat_template": chat.sha256,
            "append_only": chat.append_only,
            "versions": {name: importlib.metadata.version(name) for name in names},
        }
        if self._adapters:
            found["adapters"] = [
                fingerprint(str(adapter.folder)) | {"model": _short(name)} for name, adapter in self._adapters.items()
            ]
        return found

    def _dtype(self) -> str:
        if self._given is not None:
            return str(next(self._given.model.parameters()).dtype).removeprefix("torch.")
        return dtype_of(self._spec, self.config, self._device)

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        """See ``TextEngine``."""
        now = time.monotonic()
        self._waiting += [(prompt, done, now) for prompt in prompts]

    def recall(self, prompt: Prompt, text: str | None, ids: Sequence[int] | None) -> None:
        """A reply that was given before, found in a journal: the conversation's next prompt holds its tokens, as it
        would have had the reply just been sampled."""
        conversations = self.conversations(prompt.sampling.thinking)
        conversations.prompt_ids(prompt.conversation, prompt.messages)
        conversations.said(prompt.conversation, text, ids)

    def run(self) -> None:
        """Generate one batch of what was asked for. Raises ``NegolabError`` where the model cannot be loaded or does
        not work."""
        if not self._waiting:
            return
        model = self._loaded()
        taken = self._next(model)
        rows: list[Row] = []
        asked: dict[int, tuple[Prompt, Done, float]] = {}
        for prompt, done, since in taken:
            row = self._row(prompt, model)
            if row.limit < 1:
                done(prompt, Completion(None, "context_limit", len(row.ids), 0, 0, prompt_ids=row.ids))
                continue
            rows.append(row)
            asked[id(row)] = (prompt, done, since)
        if not rows:
            return
        self._counts.batches += 1

        def finished(row: Row) -> None:
            prompt, done, since = asked[id(row)]
            self._counts.sampled += len(row.out)
            done(prompt, self._completion(prompt, row, model, time.monotonic() - since))

        try:
            generate(self._runner(model, rows), self._stop(model), finished, self._counts)
        except ValueError as error:
            raise NegolabError(f"transformers:{self._spec.model}: {error}; another dtype may help") from None
        except RuntimeError as error:
            if "out of memory" not in str(error).lower() and "can't allocate memory" not in str(error).lower():
                raise
            raise NegolabError(
                f"transformers:{self._spec.model}: {len(rows)} conversations do not fit into memory; give a smaller "
                f"batch than {self._spec.batch}, or a smaller cache_gb than {self._spec.cache_gb:g}"
            ) from None

    def _next(self, model: Model) -> list[tuple[Prompt, Done, float]]:
        """The batch: those that wait longest, of one adapter where the model cannot mix them."""
        first = self._waiting[0][0].adapter
        most = self._spec.batch if self._fallback == "" or model.pads else 1
        taken: list[tuple[Prompt, Done, float]] = []
        left: list[tuple[Prompt, Done, float]] = []
        for item in self._waiting:
            fits = len(taken) < most and (model.mixes or item[0].adapter == first)
            (taken if fits else left).append(item)
        self._waiting = left
        return taken

    def _row(self, prompt: Prompt, model: Model) -> Row:
        ids = self.conversations(prompt.sampling.thinking).prompt_ids(prompt.conversation, prompt.messages)
        limit = min(prompt.sampling.max_tokens, model.context - len(ids))
        held = self.allowed
        allowed = None if held is None else (lambda out: held(prompt, out))
        return Row(prompt.conversation, prompt.adapter, ids, limit, prompt.sampling, prompt.seed, allowed)

    def _runner(self, model: Model, rows: Sequence[Row]) -> Runner:
        if self._fallback:
            return PlainRunner(model, rows, self._counts)
        return CachedRunner(model, rows, self._store, self._counts)

    def _stop(self, model: Model) -> frozenset[int]:
        """Every token that ends a reply: the model's, the tokenizer's, and what the template writes there."""
        chat = next(iter(self._formats.values())).chat
        more = {chat.end, chat.tokenizer.eos_token_id} - {None}
        return model.eos | frozenset(token for token in more if token is not None)

    def _completion(self, prompt: Prompt, row: Row, model: Model, seconds: float) -> Completion:
        conversations = self.conversations(prompt.sampling.thinking)
        ended = row.out[-1] in self._stop(model)
        finish = "stop" if ended else "length" if len(row.out) >= prompt.sampling.max_tokens else "context_limit"
        reasoning, text = split_reasoning(
            conversations.chat.decode(row.out[:-1] if ended else row.out), conversations.chat.opened
        )
        conversations.said(prompt.conversation, text, row.out)
        return Completion(
            text,
            finish,
            len(row.ids),
            len(row.out),
            row.reused + row.shared,
            reasoning,
            row.out,
            row.logprobs,
            row.ids,
            seconds,
        )

    def _loaded(self) -> Model:
        """The model, read when it is first needed, and how it is to be run."""
        if self._closed:
            raise NegolabError(f"transformers:{self._spec.model}: the engine was closed")
        if self._model is None:
            model = Model(self._spec, self.config, self._adapters, self._given)
            if not model.cached:
                self._fallback = "its layers do not all keep every token's keys and values"
            elif not self._agrees(model):
                self._fallback = "it did not give the same with our cache as with transformers' own"
            self._model = model
        return self._model

    def _agrees(self, model: Model) -> bool:
        """Whether the model gives the same with the cache here as with its own, tried on two short prompts: a new
        kind of model may take its mask or its positions in a way of its own."""
        import torch

        sampling = Sampling(0.0, 1.0, 0, 2, None)
        end = min(self.config.get_text_config().vocab_size - 1, 40)

        def logits(runner: Runner) -> Any:
            seen: dict[int, Any] = {}
            for places, found in runner.prefill():
                seen |= {runner.rows[place].seed: found[at] for at, place in enumerate(places)}
            later = runner.step([7 + row.seed for row in runner.rows])
            seen |= {10 + row.seed: later[at] for at, row in enumerate(runner.rows)}
            return torch.stack([seen[at] for at in sorted(seen)])

        def rows() -> list[Row]:
            texts = [list(range(1, end)), list(range(3, 3 + end // 2))]
            return [Row((-1, at), "", ids, 2, sampling, at) for at, ids in enumerate(texts)]

        try:
            ours = logits(CachedRunner(model, rows(), Store(0), Counts()))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return False
        alone = [logits(PlainRunner(model, [row], Counts())) for row in rows()]
        theirs = torch.stack([alone[0][0], alone[1][0], alone[0][1], alone[1][1]])
        spread = (theirs - theirs.mean(dim=-1, keepdim=True)).norm(dim=-1)
        tolerance = 1e-3 if model.dtype == "float32" else 5e-2
        return bool(((ours - theirs).norm(dim=-1) <= tolerance * spread).all())

    def renew(self) -> None:
        """The weights have changed: what was computed with the old ones is dropped."""
        self._store.clear()

    def forget(self, conversation: Conversation) -> None:
        """See ``TextEngine``."""
        self._store.forget(conversation)
        for conversations in self._formats.values():
            conversations.forget(conversation)

    def report(self) -> dict[str, Any]:
        """See ``TextEngine``. ``reused``: tokens that a conversation's last turn had computed; ``shared``: tokens of a
        beginning that another conversation had."""
        c = self._counts
        formats = self._formats.values()
        return {
            "prompt_tokens": c.prompt_tokens,
            "computed": c.computed,
            "reused": c.reused,
            "shared": c.shared,
            "sampled": c.sampled,
            "batches": c.batches,
            "prefill_seconds": round(c.prefill_seconds, 3),
            "decode_seconds": round(c.decode_seconds, 3),
            "peak_cache_gb": round(c.peak_bytes / 1e9, 3),
            "evicted": self._store.evicted,
            "prompts_extended": sum(conversations.extended for conversations in formats),
            "prompts_rendered_anew": sum(conversations.rendered for conversations in formats),
            "caches_kept_between_turns": self._fallback == "" and self._store.limit > 0,
            **({"why_not": self._fallback} if self._fallback else {}),
        }

    def close(self) -> None:
        """See ``TextEngine``."""
        self._closed = True
        self._model = None
        self._waiting.clear()
        self._store.clear()
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()


def _short(adapter: str) -> str:
    """An adapter's name without where it lies."""
    return Path(adapter).resolve().name if Path(adapter).exists() else adapter
