"""An evaluation gives the same bytes for any number of workers, whatever ends it, and however often."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import negolab.shares
from markets import ONE_ITEM
from negolab.cli import main
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, metrics_csv, plan, summarise_run
from negolab.policies.registry import SELLERS
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.store import EPISODES, MANIFEST, PID, Run
from negolab.verify import verify
from runs import (
    FILES,
    command,
    contents,
    default_interrupt,
    environment,
    evaluate_args,
    make_run,
    one_line,
    run_command,
)

LONG = (
    "--split",
    "all",
    "--per-product",
    "10",
)  # 1,200 episodes, some tenths of a second: enough to be caught in the middle


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long run, never interrupted; not to be changed."""
    return make_run(tmp_path_factory.mktemp("evaluate") / "long", *LONG)


def children(pid: int) -> list[int]:
    """Living descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


@contextmanager
def started(folder: Path, *more: str, bytes_written: int = 0, **options):
    """The long evaluation as a process, once it has written so much; whatever is left of it is killed at the end."""
    args = command(evaluate_args(folder, *LONG, *more))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "preexec_fn": default_interrupt}
    process = subprocess.Popen(args, env=environment(), start_new_session=True, **{**streams, **options})
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.poll() is None:
            if (folder / EPISODES).exists() and (folder / EPISODES).stat().st_size >= bytes_written:
                break
            time.sleep(0.002)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
@pytest.mark.parametrize("workers", ["1", "3"])
def test_kill_9_in_many_places_then_the_same_bytes(workers, long_run, tmp_path):
    folder = tmp_path / "run"
    whole = (long_run / EPISODES).stat().st_size
    reached = []
    for part in (0.0, 0.3, 0.8):
        with started(folder, "--workers", workers, bytes_written=int(part * whole)) as process:
            family = children(process.pid)
            process.kill()
            process.wait()
            assert gone(family), "workers outlive a killed parent"
        reached.append((folder / EPISODES).stat().st_size)
    assert reached == sorted(reached) and 0.3 * whole <= reached[1] < whole
    assert main(["verify", str(folder)]) == 1
    assert main(evaluate_args(folder, *LONG, "--workers", workers)) == 0
    assert contents(folder) == contents(long_run)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_alone_ends_the_run_in_one_line(how, long_run, tmp_path):
    folder = tmp_path / "run"
    with started(folder, "--workers", "3", bytes_written=1) as process:
        family = children(process.pid)
        workers = [pid for pid in family if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 3
        os.kill(workers[1], how)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert f"a worker process was ended by signal {how.value} ({how.name}); what was finished is kept" in one_line(
            err
        )
        assert gone(family)
    assert main(evaluate_args(folder, *LONG)) == 0
    assert contents(folder) == contents(long_run)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_to_the_whole_group_ends_it_soon_and_quietly(how, code, workers, long_run, tmp_path):
    folder = tmp_path / "run"
    for wait_for in (0, 700_000):
        with started(folder, "--workers", workers, bytes_written=wait_for) as process:
            family = children(process.pid)
            if how == signal.SIGINT:
                os.killpg(process.pid, how)  # as a terminal does it: workers get it, too
            else:
                process.send_signal(how)
            _, err = process.communicate(timeout=20)
            assert process.returncode == code
            assert "what was finished is kept, run the same command again to go on" in one_line(err)
            assert gone(family)
            assert not (folder / PID).exists()
    assert (folder / EPISODES).stat().st_size >= 700_000
    assert main(evaluate_args(folder, *LONG)) == 0
    assert contents(folder) == contents(long_run)


def test_a_disk_that_fills_up_is_told_in_one_line_and_can_be_resumed(long_run, tmp_path):
    resource = pytest.importorskip("resource")
    folder = tmp_path / "run"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    for workers in ("1", "2"):
        done = run_command(evaluate_args(folder, *LONG, "--workers", workers), preexec_fn=limit)
        assert done.returncode == 2 and done.stdout == ""
        last = done.stderr.splitlines()[-1]
        assert f"cannot write to {folder}: File too large; what was finished is kept" in last
        assert "Traceback" not in done.stderr
        assert (folder / EPISODES).stat().st_size <= 700_000
        assert len(list(Run(folder).lines())) > 150
    assert main(evaluate_args(folder, *LONG)) == 0
    assert contents(folder) == contents(long_run)


@pytest.mark.parametrize("name", [EPISODES, "metrics.csv", MANIFEST, "products.jsonl"])
def test_a_disk_that_is_full_from_the_start(name, tmp_path, monkeypatch, capsys):
    """Every file in turn cannot be synced."""
    folder, args = tmp_path / "run", ("--products", "2")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.removesuffix(".tmp") == name:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(evaluate_args(folder, *args)) == 2
    assert f"cannot write to {folder}: No space left on device" in one_line(capsys.readouterr().err)
    assert not list(folder.glob("*.tmp"))
    monkeypatch.setattr(os, "fsync", real)
    assert main(evaluate_args(folder, *args)) == 0
    assert verify(folder).ok


# -- the same bytes ---------------------------------------------------------------------------------------------------


def test_the_number_of_workers_does_not_matter(tmp_path):
    settings = ("--split", "all", "--per-product", "2", "--regime", "ood_diverse")
    first = contents(make_run(tmp_path / "1", *settings, seller="satisficer"))
    for workers in ("2", "5"):
        made = make_run(tmp_path / workers, *settings, "--workers", workers, seller="satisficer")
        assert contents(made) == first


def test_the_size_of_batches_does_not_matter(tmp_path, monkeypatch):
    first = contents(make_run(tmp_path / "first", "--products", "10", seller="oracle"))
    for size in (1, 7, 1000):
        monkeypatch.setattr(negolab.shares, "_CHUNK", size)
        assert contents(make_run(tmp_path / str(size), "--products", "10", seller="oracle")) == first


@pytest.mark.parametrize("seller", ["random", "satisficer", "greedy", "prober", "oracle"])
def test_how_many_episodes_are_open_at_once_does_not_matter(seller):
    made = plan(Settings(seller, "ood_diverse", products=6, per_product=2))

    def lines(window: int) -> list[bytes]:
        cast = made.cast()
        played = play(made.schedule, cast.seller, cast.buyers, window=window)
        return [episode.to_line() for episode in sorted(played, key=lambda e: e.scenario.episode)]

    first = lines(256)
    assert len(first) == 12
    for window in (1, 2, 5):
        assert lines(window) == first


GOLDEN = Path(__file__).parent / "golden"
"""What was played once and for all; ``UPDATE_SNAPSHOTS=1 pytest tests/test_evaluate.py`` rewrites it. A change of these
files is a change of every number anybody has published: it wants a new version of whatever player it comes from."""


def golden(name: str, found: object) -> object:
    """The golden value kept in a file, after it was rewritten where that is asked for."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def sample_lines(seller: str, name: str, products: int | None = None) -> list[bytes]:
    """One episode of each product of the sample, as they are stored."""
    made = plan(Settings(seller, name, split="all", products=products, per_product=1, seed=0))
    played = play(made.schedule, made.cast().seller, made.cast().buyers)
    return [e.to_line() for e in sorted(played, key=lambda e: e.scenario.episode)]


