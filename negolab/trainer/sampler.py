"""Who speaks for the learner while it is trained: a player on the weights as they are at this moment.

``Sampler`` is all that the loop knows of it. ``LiveSampler`` generates in this process with the trainer's own weights:
nothing is copied, so its log-probabilities are the trainer's but for the order of summation. Frozen opponents that are
the model before training can share its weights where an adapter is trained (``base``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from negolab.errors import NegolabError
from negolab.policies.hf_model import LEARNER, Given
from negolab.policies.model import LanguageModel
from negolab.policies.spec import TransformersSpec, spec_of
from negolab.policies.transformers import TransformersEngine
from negolab.trainer.settings import TrainSettings

NAME = "learner"
"""What the learner is called in episodes."""

_TAKEN = (
    *("name", "revision", "dtype", "device", "thinking", "temperature", "top_p", "max_tokens", "adapter", "batch"),
    "top_k",  # what it cuts off is not in the log-probabilities
)


def learner_spec(settings: TrainSettings) -> TransformersSpec:
    """The learner as a player of the weights in this process. Needs no torch.

    Raises ``NegolabError`` for an option that does not exist or has its place among the settings, and for a setting
    that the player does not take.
    """
    for name in _TAKEN:
        if name in settings.sampler_options:
            raise NegolabError(f"sampler_options names {name}, which is a setting of its own, or none while training")
    options = {
        **settings.sampler_options,
        "name": NAME,
        "thinking": settings.thinking,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "adapter": LEARNER if settings.lora is not None else "",
        "batch": settings.sampler_batch,
    }
    made = spec_of(f"transformers:{NAME}", options)
    assert isinstance(made, TransformersSpec)
    return made


class Sampler(Protocol):
    """Makes the learner's replies."""

    def policy(self, temperature: float | None = None) -> LanguageModel:
        """The learner as a player, for rollouts or, with a ``temperature`` of its own, for evaluations. Its replies
        carry sampled ids, log-probabilities and prompt ids."""
        ...

    def sync(self, step: int) -> None:
        """The weights are those after ``step`` steps: whatever was made with others is dropped. Called before every
        rollout and evaluation, also before the first."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class LiveSampler:
    """See ``Sampler`` and the module."""

    def __init__(self, model: Any, tokenizer: Any, settings: TrainSettings) -> None:
        """``model``: of transformers, or of peft with the adapter that is trained."""
        adapters = list(getattr(model, "peft_config", {}))
        self._model = model
        self._adapter = LEARNER if adapters else ""
        self._spec = replace(learner_spec(settings), adapter=self._adapter)
        self.engine = TransformersEngine([self._spec], Given(model, tokenizer, adapters[0] if adapters else ""))

    def policy(self, temperature: float | None = None) -> LanguageModel:
        """See ``Sampler``."""
        return LanguageModel(self._changed(temperature, self._adapter), self.engine)

    def base(self, temperature: float) -> LanguageModel:
        """The model before training. Only where an adapter is trained; raises ``ValueError`` otherwise."""
        if not self._adapter:
            raise ValueError("all weights are trained: the model before training is not there any more")
        return LanguageModel(self._changed(temperature, ""), self.engine)

    def _changed(self, temperature: float | None, adapter: str) -> TransformersSpec:
        if temperature is None:
            return replace(self._spec, adapter=adapter)
        return replace(self._spec, adapter=adapter, temperature=temperature, top_p=1.0)

    def sync(self, step: int) -> None:
        """See ``Sampler``. The trainer puts the model back into training mode by itself."""
        self._model.eval()
        self.engine.renew()

    def close(self) -> None:
        """See ``Sampler``. The weights are the trainer's and stay."""
        self.engine.close()
