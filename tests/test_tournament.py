"""``negolab tournament``: every pair's run, the tables that follow from them, a kill in the middle, mistakes."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from negolab.cli import main
from negolab.store import Run
from negolab.verify import verify
from runs import environment, one_line

SMALL = ["--data", "sample", "--products", "3", "--no-figures", "--only", "anchor,accommodating,irrational"]
TABLES = ("roles.csv", "pairs.csv", "profiles.csv", "quintiles.csv", "findings.csv", "report.md")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file that does not name a process."""
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in found.items() if not name.endswith((".lock", ".pid"))}


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tournament") / "small"
    assert main(["tournament", "scripted", *SMALL, "--out", str(folder)]) == 0
    return folder


def test_every_ordered_pair_has_its_two_runs_and_they_verify(played):
    runs = sorted(path.parent for path in (played / "runs").rglob("episodes.jsonl"))
    assert len(runs) == 3 * 3 * 2
    scenarios = set()
    for folder in runs:
        report = verify(folder)
        assert report.ok, report.problems
        seller, buyer, kind = folder.parts[-3:]
        episodes = list(Run(folder).episodes(complete=True))
        assert len(episodes) == (6 if kind == "gft" else 3)
        assert {episode.players for episode in episodes} == {(seller, buyer)}
        for episode in episodes:
            gains = episode.scenario.valuations[0][0] > (episode.scenario.reserve or 0)
            assert gains == (kind == "gft")
            scenarios.add((kind, episode.scenario.unit, episode.scenario.rep, episode.scenario.valuations))
    assert len(scenarios) == 9  # the same for every pair


def test_the_tables_follow_from_the_runs(played):
    for name in TABLES:
        assert (played / name).stat().st_size > 0, name
    with (played / "pairs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    closed = {}
    for folder in (path.parent for path in (played / "runs").rglob("episodes.jsonl")):
        seller, buyer, kind = folder.parts[-3:]
        episodes = list(Run(folder).episodes())
        closed[seller, buyer, kind] = sum(e.outcome.kind == "deal" for e in episodes) / len(episodes)
    # Who is never irrational closes nothing where there is nothing to gain, whatever the table's shape.
    assert all(rate == 0 for (s, b, kind), rate in closed.items() if kind == "ngft" and "irrational" not in (s, b))
    assert closed["accommodating", "accommodating", "gft"] == 1
    text = (played / "report.md").read_text(encoding="utf-8")
    assert "scripted" in text and "2604.16472" in text and "anchor" in text


def test_a_kill_in_the_middle_loses_nothing(played, tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "negolab.cli", "tournament", "scripted", *SMALL, "--out", str(folder)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and len(list(folder.rglob("metrics.csv"))) < 4 and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = len(list(folder.rglob("metrics.csv")))
    assert main(["tournament", "scripted", *SMALL, "--out", str(folder)]) == 0
    assert before < 18, "the kill came too late to show anything"
    assert contents(folder) == contents(played)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "nothing"),
        (["scripted", "--only", "anker"], "anker"),
        (["scripted", "--data", "no-such-folder"], "no-such-folder"),
    ],
)
def test_mistakes_are_one_line_and_make_no_folder(arguments, words, tmp_path, capsys):
    out = tmp_path / "none"
    assert main(["tournament", *arguments, "--out", str(out)]) == 2
    assert words in one_line(capsys.readouterr().err)
    assert not out.exists()