def with_a_price(line: bytes) -> bytes:
    """An episode as it was stored when a market had one item only: a turn names a price, the outcome the one sale.

    The streams were pinned then. That all of them can be had back from what is stored now, to the byte, says that the
    markets, the players and what they say are still the same.
    """
    data = json.loads(line)
    scenario, outcome = data["scenario"], data["outcome"]
    money = ("list_cents", "cost_cents", "per_buyer_cap", "message_budget", "budgets", "openings")
    first, last = ("rep", "regime"), ("buyer_types", "keys")
    assert {*scenario} == {*first, "unit", *money, *last} and {*outcome} == {"kind", "reason", "seat", "sales"}
    picked = {name: scenario[name] for name in first} | {"codename": scenario["unit"]}
    data["scenario"] = picked | {name: scenario[name] for name in (*money, *last)}
    for turn in data["turns"]:
        turn[4] = turn[4][0][1] if turn[4] else None
    (_, buyer, price, closer) = outcome["sales"][0] if outcome["sales"] else (1, None, None, outcome["seat"])
    assert closer == outcome["seat"]
    data["outcome"] = {name: outcome[name] for name in ("kind", "reason")}
    data["outcome"] |= {"price": price, "buyer": buyer, "seat": outcome["seat"]}
    del data["crc"]
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return b'%s,"crc":"%08x"}' % (body[:-1], zlib.crc32(body))


