"""Replies that were paid for, kept until their episodes are stored.

An episode is written when it is over, and a model's replies cost time or money before that. Each is appended here as
soon as it is there, so that a run which is killed asks again only for what was under way. The journal also is the
account of what the run used, refused replies and those of unfinished episodes included.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from negolab.environment.base import Request
from negolab.errors import NegolabError
from negolab.policies.base import Reply

PATTERN = "replies-*.jsonl"
"""Journals in a run folder; every process that plays has one of its own."""

USAGE = "usage.json"
"""Replies, tokens and seconds by player, every reply that came, used or not. Not part of what ``verify`` checks: a run
that was interrupted may have used more than one that was not."""

_COUNTS = ("replies", "prompt_tokens", "cached_tokens", "completion_tokens", "tries", "seconds")
_KEPT = ("text", "finish_reason", "prompt_tokens", "completion_tokens", "prompt_sha256", "reasoning", "ids", "logprobs")


def _reply(data: Mapping[str, Any]) -> Reply:
    return Reply(**{name: data[name] for name in _KEPT if name in data})


class Journal:
    """The journals of a run folder, read, and one of them open for more."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ``NegolabError`` where it cannot be written. Torn and foreign lines are left out of account."""
        host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node())
        self._path = Path(folder) / f"replies-{host}-{os.getpid()}.jsonl"
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Reply] = {}
        try:
            for path in sorted(self._path.parent.glob(PATTERN)):
                for data in read(path):
                    self._known[data["key"], data["prompt_sha256"]] = _reply(data)
            self._file: BinaryIO = self._path.open("ab")
            # A kill may have torn the last line: what comes next must not be fused to it.
            if self._file.tell() and not _ends_with_newline(self._path):
                self._file.write(b"\n")
        except OSError as error:
            raise NegolabError(f"cannot write to {self._path}: {error.strerror or error}") from error

    def find(self, request: Request, prompt_sha256: str) -> Reply | None:
        """The reply that was given to this very request, if any."""
        return self._known.get((_key(request), prompt_sha256))

    def add(self, request: Request, reply: Reply, facts: Mapping[str, Any]) -> None:
        """Keep a reply and what it cost, flushed. May be called from any thread."""
        kept = dict(zip(_KEPT, reply[: len(_KEPT)], strict=True))
        line = orjson.dumps({"key": _key(request), **kept, **facts}, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            with self._lock:
                self._file.write(line + b"\n")
                self._file.flush()
        except OSError as error:
            raise NegolabError(f"cannot write to {self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; what it holds stays."""
        with self._lock:
            self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal."""
    found = []
    for line in path.read_bytes().splitlines():
        try:
            data = orjson.loads(line)
        except ValueError:
            continue  # torn by a kill: that reply was never used
        if isinstance(data, dict) and {"key", "prompt_sha256", "text"} <= data.keys():
            found.append(data)
    return found


def settle(folder: str | Path) -> None:
    """All episodes are stored: turn the journals into the run's account (``USAGE``) and remove them."""
    place = Path(folder)
    paths = sorted(place.glob(PATTERN))
    if not paths:
        return
    players: dict[str, dict[str, Any]] = {}
    for path in paths:
        for data in read(path):
            used = players.setdefault(data["player"], dict.fromkeys(_COUNTS, 0))
            used["replies"] += 1
            for name in _COUNTS[1:]:
                used[name] += data.get(name) or 0
    try:
        temporary = place / (USAGE + ".tmp")
        temporary.write_bytes(orjson.dumps(players, option=orjson.OPT_INDENT_2) + b"\n")
        temporary.replace(place / USAGE)
        for path in paths:
            path.unlink()
    except OSError as error:
        raise NegolabError(f"cannot write to {place}: {error.strerror or error}") from error


def _key(request: Request) -> str:
    return f"{request.episode}:{request.seat}:{len(request.view.own)}:{request.attempt}"


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
