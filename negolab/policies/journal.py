"""Replies that were paid for, kept until their episodes are stored.

An episode is written when it is over, and a model's replies cost time or money before that. Each is appended here as
soon as it is there, so that a run which is killed asks again only for what was under way. The journal also is the
account of what the run used, refused replies and those of unfinished episodes included.

A line counts only whole and unchanged (its checksum fits). Lines survive the death of their process, not a power cut in
the seconds before it. Kept in memory is where each reply lies, not the reply.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
_JOURNALS = "journals"
_KEPT = ("text", "finish_reason", "prompt_tokens", "completion_tokens", "prompt_sha256", "reasoning", "ids", "logprobs")
_MOST = 1 << 28  # bytes of a line: a longer one is not ours, and would not fit into memory beside a model


class _Place(NamedTuple):
    """A line in a journal."""

    path: Path
    offset: int
    length: int


class Journal:
    """The journals of a run folder, read, and one of them open for more."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ``NegolabError`` where it cannot be written. Torn and foreign lines are left out of account."""
        host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node())[:60]
        self._path = Path(folder) / f"replies-{host}-{os.getpid()}.jsonl"
        self._lock = threading.Lock()
        self._known: dict[bytes, _Place] = {}
        try:
            for path in sorted(self._path.parent.glob(PATTERN)):
                for offset, length, data in _lines(path):
                    if "key" in data:
                        self._known[_mark(data["key"], data["prompt_sha256"])] = _Place(path, offset, length)
            # Unbuffered: what was written is out, and what failed is not written later by chance.
            self._file = self._path.open("ab", buffering=0)
            # A kill may have torn the last line: what comes next must not be fused to it.
            self._torn = self._file.tell() > 0 and not _ends_with_newline(self._path)
            if self._file.tell() == 0:  # a name can come back (process numbers do), this cannot
                self._write({"journal": secrets.token_hex(8)})
        except OSError as error:
            raise self._cannot(error) from error

    def find(self, request: Request, prompt_sha256: str) -> Reply | None:
        """The reply that was given to this very request, if any."""
        place = self._known.get(_mark(_key(request), prompt_sha256))
        if place is None:
            return None
        try:
            with place.path.open("rb") as file:
                file.seek(place.offset)
                data = _whole(file.read(place.length))
        except OSError:
            return None
        if data is None or data.get("key") != _key(request) or data["prompt_sha256"] != prompt_sha256:
            return None  # the file is another by now
        return Reply(**{name: data[name] for name in _KEPT if name in data})

    def add(self, request: Request, reply: Reply, facts: Mapping[str, Any]) -> None:
        """Keep a reply and what it cost, written out. May be called from any thread.

        Raises ``NegolabError`` where it cannot be kept: the run must stop, or it would be asked again for money.
        """
        kept = dict(zip(_KEPT, reply[: len(_KEPT)], strict=True))
        try:
            with self._lock:
                self._write({"key": _key(request), **kept, **facts})
        except OSError as error:
            raise self._cannot(error) from error

    def close(self) -> None:
        """Close the file; what it holds stays."""
        with self._lock:
            self._file.close()

    def _write(self, data: Mapping[str, Any]) -> None:
        line = b"\n" * self._torn + _line(data, self._path)
        self._torn = True  # until all of it is out
        while line:
            line = line[self._file.write(line) :]
        self._torn = False

    def _cannot(self, error: OSError) -> NegolabError:
        return NegolabError(f"cannot write to {self._path}: {error.strerror or error}")


def read(path: Path) -> list[dict[str, Any]]:
    """The replies in a journal, each with what it cost."""
    return [data for _, _, data in _lines(path) if "key" in data]


def settle(folder: str | Path) -> None:
    """All episodes are stored: turn the journals into the run's account (``USAGE``) and remove them.

    May be killed anywhere and called again: the account says how far each journal is in it. A run that is settled
    again, because some of its episodes were played again, adds to its account.
    """
    place = Path(folder)
    try:
        paths = sorted(place.glob(PATTERN))
        if not paths:
            return
        account = _account(place / USAGE)
        for path in paths:
            _add_to(account, path)
        temporary = place / (USAGE + ".tmp")
        with temporary.open("wb") as file:
            file.write(orjson.dumps(account, option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())  # the journals go next
        temporary.replace(place / USAGE)
        for path in paths:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise NegolabError(f"cannot write to {place}: {error.strerror or error}") from error


def _account(path: Path) -> dict[str, dict[str, Any]]:
    """What has been settled before, by player: counts, and by journal how many of its bytes are in them."""
    try:
        found = orjson.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(found, dict) or not all(isinstance(used, dict) for used in found.values()):
        return {}
    fits = all(isinstance(used.get(_JOURNALS), dict) and used.keys() >= {*_COUNTS} for used in found.values())
    return found if fits else {}


def _add_to(account: dict[str, dict[str, Any]], path: Path) -> None:
    """Add what a journal holds beyond what was settled before."""
    name, reached = path.name, {player: dict(used[_JOURNALS]) for player, used in account.items()}
    for offset, length, data in _lines(path):
        if "journal" in data:
            name = data["journal"]
            continue
        player = str(data.get("player"))
        if offset < reached.get(player, {}).get(name, 0):
            continue
        used = account.setdefault(player, {**dict.fromkeys(_COUNTS, 0), _JOURNALS: {}})
        used["replies"] += 1
        for count in _COUNTS[1:]:
            value = data.get(count)
            used[count] += value if type(value) in (int, float) else 0
        used[_JOURNALS][name] = offset + length


# -- lines --------------------------------------------------------------------------------------------------------


def _line(data: Mapping[str, Any], path: Path) -> bytes:
    try:
        body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half of a surrogate pair, which no file can hold: as records keep it, too
        try:
            body = orjson.dumps({name: _storable(v) for name, v in data.items()}, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise NegolabError(f"a reply cannot be kept in {path}: {error}") from None
    return b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body))


def _storable(value: Any) -> Any:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


def _whole(line: bytes) -> dict[str, Any] | None:
    """What a line holds (with or without its newline); None where it is torn, changed or foreign."""
    line = line.removesuffix(b"\n")
    body, mark, end = line.rpartition(b',"crc":"')
    if not mark or end != b'%08x"}' % zlib.crc32(body + b"}"):
        return None
    try:
        data = orjson.loads(body + b"}")
    except ValueError:
        return None
    if not isinstance(data, dict) or isinstance(data.get("journal"), str):
        return data if isinstance(data, dict) else None  # the first line: the journal's own name
    texts = (data.get("key"), data.get("prompt_sha256"), data.get("finish_reason"))
    fits = all(isinstance(text, str) for text in texts) and isinstance(data.get("text", 0), str | None)
    return data if fits else None


def _lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Offset, length and content of the whole lines of a journal."""
    with path.open("rb") as file:
        offset = 0
        while line := file.readline(_MOST):
            data = _whole(line)
            if data is not None:
                yield offset, len(line), data
            offset += len(line)


def _mark(key: str, prompt_sha256: str) -> bytes:
    return hashlib.blake2b(f"{key} {prompt_sha256}".encode("utf-8", "replace"), digest_size=16).digest()


def _key(request: Request) -> str:
    return f"{request.episode}:{request.seat}:{len(request.view.own)}:{request.attempt}"


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
