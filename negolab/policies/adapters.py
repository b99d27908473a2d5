"""LoRA adapters: what can be said against one before any weights are loaded.

An adapter that an engine does not apply, or applies in part, answers as another model under its name. So what it
holds is read from its files (configuration and the header of its safetensors file) and held against the model.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.memory import shape_of

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
VERSIONS = "versions.json"
"""What wrote an adapter that was trained here. Not in peft's own file, whose keys other readers judge."""
_INTO_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj")
"""Modules whose input is the model's hidden state."""
_EXPERTS = re.compile(r"\.experts?(\.|$)|\.mlp\.gate\.|block_sparse_moe|\.router\.")


@dataclass(frozen=True)
class Adapter:
    """One adapter on this machine."""

    name: str
    """As the user wrote it."""
    folder: Path
    rank: int
    base: str
    """The model that it says it was trained on; may be empty, or a path of another machine."""
    targets: tuple[str, ...]
    """Modules it changes, by the last part of their names."""
    on_experts: bool
    """It changes experts or the router that chooses them."""
    problems: tuple[str, ...]
    """What plain LoRA has no place for: an engine may support it or not."""


def load_adapter(name: str, config: Mapping[str, Any], model: str) -> Adapter:
    """The adapter ``name`` (a folder, or a name on the hub, which is fetched), held against a model's configuration.

    Raises ``NegolabError`` where it is not there, cannot be read, or was trained on a model of another shape.
    """
    folder = _folder(name)
    where = f"the adapter {name}"
    check_versions(folder)
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind, rank = found["peft_type"], found["r"]
    except FileNotFoundError:
        raise NegolabError(f"{where} has no {CONFIG}; give a folder that peft wrote") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NegolabError(f"{where}: its {CONFIG} cannot be read: {error}") from None
    if kind != "LORA" or not isinstance(rank, int) or rank < 1:
        raise NegolabError(f"{where} is of type {kind} with rank {rank}; allowed: LORA, rank from 1")
    shapes = _tensors(folder, where)
    _must_fit(shapes, config, where, model)
    targets = sorted({module.rsplit(".", 1)[-1] for module in shapes})
    named = found.get("target_modules") or ()
    parameters = found.get("target_parameters") or ()
    experts = bool(parameters) or any(_EXPERTS.search(f".{module}.") for module in shapes)
    problems = []
    if found.get("use_dora"):
        problems.append("DoRA")
    if found.get("bias", "none") != "none":
        problems.append(f"bias {found['bias']}")
    if found.get("modules_to_save"):
        problems.append(f"whole modules ({', '.join(map(str, found['modules_to_save']))})")
    if not shapes:
        targets = [named] if isinstance(named, str) else sorted(map(str, named))
        has_experts = bool(config.get("num_experts") or config.get("num_local_experts"))
        inner = {"gate_proj", "up_proj", "down_proj", "all-linear"}
        experts = experts or (has_experts and bool(inner & set(targets)))
    base = str(found.get("base_model_name_or_path") or "")
    return Adapter(name, folder, rank, base, tuple(targets), experts, tuple(problems))


def check_versions(folder: str | Path) -> None:
    """Refuse an adapter that another generation of transformers wrote: its modules had other names (experts were
    modules up to version 4). An adapter without ``VERSIONS`` is somebody else's and passes.

    Raises ``NegolabError``.
    """
    try:
        found = json.loads((Path(folder) / VERSIONS).read_text(encoding="utf-8"))
        wrote = str(found["transformers"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NegolabError(f"the adapter {folder}: its {VERSIONS} cannot be read: {error}") from None
    here = importlib.metadata.version("transformers")
    if wrote.split(".")[0] != here.split(".")[0]:
        raise NegolabError(
            f"the adapter {folder} was trained with transformers {wrote}; this is {here}, where modules have other "
            f"names: install transformers {wrote.split('.')[0]}, or train it anew"
        )


def _folder(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        raise NegolabError(f"the adapter {name} is no folder, and no name on the hub (OWNER/NAME)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # the network fails in many ways
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NegolabError(f"the adapter {name} cannot be fetched: {first}") from None


def _tensors(folder: Path, where: str) -> dict[str, dict[str, list[int]]]:
    """Shapes of A and B by module, from the header of the safetensors file; empty for an older file format."""
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / "adapter_model.bin").is_file():
            return {}
        raise NegolabError(f"{where} has no weights: there is no {WEIGHTS} in it")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 100 << 20:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
            end = 8 + length + max(ends, default=0)
        if path.stat().st_size < end:
            raise ValueError("it is cut off")
        shapes: dict[str, dict[str, list[int]]] = {}
        for key, entry in header.items():
            match = re.fullmatch(r"(.+)\.(lora_[AB])(\.\w+)*?(\.weight)?", key)
            if match:
                shapes.setdefault(match[1].removeprefix("base_model.model."), {})[match[2]] = entry["shape"]
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise NegolabError(f"{where}: {WEIGHTS} is damaged: {error}") from None
    if not shapes:
        raise NegolabError(f"{where}: {WEIGHTS} holds no LoRA weights")
    return shapes


def _must_fit(shapes: Mapping[str, Mapping[str, list[int]]], config: Mapping[str, Any], where: str, model: str) -> None:
    shape = shape_of(config)
    for module, found in shapes.items():
        layer = re.search(r"\.layers\.(\d+)\.", module)
        if layer and int(layer[1]) >= shape.layers:
            raise NegolabError(f"{where} changes layer {layer[1]}, but {model} has {shape.layers} layers")
        wide = found.get("lora_A", [])
        reads_hidden = module.rsplit(".", 1)[-1] in _INTO_HIDDEN and ".experts" not in module
        if reads_hidden and len(wide) == 2 and wide[1] != shape.hidden:
            raise NegolabError(f"{where} was trained on a model of width {wide[1]}, but {model} is {shape.hidden} wide")
