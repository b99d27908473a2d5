"""The folder of a base that is still being made: whether it may be written to, and what lies in ``OUT/unfinished``.

``manifest.json`` is what was begun, ``starts.json`` has an entry for each start, and ``checkpoints`` the newest whole
checkpoint, in the manner of ``trainer/checkpoints.py``. All of it goes once the model is saved. ``OUT/pretrain.json``
is written last: a folder that has it is finished.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import negolab
from negolab.errors import NegolabError
from negolab.store import code_sha256, differences
from negolab.trainer import checkpoints, records

UNFINISHED, RECORD = "unfinished", "pretrain.json"
_STARTS, _STATE = "starts.json", "state.pt"
_SOFT = ("negolab", "code_sha256", "trainer_sha256", "versions", "threads")
"""What may differ when a run goes on: its user is told, and so is the record."""
_FIRST = (records.LOCK, records.MANIFEST + ".tmp")
"""What a process that was killed before it had a manifest leaves."""


def check_place(folder: Path) -> None:
    """Raises ``NegolabError`` where ``folder`` is neither new, nor unfinished, nor a finished base. Changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise NegolabError(f"{folder} is a file; give a folder that does not exist yet")
    if not folder.is_dir() or (folder / RECORD).is_file() or (folder / UNFINISHED / records.MANIFEST).is_file():
        return
    there = [path.name for path in folder.iterdir()]
    begun = there == [UNFINISHED] and all(path.name in _FIRST for path in (folder / UNFINISHED).iterdir())
    if there and not begun:
        raise NegolabError(f"{folder} is not empty and no base being made; give a folder that does not exist yet")


def finished(folder: Path, made: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of the base in ``folder``; None where there is none yet.

    ``made``: what its record must say. Raises ``NegolabError`` where it says something else.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    known = _read(path, "give a folder that does not exist yet")
    if not (folder / "model.safetensors").is_file():
        raise NegolabError(f"{folder} has a {RECORD} and no model; give a folder that does not exist yet")
    kept = {name: known.get(name) for name in made}
    changed = [text for _, text in differences(kept, _plain(made), records.IN_WORDS)]
    if changed:
        raise NegolabError(f"{folder} is finished and was made otherwise ({_shown(changed)}); give a new folder")
    return known


def manifest(made: Mapping[str, Any], threads: int, versions: Mapping[str, str]) -> dict[str, Any]:
    """What is begun. ``made``: what decides the base and may not differ when it goes on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    code = {"negolab": negolab.__version__, "code_sha256": code_sha256(), "trainer_sha256": digest.hexdigest()}
    found: dict[str, Any] = _plain({**code, **made, "threads": threads, "versions": versions})
    return found


def compare(folder: Path, begun: Mapping[str, Any]) -> list[str]:
    """Hold ``begun``, or a part of it, against what was begun in ``folder`` if anything was.

    Returns what a user should know: other code, packages or threads. Raises ``NegolabError`` for any other difference.
    """
    path = folder / UNFINISHED / records.MANIFEST
    if not path.exists():
        return []
    known = _read(path, f"delete {folder / UNFINISHED} to begin anew")
    soft: list[str] = []
    hard: list[str] = []
    for where, text in differences({name: known.get(name) for name in begun}, dict(begun), records.IN_WORDS):
        (soft if where.startswith(_SOFT) else hard).append(text)
    if hard:
        raise NegolabError(
            f"{folder} holds another run ({_shown(hard)}); resume it as it was begun, or give a new folder"
        )
    return [f"{text}; from here on numbers may differ" for text in soft]


def begin(folder: Path, begun: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Note that a process starts on ``folder``, whose lock it holds.

    Returns the state to go on from, None at the beginning, and what ``compare`` does. Where nothing was saved yet there
    is nothing that other code could have changed, so the manifest becomes this process's.
    """
    place = folder / UNFINISHED
    notes, found = compare(folder, begun), checkpoints.newest(place)
    if found is None:
        records.write_whole(place / records.MANIFEST, _bytes(begun))
        records.write_whole(place / _STARTS, _bytes([]))
        return None, []
    state = _state(folder, found[1])
    starts = [*_starts(folder), {"step": found[0], "notes": notes}]
    records.write_whole(place / _STARTS, _bytes(starts))
    return state, notes


def resumed(folder: Path) -> dict[str, Any]:
    """For the record: ``resumed``, how often the run went on from a checkpoint, and ``changed``, what differed then."""
    starts = _starts(folder)
    changed = list(dict.fromkeys(note for start in starts for note in start["notes"]))
    return {"resumed": len(starts), **({"changed": changed} if changed else {})}


def save(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write the checkpoint after ``step`` steps and remove older ones. Raises ``NegolabError`` for a full disk."""
    import torch

    place, whole = folder / UNFINISHED, io.BytesIO()
    torch.save(dict(state), whole)  # not to the file: torch has errors of its own for a full disk
    with checkpoints.saving(place, step) as half:
        written = half / f"checkpoint-{step}"
        written.mkdir()
        (written / _STATE).write_bytes(whole.getbuffer())
    checkpoints.prune(place, 1)


def finish(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a base whose files are saved, once those are on the disk."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    records.write_whole(folder / RECORD, _bytes(record))


def clear(folder: Path) -> None:
    """Remove what only an unfinished base needs. Not under the lock, which lies there, too."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _state(folder: Path, path: Path) -> dict[str, Any]:
    import torch

    try:
        found: dict[str, Any] = torch.load(path / _STATE, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NegolabError(
            f"{path / _STATE} cannot be read ({why}); delete {folder / UNFINISHED} to begin anew"
        ) from None
    return found


def _starts(folder: Path) -> list[dict[str, Any]]:
    path = folder / UNFINISHED / _STARTS
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NegolabError(f"{path} cannot be read ({error}); delete {path.parent} to begin anew") from None
    return found


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NegolabError(f"{path} cannot be read ({error}); {remedy}") from None
    if not isinstance(found, dict):
        raise NegolabError(f"{path} holds no JSON object; {remedy}")
    return found


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode("utf-8")


def _shown(texts: list[str]) -> str:
    return "; ".join(texts[:4]) + ("; ..." if len(texts) > 4 else "")
