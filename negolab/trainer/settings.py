"""What decides a training run, read from a profile (YAML) and a command line; checked before anything heavy loads.

Defaults are the paper's (2607.05863, tables 5 and 6) where it states a value, and say so where it does not. Two of its
settings are read as tinker's cookbook means them: ``batch size`` counts groups, and ``num substeps`` splits the batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.policies.spec import ModelSpec, key_values, spec_of
from negolab.scenario import MAX_SEED, REGIMES, Regime, regime
from negolab.trainer.lora import LoraSettings
from negolab.yaml_file import read_yaml

TASKS = ("seller", "buyer")
LOSSES = ("cispo", "dapo", "grpo")
SCHEDULES = ("constant", "linear", "cosine")
SAMPLERS = ("transformers", "vllm")


def _setting(default: Any, allowed: Callable[[Any], bool], says: str) -> Any:
    return field(default=default, metadata={"allowed": allowed, "says": says})


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v <= high


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda v: type(v) in (int, float) and low <= v <= high


def _one_of(names: Sequence[str]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and v in names


def _text(v: Any) -> bool:
    return isinstance(v, str) and v == v.strip() and v.isprintable()


_SWITCH = lambda v: type(v) is bool  # noqa: E731
_MANY = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """A training run. Raises ``NegolabError`` for a value that is not allowed, or two that do not go together."""

    model: str = _setting("", _text, "a folder with a model, or a name on the hub")
    """What training starts from: a folder in transformers' format, or a name on the hub."""
    revision: str = _setting("", _text, "a text")
    """Commit, tag or branch on the hub."""
    thinking: bool | None = _setting(None, lambda v: v is None or _SWITCH(v), "true or false")
    """Thinking on or off where the chat template knows it; nothing: the template's own."""
    dtype: str = _setting("auto", _one_of(("auto", "float32", "bfloat16")), "auto, float32 or bfloat16")
    """Number format of the weights; auto: float32 without a GPU or where all weights are trained, else bfloat16."""

    task: str = _setting("seller", _one_of(TASKS), " or ".join(TASKS))
    """Which seat learns: the seller of 2607.05863 or the buyer of 2604.09855."""
    data: str = _setting("sample", _text, "sample, auto, or a folder with the catalogue")
    """The products."""
    train_split: str = _setting("train", _text, "a split")
    eval_split: str = _setting("test", _text, "a split")
    """``train``, ``test``, ``all``, or the path of a JSON list of codenames."""
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"in_distribution": {}})
    """Markets by name. Each may hold ``base`` (the named regime it starts from, by default its own name), ``weight``
    (how often it is drawn, 1), and any knob of a regime. Table 6: in_distribution alone."""
    buyers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Opponents that are language models, by type (``"*"``: all types not named): ``model: ENGINE:NAME`` and options.
    All others are scripted."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """What only one task knows (for ``buyer``: see ``trainer.buyer_task``)."""

    steps: int = _setting(72, _whole(1, _MANY), f"a whole number from 1 to {_MANY:,}")
    """Batches of episodes; figure 7's horizon."""
    groups: int = _setting(64, _whole(1, 65_536), "a whole number from 1 to 65536")
    """Markets of a step (table 5, batch size)."""
    group_size: int = _setting(8, _whole(2, 1024), "a whole number from 2 to 1024")
    """Rollouts of each market (table 5)."""
    sub_steps: int = _setting(3, _whole(1, 64), "a whole number from 1 to 64")
    """Optimiser steps into which a batch is split; each episode is used once (table 5, num substeps)."""
    seed: int = _setting(0, _whole(0, MAX_SEED), "a whole number from 0")
    """All markets, and every reply's random numbers."""

    learning_rate: float = _setting(3e-5, _number(1e-12, 10), "above 0, at most 10")
    """Table 5 (for LoRA on 30 billion parameters; small models trained whole take ten times as much)."""
    schedule: str = _setting("constant", _one_of(SCHEDULES), ", ".join(SCHEDULES))
    """Of the learning rate, after warm-up, to 0 at the last step unless constant. Not stated in the paper."""
    warmup_steps: int = _setting(0, _whole(0, _MANY), f"a whole number from 0 to {_MANY:,}")
    """Steps (batches) in which the rate rises from 0. Not stated in the paper."""
    adam_betas: tuple[float, float] = _setting(
        (0.9, 0.95),
        lambda v: isinstance(v, tuple) and len(v) == 2 and all(_number(0, 0.999999)(b) for b in v),
        "two numbers from 0 to below 1",
    )
    """AdamW's. Not stated in the paper; the training service's defaults."""
    adam_eps: float = _setting(1e-8, _number(1e-16, 1), "above 0, at most 1")
    """Not stated in the paper; the training service's default."""
    weight_decay: float = _setting(0.0, _number(0, 1), "0 to 1")
    """Not stated in the paper; the training service's default."""
    max_grad_norm: float = _setting(1.0, _number(0, 1e9), "0 (no clipping) or above")
    """Not stated in the paper; TRL's default."""

    loss: str = _setting("cispo", _one_of(LOSSES), ", ".join(LOSSES))
    """Table 5: cispo. ``grpo`` averages within each row first, so it needs every episode to be one row."""
    clip_low: float = _setting(0.8, _number(0, 1e6), "0 or above")
    clip_high: float = _setting(6.0, _number(1e-6, 1e6), "above 0")
    """Bounds of the ratio itself (table 5: 0.8 and 6.0); for dapo and grpo such as 0.8 and 1.28."""
    scale_by_std: bool = _setting(False, _SWITCH, "true or false")
    """Divide a group's advantages by their standard deviation. Not stated in the paper; the training service does not.
    """

    temperature: float = _setting(1.0, _number(1e-3, 10), "above 0, at most 10")
    """Of the learner's rollouts (table 6)."""
    top_p: float = _setting(1.0, lambda v: _number(0, 1)(v) and v > 0, "above 0, at most 1")
    """Of the learner's rollouts. Below 1 the ratios of the loss are no longer those of what was sampled."""
    max_tokens: int = _setting(1024, _whole(1, _MANY), f"a whole number from 1 to {_MANY:,}")
    """Most tokens of one reply. Not stated in the paper."""

    eval_every: int = _setting(10, _whole(0, _MANY), f"a whole number from 0 (never) to {_MANY:,}")
    """Steps between evaluations on held-out products; the first before step 0, and one after the last step."""
    eval_products: int | None = _setting(
        None, lambda v: v is None or _whole(1, _MANY)(v), "a whole number from 1, or nothing for all"
    )
    """Only the split's first so many products."""
    eval_per_product: int = _setting(2, _whole(1, 10_000), "a whole number from 1 to 10000")
    """Table 7."""
    eval_temperature: float = _setting(0.7, _number(0, 10), "0 to 10")
    """Table 7."""

    save_every: int = _setting(10, _whole(1, _MANY), f"a whole number from 1 to {_MANY:,}")
    """Steps between checkpoints; the last step is always followed by one."""
    keep_checkpoints: int = _setting(2, _whole(0, _MANY), "a whole number, 0 (all) or more")
    """How many checkpoints stay."""

    micro_batch_tokens: int = _setting(8192, _whole(1, 1 << 30), "a whole number from 1")
    """Tokens, padding included, that go through the model at once; a longer row goes alone."""
    gradient_checkpointing: bool = _setting(False, _SWITCH, "true or false")
    """Compute activations again in the backward pass: less memory, more time."""
    lora: LoraSettings | None = None
    """Train an adapter; nothing: all weights. The paper trains an adapter."""
    sampler: str = _setting("transformers", _one_of(SAMPLERS), " or ".join(SAMPLERS))
    """What makes the learner's replies: this process with the weights at hand, or vLLM."""
    sampler_batch: int = _setting(128, _whole(1, 65_536), "a whole number from 1 to 65536")
    """Conversations generated together."""
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the sampler's engine (see ``negolab evaluate --list-options``)."""
    report_to: tuple[str, ...] = _setting(
        (), lambda v: isinstance(v, tuple) and all(_text(name) and name for name in v), "a list of trackers"
    )
    """Trackers that TRL knows (wandb, tensorboard, trackio, ...), beside ``metrics.csv``."""

    def __post_init__(self) -> None:
        for option in _declared():
            value = getattr(self, option.name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, option.name, value)
            if not option.metadata["allowed"](value) or (isinstance(value, float) and not math.isfinite(value)):
                raise NegolabError(f"{option.name} is {value!r}; allowed: {option.metadata['says']}")
        for name in ("regimes", "buyers", "task_options", "sampler_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise NegolabError(f"{name} is {getattr(self, name)!r}; allowed: names with their settings")
        self._check_together()

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
            if not _number(1e-9, 1e9)(weight):
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
            options = {key: value for key, value in given.items() if key != "model"}
            made[str(kind)] = spec_of(given["model"], options)
        return made

    def changed(self, given: Mapping[str, Any]) -> TrainSettings:
        """A copy with some settings changed. Raises ``NegolabError`` for an unknown name or a bad value."""
        return replace(self, **_values(given, "settings"))

    def to_json(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        plain = asdict(self)
        plain["lora"] = None if self.lora is None else self.lora.manifest()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _declared() -> list[Field[Any]]:
    return [option for option in fields(TrainSettings) if option.metadata]


def profiles() -> dict[str, Path]:
    """The profiles that come with negolab, by name."""
    return {path.stem: path for path in sorted((data_dir() / "train").glob("*.yaml"))}


def load_profile(name: str, changes: Sequence[str] = ()) -> TrainSettings:
    """A packaged profile by its name, or a YAML file by its path, with ``KEY=VALUE`` texts over it.

    ``KEY`` may reach into a setting with settings of its own (``lora.rank=8``). Raises ``NegolabError`` for whatever
    is wrong, with the names that are allowed.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in profiles():
            raise NegolabError(f"no profile {name!r}; there are: {', '.join(profiles())}; or give a YAML file")
        path = profiles()[name]
    where = f"profile {path.name}"
    given = read_yaml(path, "profile", "lines such as steps: 72")
    for key, text in key_values(changes, "--set").items():
        _put(given, key.split("."), _plain(text, key), key)
    return TrainSettings(**_values(given, where))


def _values(given: Mapping[str, Any], where: str, of: Any = TrainSettings) -> dict[str, Any]:
    """Settings as ``TrainSettings``, or another class of settings, takes them, from plain data."""
    known = {option.name: option for option in fields(of)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise NegolabError(f"{where}: unknown setting {key!r}; allowed: {', '.join(known)}")
        kind = str(known[key].type)
        if key == "lora" and isinstance(value, Mapping):
            value = LoraSettings.from_mapping(value)
        elif key == "lora" and not isinstance(value, LoraSettings | None):
            raise NegolabError(f"{where}: lora is {value!r}; allowed: settings such as rank: 32, or nothing")
        elif isinstance(value, list):
            value = tuple(value)
        elif type(value) is int and kind == "float":
            value = float(value)
        elif value is None and kind == "str":  # an empty value on the command line
            value = ""
        elif key in ("regimes", "buyers", "task_options", "sampler_options") and value is None:
            value = {}
        values[key] = value
    return values


def _put(given: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    """Set a value that may lie deeper; what is on the way and missing is made."""
    for name in path[:-1]:
        below = given.get(name)
        if below is None:
            below = given[name] = {}
        if not isinstance(below, dict):
            raise NegolabError(f"--set {key}: {name} has no settings of its own")
        given = below
    given[path[-1]] = value


def _plain(text: str, key: str) -> Any:
    """A command line's text as a value: YAML, but 1e-4 is a number as well."""
    import yaml

    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+", text):
        return float(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NegolabError(f"--set {key}: {text!r} cannot be read: {' '.join(str(error).split())}") from None


def settings_help(of: Any = TrainSettings) -> str:
    """Every setting of a class with its default and what it is, as its docstring says."""
    import ast
    import inspect

    lines = []
    body = ast.parse(inspect.getsource(of)).body[0]
    assert isinstance(body, ast.ClassDef)
    names: list[str] = []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and names:
            text = " ".join(str(node.value.value).split()).replace("``", "")
            defaults = of()
            shown = ", ".join(f"{name} ({getattr(defaults, name)!r})" for name in names)
            lines.append(f"{shown}: {text}")
            names = []
        elif isinstance(node, ast.FunctionDef):
            break
    return "\n".join(lines)
