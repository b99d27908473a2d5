"""YAML written by people: read so that nothing means something else than what stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError


def read_yaml(path: Path, what: str, content: str) -> dict[str, Any]:
    """The mapping that a file holds. ``what`` names the kind of file for messages, ``content`` what must be in it.

    Raises ``NegolabError`` for a file that cannot be read, is not YAML, or holds no mapping.
    """
    import yaml

    where = f"{what} {path.name}"
    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, yaml.SafeLoader)
        for line, problem in [] if node is None else _traps(node, set()):
            raise NegolabError(f"{where}, line {line}: {problem}")
        values = yaml.safe_load(text)
    except OSError as error:
        raise NegolabError(f"{what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NegolabError(f"{where} is not text in UTF-8") from None
    except RecursionError:
        raise NegolabError(f"{where} is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise NegolabError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise NegolabError(f"{where} must have {content}")
    return values


def read_value(text: str) -> Any:
    """The value that ``text`` is in YAML, under the same rules. Raises ``ValueError`` that says why it is none."""
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        for _, problem in [] if node is None else _traps(node, set()):
            raise ValueError(problem)
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _traps(node: Any, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Lines at which YAML reads something else than what stands there, or where a name stands twice."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    line, kind = node.start_mark.line + 1, node.tag.rpartition(":")[2]
    if kind == "seq":
        for child in node.value:
            yield from _traps(child, seen)
    elif kind == "map":
        keys = [key.value if isinstance(key.value, str) else "" for key, _ in node.value]
        for (key, child), name in zip(node.value, keys, strict=True):
            at = key.start_mark.line + 1
            if key.tag.rpartition(":")[2] not in ("str", "merge"):
                yield at, f"{name or 'a key'} is no name; put it in quotes if it is one"
            if keys.count(name) > 1:
                yield at, f"{name} is there twice"
            yield from _traps(child, seen)
    elif node.style is None:
        yield from ((line, problem) for problem in _scalar(node.value, kind))


def _scalar(text: str, kind: str) -> Iterator[str]:
    if kind == "int" and not re.fullmatch(r"[+-]?(0|[1-9][0-9]*)", text):
        yield f"{text} is read as another number; write it in plain digits, or in quotes if it is a text"
    elif kind == "bool" and text.lower() not in ("true", "false"):
        yield f"{text} is read as {text.lower() in ('yes', 'on', 'y')}; write true or false, or quotes if it is a text"
    elif kind == "timestamp":
        yield f"{text} is read as a date; put it in quotes"
    elif kind == "float" and not re.fullmatch(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-][0-9]+)?", text):
        yield f"{text} is read as another number; write it as 0.5, or in quotes if it is a text"
    elif kind == "str" and re.fullmatch(r"[+-]?[0-9][0-9_.]*[eE][+-]?[0-9]+", text):
        yield f"{text} is read as a text; write it as 0.5 or 1.0e-5, or in quotes if it is a text"
    elif kind not in ("int", "bool", "float", "str", "null"):
        yield f"{text} is read as {kind}; put it in quotes"
