"""A seller of the user's own: the README's example as it stands there, and what is told of one that does not work."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from runs import command, environment

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(EXAMPLE,) = [block for block in BLOCKS if "class Patient" in block]
(USE,) = [block for block in BLOCKS if "read_json" in block]


def run(folder, *args):
    """One command in ``folder``."""
    return subprocess.run(command(args), cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)


def test_the_readmes_seller_plays_verifies_and_is_the_same_with_workers(tmp_path):
    (tmp_path / "my_seller.py").write_text(EXAMPLE, encoding="utf-8")
    for out, workers in (("one", "1"), ("two", "2")):
        done = run(tmp_path, "evaluate", "--seller", "my_seller:Patient", "--out", out, "--workers", workers)
        assert done.returncode == 0, done.stderr
        assert "my_seller:Patient (your own) against scripted buyers on sample" in done.stdout
    assert (tmp_path / "one/episodes.jsonl").read_bytes() == (tmp_path / "two/episodes.jsonl").read_bytes()
    assert run(tmp_path, "verify", "one").returncode == 0
    manifest = json.loads((tmp_path / "one/manifest.json").read_text(encoding="utf-8"))
    assert manifest["players"]["seller"] == {"name": "patient", "version": 1}


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(USE, "README.md", "exec"), names)
    assert len(names["frame"]) == 16 and "(n = 16)" in capsys.readouterr().out
    assert names["frame"]["reward"].mean() == pytest.approx(names["found"]["reward"].mean)


FICKLE = """
import os
import pathlib

from negolab.policies.base import Reply

LOG = pathlib.Path("asked.txt")


class Fickle:
    name = "fickle"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        with LOG.open("a") as log:
            log.writelines(f"{request.episode}\\n" for request in requests)
        return [Reply(f"nonsense {os.urandom(8).hex()}") for _ in requests]
"""


def test_a_seller_that_never_says_the_same_is_not_asked_twice(tmp_path):
    """A language model answers differently, and costs money, each time: a resumed run keeps what it has."""
    (tmp_path / "mine.py").write_text(FICKLE, encoding="utf-8")
    args = ("evaluate", "--seller", "mine:Fickle", "--out", "out", "--split", "all")
    assert run(tmp_path, *args).returncode == 0
    path, asked = tmp_path / "out/episodes.jsonl", tmp_path / "asked.txt"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:200]))
    asked.unlink()
    done = run(tmp_path, *args)
    assert done.returncode == 0 and "set aside" not in done.stderr
    assert path.read_bytes().splitlines(keepends=True)[:200] == whole[:200]
    assert sorted(map(int, asked.read_text().split())) == list(range(200, 240))
    assert run(tmp_path, "verify", "out").returncode == 0


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("", "absent:Seller", "No module named 'absent'"),
        ("", "mine:Seller", "has no attribute 'Seller'"),
        ("class Seller:\n    name = 'x'", "mine:Seller", "describe"),
        ("class Seller:\n    name = 'x'\n    def describe(self): return {}", "mine:Seller", "'name'"),
        (
            "class Seller:\n    name = 'x'\n    def describe(self): return {'name': 'x'}",
            "mine:Seller",
            "no method reply",
        ),
        (
            "class Seller:\n    name = 'prober'\n    def describe(self): return {'name': 'prober'}",
            "mine:Seller",
            "scripted",
        ),
        ("1 / 0", "mine:Seller", "ZeroDivisionError"),
        ("", "mine:", "unknown seller 'mine:'"),
        ("", "nobody", "unknown seller 'nobody'; allowed: random"),
    ],
)
def test_a_seller_that_cannot_be_made_is_told_in_one_line(tmp_path, code, name, said):
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    done = run(tmp_path, "evaluate", "--seller", name, "--out", "out")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert not (tmp_path / "out").exists()


def test_auto_is_the_named_folder_else_the_fetched_one_else_the_sample(tmp_path, monkeypatch, real_data_dir):
    from negolab.catalog import find_data, load_catalog
    from negolab.errors import NegolabError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEGOLAB_DATA", str(real_data_dir))
    assert len(load_catalog("auto").products) == 930
    monkeypatch.setenv("NEGOLAB_DATA", str(tmp_path / "absent"))
    with pytest.raises(NegolabError, match="NEGOLAB_DATA"):
        find_data("auto")
    monkeypatch.delenv("NEGOLAB_DATA")
    folder = tmp_path / "data" / "AmazonHistoryPrice"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("[]", encoding="utf-8")
    assert find_data("auto") == str(folder) and find_data("sample") == "sample"


BROKEN = """
from negolab.parser import render_seller
from negolab.policies.base import Reply

