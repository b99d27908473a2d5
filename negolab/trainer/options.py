"""How the settings of a training run are declared, read from a profile (YAML) and a command line, and explained.

A setting is a field of a frozen dataclass with what is allowed in its metadata and what it is in the docstring below.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.policies.spec import key_values
from negolab.trainer.lora import LoraSettings
from negolab.yaml_file import read_value, read_yaml

MANY = 1_000_000
"""The most of anything that is counted."""

# -- declaring -------------------------------------------------------------------------------------------------------


def setting(default: Any, allowed: Callable[[Any], bool], says: str) -> Any:
    """A field of a dataclass that ``check`` holds against ``allowed``; ``says`` is that in words."""
    return field(default=default, metadata={"allowed": allowed, "says": says})


def whole(low: int, high: int) -> Callable[[Any], bool]:
    """Whether a value is a whole number from ``low`` to ``high``."""
    return lambda v: type(v) is int and low <= v <= high


def number(low: float, high: float) -> Callable[[Any], bool]:
    """Whether a value is a number from ``low`` to ``high``."""
    return lambda v: type(v) in (int, float) and low <= v <= high


def one_of(names: Sequence[str]) -> Callable[[Any], bool]:
    """Whether a value is one of ``names``."""
    return lambda v: isinstance(v, str) and v in names


def or_nothing(allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is allowed, or None."""
    return lambda v: v is None or allowed(v)


def text(v: Any) -> bool:
    """Whether a value is a text of one line without space around it."""
    return isinstance(v, str) and v == v.strip() and v.isprintable()


def names(v: Any) -> bool:
    """Whether a value is a tuple of texts, none of them empty."""
    return isinstance(v, tuple) and all(text(name) and name for name in v)


def switch(v: Any) -> bool:
    """Whether a value is true or false."""
    return type(v) is bool


def check(settings: Any) -> None:
    """Hold every field of a dataclass against what it allows; lists become tuples.

    Raises ``NegolabError`` for the first value that is not allowed.
    """
    for option in fields(settings):
        value = getattr(settings, option.name)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(settings, option.name, value)
        if _is_mapping(option.type) and not isinstance(value, Mapping):
            raise NegolabError(f"{option.name} is {value!r}; allowed: names with their settings")
        if not option.metadata:
            continue
        if not option.metadata["allowed"](value) or (isinstance(value, float) and not math.isfinite(value)):
            raise NegolabError(f"{option.name} is {value!r}; allowed: {option.metadata['says']}")


def _is_mapping(kind: Any) -> bool:
    return str(kind).startswith("Mapping")


# -- reading ---------------------------------------------------------------------------------------------------------


def profiles(kind: str) -> dict[str, Path]:
    """The profiles that come with negolab, by name; ``kind``: ``train`` or ``sft``."""
    return {path.stem: path for path in sorted((data_dir() / kind).glob("*.yaml"))}


def read_profile(name: str, kind: str, like: str) -> tuple[dict[str, Any], str]:
    """A packaged profile by its name, or a YAML file by its path, as plain data, and what to call it in messages.

    ``like``: an example of a line. Raises ``NegolabError`` where there is none, or it cannot be read.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        there = profiles(kind)
        if name not in there:
            raise NegolabError(f"no profile {name!r}; there are: {', '.join(there)}; or give a YAML file")
        path = there[name]
    return read_yaml(path, "profile", f"lines such as {like}"), f"profile {path.name}"


def put(given: dict[str, Any], changes: Sequence[str], of: Any) -> None:
    """Put ``KEY=VALUE`` texts over plain data for the dataclass ``of``. ``KEY`` may reach into a setting with settings
    of its own (``lora.rank=8``); what is on the way and missing is made. A setting that is a text is taken as it
    stands, any other as YAML. Raises ``NegolabError`` for what cannot be read."""
    texts = {option.name for option in fields(of) if str(option.type) == "str"}
    for key, value in key_values(changes, "--set").items():
        as_it_stands = key in texts and not value.startswith(("'", '"'))
        _put(given, key.split("."), value if as_it_stands else _plain(value, key), key)


def _put(given: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    for name in path[:-1]:
        below = given.get(name)
        if below is None:
            below = given[name] = {}
        if not isinstance(below, dict):
            raise NegolabError(f"--set {key}: {name} has no settings of its own")
        given = below
    given[path[-1]] = value


def _plain(given: str, key: str) -> Any:
    """A command line's text as a value: YAML, but 1e-4 is a number as well."""
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+", given):
        return float(given)
    try:
        return read_value(given)
    except ValueError as error:  # a number of thousands of digits, too
        shown = given if len(given) <= 60 else given[:57] + "..."
        raise NegolabError(f"--set {key}: {shown!r} cannot be read: {error}") from None


def values(given: Mapping[str, Any], where: str, of: Any) -> dict[str, Any]:
    """Settings as the dataclass ``of`` takes them, from plain data. Raises ``NegolabError`` for an unknown one."""
    known = {option.name: option for option in fields(of)}
    made: dict[str, Any] = {}
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
        elif type(value) is int and kind == "float" and abs(value) < MANY**2:  # larger ones are not allowed anyway
            value = float(value)
        elif value is None and kind == "str":  # an empty value on the command line
            value = ""
        elif value is None and _is_mapping(kind):
            value = {}
        made[key] = value
    return made


# -- explaining ------------------------------------------------------------------------------------------------------


def explained(of: Any) -> str:
    """Every setting of a dataclass with its default and what it is, as the docstring below it says. Where the classes
    that it is made of describe one differently, its own word counts; those without a word share the next one's."""
    told: dict[str, tuple[list[str], str]] = {}
    for one in reversed(of.__mro__[:-1]):
        for names_here, says in _docstrings(one):
            told |= dict.fromkeys(names_here, (names_here, says))
    defaults, lines = of(), []
    for option in fields(of):
        together, says = told.get(option.name, ([], ""))
        if together and option.name == together[0]:
            shown = ", ".join(f"{name} ({getattr(defaults, name)!r})" for name in together)
            lines.append(f"{shown}: {says}")
    return "\n".join(lines)


def _docstrings(of: Any) -> list[tuple[list[str], str]]:
    """The fields that a class itself declares, by the docstrings below them."""
    (body,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(body, ast.ClassDef)
    found: list[tuple[list[str], str]] = []
    waiting: list[str] = []
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and waiting:
            found.append((waiting, " ".join(str(node.value.value).split()).replace("``", "")))
            waiting = []
        elif isinstance(node, ast.FunctionDef):
            break
    return found
