"""Replies from a model in this process, through vLLM.

There is no barrier: what is asked for joins vLLM's running batch at once, and each reply is handed over at the step in
which it ends, so sellers and buyers of different episodes, with or without an adapter, are computed together. Prompts
go in as token ids (``chat_template``), the same that other engines see. Prefix caching is on; how much it saved is
counted by vLLM itself.

Deviations that a user should know. vLLM does not promise the same bits for a row whatever else is in its batch: see
``VLLM_BATCH_INVARIANT`` in its documentation. Log-probabilities are taken after temperature and, with ``top_p`` or
``top_k``, after truncation, which is not what ``Reply.logprobs`` means: there they are left out. Temperatures between
0 and 0.01 are played at 0.01.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from negolab.errors import NegolabError
from negolab.policies import vllm_runtime
from negolab.policies.adapters import Adapter, load_adapter
from negolab.policies.base import Failed
from negolab.policies.chat_template import ChatFormat, Conversations, first_line, load_tokenizer, missing
from negolab.policies.engine import Completion, Done, Prompt, split_reasoning
from negolab.policies.fingerprint import fingerprint
from negolab.policies.memory import GIB, Memory, estimate, number_format, shape_of, stored_bytes
from negolab.policies.spec import ModelSpec, VllmSpec, located
from negolab.prompts.multi_buyer import Message

_CPU_CACHE = 4
"""GiB of keys and values on a CPU, where vLLM would take most of the memory."""


class _Asked(NamedTuple):
    prompt: Prompt
    done: Done
    since: float


class _UnderWay(NamedTuple):
    asked: _Asked
    ids: list[int]


def make_engine(specs: Sequence[ModelSpec]) -> VllmEngine:
    """The engine for models that differ in sampling and adapter only; see ``VllmEngine``."""
    return VllmEngine([spec for spec in specs if isinstance(spec, VllmSpec)])


class VllmEngine:
    """One model, loaded when the first reply is wanted. See ``engine.TextEngine``.

    Raises ``NegolabError`` for everything that can be known without the weights: vLLM is not installed or finds no
    GPU, the model's configuration, tokenizer or chat template, adapters that do not fit, ``max_model_len`` beyond the
    model's context, heads that ``tensor_parallel`` does not divide, more GPUs than there are.
    """

    def __init__(self, specs: Sequence[VllmSpec]) -> None:
        self._spec = spec = specs[0]
        self._who = f"{spec.engine}:{spec.model}"
        self.window = spec.batch
        if find_spec("vllm") is None:
            raise missing("vllm", ImportError(name="vllm"))
        if Path(located(spec.model)).suffix == ".gguf":
            raise NegolabError(f"{self._who}: vLLM reads no GGUF files here; give a folder with safetensors files")
        self._tokenizer = load_tokenizer(spec.model, spec.revision, "vllm")
        self._config, self._commit = _model_config(spec)
        self._shape = shape_of(self._config)
        self._context = self._fitting_context()
        self._chats = {thinking: self._conversations(thinking) for thinking in {s.thinking for s in specs}}
        self._stops = _stop_ids(spec, self._config, self._first.chat)
        names = sorted({s.adapter for s in specs if s.adapter})
        self._adapters = {name: self._checked_adapter(name) for name in names}
        self._gpus = self._checked_gpus()
        self._llm: Any = None
        self._loras: dict[str, Any] = {}
        self._queue: deque[_Asked] = deque()
        self._under_way: dict[str, _UnderWay] = {}
        self._number = 0
        self._counts = dict.fromkeys(("replies", "prompt_tokens", "cached_tokens", "completion_tokens"), 0)
        self._prefix = {"queries": 0, "hits": 0}
        self._seconds = {"loading": 0.0, "generating": 0.0}

    # -- what players and runs see --------------------------------------------------------------------------------

    def submit(self, prompts: Sequence[Prompt], done: Done) -> None:
        """Ask for replies; the work is done in ``run``."""
        now = time.monotonic()
        self._queue.extend(_Asked(prompt, done, now) for prompt in prompts)

    def run(self) -> None:
        """Put what was asked for into the batch and step until a reply is complete. Loads the model at first."""
        if not self._queue and not self._under_way:
            return
        if self._llm is None:
            self._load()
        began, delivered = time.monotonic(), self._accept()
        try:
            while self._under_way and not delivered:
                for output in self._llm.step():
                    delivered = self._deliver(output) or delivered
        except (NegolabError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise NegolabError(f"{self._who}: vLLM stopped: {first_line(error)}") from error
        finally:
            self._seconds["generating"] += time.monotonic() - began

    def recall(self, prompt: Prompt, text: str | None, ids: Sequence[int] | None) -> None:
        """A reply that was given before, found in a journal: the conversation's next prompt holds its tokens, as it
        would have had the reply just been sampled."""
        chat = self._chat(prompt)
        chat.prompt_ids(prompt.conversation, prompt.messages)
        chat.said(prompt.conversation, text, ids)

    def forget(self, conversation: tuple[int, int]) -> None:
        """The conversation is over; a reply to it that is under way is no longer computed."""
        for chat in self._chats.values():
            chat.forget(conversation)
        gone = [key for key, found in self._under_way.items() if found.asked.prompt.conversation == conversation]
        if gone:
            self._llm.abort_request(gone)
            for key in gone:
                del self._under_way[key]

    def describe(self) -> dict[str, Any]:
        """See ``TextEngine``."""
        chat = self._first.chat
        found: dict[str, Any] = {
            **fingerprint(self._spec.model, self._commit),
            "dtype": number_format(self._config, self._spec.dtype),
            "chat_template": chat.sha256,
            "append_only": chat.append_only,
            "versions": vllm_runtime.versions(),
        }
        if self._adapters:
            found["adapters"] = [fingerprint(str(adapter.folder)) for adapter in self._adapters.values()]
        return found

    def check(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str]:
        """Whether the conversations fit into the context, and the model into the GPUs, in words."""
        chat = self._first.chat
        told = list(chat.sentences)
        longest = max((len(chat.ids(messages)) for messages in conversations), default=0)
        if self._context:
            if longest + max_tokens > self._context:
                raise NegolabError(
                    f"{self._who}: the longest first prompt has {longest:,} tokens, and with max_tokens "
                    f"{max_tokens:,} that exceeds the context of {self._context:,}; give a larger max_model_len (up to "
                    f"the model's {self._shape.context:,}), or a smaller max_tokens"
                )
            told.append(f"Longest first prompt: {longest:,} tokens, of a context of {self._context:,}.")
        if self._gpus is not None:
            told += self.memory().sentences(self._gpus[1], self._spec.gpu_memory)
        else:
            told.append(self.memory().line())
        told += [f"Adapter {a.name}: changes {', '.join(a.targets)}." for a in self._adapters.values()]
        return told

    def memory(self) -> Memory:
        """What each GPU must hold when ``batch`` conversations fill the context; see ``memory.estimate``."""
        return estimate(
            self._config,
            dtype=self._spec.dtype,
            tensor_parallel=self._spec.tensor_parallel,
            batch=self._spec.batch,
            length=self._context,
            weights_on_disk=stored_bytes(self._spec.model),
            on_cpu=self._gpus is None,
        )

    def report(self) -> dict[str, Any]:
        """Counters since it was made. ``prefix_cache``: tokens looked up and found, as vLLM counts them."""
        queries, hits = self._prefix["queries"], self._prefix["hits"]
        return {
            **self._counts,
            "prefix_cache": {**self._prefix, "hit_rate": round(hits / queries, 4) if queries else None},
            "prompts_extended": sum(chat.extended for chat in self._chats.values()),
            "prompts_rendered": sum(chat.rendered for chat in self._chats.values()),
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
        }

    def close(self) -> None:
        """Free the model. What is under way is dropped; asked again, the engine loads anew."""
        self._queue.clear()
        self._under_way.clear()
        self._loras.clear()
        llm, self._llm = self._llm, None
        if llm is not None:
            handed = [llm]
            del llm
            vllm_runtime.stop(handed.pop())

    # -- before the weights ---------------------------------------------------------------------------------------

    @property
    def _first(self) -> Conversations:
        return next(iter(self._chats.values()))

    def _conversations(self, thinking: bool | None) -> Conversations:
        return Conversations(ChatFormat(self._tokenizer, thinking))

    def _fitting_context(self) -> int:
        """Tokens that a conversation may have; 0 where only vLLM knows."""
        wanted, made_for = self._spec.max_model_len, self._shape.context
        scaled = self._config.get("rope_scaling") or self._config.get("rope_parameters") or {}
        stretched = isinstance(scaled, Mapping) and "factor" in scaled
        if wanted and made_for and wanted > made_for and not stretched:
            raise NegolabError(f"{self._who}: max_model_len is {wanted:,}, but the model's context is {made_for:,}")
        return wanted or (0 if stretched else made_for)

    def _checked_adapter(self, name: str) -> Adapter:
        adapter = load_adapter(name, self._config, self._spec.model)
        if adapter.on_experts:
            raise NegolabError(
                f"the adapter {name} changes experts, which vLLM refuses or leaves out without a word, depending on "
                "its version; train one on attention only (q_proj, k_proj, v_proj, o_proj), or merge it into the model"
            )
        if adapter.problems:
            raise NegolabError(f"the adapter {name} needs {', '.join(adapter.problems)}, which vLLM does not serve")
        if adapter.rank > vllm_runtime.RANKS[-1]:
            raise NegolabError(
                f"the adapter {name} has rank {adapter.rank}; vLLM allows up to {vllm_runtime.RANKS[-1]}"
            )
        return adapter

    def _checked_gpus(self) -> tuple[int, int] | None:
        """How many GPUs there are and the bytes of the first; None where vLLM was built for CPUs."""
        parts = self._spec.tensor_parallel
        if self._shape.heads % parts:
            raise NegolabError(
                f"{self._who}: tensor_parallel {parts} does not divide the model's {self._shape.heads} attention heads"
            )
        return vllm_runtime.gpus(self._who, parts)

    # -- the model ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        wanted, cpu_cache = self.memory(), None
        if self._gpus is not None:
            wanted.sentences(self._gpus[1], self._spec.gpu_memory)  # an error where it cannot fit
        else:
            cpu_cache = max(1, min(_CPU_CACHE, -(-wanted.batch * wanted.kv_conversation // GIB)))
        began, adapters = time.monotonic(), list(self._adapters.values())
        self._llm = vllm_runtime.start(
            self._spec,
            adapters,
            revision=self._commit or self._spec.revision,
            context=self._context,
            prefix=self._prefix,
            cpu_cache=cpu_cache,
        )
        self._context = int(self._llm.model_config.max_model_len)
        self._loras = vllm_runtime.lora_requests(adapters) if adapters else {}
        self._seconds["loading"] += time.monotonic() - began

    def _accept(self) -> bool:
        """Hand what is queued to vLLM; True where something was answered at once."""
        answered = False
        while self._queue:
            asked = self._queue.popleft()
            prompt = asked.prompt
            try:
                ids = self._chat(prompt).prompt_ids(prompt.conversation, prompt.messages)
            except NegolabError as error:
                asked.done(prompt, error)
                answered = True
                continue
            room = self._context - len(ids)
            if room < 1:
                asked.done(prompt, Completion(None, "context_limit", len(ids), 0, 0, prompt_ids=ids))
                answered = True
                continue
            most = min(room, prompt.sampling.max_tokens)
            key = str(self._number)
            self._number += 1
            self._llm.add_request(
                key,
                {"type": "token", "prompt_token_ids": ids},
                self._sampling(prompt, most),
                lora_request=self._loras[prompt.adapter] if prompt.adapter else None,
            )
            self._under_way[key] = _UnderWay(asked, ids)
        return answered

    def _chat(self, prompt: Prompt) -> Conversations:
        thinking = prompt.sampling.thinking
        if thinking not in self._chats:
            self._chats[thinking] = self._conversations(thinking)
        return self._chats[thinking]

    def _sampling(self, prompt: Prompt, most: int) -> Any:
        sampling = prompt.sampling
        return vllm_runtime.sampling_params(
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "seed": prompt.seed & (2**63 - 1),  # vLLM takes 63 bits
                "max_tokens": most,
                "stop_token_ids": self._stops,
                "logprobs": 0 if _plain(prompt) else None,
            }
        )

    def _deliver(self, output: Any) -> bool:
        if not output.finished:
            return False
        found = self._under_way.pop(output.request_id, None)
        if found is None:  # forgotten meanwhile
            return False
        prompt, made = found.asked.prompt, output.outputs[0]
        if made.finish_reason not in ("stop", "length"):
            found.asked.done(prompt, Failed(f"vLLM ended the reply with {made.finish_reason!r}"))
            return True
        ids, cached = list(made.token_ids), int(output.num_cached_tokens or 0)
        chat = self._chat(prompt)
        ended = made.finish_reason == "stop"
        thought, text = split_reasoning(chat.chat.decode(ids[:-1] if ended else ids), chat.chat.opened)
        full = len(ids) >= prompt.sampling.max_tokens
        finish = "stop" if ended else "length" if full else "context_limit"
        chat.said(prompt.conversation, text, ids)
        for name, value in zip(self._counts, (1, len(found.ids), cached, len(ids)), strict=True):
            self._counts[name] += value
        completion = Completion(
            text=text,
            finish_reason=finish,
            prompt_tokens=len(found.ids),
            completion_tokens=len(ids),
            cached_tokens=cached,
            reasoning=thought,
            ids=ids,
            logprobs=_of_sampled(made.logprobs, ids) if _plain(prompt) else None,
            prompt_ids=found.ids,
            seconds=time.monotonic() - found.asked.since,
        )
        found.asked.done(prompt, completion)
        return True


def _plain(prompt: Prompt) -> bool:
    """Whether vLLM's log-probabilities are those of the distribution before any truncation."""
    sampling = prompt.sampling
    return sampling.temperature == 0 or (sampling.top_p == 1 and sampling.top_k == 0)


