"""Writing a run folder so that no end of the process can spoil it; what lies in the folder: see ``store.py``.

* The manifest comes first; whatever is missing after it is owed.
* Episodes are appended as whole lines and flushed; a kill can only tear the last one.
* ``run.lock`` keeps a second writer out; the lock goes with its process, however that ends; ``run.pid`` names it.
* When a folder is opened again every record is held against the run (checksum, number, replay). What fails moves to
  ``episodes.damaged.jsonl`` and is owed again.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from negolab.catalog import Product
from negolab.clusters import Cluster
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.store import (
    DAMAGED,
    EPISODES,
    LOCK,
    MANIFEST,
    METRICS_CSV,
    PID,
    PRODUCTS,
    Line,
    differences,
    manifest_bytes,
    place_problem,
    products_bytes,
    products_of,
    read_manifest,
    scan,
)

Check = Callable[[bytes, Episode], list[str]]
"""Says what is wrong with a stored record (its line without the newline, and what it holds); empty for a good one."""

_TEMPORARY = tuple(name + ".tmp" for name in (MANIFEST, PRODUCTS, EPISODES, METRICS_CSV))
_BEFORE_MANIFEST = (LOCK, PID, MANIFEST + ".tmp")
"""What a writer that was killed before it had a manifest may leave behind."""


class RunWriter:
    """A run folder open for writing, new or resumed; a context manager that holds the folder's lock."""

    def __init__(
        self,
        folder: str | Path,
        manifest: Mapping[str, Any],
        units: Sequence[Product | Cluster],
        check: Check | None = None,
    ) -> None:
        """``manifest`` from ``store.new_manifest``; ``check`` judges the records of a run that is resumed."""
        if not str(folder) or "\0" in str(folder):
            raise NegolabError(f"--out is {str(folder)!r}; give a new folder, or a run folder to resume")
        self.folder = Path(folder)
        self._manifest = dict(manifest)
        self._units = units
        self._check = check
        self._file: BinaryIO | None = None
        self._done = bytearray(int(manifest["episodes"]))
        self.set_aside: list[str] = []
        """What was found damaged and moved away when the folder was opened, one line each."""

    def __enter__(self) -> "RunWriter":
        self.check_place()
        with _disk(self.folder, ""):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            self.check_place()  # another writer may have made it a run since
            with _disk(self.folder, ""):
                self._open()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file is not None:
                with _disk(self.folder):
                    self._file.close()
        finally:
            self._unlock()

    @property
    def n_done(self) -> int:
        """Episodes that are in the folder."""
        return self._done.count(1)

    @property
    def n_owed(self) -> int:
        """Episodes still to be played."""
        return self._done.count(0)

    def owed(self) -> Iterator[int]:
        """The episodes still to be played, in order; one that comes in meanwhile is not named any more."""
        at = self._done.find(0)
        while at >= 0:
            yield at
            at = self._done.find(0, at + 1)

    def append(self, numbers: Iterable[int], lines: Iterable[bytes]) -> None:
        """Add finished episodes and flush: from here on a kill cannot lose them."""
        assert self._file is not None
        with _disk(self.folder):
            self._file.write(b"".join([line + b"\n" for line in lines]))
            self._file.flush()
        for number in numbers:
            self._done[number] = 1

    def finish(self) -> None:
        """Put the episodes in order, once all are there, and sync them to the disk."""
        assert self._file is not None
        path, n = self.folder / EPISODES, len(self._done)
        with _disk(self.folder):
            self._file.flush()
            os.fsync(self._file.fileno())
            offsets, lengths = array("q", bytes(8 * n)), array("q", bytes(8 * n))
            previous, in_order = -1, True
            for line in scan(path):
                if line.data is not None:
                    episode = line.data["episode"]
                    offsets[episode], lengths[episode] = line.offset, len(line.raw)
                    in_order, previous = in_order and episode > previous, episode
            if not in_order:
                self._file.close()
                _rewrite(path, path, zip(offsets, lengths, strict=True))
                self._file = path.open("ab")

    def write_text(self, name: str, text: str) -> None:
        """Write a derived file of the run (a table) whole or not at all."""
        with _disk(self.folder):
            _write_whole(self.folder / name, text.encode("utf-8"))

    # -- opening ------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Raises ``NegolabError`` where the folder is no place for this run: another run's, or something else's."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise NegolabError(f"--out {folder} is a file; give a new folder, or a run folder to resume")
        if not folder.is_dir():
            return
        if (folder / MANIFEST).exists() or (folder / EPISODES).exists():
            found = differences(read_manifest(folder), self._manifest, _IN_WORDS)
            changed = [text for where, text in found if where != "manifest_sha256"]
            if changed:
                shown = "; ".join(changed[:4]) + ("; ..." if len(changed) > 4 else "")
                raise NegolabError(
                    f"{folder} holds another run ({shown}); resume it with its own settings or give a new folder"
                )
        elif any(entry.name not in _BEFORE_MANIFEST for entry in folder.iterdir()):
            raise NegolabError(f"--out {folder} is not empty and not a run folder; give a new folder")

    def _lock(self) -> None:
        from filelock import FileLock, Timeout

        pid_file = self.folder / PID  # not inside the lock file, which a failed attempt to lock empties
        self._lock_file = FileLock(self.folder / LOCK)
        try:
            self._lock_file.acquire(timeout=0)
        except Timeout:  # an OSError too, so it comes first
            try:
                pid = pid_file.read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                pid = ""
            raise NegolabError(
                f"{self.folder} is being written by process {pid or 'unknown'}; wait for it or give a new folder"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise NegolabError(f"cannot lock {self.folder}: {getattr(error, 'strerror', '') or error}") from error
        try:
            with _disk(self.folder, ""):
                pid_file.write_text(f"{os.getpid()}\n", encoding="utf-8")
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        # The lock file itself stays: removing it would let a third process lock a new one beside a waiting second.
        with suppress(OSError):
            (self.folder / PID).unlink(missing_ok=True)
        self._lock_file.release()

    def _open(self) -> None:
        for name in _TEMPORARY:
            (self.folder / name).unlink(missing_ok=True)
        if not (self.folder / MANIFEST).exists():
            _write_whole(self.folder / MANIFEST, manifest_bytes(self._manifest))
        products = products_bytes(self._units)
        if not (self.folder / PRODUCTS).is_file() or (self.folder / PRODUCTS).read_bytes() != products:
            _write_whole(self.folder / PRODUCTS, products)
        path = self.folder / EPISODES
        if path.exists():
            self._take_stock(path)
        self._file = path.open("ab")

    def _take_stock(self, path: Path) -> None:
        """Count what is there, and move what cannot be trusted away."""
        known = {p.listing.codename: p for p in products_of(self._units)}
        offsets, lengths = array("q"), array("q")
        bad: BinaryIO | None = None
        try:
            for number, line in enumerate(scan(path), 1):
                problem = self._problem(line, known)
                if not problem:
                    offsets.append(line.offset)
                    lengths.append(len(line.raw))
                    continue
                self.set_aside.append(f"line {number}: {problem}")
                bad = bad or (self.folder / DAMAGED).open("ab")
                bad.write(line.raw if line.raw.endswith(b"\n") else line.raw + b"\n")
            if bad is not None:
                bad.flush()
                os.fsync(bad.fileno())
        finally:
            if bad is not None:
                bad.close()
        if bad is not None:
            _rewrite(path, path, zip(offsets, lengths, strict=True))

    def _problem(self, line: Line, known: Mapping[str, Product]) -> str:
        if line.data is None:
            return line.problem
        number = line.data["episode"]
        problem = place_problem(number, self._done)
        if problem or self._check is None:
            return problem
        try:
            found = self._check(line.raw[:-1], Episode.from_json(line.data, known))
        except Exception as error:  # whatever a forged record breaks, it is the record that is wrong
            found = [f"not an episode that can be replayed ({type(error).__name__}: {error})"]
        if found:
            self._done[number] = 0
        return found[0] if found else ""


_IN_WORDS = {
    "code_sha256": "it was made by another version of the code",
    "data.sha256": "its catalogue has other contents",
    "products_sha256": "it plays other products",
}


def _rewrite(source: Path, target: Path, places: Iterable[tuple[int, int]]) -> None:
    """Copy lines of ``source`` (offset, length), in the given order, into a new file and put it in ``target``."""
    with _replacing(target) as new, source.open("rb") as old:
        for offset, length in places:
            old.seek(offset)
            new.write(old.read(length))


def _write_whole(path: Path, content: bytes) -> None:
    with _replacing(path) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when all of it is on the disk, and leaves nothing when it fails."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


_KEPT = "; what was finished is kept, run the same command again to go on"


@contextmanager
def _disk(folder: Path, hint: str = _KEPT) -> Iterator[None]:
    """Turn what the operating system says of a folder into one line for its user."""
    try:
        yield
    except OSError as error:
        raise NegolabError(f"cannot write to {folder}: {error.strerror or error}{hint}") from error
