"""Checkpoints that are there whole or not at all: written under another name, marked, then renamed.

``checkpoints/step-000010`` holds what ``transformers`` resumes from after ten steps, and ``complete.json``, written
last, which names every file with its size: what a crash or a full disk cut off is not taken for a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from negolab.errors import NegolabError

FOLDER = "checkpoints"
MARK = "complete.json"
_HALF = ".saving"


def unwritten(error: BaseException) -> str | None:
    """What the disk says, where ``error`` means that something could not be written; None for any other error.

    torch and safetensors have errors of their own for a full disk. What the network says is no disk's.
    """
    said = str(error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        return error.strerror or said
    if type(error).__name__ == "SafetensorError" and "I/O error" in said:
        return said[said.index("I/O error") :].removeprefix("I/O error: ")
    if isinstance(error, RuntimeError) and any(name in said for name in ("inline_container", "PytorchStreamWriter")):
        return "torch could not write a file to its end"
    return None


def complete(folder: Path) -> dict[int, Path]:
    """The whole checkpoints of a run folder by their number of steps, in order."""
    found = {}
    for path in sorted((folder / FOLDER).glob("step-*")):
        if re.fullmatch(r"step-\d{6,}", path.name) and _is_whole(path):
            found[int(path.name.removeprefix("step-"))] = path
    return dict(sorted(found.items()))


def newest(folder: Path) -> tuple[int, Path] | None:
    """The checkpoint to resume from: the whole one of most steps."""
    found = complete(folder)
    return max(found.items()) if found else None


def _is_whole(path: Path) -> bool:
    try:
        sizes = json.loads((path / MARK).read_text(encoding="utf-8"))
        return bool(sizes) and all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def saving(folder: Path, step: int, *, main: bool = True, wait: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """A place into which ``transformers`` writes its one ``checkpoint-*`` folder, which then becomes ``step-*``.

    ``main``: this process does the renaming; ``wait``: until all processes are there. Raises ``NegolabError`` where
    the disk does not take it.
    """
    place = folder / FOLDER / _HALF
    try:
        if main:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True, exist_ok=True)
        wait()
        yield place
        wait()
        if main:
            (written,) = place.glob("checkpoint-*")
            _mark(written)
            target = folder / FOLDER / f"step-{step:06d}"
            shutil.rmtree(target, ignore_errors=True)
            written.rename(target)
            shutil.rmtree(place, ignore_errors=True)
        wait()
    except Exception as error:
        why = unwritten(error)
        if why is None:
            raise
        raise NegolabError(
            f"cannot write a checkpoint to {folder / FOLDER}: {why}; the last whole one is kept, run the same command "
            "again to go on"
        ) from error


def _mark(folder: Path) -> None:
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
            with path.open("rb") as file:
                os.fsync(file.fileno())
    with (folder / MARK).open("w", encoding="utf-8") as file:
        json.dump(sizes, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def prune(folder: Path, keep: int) -> None:
    """Remove all but the ``keep`` whole checkpoints of most steps; 0 keeps all."""
    for _, path in list(complete(folder).items())[: -keep or None] if keep else []:
        shutil.rmtree(path, ignore_errors=True)
