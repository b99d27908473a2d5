"""A model's folder that is not there: whether a name was meant as a path, and what was probably meant.

``OWNER/MODEL`` may be a name on the hub as well as a path. Asking the hub for a mistyped folder takes long and ends in
a message about the hub, so what looks like a path is told before anybody asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from negolab.errors import NegolabError

_FILES = (".gguf", ".safetensors", ".bin")
_CLOSE, _VERY_CLOSE = 0.6, 0.8
"""How alike names must be (``difflib``): where a path is meant for sure, and where it may be a name on the hub."""
_MOST = 3


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; no for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def check_no_path(name: str) -> None:
    """For a ``name`` of nothing that exists: raises ``NegolabError`` where it must be a path, with what is like it.

    A path is what has more than one ``/`` or another separator, begins with ``.``, ``/`` or ``~``, ends like a file of
    weights, begins with a folder that is here, or is almost the name of a model that is here.
    """
    path = Path(name)
    sure = (
        name.count("/") > 1
        or "\\" in name
        or name.startswith((".", "/", "~"))
        or name.endswith(("/", *_FILES))
        or re.fullmatch(r"[A-Za-z]:.*", name) is not None
    )
    here = not sure and len(path.parts) > 1 and Path(path.parts[0]).is_dir()
    found = _alike(path, _CLOSE if sure or here else _VERY_CLOSE)
    if not sure and not here:
        # A name without a slash is close to many folders: only one that holds a model can have been meant.
        found = [one for one in found if len(path.parts) > 1 or _is_model(one)]
        if not found:
            return
    told = f"{name}: no such folder or file"
    if found:
        told += f"; did you mean {' or '.join(_with_model(one) for one in found)}?"
    else:
        told += _where_it_ends(path)
    if not sure:
        stop, without = "" if found else ".", path.parts[0] if here else found[0]
        told += f"{stop} To have {name} of the hub, start from a folder without {without}"
    raise NegolabError(told)


def _alike(path: Path, close: float) -> list[str]:
    """Existing paths whose names are like ``path``'s, part by part, the most alike first."""
    parts, places = _begun(path)
    for part in parts:
        there: list[Path] = []
        for place in places:
            if part == ".." or is_there(place / part):
                there.append(place / part)
                continue
            names = {entry.name for entry in _entries(place) if not entry.name.startswith(".")}
            lower = {one.lower(): one for one in sorted(names)}
            alike = get_close_matches(part.lower(), lower, n=_MOST, cutoff=close)
            there += [place / lower[one] for one in alike]
        places = there[:_MOST]
    return [str(place) for place in places if place.is_dir() or place.suffix in _FILES]


def _begun(path: Path) -> tuple[list[str], list[Path]]:
    """The parts to look for, and where."""
    if path.anchor:
        return list(path.parts[1:]), [Path(path.anchor)]
    return list(path.parts), [Path()]


def _entries(place: Path) -> Iterable[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _is_model(place: str) -> bool:
    """Whether a folder or file holds a model, or a training run that has saved one."""
    path = Path(place)
    return path.is_file() or any((path / name).is_file() for name in ("config.json", "model/config.json"))


def _with_model(place: str) -> str:
    """The folder to give: a training run's own keeps its model in ``model``."""
    path = Path(place)
    inner = path / "model"
    return str(inner) if not (path / "config.json").is_file() and (inner / "config.json").is_file() else place


def _where_it_ends(path: Path) -> str:
    """Up to where a path is there, and what is there instead."""
    parents = [one for one in path.parents if one.name and one.is_dir()]
    if not parents:
        return ", and nothing here has a name like it"
    names = sorted(one.name for one in _entries(parents[0]) if one.is_dir() and not one.name.startswith("."))
    if not names:
        return f"; {parents[0]} is there, but holds no folder"
    more = f", and {len(names) - 6} more" if len(names) > 6 else ""
    return f"; {parents[0]} is there and holds {', '.join(names[:6])}{more}"
