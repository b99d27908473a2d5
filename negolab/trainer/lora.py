"""LoRA: which weights of a model are trained, said beforehand, held against the model, and stored.

The paper's seller was trained through a service that adapts by LoRA (section 9.2); it states neither rank nor targets.
Rank 32 is that service's default. Deviation: the service also adapts experts and the output layer; here attention only
is the default, because an engine that serves the rollouts must apply all that is trained (see ``serving_problem``).

In transformers 5 the experts of a layer are two parameters of three dimensions, no modules: names such as
``gate_proj``, which earlier versions had, match nothing there, and peft would leave them out without a word. So every
target must match, experts are asked for by a switch, and what is trained is told by name and number.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from negolab.errors import NegolabError
from negolab.policies.adapters import CONFIG, VERSIONS, WEIGHTS

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = ("gate_proj", "up_proj", "down_proj")
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""Fused parameters of a layer's experts, as peft's ``target_parameters`` names them."""
_ROUTERS = ("gate", "router", "mlp.gate", "block_sparse_moe.gate", "shared_expert_gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """What is adapted. Raises ``NegolabError`` for what cannot work with any model."""

    rank: int = 32
    """Columns of A and rows of B; not stated in the paper (the training service's default)."""
    alpha: int = 32
    """What B·A is scaled by is ``alpha / rank``; not stated in the paper."""
    targets: tuple[str, ...] = ATTENTION
    """Linear layers, by the last part of their name; each must be there."""
    experts: bool = False
    """Also the experts' fused parameters. Rollouts must then come through transformers."""
    dropout: float = 0.0
    """Share of inputs to A that are dropped; must be 0 with experts, whose parameters have no input to drop."""

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 4096:
                raise NegolabError(f"lora.{name} is {value!r}; allowed: a whole number from 1 to 4096")
        if type(self.experts) is not bool:
            raise NegolabError(f"lora.experts is {self.experts!r}; allowed: true or false")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise NegolabError(f"lora.dropout is {self.dropout!r}; allowed: a number from 0 to below 1")
        if self.experts and self.dropout:
            raise NegolabError(f"lora.dropout is {self.dropout!r}; with lora.experts it must be 0")
        self._check_targets()

    def _check_targets(self) -> None:
        targets = self.targets
        listed = isinstance(targets, list | tuple)
        if not listed or not all(isinstance(t, str) and re.fullmatch(r"\w[\w.]*", t) for t in targets):
            given = ", ".join(map(repr, targets)) if listed else f"{targets!r}"
            raise NegolabError(
                f"lora.targets is {given}; allowed: a list of names such as {', '.join(ATTENTION)} (all-linear, which "
                "would take the router as well, is not)"
            )
        object.__setattr__(self, "targets", tuple(targets))
        if len(set(targets)) < len(targets):
            raise NegolabError(f"lora.targets names one twice: {', '.join(targets)}")
        router = next((t for t in targets if t in _ROUTERS), None)
        if router is not None:
            raise NegolabError(f"lora.targets names {router}, the router of experts, which is never trained here")
        if not targets and not self.experts:
            raise NegolabError("lora.targets is empty and lora.experts is off: nothing would be trained")

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> LoraSettings:
        """Settings from a file's section. Raises ``NegolabError`` for an unknown key or a value that is not allowed."""
        known = cls.__dataclass_fields__
        for key in given:
            if key not in known:
                raise NegolabError(f"lora has no setting {key!r}; allowed: {', '.join(known)}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        return cls(**values)

    def manifest(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return {**asdict(self), "targets": list(self.targets)}


class Group(NamedTuple):
    """Adapted weights of one kind, over all layers."""

    name: str
    """The last part of the linear layer's name, or ``experts.`` and the parameter's."""
    places: int
    """How many matrices (with experts: fused parameters) are adapted."""
    parameters: int
    """Elements of all their A and B."""


@dataclass(frozen=True)
class Trained:
    """What of a model is trained."""

    groups: tuple[Group, ...]
    all_parameters: int
    """Of the model, adapter not counted; tied weights once."""

    @property
    def parameters(self) -> int:
        """Elements that are trained."""
        return sum(group.parameters for group in self.groups)

    @property
    def share(self) -> float:
        """Trained elements for each of the model's own."""
        return self.parameters / self.all_parameters

    def lines(self) -> list[str]:
        """For people, printed before training."""
        head = (
            f"Trained: {self.parameters:,} parameters by LoRA, {self.share:.3%} of the model's {self.all_parameters:,}."
        )
        return [head, *[f"  {g.name}: {g.places} places, {g.parameters:,} parameters" for g in self.groups]]

    def manifest(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        groups = {g.name: {"places": g.places, "parameters": g.parameters} for g in self.groups}
        return {"parameters": self.parameters, "of": self.all_parameters, "groups": groups}


def planned(config: Mapping[str, Any], lora: LoraSettings) -> Trained:
    """What would be trained, from a model's ``config.json`` alone: no weights, no torch.

    Covers decoders with q/k/v/o projections, dense or with experts (Llama, Qwen 2 and 3, Mistral and their like).
    Raises ``NegolabError`` for a target that is not there.
    """
    from negolab.policies.memory import shape_of

    shape = shape_of(config)
    hidden = shape.hidden
    head = int(config.get("head_dim") or hidden // shape.heads)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    sparse = sparse_layers(config)
    dense = int(config.get("intermediate_size") or 4 * hidden)
    inner = int(config.get("moe_intermediate_size") or dense)
    q, kv = shape.heads * head, shape.kv_heads * head
    linear = {
        "q_proj": (shape.layers, hidden + q),
        "k_proj": (shape.layers, hidden + kv),
        "v_proj": (shape.layers, hidden + kv),
        "o_proj": (shape.layers, q + hidden),
        **dict.fromkeys(DENSE, (shape.layers - sparse, hidden + dense)),
        "lm_head": (1, hidden + shape.vocabulary),
    }
    groups = []
    for target in lora.targets:
        places, sides = linear.get(target, (0, 0))
        if not places:
            raise _no_match(target, [name for name, (n, _) in linear.items() if n], bool(sparse))
        groups.append(Group(target, places, places * lora.rank * sides))
    if lora.experts:
        if not sparse:
            raise NegolabError("lora.experts is on, but the model has no experts")
        for parameter, sides in (("gate_up_proj", hidden + 2 * inner), ("down_proj", inner + hidden)):
            groups.append(Group(f"experts.{parameter}", sparse, sparse * experts * lora.rank * sides))
    return Trained(tuple(groups), shape.parameters)


def sparse_layers(config: Mapping[str, Any]) -> int:
    """Layers of a model whose feed-forward part consists of experts."""
    if not (config.get("num_experts") or config.get("num_local_experts")):
        return 0
    step, dense = int(config.get("decoder_sparse_step") or 1), set(config.get("mlp_only_layers") or ())
    return sum((i + 1) % step == 0 and i not in dense for i in range(int(config["num_hidden_layers"])))


def _no_match(target: str, there: Sequence[str], has_experts: bool) -> NegolabError:
    hint = "; experts are not named there: set lora.experts" if has_experts and target in DENSE else ""
    return NegolabError(f"lora.targets names {target}, which the model does not have; it has {', '.join(there)}{hint}")


def attach(model: Any, lora: LoraSettings, seed: int = 0) -> tuple[Any, Trained]:
    """The model with a fresh adapter, and what of it is trained; everything else is frozen.

    ``model``: a ``PreTrainedModel``, which peft changes in place. ``seed`` decides the first values of A (B is zero,
    so the model answers as before). Raises ``NegolabError`` for a target that matches nothing, and where something
    that nobody asked for would be trained.
    """
    import torch
    from peft import get_peft_model

    all_parameters = sum(p.numel() for p in model.parameters())
    config = lora_config(model, lora)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = get_peft_model(model, config)
    return made, trained_of(made, lora, all_parameters)


def lora_config(model: Any, lora: LoraSettings) -> Any:
    """peft's configuration, after every target was found in the model. Raises ``NegolabError`` where one was not."""
    import torch
    from peft import LoraConfig

    linear = {name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    fused = [name for name, p in model.named_parameters() if ".experts." in name and p.dim() == 3]
    for target in lora.targets:
        if not any(_ends(name, target) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)):
            raise _no_match(target, sorted(linear), bool(fused))
    parameters = None
    if lora.experts:
        missing = [wanted for wanted in EXPERTS if not any(_ends(name, wanted) for name in fused)]
        if missing:
            raise NegolabError(
                f"lora.experts is on, but the model has no parameters {', '.join(missing)} (transformers "
                f"{importlib.metadata.version('transformers')}, {type(model).__name__})"
            )
        parameters = list(EXPERTS)
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=float(lora.dropout),
        target_modules=list(lora.targets) or None,
        target_parameters=parameters,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _ends(name: str, part: str) -> bool:
    return name == part or name.endswith(f".{part}")


def trained_of(model: Any, lora: LoraSettings, all_parameters: int) -> Trained:
    """What of a model with an adapter is trained. Raises ``NegolabError`` where it is not what was asked for."""
    counts: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        group = _group_of(name, lora)
        if group is None:
            raise NegolabError(f"{name} would be trained, but lora names only {', '.join(_asked(lora))}")
        found = counts.setdefault(group, [0, 0])
        found[0] += ".lora_A." in name
        found[1] += parameter.numel()
    left_out = [name for name in _asked(lora) if name not in counts]
    if left_out:
        raise NegolabError(f"peft adapted nothing at {', '.join(left_out)}")
    return Trained(tuple(Group(name, *counts[name]) for name in _asked(lora)), all_parameters)


def _asked(lora: LoraSettings) -> list[str]:
    return [*lora.targets, *([f"experts.{p.rsplit('.', 1)[-1]}" for p in EXPERTS] if lora.experts else [])]


def _group_of(name: str, lora: LoraSettings) -> str | None:
    """Which asked-for group an adapter's parameter belongs to. peft nests one wrapper for each fused parameter of a
    layer's experts: the inner one (``base_layer``) holds the first of them."""
    inside = re.fullmatch(r"(.+?)\.lora_[AB]\.\w+\.weight", name)
    if inside is None:
        return None
    module = inside[1]
    if lora.experts and re.search(r"\.experts(\.base_layer)?$", module):
        return "experts.gate_up_proj" if module.endswith(".base_layer") else "experts.down_proj"
    return next((target for target in lora.targets if _ends(module, target)), None)


def serving_problem(lora: LoraSettings, engine: str) -> str:
    """Why an engine cannot play with what is trained, in words; empty where it can.

    vLLM: 0.22 to 0.31 take fused experts' adapters for some models only, under switches that differ by version, and
    earlier ones dropped them without a word; none of that has been measured here, so experts are refused.
    """
    if engine != "vllm":
        return ""
    from negolab.policies import vllm_runtime

    if lora.experts:
        found = vllm_runtime.versions().get("vllm", "not installed")
        return (
            f"lora.experts is on, which vLLM (here: {found}) is not known to serve for this model; give rollouts by "
            "transformers, or adapt attention only"
        )
    if lora.rank > vllm_runtime.RANKS[-1]:
        return f"lora.rank is {lora.rank}; vLLM allows up to {vllm_runtime.RANKS[-1]}"
    wrong = [target for target in lora.targets if target not in (*ATTENTION, *DENSE)]
    return f"lora.targets names {', '.join(wrong)}, which vLLM is not known to serve" if wrong else ""


def save(model: Any, folder: str | Path, write: bool = True) -> Path:
    """Write the adapter as peft does, with the versions that wrote it: whole, or not at all.

    ``model``: a ``PeftModel``; where its weights are spread over processes all must call this, and those with
    ``write=False`` only help to gather them. Raises ``NegolabError`` where the folder cannot be written.
    """
    target, state = Path(folder), adapter_state(model)
    if not write:
        return target
    temporary = target.with_name(target.name + ".tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        # The embeddings never change; peft's "auto" would ask a hub about them.
        model.save_pretrained(temporary, save_embedding_layers=False, state_dict=state)
        (temporary / VERSIONS).write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
        for name in (CONFIG, WEIGHTS):
            if not (temporary / name).is_file():
                raise NegolabError(f"peft wrote no {name} into {folder}")
        shutil.rmtree(target, ignore_errors=True)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            shutil.rmtree(temporary)
        raise NegolabError(f"cannot write the adapter to {folder}: {error.strerror or error}") from error
    return target


def adapter_state(model: Any) -> dict[str, Any]:
    """The adapter's weights by name, whole and on the CPU, wherever they lie.

    Weights that FSDP 2 or DeepSpeed ZeRO-3 spread over processes are gathered one by one, by all processes together;
    the frozen ones are left where they are. Raises ``NegolabError`` for FSDP 1, which mixes them into flat pieces.
    """
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise NegolabError("FSDP 1 cannot hand over an adapter; set fsdp_version: 2 in accelerate's file")
    found = {}
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            continue
        if hasattr(parameter, "ds_id"):
            from deepspeed import zero

            with zero.GatheredParameters([parameter]):
                found[name] = parameter.detach().cpu().clone()
        else:
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            found[name] = whole.detach().cpu().clone()
    return found


def is_sharded(parameter: Any) -> bool:
    """Whether a parameter is spread over processes (FSDP 2, ZeRO-3)."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor")


def versions() -> dict[str, str]:
    """Versions that decide how an adapter's files are to be read."""
    return {name: importlib.metadata.version(name) for name in ("transformers", "peft")}
