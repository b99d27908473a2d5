"""Fetching the catalogue from a real server on this machine: resume, refusals, wrong bytes, local copies.

The published files are replaced by three small ones, checksums and all, so that nothing here needs the real data.
"""

import errno
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from negolab import fetch
from negolab.catalog import published_files
from negolab.errors import NegolabError
from negolab.fetch import Patience, fetch_catalog

FILES = {
    "automotive.json": b'[{"n": 1}]' * 300,
    "beauty.json": bytes(range(256)) * 1024,
    "toys-games.json": b"[]",
}
QUICK = Patience(timeout=5, attempts=3, pause=0.01)


class Shop(ThreadingHTTPServer):
    """A file server whose manners a test can spoil."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Desk)
        self.files = dict(FILES)
        self.ranges = True
        self.lengths = True
        self.failures: dict[str, list[int]] = {}
        """Status codes to answer first, by file."""
        self.cut: dict[str, list[int]] = {}
        """Break off after so many bytes, by file."""
        self.seen: list[tuple[str, str]] = []
        """(file, Range header) of every request."""
        self.sent: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"


class Desk(BaseHTTPRequestHandler):
    server: Shop

    def do_GET(self) -> None:
        shop, name, wanted = self.server, self.path.rpartition("/")[2], self.headers.get("Range", "")
        shop.seen.append((name, wanted))
        if shop.failures.get(name):
            return self.send_error(shop.failures[name].pop(0))
        if name not in shop.files:
            return self.send_error(404)
        content, start = shop.files[name], 0
        if wanted and shop.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        if shop.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if shop.cut.get(name):
            body = body[: shop.cut[name].pop(0)]
            self.close_connection = True
        shop.sent[name] += len(body)
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    published = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()}
    monkeypatch.setattr(fetch, "published_files", lambda: published)
    with Shop() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_complete(folder: Path) -> None:
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert names(folder) == {*FILES, "SOURCE.txt"}


def test_everything_then_nothing(shop: Shop, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "place"
    done = fetch_catalog(folder, shop.url, patience=QUICK)
    assert_complete(folder)
    assert (done.folder, done.fetched, done.kept) == (folder, tuple(FILES), ())
    assert sum(shop.sent.values()) == sum(map(len, FILES.values()))
    note = (folder / "SOURCE.txt").read_text()
    assert "834ad9066d0627f0332504d5fa6d236706f2402b" in note and "Apache" in note
    shop.seen.clear()
    done = fetch_catalog(folder, shop.url + "/", patience=QUICK)
    assert (done.fetched, done.kept, shop.seen) == ((), tuple(FILES), [])
    assert capfd.readouterr().err == ""  # no progress bar where nobody looks


def test_only_what_is_missing_or_damaged(shop: Shop, tmp_path: Path) -> None:
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    (tmp_path / "automotive.json").unlink()
    (tmp_path / "toys-games.json").write_bytes(b"{}")
    done = fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert done.fetched == ("automotive.json", "toys-games.json")
    assert_complete(tmp_path)


def test_a_partial_file_is_continued(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "beauty.json.part").write_bytes(FILES["beauty.json"][:100_000])
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)
    assert ("beauty.json", "bytes=100000-") in shop.seen
    assert shop.sent["beauty.json"] == len(FILES["beauty.json"]) - 100_000


def test_a_server_without_ranges_starts_over(shop: Shop, tmp_path: Path) -> None:
    shop.ranges = False
    (tmp_path / "beauty.json.part").write_bytes(FILES["beauty.json"][:100_000])
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)
    assert shop.sent["beauty.json"] == len(FILES["beauty.json"])


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * 262_144, b"x" * 300_000])
def test_a_partial_file_of_other_content_is_dropped(shop: Shop, tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "beauty.json.part").write_bytes(stale)
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)


@pytest.mark.parametrize("lengths", [True, False])
def test_a_broken_connection_is_taken_up_again(shop: Shop, tmp_path: Path, lengths: bool) -> None:
    shop.cut = {"beauty.json": [70_000, 70_000]}
    shop.lengths = lengths
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)
    assert [wanted for name, wanted in shop.seen if name == "beauty.json"] == ["", "bytes=70000-", "bytes=140000-"]


def test_an_interrupted_run_keeps_what_it_has(shop: Shop, tmp_path: Path) -> None:
    shop.cut = {"beauty.json": [50_000, 10_000, 10_000]}
    with pytest.raises(NegolabError, match=r"beauty.json: gave up after 3 tries: the connection ended after 70000 of"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert names(tmp_path) == {"automotive.json", "beauty.json.part"}
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)
    assert shop.sent["beauty.json"] == len(FILES["beauty.json"])


@pytest.mark.parametrize(
    ("content", "lengths"),
    [
        (b"y" + FILES["beauty.json"][1:], True),
        (b"y" + FILES["beauty.json"][1:], False),
        (FILES["beauty.json"] + b"!", True),
        (FILES["beauty.json"] + b"!" * 1_000_000, False),
        (b"<html>sign in</html>", True),
    ],
)
def test_wrong_bytes_are_never_kept(shop: Shop, tmp_path: Path, content: bytes, lengths: bool) -> None:
    shop.files["beauty.json"] = content
    shop.lengths = lengths
    with pytest.raises(NegolabError, match=r"beauty.json is not the published file") as caught:
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"automotive.json"}
    assert len([name for name, _ in shop.seen if name == "beauty.json"]) == 1


def test_not_found(shop: Shop, tmp_path: Path) -> None:
    del shop.files["beauty.json"]
    with pytest.raises(NegolabError, match=r"beauty.json: not found on the server \(404\)"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert len([name for name, _ in shop.seen if name == "beauty.json"]) == 1


def test_refused(shop: Shop, tmp_path: Path) -> None:
    shop.failures["automotive.json"] = [403]
    with pytest.raises(NegolabError, match=r"the server refused: 403 Forbidden"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)


def test_a_server_in_trouble_is_asked_again(shop: Shop, tmp_path: Path) -> None:
    shop.failures = {"automotive.json": [500, 503], "beauty.json": [429]}
    fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert_complete(tmp_path)


def test_but_not_for_ever(shop: Shop, tmp_path: Path) -> None:
    shop.failures = {"automotive.json": [500] * 9}
    with pytest.raises(NegolabError, match=r"gave up after 3 tries: the server answered 500"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert len(shop.seen) == 3


def test_nobody_there(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(NegolabError, match=r"gave up after 2 tries: cannot reach the server: .*--from DIR"):
        fetch_catalog(tmp_path / "a", "http://127.0.0.1:1/x", patience=Patience(timeout=2, attempts=2, pause=0.01))
    assert not (tmp_path / "a").exists()  # an empty folder would look like a catalogue without files
    with pytest.raises(NegolabError):
        fetch_catalog(tmp_path, "http://127.0.0.1:1/x", patience=Patience(timeout=2, attempts=1, pause=0.01))
    assert tmp_path.is_dir()  # but the user's own folder stays


@pytest.mark.parametrize("url", ["file:///etc", "ftp://host/x", "host/x", "/some/folder"])
def test_addresses_of_other_kinds(shop: Shop, tmp_path: Path, url: str) -> None:
    with pytest.raises(NegolabError, match=r"is not http:// or https://.*--from DIR"):
        fetch_catalog(tmp_path, url, patience=QUICK)


def test_an_address_with_a_bad_port(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(NegolabError, match="not a usable address"):
        fetch_catalog(tmp_path, "http://127.0.0.1:many", patience=QUICK)


def test_a_folder_with_other_json_files(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(NegolabError, match=r"holds other JSON files \(package.json\).*--to DIR"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert names(tmp_path) == {"package.json"} and shop.seen == []


def test_a_local_copy(shop: Shop, tmp_path: Path) -> None:
    source = tmp_path / "source"
    fetch_catalog(source, shop.url, patience=QUICK)
    shop.seen.clear()
    done = fetch_catalog(tmp_path / "copy", source_dir=source)
    assert_complete(tmp_path / "copy")
    assert (done.fetched, shop.seen) == (tuple(FILES), [])
    assert fetch_catalog(source, source_dir=source).fetched == ()


def test_a_local_copy_that_is_wrong(shop: Shop, tmp_path: Path) -> None:
    source = tmp_path / "source"
    fetch_catalog(source, shop.url, patience=QUICK)
    (source / "beauty.json").write_bytes(b"[]")
    with pytest.raises(NegolabError, match=r"source/beauty.json is not the published file: 2 bytes"):
        fetch_catalog(tmp_path / "copy", source_dir=source)
    assert names(tmp_path / "copy") == {"automotive.json"}
    (source / "beauty.json").unlink()
    with pytest.raises(NegolabError, match=r"source/beauty.json does not exist"):
        fetch_catalog(tmp_path / "copy", source_dir=source)


def test_a_file_in_the_way(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NegolabError, match=r"cannot store the catalogue: .*file") as caught:
            fetch_catalog(place, shop.url, patience=QUICK)
        assert "\n" not in str(caught.value)


def test_a_full_disk(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NegolabError, match=r"cannot store the catalogue: .*: No space left on device"):
        fetch_catalog(tmp_path, shop.url, patience=QUICK)
    assert len(shop.seen) == 1  # a full disk is not the server's fault: no second try


def test_the_published_list() -> None:
    published = published_files()
    assert len(published) == 18 and list(published) == sorted(published)
    assert all(size > 0 and len(sha256) == 64 for size, sha256 in published.values())
