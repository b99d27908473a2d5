"""What every kind of training has to be told: the model, its optimiser, an adapter, checkpoints and trackers.

Defaults are those of 2607.05863 (tables 5 and 6) where it states a value; a kind of training may set others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from negolab.scenario import MAX_SEED
from negolab.trainer import options
from negolab.trainer.lora import LoraSettings
from negolab.trainer.options import MANY, names, number, one_of, or_nothing, setting, switch, text, whole

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """See the module. Raises ``NegolabError`` for a value that is not allowed, or two that do not go together."""

    model: str = setting("", text, "a folder with a model, or a name on the hub")
    """What training starts from: a folder in transformers' format, a name on the hub, or a pocket model."""
    revision: str = setting("", text, "a text")
    """Commit, tag or branch on the hub."""
    thinking: bool | None = setting(None, or_nothing(switch), "true or false")
    """Thinking on or off where the chat template knows it; nothing: the template's own."""
    dtype: str = setting("auto", one_of(("auto", "float32", "bfloat16")), "auto, float32 or bfloat16")
    """Number format of the weights; auto: float32 without a GPU or where all weights are trained, else bfloat16."""
    seed: int = setting(0, whole(0, MAX_SEED), "a whole number from 0")
    """Everything random."""

    learning_rate: float = setting(3e-5, number(1e-12, 10), "above 0, at most 10")
    """Table 5 (for LoRA on 30 billion parameters; small models trained whole take ten times as much)."""
    schedule: str = setting("constant", one_of(SCHEDULES), ", ".join(SCHEDULES))
    """Of the learning rate, after warm-up, to 0 at the last step unless constant. Not stated in the paper."""
    warmup_steps: int = setting(0, whole(0, MANY), f"a whole number from 0 to {MANY:,}")
    """Steps in which the rate rises from 0. Not stated in the paper."""
    adam_betas: tuple[float, float] = setting(
        (0.9, 0.95),
        lambda v: isinstance(v, tuple) and len(v) == 2 and all(number(0, 0.999999)(b) for b in v),
        "two numbers from 0 to below 1",
    )
    """AdamW's. Not stated in the paper; the training service's defaults."""
    adam_eps: float = setting(1e-8, number(1e-16, 1), "above 0, at most 1")
    """AdamW's. Not stated in the paper; the training service's default."""
    weight_decay: float = setting(0.0, number(0, 1), "0 to 1")
    """AdamW's. Not stated in the paper; the training service's default."""
    max_grad_norm: float = setting(1.0, number(0, 1e9), "0 (no clipping) or above")
    """Longer gradients are shortened to this. Not stated in the paper; TRL's default."""
    gradient_checkpointing: bool = setting(False, switch, "true or false")
    """Compute activations again in the backward pass: less memory, more time."""
    lora: LoraSettings | None = None
    """Train an adapter; nothing: all weights. The paper trains an adapter."""

    save_every: int = setting(10, whole(1, MANY), f"a whole number from 1 to {MANY:,}")
    """Steps between checkpoints; the last step is always followed by one."""
    keep_checkpoints: int = setting(2, whole(0, MANY), "a whole number, 0 (all) or more")
    """How many checkpoints stay."""
    report_to: tuple[str, ...] = setting((), names, "a list of trackers")
    """Trackers that TRL knows (wandb, tensorboard, trackio, ...), beside ``metrics.csv``."""

    def __post_init__(self) -> None:
        options.check(self)
        self._check_together()

    def _check_together(self) -> None:
        """Raise ``NegolabError`` for values that do not go together."""

    def changed(self, given: Mapping[str, Any]) -> Self:
        """A copy with some settings changed. Raises ``NegolabError`` for an unknown name or a bad value."""
        return replace(self, **options.values(given, "settings", type(self)))

    def to_json(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        plain = asdict(self)
        plain["lora"] = None if self.lora is None else self.lora.manifest()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