def test_the_streams_are_pinned():
    """The bytes of every seller in both regimes of one item."""
    found = {}
    for name in ONE_ITEM:
        for seller in SELLERS:
            lines = sample_lines(seller, name)
            assert len(lines) == 120
            found[f"{name} {seller}"] = hashlib.sha256(b"".join(map(with_a_price, lines))).hexdigest()
    assert found == golden("episodes", found)
    assert len(set(found.values())) == 10


def leaves(value: object, where: str = "") -> Iterator[tuple[str, object]]:
    """Every plain value of nested data with the way to it; an empty list or object is one, too."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner or not value:
        yield where, value
    else:
        for key, part in inner:
            yield from leaves(part, f"{where}.{key}".lstrip("."))


@pytest.mark.parametrize("name", ONE_ITEM)
def test_one_whole_episode_is_pinned_field_by_field(name):
    (line,) = sample_lines("prober", name, products=1)
    found = json.loads(line)
    now, then = dict(leaves(found)), dict(leaves(golden(name, found)))
    assert list(now) == list(then), "other fields"
    assert {k: v for k, v in now.items() if v != then[k] or type(v) is not type(then[k])} == {}
    assert len(now) > 80


def markets(folder: Path) -> list:
    """A run's scenarios without their place in the run."""
    return [episode.scenario._replace(episode=0) for episode in Run(folder).episodes(complete=True)]


def test_one_seed_gives_every_seller_the_same_markets(tmp_path):
    first = markets(make_run(tmp_path / "prober"))
    assert len(set(first)) == len(first)
    for seller in ("random", "satisficer", "greedy", "oracle"):
        assert markets(make_run(tmp_path / seller, seller=seller)) == first
    other = markets(make_run(tmp_path / "seed", "--seed", "1"))
    assert not set(first) & set(other)


def test_fewer_products_and_fewer_repetitions_give_a_part_of_the_same_markets(tmp_path):
    whole = markets(make_run(tmp_path / "whole", "--per-product", "2"))
    assert markets(make_run(tmp_path / "first", "--per-product", "2", "--products", "5")) == whole[:10]
    assert markets(make_run(tmp_path / "once", "--per-product", "1")) == whole[::2]


def test_a_finished_run_is_only_printed_again(tmp_path, capsys):
    folder = make_run(tmp_path / "run", "--products", "3")
    printed, before = capsys.readouterr().out, contents(folder)
    stamp = (folder / EPISODES).stat().st_mtime_ns
    assert make_run(folder, "--products", "3", "--workers", "4")
    assert capsys.readouterr().out == printed
    assert contents(folder) == before and (folder / EPISODES).stat().st_mtime_ns == stamp


