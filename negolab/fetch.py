"""Fetch the published AmazonHistoryPrice catalogue: 18 JSON files at one pinned commit, checked by size and sha256.

Running codenames hold only for exactly these files, so nothing unchecked ever lies under a file's final name: bytes go
to ``<file>.part`` first, an interrupted transfer goes on from there, and a file is renamed once its checksum is right.
A second run fetches only what is missing. A copy that is already on this machine goes through the same checks.
"""

import hashlib
import http.client
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from negolab.catalog import CHECKSUMS, published_files
from negolab.errors import NegolabError
from negolab.paths import data_dir

if TYPE_CHECKING:
    from tqdm import tqdm

DEFAULT_DEST = Path("data") / "AmazonHistoryPrice"
"""Below the current folder; ``--data data/AmazonHistoryPrice`` then finds it."""
NOTE = "SOURCE.txt"
"""Written beside the files: where they come from and under which licence."""

_CHUNK = 1 << 16
_WORTH_RETRYING = frozenset({408, 425, 429})
_LONGEST_PAUSE = 20.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did."""

    folder: Path
    fetched: tuple[str, ...]
    """Files that were transferred or copied now."""
    kept: tuple[str, ...]
    """Files that were already there with the right checksum."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a server."""

    timeout: float = 30.0
    """Seconds without a byte before a connection counts as lost."""
    attempts: int = 5
    """Tries per file in all."""
    pause: float = 1.0
    """Seconds before the second try; doubles with each further one, up to 20."""


class _Lost(Exception):
    """The transfer broke in a way that may pass: worth another try."""


