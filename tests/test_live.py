"""The table on the terminal: it counts what the tables count, and is silent where there is no terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from rich.console import Console

from negolab.catalog import load_catalog
from negolab.evaluate import Settings, evaluate, plan
from negolab.live import HEAD, Board, Row, _duration
from negolab.store import EPISODES, Run
from runs import command, environment, evaluate_args
from servers import ModelServer


class Folder:
    """What a row asks of a plan."""

    def __init__(self, n: int) -> None:
        self.schedule, self.models = range(n), {}


def lines(run: Path) -> list[bytes]:
    return (run / EPISODES).read_bytes().splitlines()


def test_a_row_counts_what_the_metrics_say(tmp_path):
    found = evaluate(Settings("random", per_product=4), tmp_path / "run", progress=False)
    stored = lines(tmp_path / "run")
    row = Row("random")
    row.begin(Folder(len(stored)), tmp_path / "empty")
    row.add(stored[:30])
    assert row.done == 30 and row.before == 0 and row.rate() > 0
    row.add(stored[30:])
    row.end()
    n = len(stored)
    assert row.status == "done" and row.reward.estimate() == found["reward"]
    assert row.deals == round(found["deal_rate"].mean * n)
    kinds = {kind: found["below_cost_rate" if kind == "below_cost" else f"violation_{kind}"] for kind in row.endings}
    assert row.endings and {kind: round(e.mean * n) for kind, e in kinds.items()} == dict(row.endings)
    cells = dict(zip(HEAD, row.cells(), strict=True))
    assert cells["episodes"] == f"{n}/{n}" and cells["left"] == "done"
    assert cells["reward so far"] == found["reward"].text()
    assert all(f"{kind} {count}" in cells["violations"] for kind, count in row.endings.items())
    assert cells["cost"] == cells["tokens in (cached)"] == ""


def test_a_resumed_row_shows_what_was_there_before(tmp_path):
    """The rate, and so the time left, are of this start only."""
    evaluate(Settings("prober", products=4), tmp_path / "run", progress=False)
    stored = lines(tmp_path / "run")
    (tmp_path / "run" / EPISODES).write_bytes(b"".join(line + b"\n" for line in stored[:5]) + stored[5][:40])
    row = Row("prober")
    row.begin(Folder(8), tmp_path / "run")
    assert (row.before, row.done, row.rate()) == (5, 5, None)
    cells = dict(zip(HEAD, row.cells(), strict=True))
    assert cells["episodes"] == "5/8 (5 before)" and cells["per second"] == cells["left"] == ""
    row.add(stored[5:6])
    row.end()
    assert row.status == "not played" and row.done == 6


def test_an_aborted_episode_is_no_violation():
    import orjson

    record = {"reward": 0.0, "scenario": {"unit": "a_1"}}
    row = Row("x")
    for outcome in (
        {"kind": "aborted", "reason": "context_limit", "seat": 0},
        {"kind": "violation", "reason": "format", "seat": 0},
        {"kind": "no_deal", "reason": "seller_quit", "seat": 0},
    ):
        row.add([orjson.dumps({**record, "outcome": outcome})])
    assert row.endings == {"aborted": 1, "format": 1} and row.deals == 0


def show(board: Board) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    console.print(board.table())
    return console.file.getvalue()


def test_names_are_text_and_columns_that_nobody_fills_are_left_out():
    board = Board(["[red]x[/red]", "waits"])
    text = show(board)
    assert "[red]x[/red]" in text and "cost" not in text and "episodes" in text


def test_the_rows_share_a_sum(tmp_path):
    from negolab.costs import Account, Usage

    board = Board(["a", "b"])
    for name, amount in (("a", 0.25), ("b", 1.5)):
        row = board.rows[name]
        row.total, row.status = 4, "done"
        row.account = Account({name: Usage(1, 12_345, 100, 2000, 1, 1.0)}, amount)
    text = show(board)
    assert "12.3k (100)" in text and "2000" in text and "$0.25" in text and "cost so far: $1.75" in text
    board.rows["b"].account = Account({"b": Usage(1, 5, 0, 5, 1, 1.0)}, None)
    assert "cost so far: $0.25 and what has no price" in show(board)


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    console = Console(file=io.StringIO())
    with Board(["a"], console) as board:
        assert not board.shown
    assert console.file.getvalue() == ""
    with Board(["a"]) as board:
        assert not board.shown
    assert capsys.readouterr() == ("", "")


def test_the_terminal_gets_it_back(tmp_path):
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Board(["a"], console) as board:
        assert board.shown
    text = console.file.getvalue()
    assert "\x1b[?25l" in text and "\x1b[?25h" in text  # the cursor, hidden and shown


def on_terminal(args: list[str], **changes: str) -> tuple[int, str, str]:
    """Run a command whose standard error is a terminal; returns its code, output and what the terminal got."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 200)) if hasattr(termios, "tcsetwinsize") else None
    got: list[bytes] = []

    def drain() -> None:
        try:
            while data := os.read(ours, 65536):
                got.append(data)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=drain)
    env = environment(COLUMNS="200", LINES="40", TERM="xterm-256color", OPENAI_API_KEY=None, **changes)
    process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    reader.start()
    out, _ = process.communicate(timeout=60)
    reader.join()
    os.close(ours)
    return process.returncode, out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(got).decode())


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("openai")
    with ModelServer(delay=0.05) as server:
        yield server


def model_args(out: Path, server: ModelServer, *more: str) -> list[str]:
    options = {"base_url": server.url, "price_input": "1", "price_output": "10", "concurrency": "4"}
    flags = [text for key, value in options.items() for text in ("--seller-option", f"{key}={value}")]
    return command(evaluate_args(out, "--products", "4", *flags, *more, seller="openai:fake-1b"))


def test_a_model_s_run_on_a_terminal(tmp_path, server):
    code, out, seen = on_terminal(model_args(tmp_path / "run", server))
    assert code == 0 and "reward so far" in seen and "tokens in (cached)" in seen and "$0." in seen
    assert re.search(r"[1-8]/8", seen)
    assert "prompt tokens" in out and re.search(r"cost: \$0\.\d+, [0-9,.]+ episodes per dollar", out)
    assert Run(tmp_path / "run").n == 8


def test_elsewhere_it_is_quiet_and_rich_stays_away(tmp_path, server):
    code = f"""
import sys
from negolab.cli import main
assert main({model_args(tmp_path / "run", server)[3:]!r}) == 0
assert "rich" not in sys.modules
"""
    env = environment(OPENAI_API_KEY=None)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "so far" not in done.stderr and "episode/s" not in done.stderr


def test_durations():
    assert [_duration(s) for s in (0.4, 5, 125, 3600, 3725.6)] == ["0:00", "0:05", "2:05", "1:00:00", "1:02:06"]


def test_a_plan_is_enough_to_begin(tmp_path):
    row = Row("prober")
    row.begin(plan(Settings("prober", products=2), load_catalog("sample")), tmp_path)
    assert row.total == 4 and row.status == "plays"
