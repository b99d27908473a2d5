"""What a training run writes down: its manifest, and tables that grow by a row per step.

``metrics.csv`` holds what a run with the same settings, data, code and machine repeats to the byte; ``timings.csv``
holds the seconds, which nobody can repeat. A run that is resumed cuts off the rows of steps that it will play again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

import negolab
from negolab.errors import NegolabError
from negolab.policies.spec import SPECS, is_model
from negolab.store import code_sha256, differences, manifest_bytes, seal
from negolab.trainer.checkpoints import unwritten

MANIFEST, METRICS, TIMINGS, EVALUATIONS = "manifest.json", "metrics.csv", "timings.csv", "eval.csv"
LOCK = "run.lock"
FORMAT = "negolab-training-1"
"""Of a training run's manifest, of whatever kind."""
_DECIDING = (
    *("advantages", "batches", "buyer_task", "grpo", "lora", "loop", "markets", "rows", "sampler", "task"),
    *("evaluation", "preparation", "sft", "sft_data", "sft_filter", "sft_trainer", "trade_task", "trl_common"),
    "vllm_sampler",
)
"""Modules of the trainer that decide its numbers."""
FREE = ("save_every", "keep_checkpoints", "report_to", "sampler_batch")
"""Settings that may change between a run and its resumption."""


