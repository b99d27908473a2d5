"""What decides a run of supervised fine-tuning, read from a profile (YAML) and a command line.

The seller of 2607.05863 is not trained so; the agents of 2604.16472 are, before their reinforcement learning, and that
paper states neither sizes nor filter. Sizes and rates are therefore ours, or TRL's where the docstring says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.policies.spec import key_values
from negolab.scenario import BILATERAL, MAX_SEED, Regime
from negolab.trainer.lora import LoraSettings
from negolab.trainer.settings import (
    _MANY,
    _SWITCH,
    SCHEDULES,
    TrainSettings,
    _number,
    _one_of,
    _plain,
    _put,
    _setting,
    _text,
    _values,
    _whole,
)
from negolab.yaml_file import read_yaml

SEATS = ("learner", "seller", "buyers", "all")
OUTCOMES = ("deal", "no_deal", "violation", "aborted")
SAMPLES = ("auto", "turn")
WORDS = ("plain", "pocket")


def _names(v: Any) -> bool:
    return isinstance(v, tuple) and all(_text(name) and name for name in v)


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """A run of supervised fine-tuning. Raises ``NegolabError`` for a value that is not allowed, or two that do not go
    together."""

    model: str = _setting("", _text, "a folder with a model, or a name on the hub")
    """What training starts from: a folder in transformers' format, a name on the hub, or a pocket model."""
    revision: str = _setting("", _text, "a text")
    """Commit, tag or branch on the hub."""
    thinking: bool | None = _setting(None, lambda v: v is None or _SWITCH(v), "true or false")
    """Thinking on or off where the chat template knows it, as the model is played later; nothing: the template's own.
    Thinking itself is never trained: records keep it beside the reply."""
    dtype: str = _setting("auto", _one_of(("auto", "float32", "bfloat16")), "auto, float32 or bfloat16")
    """Number format of the weights; auto: float32 without a GPU or where all weights are trained, else bfloat16."""

    runs: tuple[str, ...] = _setting((), _names, "a list of run folders")
    """Finished run folders of any game whose episodes are learnt from."""
    teacher: str = _setting("", _text, "a seller's name, or module:factory")
    """Who sells in scripted markets (``negolab evaluate --seller``); nothing: no scripted markets."""
    bilateral_teacher: str = _setting("patient", _text, "a bilateral buyer's name, or module:factory")
    """Who buys in scripted bilateral games, from the scripted seller."""
    scripted: int = _setting(512, _whole(1, 10_000_000), "a whole number from 1 to 10,000,000")
    """Scripted episodes in all, divided among ``regimes`` by weight."""
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Scripted games by name. Each may hold ``base`` (the named regime that it starts from, by default its own name),
    ``weight`` (1), and any knob of a regime. Mix numbers of buyers and messages: who has never seen five buyers breaks
    the rules with five. Empty: none, or with ``teacher`` in_distribution and ood_diverse."""
    words: str = _setting("plain", _one_of(WORDS), " or ".join(WORDS))
    """How scripted players speak: as they do, or in the few words that the pocket models know."""
    data: str = _setting("sample", _text, "sample, auto, or a folder with the catalogue")
    """The products of scripted games."""
    split: str = _setting("train", _text, "a split")
    """``train``, ``test``, ``all``, or the path of a JSON list of codenames."""

    seats: str = _setting(
        "learner",
        lambda v: isinstance(v, str) and (v in SEATS or re.fullmatch(r"buyer-[1-9][0-9]{0,3}", v) is not None),
        ", ".join(SEATS) + ", or buyer-1, buyer-2, ...",
    )
    """Whose replies are learnt; ``learner``: the seat that the game evaluates (market: seller, bilateral: buyer)."""
    outcomes: tuple[str, ...] = _setting(
        (), lambda v: _names(v) and set(v) <= set(OUTCOMES), f"a list of {', '.join(OUTCOMES)}"
    )
    """Only episodes that ended so; empty: however they ended."""
    min_reward: float | None = _setting(None, lambda v: v is None or _number(-1e9, 1e9)(v), "a number, or nothing")
    """Only episodes whose reward, the learner's of that game, is at least this."""
    violations: bool = _setting(False, _SWITCH, "true or false")
    """Also conversations in which the seat broke a rule. What the guard said in its place is never learnt."""
    samples: str = _setting("auto", _one_of(SAMPLES), " or ".join(SAMPLES))
    """``auto``: one sample for a conversation as far as the chat template keeps what was said before, else one for
    each reply; ``turn``: one for each reply (2604.16472, figures 13 and 14)."""
    max_length: int | None = _setting(None, lambda v: v is None or _whole(2, _MANY)(v), "a whole number from 2")
    """Longer samples are left out, never cut; nothing: the model's context."""
    held_out: float = _setting(0.0, _number(0, 0.5), "a number from 0 to 0.5")
    """Share of products whose conversations are not trained on but measured; at least one product where above 0."""

    epochs: float = _setting(1.0, lambda v: _number(0, 10_000)(v) and v > 0, "a number above 0")
    """How often all samples are seen; what does not fill a whole number of steps is left out."""
    steps: int | None = _setting(None, lambda v: v is None or _whole(1, _MANY)(v), "a whole number from 1, or nothing")
    """Optimiser steps, in place of what ``epochs`` makes."""
    batch: int = _setting(16, _whole(1, 65_536), "a whole number from 1 to 65536")
    """Samples of one optimiser step."""
    micro_batch: int = _setting(4, _whole(1, 65_536), "a whole number from 1 to 65536")
    """Samples that go through the model at once; divides ``batch``. It changes memory and time, not the loss."""
    seed: int = _setting(0, _whole(0, MAX_SEED), "a whole number from 0")
    """Scripted games, the order of samples, a new adapter's first weights."""

    learning_rate: float = _setting(2e-5, _number(1e-12, 10), "above 0, at most 10")
    """TRL's default, for all weights of a model of billions; an adapter takes ten times as much, a tiny model more."""
    schedule: str = _setting("linear", _one_of(SCHEDULES), ", ".join(SCHEDULES))
    """Of the learning rate, after warm-up, to 0 at the last step unless constant."""
    warmup_steps: int = _setting(0, _whole(0, _MANY), f"a whole number from 0 to {_MANY:,}")
    """Steps in which the rate rises from 0."""
    adam_betas: tuple[float, float] = _setting(
        (0.9, 0.95),
        lambda v: isinstance(v, tuple) and len(v) == 2 and all(_number(0, 0.999999)(b) for b in v),
        "two numbers from 0 to below 1",
    )
    """AdamW's."""
    adam_eps: float = _setting(1e-8, _number(1e-16, 1), "above 0, at most 1")
    """AdamW's."""
    weight_decay: float = _setting(0.0, _number(0, 1), "0 to 1")
    """AdamW's."""
    max_grad_norm: float = _setting(1.0, _number(0, 1e9), "0 (no clipping) or above")
    """Longer gradients are shortened to this."""
    gradient_checkpointing: bool = _setting(False, _SWITCH, "true or false")
    """Compute activations again in the backward pass: less memory, more time."""
    lora: LoraSettings | None = None
    """Train an adapter; nothing: all weights."""
    merge: bool = _setting(True, _SWITCH, "true or false")
    """With an adapter: write the model with the adapter in its weights as well, to be played and trained further."""

    eval_every: int = _setting(50, _whole(0, _MANY), f"a whole number from 0 (never) to {_MANY:,}")
    """Steps between measurements on held-out products; the first before step 0, and one after the last."""
    save_every: int = _setting(100, _whole(1, _MANY), f"a whole number from 1 to {_MANY:,}")
    """Steps between checkpoints; the last step is always followed by one."""
    keep_checkpoints: int = _setting(2, _whole(0, _MANY), "a whole number, 0 (all) or more")
    """How many checkpoints stay."""
    report_to: tuple[str, ...] = _setting((), _names, "a list of trackers")
    """Trackers that TRL knows (wandb, tensorboard, trackio, ...), beside ``metrics.csv``."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, option.name, value)
            if not option.metadata:
                continue
            if not option.metadata["allowed"](value) or (isinstance(value, float) and not math.isfinite(value)):
                raise NegolabError(f"{option.name} is {value!r}; allowed: {option.metadata['says']}")
        if not isinstance(self.regimes, Mapping):
            raise NegolabError(f"regimes is {self.regimes!r}; allowed: names with their settings")
        if self.batch % self.micro_batch:
            raise NegolabError(f"micro_batch {self.micro_batch} does not divide batch {self.batch}")
        if self.steps is not None and self.warmup_steps > self.steps:
            raise NegolabError(f"warmup_steps {self.warmup_steps} is above steps {self.steps}")
        self.weighted_regimes()

    def weighted_regimes(self) -> list[tuple[Regime, float]]:
        """The regimes of scripted games with their weights; empty where none are played.

        Raises ``NegolabError`` for a knob or weight that is not allowed, and for markets without a ``teacher``.
        """
        given = dict(self.regimes)
        if not given and self.teacher:
            given = {"in_distribution": {}, "ood_diverse": {}}
        if not given:
            return []
        for name, knobs in given.items():
            if knobs is not None and not isinstance(knobs, Mapping):
                raise NegolabError(f"regimes, {name}: {knobs!r}; allowed: a regime's knobs by name")
            if name == BILATERAL.name:
                given[name] = {"base": BILATERAL.name, **(knobs or {})}
        made = TrainSettings(regimes=given).weighted_regimes()
        markets = [found.name for found, _ in made if found.game == "market"]
        if markets and not self.teacher:
            raise NegolabError(f"teacher names nobody to sell in {', '.join(markets)}; give --teacher")
        return made

    def changed(self, given: Mapping[str, Any]) -> SftSettings:
        """A copy with some settings changed. Raises ``NegolabError`` for an unknown name or a bad value."""
        return replace(self, **_values(given, "settings", SftSettings))

    def to_json(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        plain = asdict(self)
        plain["lora"] = None if self.lora is None else self.lora.manifest()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def profiles() -> dict[str, Path]:
    """The profiles that come with negolab, by name."""
    return {path.stem: path for path in sorted((data_dir() / "sft").glob("*.yaml"))}


def load_sft(
    name: str = "",
    changes: Sequence[str] = (),
    over: Mapping[str, Any] | None = None,
    regimes: Sequence[str] | None = None,
) -> SftSettings:
    """A packaged profile by its name, or a YAML file by its path ("": the defaults), with ``over`` (plain data) and
    then ``KEY=VALUE`` texts in place of what it says. ``regimes``: only these; of a profile's own their knobs are kept.

    Raises ``NegolabError`` for whatever is wrong, with the names that are allowed.
    """
    given: dict[str, Any] = {}
    where = "settings"
    if name:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            if name not in profiles():
                raise NegolabError(f"no profile {name!r}; there are: {', '.join(profiles())}; or give a YAML file")
            path = profiles()[name]
        where = f"profile {path.name}"
        given = read_yaml(path, "profile", "lines such as epochs: 1")
    given |= over or {}
    if regimes is not None:
        there = given.get("regimes") or {}
        given["regimes"] = {name: there.get(name) or {} for name in regimes}
    for key, text in key_values(changes, "--set").items():
        _put(given, key.split("."), _plain(text, key), key)
    return SftSettings(**_values(given, where, SftSettings))