CALLS = []


class Base:
    name = "base"

    def describe(self):
        return {"name": self.name}

    def good(self, requests):
        made = []
        for request in requests:
            listing, channels = request.view.product.listing, request.view.channels
            buyer = next(i for i, channel in enumerate(channels, 1) if channel.status == "active")
            text = render_seller("SELL", listing.list_cents, buyer, "Hm.", "Hm.", listing.codename)
            made.append(Reply(text))
        return made

    def reply(self, requests):
        return self.good(requests)


class Raises(Base):
    def reply(self, requests):
        CALLS.append(1)
        if len(CALLS) == 9:
            raise ValueError("the model is gone")
        return self.good(requests)


class Interrupted(Raises):
    def reply(self, requests):
        CALLS.append(1)
        if len(CALLS) == 9:
            raise KeyboardInterrupt
        return self.good(requests)


class Few(Base):
    def reply(self, requests):
        return self.good(requests)[1:]


class Strings(Base):
    def reply(self, requests):
        return [reply.text for reply in self.good(requests)]


class Numbers(Base):
    def reply(self, requests):
        return [Reply(7) for _ in requests]


class Bytes(Base):
    def reply(self, requests):
        return [Reply(b"abc") for _ in requests]


class Nothing(Base):
    def reply(self, requests):
        return None


class Clears(Base):
    def reply(self, requests):
        made = self.good(requests)
        requests.clear()
        return made


class Half(Base):
    def reply(self, requests):
        return [reply._replace(prompt_tokens=12) for reply in self.good(requests)]


class Exits(Base):
    def __init__(self):
        raise SystemExit("no key")


class Typed(Base):
    name = "iter-60"


class Nameless(Base):
    name = " "
"""


@pytest.mark.parametrize(
    ("player", "said"),
    [
        ("Few", "gave 23 replies to 24 requests"),
        ("Strings", "must give Reply objects, not str"),
        ("Numbers", "must be a string or None, not int"),
        ("Bytes", "must be a string or None, not bytes"),
        ("Nothing", "gave a NoneType, no list, to 24 requests"),
        ("Exits", "no key"),
        ("Typed", "which is a scripted player's name"),
        ("Nameless", "any text that is not empty"),
    ],
)
def test_what_a_player_does_wrong_is_told_in_one_line(tmp_path, player, said):
    (tmp_path / "mine.py").write_text(BROKEN, encoding="utf-8")
    done = run(tmp_path, "evaluate", "--seller", f"mine:{player}", "--out", "out", "--per-product", "1")
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("player", ["Clears", "Half"])
def test_what_a_player_may_do_verifies(tmp_path, player):
    (tmp_path / "mine.py").write_text(BROKEN, encoding="utf-8")
    args = ("evaluate", "--seller", f"mine:{player}", "--out", "out", "--products", "4")
    assert run(tmp_path, *args).returncode == 0
    assert run(tmp_path, "verify", "out").returncode == 0
    assert "set aside" not in run(tmp_path, *args).stderr


@pytest.mark.parametrize("player", ["Raises", "Interrupted"])
def test_what_is_finished_when_a_player_fails_is_kept(tmp_path, player):
    """At the ninth call some episodes have ended (T = 3) and none of them may be lost."""
    (tmp_path / "mine.py").write_text(BROKEN, encoding="utf-8")
    args = ("evaluate", "--seller", f"mine:{player}", "--out", "out", "--split", "all", "--messages", "3")
    first = run(tmp_path, *args)
    assert first.returncode == (130 if player == "Interrupted" else 1)
    assert len((tmp_path / "out/episodes.jsonl").read_bytes().splitlines()) >= 128
    code = BROKEN.replace("== 9", "== -1")
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    again = run(tmp_path, *args)
    assert again.returncode == 0 and "set aside" not in again.stderr
    assert run(tmp_path, "verify", "out").returncode == 0