def new_manifest(settings: Mapping[str, Any], task: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a training run. ``more``: the base model, what is trained, versions. No time and no path: what
    stands in ``settings`` of where a model, server or file with a split is stays out (``_kept``)."""
    digest = hashlib.sha256()
    for name in _DECIDING:
        path = Path(__file__).with_name(f"{name}.py")
        if path.exists():
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    plain = {
        "format": FORMAT,
        "negolab": negolab.__version__,
        "code_sha256": code_sha256(),
        "trainer_sha256": digest.hexdigest(),
        "settings": _kept(settings),
        "task": task,
        **more,
    }
    try:
        return seal(orjson.loads(orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)))
    except TypeError as error:
        raise NegolabError(f"the run's settings cannot be written down: {error}") from None


def check_place(folder: Path) -> None:
    """Raises ``NegolabError`` where ``folder`` can be neither begun nor resumed. Changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise NegolabError(f"--out {folder} is a file; give a new folder, or a training run's own to resume it")
    if folder.is_dir() and not (folder / MANIFEST).exists():
        there = [path.name for path in folder.iterdir() if path.name not in (LOCK, MANIFEST + ".tmp")]
        if there:
            raise NegolabError(f"--out {folder} is not empty and no training run; give a new folder")


def check_no_training(folder: Path) -> None:
    """For commands that read episodes. Raises ``NegolabError`` where ``folder`` is a training run's, with the folders
    inside that hold some; whatever else is wrong with it is for others to say."""
    known = read_known(folder)
    if known is None:
        return
    runs = sorted((folder / "evals").glob("step-*/*/episodes.jsonl"))
    shown = [shlex.quote(str(path.parent)) for path in runs if (path.parent / MANIFEST).is_file()]
    told = f"{folder} is a training run; "
    if shown:
        listed = shown if len(shown) <= _LISTED else [*shown[: _LISTED // 2], "...", *shown[-_LISTED // 2 :]]
        told += f"its evaluations hold episodes to look at: {', '.join(listed)}"
    else:
        told += "it holds no evaluation, and so no episodes to look at"
    task = known.get("task")
    facts = task if isinstance(task, dict) else {}
    notebook = _CURVES.get(str(facts.get("name")))
    if notebook is None or "train_clusters" in facts:  # no notebook draws the curves of several items
        raise NegolabError(f"{told}. Its curves are in {folder / METRICS}")
    raise NegolabError(
        f"{told}. Its curves: negolab notebooks run --only {notebook} -p runs {shlex.quote(str(folder))}"
    )


_LISTED = 6
_CURVES = {"seller": "02_training_dynamics", "buyer": "08_buyer_training"}
"""Notebooks by the task whose runs they draw, where they learn from single products."""


def read_known(folder: Path) -> dict[str, Any] | None:
    """The manifest of a training run that is there; None where there is none, or it cannot be read."""
    try:
        found = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def begun_as(folder: Path, settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of the run in ``folder``, where it was begun with these settings and this base model; else None.

    What can be told without the model in memory: no more, so None only means that ``open_manifest`` must look.
    ``settings``: as ``new_manifest`` takes them; ``base``: a fingerprint, whose commit counts where it is known.
    """
    known = read_known(folder)
    if known is None or not isinstance(known.get("base"), dict) or not isinstance(known.get("task"), dict):
        return None
    mine = orjson.loads(orjson.dumps({"settings": settings}, option=orjson.OPT_NON_STR_KEYS))
    model = {name: value for name, value in base.items() if value}
    same = _fixed(mine) == {"settings": _fixed(known)["settings"]}
    return known if same and model.items() <= known["base"].items() else None


def open_manifest(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Write it into a new run, or hold it against the one that is there.

    Returns what a user should know: other code or packages than the run was begun with, which may change its numbers.
    Raises ``NegolabError`` naming whatever else differs.
    """
    path = folder / MANIFEST
    if path.exists():
        try:
            known = orjson.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise NegolabError(f"{path} cannot be read: {error}") from None
        changed = dict(differences(_fixed(known), _fixed(manifest), IN_WORDS))
        soft = [text for where, text in changed.items() if where.startswith(_SOFT)]
        hard = [text for where, text in changed.items() if not where.startswith(_SOFT)]
        if hard:
            shown = "; ".join(hard[:4]) + ("; ..." if len(hard) > 4 else "")
            raise NegolabError(f"{folder} holds another run ({shown}); resume it as it was begun, or give a new folder")
        return [f"{text}; from here on numbers may differ" for text in soft]
    write_whole(path, manifest_bytes(dict(manifest)))
    return []


def _fixed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What may not change: of the players' options only those that decide replies (a server may move)."""
    given = {k: v for k, v in manifest.get("settings", {}).items() if k not in FREE}
    return {**{k: v for k, v in manifest.items() if k != "manifest_sha256"}, "settings": _kept(given)}


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what only says where something is; the task's description says what it holds."""
    made = {k: _deciding(v) if k in _PLAYERS else v for k, v in settings.items()}
    return {k: "file" if k in _SPLITS and v not in SPLITS else v for k, v in made.items()}


SPLITS = ("train", "test", "held_out", "all")
"""Those that a catalogue of products or clusters has; any other is a file's."""
_SPLITS = ("train_split", "eval_split", "split")
_PLAYERS = ("buyers", "task_options", "sampler_options")
"""Settings that hold options of language models."""
_FREE_OPTIONS = frozenset(
    option.name
    for spec in SPECS.values()
    for option in fields(spec)
    if option.metadata and not option.metadata["decides"]
)


def _deciding(value: Any) -> Any:
    """Players' options as a profile holds them, at any depth, without those that may change, folders by their names."""
    if isinstance(value, str):
        return _named(value)
    if not isinstance(value, Mapping):
        return value
    given = {k: v for k, v in value.items() if k not in _FREE_OPTIONS}
    return {k: _folder(v) if k == "adapter" and isinstance(v, str) else _deciding(v) for k, v in given.items()}


def _named(text: str) -> str:
    """A language model's name as it is, where it is a folder's or file's with its last part only."""
    engine, _, model = text.partition(":")
    return f"{engine}:{_folder(model)}" if is_model(text) and engine != "openai" else text


def _folder(name: str) -> str:
    path = Path(name)
    on_hub = name.count("/") < 2 and not name.startswith(("/", ".", "~")) and "\\" not in name and not path.exists()
    return name if on_hub else path.name


_SOFT = ("negolab", "code_sha256", "trainer_sha256", "versions")
IN_WORDS = {
    "code_sha256": "the run was begun with another version of the code",
    "trainer_sha256": "the run was begun with another version of the trainer",
    "task.data.sha256": "its catalogue has other contents",
}
"""What is said of a difference whose values say nothing to a user."""


def write_whole(path: Path, content: bytes) -> None:
    """The file, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Table:
    """A CSV file whose first column is a step."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)

    def cut(self, step: int) -> None:
        """Drop the rows of ``step`` and later ones, a torn last line, and start the file where it is missing.

        Raises ``NegolabError`` where its columns are others.
        """
        head = _line(self.columns)
        if not self.path.exists():
            write_whole(self.path, head)
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        if not lines or lines[0] != head:
            raise NegolabError(f"{self.path} has other columns than this version of the trainer writes")
        try:
            kept = [line for line in lines[1:] if line.endswith(b"\n") and int(line.split(b",", 1)[0]) < step]
        except ValueError:
            raise NegolabError(f"{self.path} has a row that begins with no step; give a new folder") from None
        if len(kept) + 1 < len(lines):
            write_whole(self.path, head + b"".join(kept))

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows and sync them to the disk. Raises ``ValueError`` for a row with other columns."""
        text = b""
        for row in rows:
            if row.keys() != set(self.columns):
                raise ValueError(f"columns differ: {sorted(row.keys() ^ set(self.columns))}")
            text += _line([cell(row[name]) for name in self.columns])
        with self.path.open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def cell(value: Any) -> str:
    """A value as tables hold it; ``n/a`` for what does not exist."""
    return "n/a" if value is None else repr(value) if isinstance(value, float) else str(value)


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second trainer out of the run folder, which is made where it is missing."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise NegolabError(f"{folder} is being written by another process; wait for it or give a new folder") from None
    except Exception as error:
        why = unwritten(error)
        if why is None:
            raise
        where = f" {error.filename}" if isinstance(error, OSError) and error.filename else ""
        raise NegolabError(
            f"cannot write to {folder}: {why}{where}; what was finished is kept, run the same command again to go on"
        ) from error
