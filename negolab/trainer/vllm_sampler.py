"""The learner's replies from vLLM in this process, while the trainer's weights change beside it.

An adapter is written after every step and loaded under a new name and number: vLLM takes what has a known name for
known. It is never merged, so the weights beneath stay what they were and serve frozen opponents of the same model in
the same batch; there is no sleep mode, so nothing has to be woken in the right order. Where all weights are trained,
they are written and vLLM reads them in place; opponents then have an engine of their own. What vLLM remembers of
prompts (its prefix cache) is dropped whenever weights change. ``probe`` proves that what plays is what is trained.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.policies import vllm_runtime
from negolab.policies.adapters import Adapter
from negolab.policies.base import Policy
from negolab.policies.chat_template import first_line
from negolab.policies.hf_model import LEARNER
from negolab.policies.model import LanguageModel
from negolab.policies.spec import ModelSpec, VllmSpec, located, spec_of
from negolab.policies.vllm import VllmEngine
from negolab.prompts.multi_buyer import Message
from negolab.trainer import lora
from negolab.trainer.probe import MESSAGES, Probe, prove, trainer_logprobs
from negolab.trainer.settings import TrainSettings

NAME = "learner"
"""What the learner is called in episodes."""
_TAKEN = ("name", "thinking", "temperature", "top_p", "top_k", "max_tokens", "adapter", "batch", "dtype", "revision")

ENGINE = ("revision", "dtype", "tensor_parallel", "max_model_len", "gpu_memory", "batch")
"""Options of an engine, which all who play on it have in common."""


def learner_spec(settings: TrainSettings) -> VllmSpec:
    """The learner as vLLM's engine sees it. Needs no vLLM.

    Raises ``NegolabError`` for an option that does not exist or has its place among the settings, and for settings
    under which replies would come without log-probabilities.
    """
    for name in _TAKEN:
        if name in settings.sampler_options:
            raise NegolabError(f"sampler_options names {name}; that is a setting of its own")
    if settings.top_p != 1:
        raise NegolabError(
            f"top_p is {settings.top_p:g}; with sampler vllm it must be 1: vLLM gives no log-probabilities before "
            "truncation, and without them nothing can be trained"
        )
    options = {
        **settings.sampler_options,
        "name": NAME,
        "thinking": settings.thinking,
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "adapter": LEARNER if settings.lora is not None else "",
        "batch": settings.sampler_batch,
        "dtype": settings.dtype,
        "revision": settings.revision,
    }
    made = spec_of(f"vllm:{located(settings.model)}", options)
    assert isinstance(made, VllmSpec)
    return made


def sharing(settings: TrainSettings, opponent: ModelSpec) -> VllmSpec | None:
    """The opponent as the learner's engine plays it; None where that engine cannot.

    It can where an adapter is trained (the model beneath then stays as it is) and the opponent is that model by vLLM,
    with or without an adapter of its own; what is not said of its engine is as for the learner.
    """
    if settings.lora is None or not isinstance(opponent, VllmSpec):
        return None
    mine = learner_spec(settings)
    if located(opponent.model) != mine.model:
        return None
    plain = VllmSpec(model=opponent.model)
    silent = {name: getattr(mine, name) for name in ENGINE if getattr(opponent, name) == getattr(plain, name)}
    found = replace(opponent, **{**silent, "model": mine.model})
    return found if found.engine_key() == mine.engine_key() else None


class LearnerEngine(VllmEngine):
    """``VllmEngine`` with weights that follow a trainer.

    With ``lora``, prompts whose adapter is ``LEARNER`` are answered with the adapter that was given last, before the
    first by the model beneath (a fresh adapter changes nothing); without, all prompts are answered with the weights
    that were given last.
    """

    def __init__(self, specs: Sequence[VllmSpec], settings: lora.LoraSettings | None) -> None:
        """``specs``: all who play on this engine, the learner first. Raises what ``VllmEngine`` raises, and
        ``NegolabError`` for what is trained but cannot be served."""
        super().__init__([replace(spec, adapter="") if spec.adapter == LEARNER else spec for spec in specs])
        if settings is not None:
            problem = lora.serving_problem(settings, "vllm")
            if problem:
                raise NegolabError(problem)
            room = Adapter(LEARNER, Path(), settings.rank, self._spec.model, settings.targets, False, ())
            self._adapters[LEARNER] = room
        self._given = 0  # adapters so far; the numbers of others begin at 1

    def describe(self) -> dict[str, Any]:
        """See ``TextEngine``; the learner's adapter is no file that could be named."""
        with self._without_learner():
            return super().describe()

    def check(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str]:
        """See ``TextEngine``; what the learner's adapter changes is told where it is made."""
        with self._without_learner():
            return super().check(conversations, max_tokens)

    @contextmanager
    def _without_learner(self) -> Iterator[None]:
        own = self._adapters.pop(LEARNER, None)
        try:
            yield
        finally:
            if own is not None:
                self._adapters[LEARNER] = own

    def take_adapter(self, folder: Path, step: int) -> None:
        """From now on ``LEARNER`` plays with the adapter in ``folder``. Loads the model at first.

        Raises ``NegolabError`` where vLLM does not take it, or still holds the one before.
        """
        self._must_be_idle()
        before = self._loras.get(LEARNER)
        kind = vllm_runtime.imported("vllm.lora.request").LoRARequest
        self._given += 1
        made = kind(f"{LEARNER}-{self._given}-step-{step}", 1000 + self._given, str(folder.resolve()))
        try:
            if before is not None:
                self._llm.remove_lora(before.lora_int_id)
            taken = self._llm.add_lora(made)
            held = set(self._llm.list_loras())
        except Exception as error:
            raise NegolabError(
                f"{self._who}: vLLM cannot load the adapter of step {step}: {first_line(error)}"
            ) from error
        if not taken or made.lora_int_id not in held or (before is not None and before.lora_int_id in held):
            raise NegolabError(f"{self._who}: vLLM did not take the adapter of step {step} (it holds {sorted(held)})")
        self._loras[LEARNER] = made
        self._forget_prompts(step)

    def take_weights(self, folder: Path, step: int) -> None:
        """From now on all play with the weights in ``folder``. Loads the model at first.

        Raises ``NegolabError`` where vLLM cannot read them in place.
        """
        self._must_be_idle()
        try:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder.resolve())})
        except Exception as error:
            version = vllm_runtime.versions().get("vllm")
            raise NegolabError(
                f"{self._who}: vLLM {version} cannot take the weights of step {step}: {first_line(error)}"
            ) from error
        self._forget_prompts(step)

    def serves(self, adapter: str) -> bool:
        """Whether it was made with room for an adapter, by name; "" is the model beneath."""
        return not adapter or adapter in self._adapters

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The messages' tokens as the model's chat template writes them."""
        return list(self._first.chat.ids(messages))

    def score(self, ids: Sequence[int], adapter: str = "") -> list[float]:
        """Log-probabilities of ``ids`` from the second on, each behind all before it, at temperature 1.

        ``adapter``: ``LEARNER`` for the learner's. For ``probe``; the engine must be idle.
        """
        self._must_be_idle()
        params = vllm_runtime.sampling_params({"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0})
        key = f"score-{self._number}"
        self._number += 1
        request = self._loras.get(adapter) if adapter else None
        self._llm.add_request(key, {"type": "token", "prompt_token_ids": list(ids)}, params, lora_request=request)
        while True:
            for output in self._llm.step():
                if output.request_id == key and output.finished:
                    found = output.prompt_logprobs[1:]
                    return [float(at[token].logprob) for at, token in zip(found, ids[1:], strict=True)]

    def _load(self) -> None:
        super()._load()
        # The stand-in that made room for the adapter names no files.
        self._loras.pop(LEARNER, None)
        if LEARNER in self._adapters:
            self._loras[LEARNER] = None

    def _must_be_idle(self) -> None:
        if self._queue or self._under_way:
            raise NegolabError(f"{self._who}: weights cannot change while replies are under way")
        if self._llm is None:
            self._load()

    def _forget_prompts(self, step: int) -> None:
        if not self._llm.reset_prefix_cache():
            raise NegolabError(f"{self._who}: vLLM kept what it remembers of prompts from before step {step}")


class VllmSampler:
    """See ``sampler.Sampler`` and the module."""

    def __init__(self, model: Any, tokenizer: Any, settings: TrainSettings, folder: str | Path | None = None) -> None:
        """``model``: the trainer's, of peft where an adapter is trained, saved with ``tokenizer`` where all weights
        are; ``folder``: where weights are handed over (None: a temporary one, the same for all processes that train
        together).

        Raises ``NegolabError`` for everything that vLLM cannot do; loads no weights yet.
        """
        self._model, self._tokenizer, self._lora = model, tokenizer, settings.lora
        self._spec = learner_spec(settings)
        self._settings = settings
        mine = [found for spec in settings.opponents().values() if (found := sharing(settings, spec)) is not None]
        self.engine = LearnerEngine([self._spec, *mine], self._lora)
        self._folder = None if folder is None else Path(folder)
        self._step: int | None = None
        self._probe: Probe | None = None
        self.numbers: dict[str, float] = {}
        """What the last ``sync`` found: how far sampler and trainer are apart on fixed tokens, in nats."""

    def policy(self, temperature: float | None = None) -> LanguageModel:
        """See ``Sampler``."""
        return LanguageModel(self._changed(temperature, self._spec.adapter), self.engine)

    def base(self, temperature: float) -> LanguageModel:
        """The model before training. Only where an adapter is trained; raises ``ValueError`` otherwise."""
        if self._lora is None:
            raise ValueError("all weights are trained: the model before training is not there any more")
        return LanguageModel(self._changed(temperature, ""), self.engine)

    def adopt(self, players: Iterable[Policy]) -> list[str]:
        """From now on this engine plays those of the opponents whom it can (``sharing``); the engines that they had
        are closed. Returns their names."""
        taken = []
        for player in players:
            if not isinstance(player, LanguageModel) or player.engine is self.engine:
                continue
            found = sharing(self._settings, player.spec)
            if found is not None and self.engine.serves(found.adapter):
                player.engine.close()
                player.engine, player.window, player.spec = self.engine, self.engine.window, found
                taken.append(player.name)
        return taken

    def sync(self, step: int) -> None:
        """See ``Sampler``. Called by all processes that train together, since sharded weights are gathered by all.

        Raises ``NegolabError`` where the sampler does not follow; see ``probe``.
        """
        if step == self._step:
            return
        if self._probe is None:
            self._probe = Probe(self.engine.ids(MESSAGES), str(next(self._model.parameters()).dtype).split(".")[-1])
            self._hand_over(step)
            prove(self._model, self._probe, lambda: self._hand_over(step), self._score)
        else:
            self._hand_over(step)
        found = self._probe.check(step, self._score(), trainer_logprobs(self._model, self._probe.ids))
        self.numbers = {"probe_mean": found.mean, "probe_max": found.worst}
        self._step = step

    def _score(self) -> list[float]:
        assert self._probe is not None
        return self.engine.score(self._probe.ids, self._spec.adapter)

    def _hand_over(self, step: int) -> None:
        if self._folder is None:
            self._folder = _same_everywhere()
        main, target = _rank() == 0, self._folder / f"step-{step:06d}"
        if self._lora is not None:
            lora.save(self._model, target, write=main)
        else:
            save_weights(self._model, target, write=main)
        _together()
        if self._lora is not None:
            self.engine.take_adapter(target, step)
        else:
            self.engine.take_weights(target, step)
        _together()
        if main:  # every process has read it
            shutil.rmtree(target, ignore_errors=True)

    def close(self) -> None:
        """See ``Sampler``."""
        self.engine.close()
        if self._folder is not None and _rank() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _changed(self, temperature: float | None, adapter: str) -> VllmSpec:
        if temperature is None:
            return replace(self._spec, adapter=adapter)
        return replace(self._spec, adapter=adapter, temperature=temperature)


def save_weights(model: Any, folder: Path, write: bool = True) -> None:
    """All weights of a model that is not spread over processes, as transformers writes them.

    Raises ``NegolabError`` where the folder cannot be written, and for a model that is spread.
    """
    if any(lora.is_sharded(parameter) for parameter in model.parameters()):
        raise NegolabError("all weights are trained and spread over processes; vLLM cannot follow: train an adapter")
    if not write:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
    except OSError as error:
        raise NegolabError(f"cannot write weights to {folder}: {error.strerror or error}") from error


def _rank() -> int:
    """This process among those that train together."""
    import torch

    return torch.distributed.get_rank() if _several() else 0


def _several() -> bool:
    import torch

    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return there and torch.distributed.get_world_size() > 1


def _together() -> None:
    """Wait for all processes that train together, if there are several."""
    import torch

    if _several():
        torch.distributed.barrier()


def _same_everywhere() -> Path:
    """A temporary folder of the first process, which all on this machine know."""
    import torch

    made = [tempfile.mkdtemp(prefix="negolab-sampler-") if _rank() == 0 else ""]
    if _several():
        torch.distributed.broadcast_object_list(made, src=0)
    return Path(made[0])