def test_a_split_from_a_file_is_the_same_run_wherever_the_file_lies(tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.json").write_text('["audio-gear_2", "audio-gear_7"]')
    out = tmp_path / "run"
    make_run(out, "--split", str(tmp_path / "a" / "mine.json"))
    make_run(out, "--split", str(tmp_path / "b" / "mine.json"))
    (tmp_path / "b" / "mine.json").write_text('["audio-gear_2", "audio-gear_14"]')
    capsys.readouterr()
    assert main(evaluate_args(out, "--split", str(tmp_path / "b" / "mine.json"))) == 2
    assert "it plays other products" in one_line(capsys.readouterr().err)


def test_a_new_run_of_the_same_name_has_no_path_and_no_time_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run("here", "--products", "2")
    make_run(tmp_path / "there", "--products", "2")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    for name in FILES:
        assert str(tmp_path).encode() not in (tmp_path / "here" / name).read_bytes()


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seller", ["random", "satisficer", "greedy", "prober", "oracle"])
@pytest.mark.parametrize("name", ["in_distribution", "ood_diverse"])
def test_reward_is_deal_rate_times_surplus_ratio_minus_violation_rate(seller, name, tmp_path):
    evaluate(Settings(seller, name, products=15), tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    found = summarise_run(run)
    deals = found["deal_rate"].mean * (found["surplus_ratio"].mean or 0.0)
    assert found["reward"].mean == pytest.approx(deals - found["violation_rate"].mean, abs=1e-12)
    assert found["reward"].n == found["deal_rate"].n == found["violation_rate"].n == 30
    assert found["surplus_ratio"].n == round(found["deal_rate"].mean * 30)
    assert metrics_csv(found) == (run.folder / "metrics.csv").read_text()


def test_a_single_episode_has_no_error_and_no_warning(tmp_path, recwarn, capsys):
    folder = make_run(tmp_path / "run", "--products", "1", "--per-product", "1", seller="greedy")
    table = (folder / "metrics.csv").read_text()
    rows = dict(line.split(",", 1) for line in table.splitlines()[1:])
    assert rows["reward"].endswith(",n/a,n/a,1")
    assert rows["seller_prompt_tokens"] == "n/a,n/a,n/a,0"
    assert "nan" not in table and "nan" not in capsys.readouterr().out
    assert not list(recwarn)


def test_markets_of_other_sizes(tmp_path, capsys):
    make_run(tmp_path / "wide", "--products", "2", "--buyers", "50", "--messages", "40")
    assert Run(tmp_path / "wide").manifest["settings"]["regime"]["n_buyers"] == 50
    capsys.readouterr()
    make_run(tmp_path / "rich", "--products", "2", "--messages", "9")
    assert "note: T = 9 is not below N x K = 9" in one_line(capsys.readouterr().err)
    make_run(tmp_path / "few", "--products", "500")
    assert "note: the split has 24 products, not 500" in one_line(capsys.readouterr().err)
    for folder in ("wide", "rich", "few"):
        assert verify(tmp_path / folder).ok


def test_the_python_interface_refuses_what_the_command_line_refuses(tmp_path):
    for wrong in (
        {"settings": Settings("prober", products=0)},
        {"settings": Settings("prober", products=True)},
        {"settings": Settings("prober", seed=-1)},
        {"settings": Settings("prober", seed=1.0)},
        {"settings": Settings("prober", per_product=0)},
        {"settings": Settings("nobody")},
        {"settings": Settings("prober", "nowhere")},
        {"settings": Settings("prober", knobs={"n_buyers": 0})},
        {"settings": Settings("prober", knobs={"unknown": 1})},
        {"settings": Settings("prober", knobs={"budget_tiers": [[0.5, float("nan")]]})},
        {"settings": Settings("prober"), "workers": 0},
        {"settings": Settings("prober"), "workers": 1.5},
    ):
        with pytest.raises(NegolabError):
            evaluate(out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()
    with pytest.raises(NegolabError, match="nothing to play"):
        Schedule(regime("in_distribution"), [], seed=0)


# -- memory and handles -----------------------------------------------------------------------------------------------

PEAK = """
import resource, sys
from negolab.evaluate import Settings, evaluate
from negolab.verify import verify
evaluate(Settings("prober", split="all", per_product=int(sys.argv[2])), sys.argv[1], progress=False)
assert verify(sys.argv[1]).ok
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_kib(folder: Path, per_product: int) -> int:
    """Peak memory of evaluating and verifying so many episodes per product in a fresh process."""
    args = [sys.executable, "-c", PEAK, str(folder), str(per_product)]
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path):
    few, many = peak_kib(tmp_path / "few", 3), peak_kib(tmp_path / "many", 15)
    assert many < few + 3000, f"{few} KiB for 360 episodes, {many} KiB for 1,800"


@pytest.mark.skipif(sys.platform != "linux", reason="counts handles through /proc")
def test_no_handle_thread_or_process_stays(tmp_path):
    import multiprocessing
    import threading

    def handles() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    make_run(tmp_path / "first", "--products", "6", "--workers", "2")
    before = handles(), threading.active_count()
    for round_ in range(2):
        make_run(tmp_path / str(round_), "--products", "6", "--workers", "2")
        assert main(evaluate_args(tmp_path / str(round_), "--products", "5")) == 2
        assert main(["verify", str(tmp_path / str(round_))]) == 0
    assert (handles(), threading.active_count()) == before
    assert not multiprocessing.active_children()
