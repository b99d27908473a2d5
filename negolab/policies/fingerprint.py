"""Which model it was: a short, stable mark of a model's or adapter's files, without where they lie.

A manifest must tell two checkpoints in folders of the same name apart, and hashing sixty gigabytes takes minutes. Small
files count whole; of large ones their size, both ends and blocks spread evenly between count, which differ whenever
a model was trained further, cut off or written in another number format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from negolab.errors import NegolabError

_WHOLE = 16 << 20
"""Bytes up to which a file counts whole."""
_BLOCK, _BLOCKS = 64 << 10, 64
_KINDS = (".json", ".jinja", ".safetensors", ".bin", ".gguf", ".model", ".txt")
_LEFT_OUT = ("trainer_state.json", "optimizer.bin", "scheduler.bin", "training_args.bin")
"""What a trainer leaves beside a checkpoint and no engine reads."""


def fingerprint(model: str, commit: str = "") -> dict[str, str]:
    """What a manifest says of a model: the name, and ``sha256`` of its files or ``commit`` on the hub.

    ``model`` is a folder, a file, or else a name on the hub, for which the caller knows the commit ("" if it does
    not). Takes well under a second. Raises ``NegolabError`` for files that cannot be read.
    """
    path = Path(model)
    if not path.exists():
        return {"model": model, "commit": commit}
    files = [path] if path.is_file() else sorted(_counted(path))
    if not files:
        raise NegolabError(f"{path} holds no file of a model; allowed: {', '.join(_KINDS)}")
    return {"model": path.resolve().name, "sha256": _digest(files)}


def _counted(folder: Path) -> Iterable[Path]:
    for path in folder.iterdir():
        if path.is_file() and path.suffix in _KINDS and path.name not in _LEFT_OUT and not path.name.startswith("."):
            yield path


def _digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        try:
            size = path.stat().st_size
            found.update(f"{path.name if path.suffix != '.gguf' else ''}\0{size}\0".encode())
            with path.open("rb") as file:
                if size <= _WHOLE:
                    found.update(file.read())
                    continue
                for block in range(_BLOCKS):
                    file.seek((size - _BLOCK) * block // (_BLOCKS - 1))
                    found.update(file.read(_BLOCK))
        except OSError as error:
            raise NegolabError(f"cannot read {path}: {error.strerror or error}") from error
    return found.hexdigest()
