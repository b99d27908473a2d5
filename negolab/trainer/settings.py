"""What decides a training run, read from a profile (YAML) and a command line; checked before anything heavy loads.

Defaults are the paper's (2607.05863, tables 5 and 6) where it states a value, and say so where it does not. Two of its
settings are read as tinker's cookbook means them: ``batch size`` counts groups, and ``num substeps`` splits the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.spec import ModelSpec, spec_of
from negolab.scenario import REGIMES, Regime, regime
from negolab.trainer import options
from negolab.trainer.learning import LearningSettings
from negolab.trainer.options import MANY, number, one_of, or_nothing, setting, switch, text, whole

TASKS = ("seller", "buyer", "trade")
LOSSES = ("cispo", "dapo", "grpo")
SAMPLERS = ("transformers", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings(LearningSettings):
    """A training run. Raises ``NegolabError`` for a value that is not allowed, or two that do not go together."""

    task: str = setting("seller", one_of(TASKS), ", ".join(TASKS))
    """What is learnt: to sell (2607.05863), to buy (2604.09855), or either seat of the trade game (2604.16472)."""
    data: str = setting("sample", text, "sample, auto, or a folder with the catalogue")
    """The products."""
    train_split: str = setting("train", text, "a split")
    eval_split: str = setting("test", text, "a split")
    """``train``, ``test``, ``all``, or the path of a JSON list of codenames."""
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"in_distribution": {}})
    """Markets by name. Each may hold ``base`` (the named regime it starts from, by default its own name), ``weight``
    (how often it is drawn, 1), and any knob of a regime. Table 6: in_distribution alone."""
    buyers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Opponents that are language models, by type (``"*"``: all types not named): ``model: ENGINE:NAME`` and options.
    All others are scripted."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """What only one task knows (``buyer``: see ``trainer.buyer_task``, ``trade``: ``trainer.trade_task``)."""

    steps: int = setting(72, whole(1, MANY), f"a whole number from 1 to {MANY:,}")
    """Batches of episodes; figure 7's horizon."""
    groups: int = setting(64, whole(1, 65_536), "a whole number from 1 to 65536")
    """Markets of a step (table 5, batch size)."""
    group_size: int = setting(8, whole(2, 1024), "a whole number from 2 to 1024")
    """Rollouts of each market (table 5)."""
    sub_steps: int = setting(3, whole(1, 64), "a whole number from 1 to 64")
    """Optimiser steps into which a batch is split; each episode is used once (table 5, num substeps)."""

    loss: str = setting("cispo", one_of(LOSSES), ", ".join(LOSSES))
    """Table 5: cispo. ``grpo`` averages within each row first, so it needs every episode to be one row."""
    clip_low: float = setting(0.8, number(0, 1e6), "0 or above")
    clip_high: float = setting(6.0, number(1e-6, 1e6), "above 0")
    """Bounds of the ratio itself (table 5: 0.8 and 6.0); for dapo and grpo such as 0.8 and 1.28."""
    scale_by_std: bool = setting(False, switch, "true or false")
    """Divide a group's advantages by their standard deviation. Not stated in the paper; the training service does not.
    """

    temperature: float = setting(1.0, number(1e-3, 10), "above 0, at most 10")
    """Of the learner's rollouts (table 6)."""
    top_p: float = setting(1.0, lambda v: number(0, 1)(v) and v > 0, "above 0, at most 1")
    """Of the learner's rollouts. Below 1 the ratios of the loss are no longer those of what was sampled."""
    max_tokens: int = setting(1024, whole(1, MANY), f"a whole number from 1 to {MANY:,}")
    """Most tokens of one reply. Not stated in the paper."""

    eval_every: int = setting(10, whole(0, MANY), f"a whole number from 0 (never) to {MANY:,}")
    """Steps between evaluations on held-out products; the first before step 0, and one after the last step."""
    eval_products: int | None = setting(None, or_nothing(whole(1, MANY)), "a whole number from 1, or nothing for all")
    """Only the split's first so many products."""
    eval_per_product: int = setting(2, whole(1, 10_000), "a whole number from 1 to 10000")
    """Table 7."""
    eval_temperature: float = setting(0.7, number(0, 10), "0 to 10")
    """Table 7."""

    micro_batch_tokens: int = setting(8192, whole(1, 1 << 30), "a whole number from 1")
    """Tokens, padding included, that go through the model at once; a longer row goes alone."""
    sampler: str = setting("transformers", one_of(SAMPLERS), " or ".join(SAMPLERS))
    """What makes the learner's replies: this process with the weights at hand, or vLLM."""
    sampler_batch: int = setting(128, whole(1, 65_536), "a whole number from 1 to 65536")
    """Conversations generated together."""
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the sampler's engine (see ``negolab evaluate --list-options``)."""

    def _check_together(self) -> None:
        if self.clip_low >= self.clip_high:
            raise NegolabError(f"clip_low {self.clip_low:g} is not below clip_high {self.clip_high:g}")
        if self.loss != "cispo" and not self.clip_low <= 1 <= self.clip_high:
            raise NegolabError(
                f"clip_low {self.clip_low:g} and clip_high {self.clip_high:g}: loss {self.loss} needs bounds around 1"
            )
        if self.sub_steps > self.groups:
            raise NegolabError(f"sub_steps {self.sub_steps} is above groups {self.groups}: a group is not split")
        if self.warmup_steps > self.steps:
            raise NegolabError(f"warmup_steps {self.warmup_steps} is above steps {self.steps}")
        self.weighted_regimes()
        self.opponents()

    def weighted_regimes(self) -> list[tuple[Regime, float]]:
        """The regimes with their weights. Raises ``NegolabError`` for a knob or weight that is not allowed."""
        made = []
        for name, given in self.regimes.items():
            if re.fullmatch(r"\w[\w.-]*", str(name)) is None:  # folders are called so
                raise NegolabError(f"regimes: {str(name)!r} is no name; allowed: letters, digits, _, - and .")
            if given is not None and not isinstance(given, Mapping):
                raise NegolabError(f"regimes, {name}: {given!r}; allowed: a regime's knobs by name")
            knobs = {str(key): value for key, value in (given or {}).items()}
            weight, base = knobs.pop("weight", 1.0), knobs.pop("base", name if name in REGIMES else "in_distribution")
            if not number(1e-9, 1e9)(weight):
                raise NegolabError(f"regimes, {name}: weight is {weight!r}; allowed: a number above 0")
            made.append((regime(str(base)).override(**{**knobs, "name": str(name)}), float(weight)))
        if not made:
            raise NegolabError("regimes names no market")
        return made

    def opponents(self) -> dict[str, ModelSpec]:
        """Language models among the opponents, by type. Raises ``NegolabError`` for one that is not described so."""
        made = {}
        for kind, given in self.buyers.items():
            if not isinstance(given, Mapping) or not isinstance(given.get("model"), str):
                raise NegolabError(f"buyers, {kind}: allowed: model (ENGINE:NAME) and its options")
            made[str(kind)] = spec_of(given["model"], {key: value for key, value in given.items() if key != "model"})
        return made


def load_profile(name: str, changes: Sequence[str] = ()) -> TrainSettings:
    """A packaged profile by its name, or a YAML file by its path, with ``KEY=VALUE`` texts over it.

    ``KEY`` may reach into a setting with settings of its own (``lora.rank=8``). Raises ``NegolabError`` for whatever
    is wrong, with the names that are allowed.
    """
    given, where = options.read_profile(name, "train", "steps: 72")
    options.put(given, changes, TrainSettings)
    return TrainSettings(**options.values(given, where, TrainSettings))