def fetch_catalog(
    dest: str | Path = DEFAULT_DEST,
    base_url: str | None = None,
    source_dir: str | Path | None = None,
    patience: Patience | None = None,
) -> Fetched:
    """Put the 18 published files into ``dest`` (made if missing) and check them.

    ``base_url`` is the folder to fetch from instead of the pinned public one; ``source_dir`` a local copy to take
    instead of any server. Raises ``NegolabError`` (one line) for a folder that holds other JSON files, a wrong
    checksum, a missing file, a server that stays away, or a disk that will not take the files.
    """
    from tqdm import tqdm

    folder = Path(dest)
    wanted = published_files()
    kept: list[str] = []
    fetched: list[str] = []
    total = sum(size for size, _ in wanted.values())
    quiet = not sys.stderr.isatty()
    with (
        _disk_errors(folder),
        _no_empty_folder(folder),
        tqdm(total=total, unit="B", unit_scale=True, desc="fetch", disable=quiet) as bar,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_strangers(folder, wanted.keys())
        done = 0
        for name, (size, sha256) in wanted.items():
            if _matches(folder / name, size, sha256):
                kept.append(name)
            else:
                part = folder / f"{name}.part"
                if source_dir is not None:
                    _copy(Path(source_dir) / name, part, size, sha256)
                else:
                    url = f"{_checked_base(base_url)}/{name}"
                    _download(url, part, size, sha256, patience or Patience(), _shown(bar, done))
                part.replace(folder / name)
                fetched.append(name)
            done += size
            bar.update(done - bar.n)
        (folder / NOTE).write_text(_source_note(), encoding="utf-8")
    return Fetched(folder, tuple(fetched), tuple(kept))


@contextmanager
def _no_empty_folder(folder: Path) -> Iterator[None]:
    """Leave no new folder behind that holds nothing: it would look like a catalogue without files."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):
                folder.rmdir()  # refuses a folder with anything in it
        raise


def _pinned() -> dict[str, str]:
    with open(data_dir() / CHECKSUMS, encoding="utf-8") as file:
        found: dict[str, str] = json.load(file)
    return found


def _source_note() -> str:
    pinned = _pinned()
    return (
        "AmazonHistoryPrice: 930 products with their price history.\n"
        f"Source: {pinned['source']}\n"
        f"Commit: {pinned['commit']}\n"
        "Licence: Apache License 2.0 (http://www.apache.org/licenses/LICENSE-2.0), says the repository.\n"
        "The files are unchanged; negolab checked size and sha256 of each.\n"
    )


def _checked_base(base_url: str | None) -> str:
    url = (base_url or _pinned()["base_url"]).rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise NegolabError(f"base URL {url!r} is not http:// or https://; for a folder on this machine use --from DIR")
    return url


def _refuse_strangers(folder: Path, known: Collection[str]) -> None:
    others = sorted(path.name for path in folder.glob("*.json") if path.name not in known and path.name[0] != ".")
    if others:
        raise NegolabError(
            f"{folder} holds other JSON files ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}), which "
            "would shift the codenames; give an empty folder with --to DIR"
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """An ``OSError`` of the disk (full, forbidden, a file in the way) becomes one clear line."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise NegolabError(f"cannot store the catalogue: {where}: {error.strerror or error}") from error


def _shown(bar: "tqdm[NoReturn]", done: int) -> Callable[[int], None]:
    """Moves the bar to ``done`` bytes of finished files plus what the current file has."""

    def show(have: int) -> None:
        bar.update(done + have - bar.n)

    return show


def _matches(path: Path, size: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size and _sha256(path) == sha256


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(part: Path, size: int, sha256: str, origin: str) -> None:
    """Delete ``part`` and raise unless it is exactly the published file."""
    found_size, found = part.stat().st_size, _sha256(part)
    if (found_size, found) != (size, sha256):
        part.unlink()
        raise NegolabError(
            f"{origin} is not the published file: {found_size} bytes with sha256 {found[:12]}..., "
            f"expected {size} bytes with sha256 {sha256[:12]}...; it was not kept"
        )


def _copy(source: Path, part: Path, size: int, sha256: str) -> None:
    if not source.is_file():
        raise NegolabError(f"{source} does not exist; --from wants a folder with all of the published files")
    shutil.copyfile(source, part)
    _check(part, size, sha256, str(source))


def _download(
    url: str, part: Path, size: int, sha256: str, patience: Patience, progress: Callable[[int], None]
) -> None:
    """Bring ``part`` to the published content, going on from what is there; tries again where that may help."""
    resumed = part.exists()
    trouble = ""
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(min(patience.pause * 2 ** (attempt - 1), _LONGEST_PAUSE))
        try:
            _transfer(url, part, size, patience.timeout, progress)
            if not resumed or _matches(part, size, sha256):
                _check(part, size, sha256, url)
                return
        except _Lost as error:
            trouble = str(error)
            continue
        # What an earlier run left was of other content: once more, from the first byte.
        part.unlink()
        resumed = False
        trouble = "the partial file of an earlier run did not fit"
    raise NegolabError(
        f"{url}: gave up after {patience.attempts} tries: {trouble}; run again to go on, or use --from DIR"
    )


def _transfer(url: str, part: Path, size: int, timeout: float, progress: Callable[[int], None]) -> None:
    """One try: append to ``part`` where the server can, start over where it cannot. ``_Lost`` if it ends early."""
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "negolab", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _open(request, timeout) as response:
        if have and not _continues(response, have):
            have = 0
        announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and have + int(announced) != size:
            raise NegolabError(f"{url} is not the published file: {have + int(announced)} bytes, expected {size}")
        with open(part, "ab" if have else "wb") as file:
            for block in _blocks(response):
                # One byte too many settles that it is the wrong file; a server cannot fill the disk.
                file.write(block[: size + 1 - have])
                have += len(block)
                progress(min(have, size))
                if have > size:
                    break
            file.flush()
            os.fsync(file.fileno())
    if have < size:
        raise _Lost(f"the connection ended after {have} of {size} bytes")


def _open(request: urllib.request.Request, timeout: float) -> http.client.HTTPResponse:
    url = request.full_url
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and request.has_header("Range"):  # the range was refused: ask for the whole file at once
            request.remove_header("Range")
            return _open(request, timeout)
        if error.code >= 500 or error.code in _WORTH_RETRYING:
            raise _Lost(f"the server answered {error.code} {error.reason}") from error
        if error.code == 404:
            raise NegolabError(f"{url}: not found on the server (404); check --base-url, or use --from DIR") from error
        raise NegolabError(f"{url}: the server refused: {error.code} {error.reason}") from error
    except (http.client.InvalidURL, ValueError) as error:
        raise NegolabError(f"{url}: not a usable address: {error}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError, time-outs and resets are OSErrors
        reason = getattr(error, "reason", error)
        raise _Lost(f"cannot reach the server: {str(reason) or type(reason).__name__}") from error


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer starts at byte ``have``; a server without ranges sends the whole file with status 200."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(_CHUNK)
        except (OSError, http.client.HTTPException):  # an early end: the length check notices, the next try goes on
            return
        if not block:
            return
        yield block