def _of_sampled(logprobs: Any, ids: Sequence[int]) -> list[float] | None:
    if logprobs is None:
        return None
    return [float(at[token].logprob) for at, token in zip(logprobs, ids, strict=True)]


def _model_config(spec: VllmSpec) -> tuple[dict[str, Any], str]:
    """The model's configuration with its family's defaults, and its commit on the hub ("" for a folder)."""
    from transformers import AutoConfig

    try:
        found = AutoConfig.from_pretrained(spec.model, revision=spec.revision or None, trust_remote_code=False)
    except Exception as error:  # no such model, no network, an unknown family
        raise NegolabError(
            f"{spec.engine}:{spec.model}: its configuration cannot be read: {first_line(error)}"
        ) from None
    return found.to_dict(), str(getattr(found, "_commit_hash", None) or "")


def _stop_ids(spec: VllmSpec, config: Mapping[str, Any], chat: ChatFormat) -> list[int]:
    """Every token that ends a reply: the model's, the tokenizer's, and what the template writes there."""
    from transformers import GenerationConfig

    inner = config.get("text_config") or {}
    named: list[Any] = [chat.end, chat.tokenizer.eos_token_id, config.get("eos_token_id"), inner.get("eos_token_id")]
    with suppress(OSError, ValueError):  # many models have no such file
        named.append(GenerationConfig.from_pretrained(spec.model, revision=spec.revision or None).eos_token_id)
    flat = [token for value in named for token in (value if isinstance(value, list | tuple) else [value])]
    found = {int(token) for token in flat if token is not None}
    if not found:
        raise NegolabError(f"{spec.engine}:{spec.model}: its tokenizer names no token that ends a reply (eos_token)")
    return sorted(found)
