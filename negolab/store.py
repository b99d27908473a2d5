"""A run folder: manifest, products, append-only episodes, and the tables made from them.

* ``manifest.json`` is written first and says everything that decides the episodes (settings, players, data hash, code).
* ``products.jsonl`` holds the products in play, so that a run can be verified and shown without the catalogue.
* ``episodes.jsonl`` grows by whole lines, flushed as they are written; when the last owed episode is in, the lines are
  put in episode order, so that the finished file does not depend on workers, crashes or batch sizes.
* ``run.lock`` keeps a second writer out; the lock goes with its process, however that ends; ``run.pid`` names it.

A torn last line (a crash while writing) and damaged lines (bad checksum, duplicates) are moved to
``episodes.damaged.jsonl`` and their episodes are owed again; they never enter a table.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import orjson

import negolab
from negolab.catalog import Listing, Product
from negolab.episodes import TURN_COLUMNS, Episode, parse_line
from negolab.errors import DamagedRun, NegolabError

MANIFEST, PRODUCTS, EPISODES = "manifest.json", "products.jsonl", "episodes.jsonl"
DAMAGED, METRICS_CSV = "episodes.damaged.jsonl", "metrics.csv"
LOCK, PID = "run.lock", "run.pid"
_FORMAT = 1


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Hash of the package's own sources and prompt templates: results of different code are not mixed in one run."""
    root = Path(negolab.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(
        p for p in root.rglob("*") if p.suffix in (".py", ".j2") and not p.is_relative_to(root / "_data")
    ):
        if "_notebooks" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def new_manifest(
    settings: Mapping[str, Any], players: Mapping[str, Any], data: Mapping[str, Any], n: int
) -> dict[str, Any]:
    """The manifest of a run of ``n`` episodes. Holds no time and no path: equal runs have equal manifests."""
    return {
        "format": _FORMAT,
        "negolab": negolab.__version__,
        "code_sha256": code_sha256(),
        "turn_columns": TURN_COLUMNS,
        "episodes": n,
        "settings": settings,
        "players": players,
        "data": data,
    }


def product_to_json(product: Product) -> dict[str, Any]:
    """A product as it is kept with a run."""
    listing = product.listing
    return {
        "codename": listing.codename,
        "title": listing.title,
        "description": listing.description,
        "category": listing.category,
        "list_cents": listing.list_cents,
        "cost_cents": product.cost_cents,
        "text_source": product.text_source,
    }


def product_from_json(data: Mapping[str, Any]) -> Product:
    """Read back ``product_to_json``."""
    listing = Listing(data["codename"], data["title"], data["description"], data["category"], data["list_cents"])
    return Product(listing, data["cost_cents"], text_source=data["text_source"])


class Line(NamedTuple):
    """One stored line: where it lies and what it holds."""

    offset: int
    raw: bytes
    data: dict[str, Any] | None
    problem: str
    """Why the line cannot be used; empty for a good one."""


def scan(path: Path) -> Iterator[Line]:
    """Every line of an episodes file, good or not. A last line without its newline is torn, whatever it says."""
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            data, problem = None, ""
            if not raw.endswith(b"\n"):
                problem = "the last line is torn: the writer was stopped while writing it"
            else:
                try:
                    data = parse_line(raw[:-1])
                except ValueError as error:
                    problem = str(error)
            yield Line(offset, raw, data, problem)
            offset += len(raw)


class Run:
    """A run folder for reading. Raises ``NegolabError`` when it is not one, ``DamagedRun`` when it cannot be trusted."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self.products = _read_products(self.folder)

    @property
    def n(self) -> int:
        """Episodes that the run owes in all."""
        return int(self.manifest["episodes"])

    def lines(self) -> Iterator[Line]:
        """The stored lines, unchecked beyond their checksum."""
        path = self.folder / EPISODES
        return scan(path) if path.exists() else iter(())

    def episodes(self) -> Iterator[Episode]:
        """All episodes in stored order. Raises ``DamagedRun`` at the first line that cannot be trusted."""
        for number, line in enumerate(self.lines(), 1):
            if line.data is None:
                hint = (
                    "run `negolab verify` for a full report; rerunning the evaluation sets it aside and plays it again"
                )
                raise DamagedRun(f"{self.folder / EPISODES}, line {number}: {line.problem}; {hint}")
            yield self.read(line.data, number)

    def read(self, data: Mapping[str, Any], number: int) -> Episode:
        """One parsed line as an episode. Raises ``DamagedRun`` where its fields are not those of one."""
        try:
            return Episode.from_json(data, self.products)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise DamagedRun(f"{self.folder / EPISODES}, line {number}: not an episode record ({detail})") from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise NegolabError(f"{folder} is not a folder; expected a run folder written by `negolab evaluate --out DIR`")
    if not path.is_file():
        raise NegolabError(f"{folder} is not a run folder: it has no {MANIFEST}")
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedRun(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or type(found.get("episodes")) is not int:
        raise DamagedRun(f"{path} is not a manifest of format {_FORMAT}")
    return found


def _read_products(folder: Path) -> dict[str, Product]:
    path = folder / PRODUCTS
    try:
        products = [product_from_json(orjson.loads(line)) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedRun(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    return {product.listing.codename: product for product in products}


class RunWriter:
    """A run folder open for writing, new or resumed; a context manager that holds the folder's lock."""

    def __init__(self, folder: str | Path, manifest: Mapping[str, Any], products: Sequence[Product]) -> None:
        self.folder = Path(folder)
        self._manifest = orjson.loads(orjson.dumps(manifest))
        self._products = products
        self._file: BinaryIO | None = None
        self.done: set[int] = set()
        self.set_aside: list[str] = []
        """What was found damaged and moved away when the folder was opened, one line each."""

    def __enter__(self) -> "RunWriter":
        self._check_place()
        with _disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            with _disk(self.folder):
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

    def owed(self) -> list[int]:
        """Episodes still to be played, in order."""
        return [index for index in range(int(self._manifest["episodes"])) if index not in self.done]

    def append(self, numbers: Iterable[int], lines: Iterable[bytes]) -> None:
        """Add finished episodes and flush: from here on a kill cannot lose them."""
        assert self._file is not None
        with _disk(self.folder):
            self._file.write(b"".join([line + b"\n" for line in lines]))
            self._file.flush()
        self.done.update(numbers)

    def finish(self) -> None:
        """Put the episodes in order, once all are there, and sync them to the disk."""
        assert self._file is not None
        path = self.folder / EPISODES
        with _disk(self.folder):
            self._file.flush()
            os.fsync(self._file.fileno())
            places = [
                (line.data["episode"], line.offset, len(line.raw)) for line in scan(path) if line.data is not None
            ]
            if places != sorted(places):
                self._file.close()
                _rewrite(path, path, [place[1:] for place in sorted(places)])
                self._file = path.open("ab")

    def write_text(self, name: str, text: str) -> None:
        """Write a derived file of the run (a table) whole or not at all."""
        with _disk(self.folder):
            _write_whole(self.folder / name, text.encode("utf-8"))

    # -- opening ------------------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise NegolabError(f"--out {folder} is a file; give a new folder, or a run folder to resume")
        if not folder.is_dir():
            return
        if (folder / MANIFEST).exists():
            known, now = _read_manifest(folder), self._manifest
            changed = sorted(_differences("", known, now))
            if changed:
                shown = "; ".join(changed[:4]) + ("; ..." if len(changed) > 4 else "")
                raise NegolabError(
                    f"{folder} holds another run ({shown}); resume it with its own settings or give a new folder"
                )
        elif any(entry.name not in (LOCK, PID) for entry in folder.iterdir()):
            raise NegolabError(f"--out {folder} is not empty and not a run folder; give a new folder")

    def _lock(self) -> None:
        from filelock import FileLock, Timeout

        pid_file = self.folder / PID  # not inside the lock file, which a failed attempt to lock empties
        self._lock_file = FileLock(self.folder / LOCK)
        try:
            with _disk(self.folder):
                self._lock_file.acquire(timeout=0)
        except Timeout:
            try:
                pid = pid_file.read_text(encoding="utf-8").strip()
            except OSError:
                pid = "unknown"
            raise NegolabError(
                f"{self.folder} is being written by process {pid}; wait for it or give a new folder"
            ) from None
        with _disk(self.folder):
            pid_file.write_text(f"{os.getpid()}\n", encoding="utf-8")

    def _unlock(self) -> None:
        # The lock file itself stays: removing it would let a third process lock a new one beside a waiting second.
        (self.folder / PID).unlink(missing_ok=True)
        self._lock_file.release()

    def _open(self) -> None:
        products = b"".join(orjson.dumps(product_to_json(p)) + b"\n" for p in self._products)
        if not (self.folder / PRODUCTS).exists() or (self.folder / PRODUCTS).read_bytes() != products:
            _write_whole(self.folder / PRODUCTS, products)
        path = self.folder / EPISODES
        if not (self.folder / MANIFEST).exists():
            _write_whole(self.folder / MANIFEST, orjson.dumps(self._manifest, option=orjson.OPT_INDENT_2) + b"\n")
        if path.exists():
            self._take_stock(path)
        self._file = path.open("ab")

    def _take_stock(self, path: Path) -> None:
        good: list[tuple[int, int]] = []
        bad = bytearray()
        for number, line in enumerate(scan(path), 1):
            problem = line.problem
            if line.data is not None:
                episode = line.data["episode"]
                if episode in self.done:
                    problem = f"episode {episode} is recorded twice"
                elif not 0 <= episode < int(self._manifest["episodes"]):
                    problem = f"episode {episode} is not part of this run"
                else:
                    self.done.add(episode)
                    good.append((line.offset, len(line.raw)))
            if problem:
                self.set_aside.append(f"line {number}: {problem}")
                bad += line.raw if line.raw.endswith(b"\n") else line.raw + b"\n"
        if bad:
            with (self.folder / DAMAGED).open("ab") as file:
                file.write(bad)
                file.flush()
                os.fsync(file.fileno())
            _rewrite(path, path, good)


def _differences(where: str, known: Any, now: Any) -> Iterator[str]:
    if isinstance(known, dict) and isinstance(now, dict):
        for key in sorted(known.keys() | now.keys()):
            yield from _differences(f"{where}.{key}".lstrip("."), known.get(key), now.get(key))
    elif known != now:
        yield f"{where}: {_short(known)} there, {_short(now)} now"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:37] + "..."


def _rewrite(source: Path, target: Path, places: Sequence[tuple[int, int]]) -> None:
    """Copy lines of ``source`` (offset, length), in the given order, into a new file and put it in ``target``'s place."""
    temporary = target.with_name(target.name + ".tmp")
    with source.open("rb") as old, temporary.open("wb") as new:
        for offset, length in places:
            old.seek(offset)
            new.write(old.read(length))
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(target)


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class _disk:
    """Turn what the operating system says of a folder into one line for its user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise NegolabError(
                f"cannot write to {self._folder}: {reason}; what was finished is kept, run the same command again to go on"
            ) from error
