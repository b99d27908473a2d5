"""Ray: the same bytes as in one process, whatever is killed; and clear words about clusters that cannot be used."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import negolab.cluster
import negolab.ray_start
from markets import ONE_ITEM
from negolab.cluster import joined
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, plan
from negolab.policies.spec import spec_of
from negolab.shares import _worker
from negolab.store import EPISODES, PID
from negolab.verify import verify
from runs import call, command, contents, default_interrupt, environment, evaluate_args, one_line
from servers import MODEL, ModelServer

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine with two processors, which all tests share: it takes seconds to start."""
    before = os.environ.get("PYTHONPATH")
    with joined("local", 2) as found:
        assert found.workers == 2 and os.environ.get("PYTHONPATH") == before
        yield found


def play(out: Path, settings: Settings, **options) -> dict[str, bytes]:
    """A run's files; ``say`` fills a list where one is given."""
    evaluate(settings, out, progress=False, **options)
    return contents(out)


# -- the driver -------------------------------------------------------------------------------------------------------

SLOW = """
import time

from negolab.policies.scripted_sellers import ProberSeller


class Slow(ProberSeller):
    name = "slow"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        time.sleep(0.05)
        return super().reply(requests)
"""


def started(folder: Path, *more: str) -> subprocess.Popen:
    """An evaluation on Ray with the slow seller, once some of its episodes are stored."""
    (folder / "slow_seller.py").write_text(SLOW, encoding="utf-8")
    args = evaluate_args(folder / "run", "--products", "12", "--workers", "2", *more, seller="slow_seller:Slow")
    process = subprocess.Popen(
        command(args),
        cwd=folder,
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupt,
    )
    deadline, path = time.monotonic() + 120, folder / "run" / EPISODES
    while time.monotonic() < deadline and process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.02)
    assert process.poll() is None and path.stat().st_size, process.communicate()[1]
    return process


def gone(family: list[psutil.Process], seconds: float) -> bool:
    """Whether all of them end in time."""
    return not psutil.wait_procs(family, timeout=seconds)[1]


@needs_ray
@pytest.mark.skipif(sys.platform != "linux", reason="Ray ties its processes to their parent on Linux")
def test_the_driver_killed_leaves_a_run_that_goes_on_and_no_worker(tmp_path, monkeypatch):
    process = started(tmp_path, "--ray")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len([child for child in family if "_Actor" in child.name()]) == 2
    process.kill()
    process.communicate()
    assert gone(family, 10), "workers, or parts of the cluster, outlive a killed driver"
    stored = (tmp_path / "run" / EPISODES).read_bytes().count(b"\n")
    assert 0 < stored < 24
    monkeypatch.chdir(tmp_path)
    settings = Settings("slow_seller:Slow", products=12)
    assert play(tmp_path / "run", settings) == play(tmp_path / "whole", settings)


# -- the same bytes ---------------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize("regime", sorted(ONE_ITEM))
def test_a_cluster_plays_what_one_process_plays(regime, cluster, tmp_path):
    settings = Settings("satisficer", regime, split="all", per_product=2)
    assert play(tmp_path / "ray", settings, ray="local", workers=2) == play(tmp_path / "one", settings)
    assert verify(tmp_path / "ray").ok


FRAGILE = '''
import os
import signal
from pathlib import Path

from negolab.policies.scripted_sellers import ProberSeller


class Fragile(ProberSeller):
    """Takes its process with it, once, when it is asked about an episode while others are open."""

    name = "fragile"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        wanted = Path("victim")
        if wanted.exists() and any(r.episode == 9 and r.view.turn == 3 for r in requests):
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reply(requests)
'''


@needs_ray
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fragile_seller.py").write_text(FRAGILE, encoding="utf-8")
    settings = Settings("fragile_seller:Fragile", products=8)
    first = play(tmp_path / "one", settings)
    Path("victim").touch()
    said = []
    assert play(tmp_path / "ray", settings, ray="local", workers=2, say=said.append) == first
    assert not Path("victim").exists()
    (line,) = said
    assert line.startswith("a worker on ") and line.endswith(" episodes are played again"), line


@needs_ray
def test_language_models_on_a_cluster_keep_their_replies_and_are_asked_once(cluster, tmp_path):
    pytest.importorskip("openai")
    with ModelServer() as server:
        spec = spec_of(f"openai:{MODEL}", {"base_url": server.url})
        settings = Settings(spec, products=4)
        first, asked = play(tmp_path / "one", settings), server.answered.total()
        said = []
        assert play(tmp_path / "ray", settings, ray="local", workers=2, say=said.append) == first
        assert server.answered.total() == 2 * asked and not [line for line in said if "cannot be reached" in line]
    one, ray = [(tmp_path / name / "usage.json").read_bytes() for name in ("one", "ray")]
    assert b'"replies"' in one and b'"replies"' in ray
    assert verify(tmp_path / "ray").ok


def test_a_worker_out_of_the_folder_s_reach_plays_without_a_journal(tmp_path):
    spec = spec_of("openai:fake", {"base_url": "http://localhost:1/v1", "retries": 0})
    made = plan(Settings(spec, products=1))
    pytest.importorskip("openai")
    (tmp_path / PID).write_text("12\n", encoding="utf-8")
    work = _worker((made, tmp_path, 13))
    assert "cannot be reached from" in next(iter(work([0]))).notes[0]
    assert [path.name for path in tmp_path.iterdir()] == [PID]
    near = _worker((made, tmp_path, 12))
    with suppress(NegolabError):  # nobody answers at that address
        list(near([0]))
    assert len(list(tmp_path.glob("replies-*"))) == 1


# -- what a worker may do ---------------------------------------------------------------------------------------------


def misbehaving(folder):
    """A setup whose work gives back pairs of an episode and a count; some episodes are trouble."""

    def work(episodes):
        before = None
        for episode in episodes:
            mark = Path(folder) / f"{episode}.txt"
            asked = int(mark.read_text()) + 1 if mark.exists() else 1
            mark.write_text(str(asked))
            if episode == 13:
                raise NegolabError("thirteen is not liked")
            if episode == 14:
                raise ZeroDivisionError("fourteen")
            if episode in (17, 18) and (episode == 18 or asked == 1):
                # What was given back a moment ago may not have left yet, and would be lost, too.
                deadline = time.monotonic() + 30
                while before is not None and not before.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            yield episode, asked
            before = mark.with_suffix(".received")

    return work


def spread(cluster, folder, chunks, told=None):
    """All results of ``misbehaving``."""

    def covers(pair):
        (folder / f"{pair[0]}.received").touch()
        return pair[:1]

    say = [].append if told is None else told.append
    return list(cluster.spread(misbehaving, str(folder), chunks, covers, say))


@needs_ray
def test_only_what_was_not_reported_is_played_again(cluster, tmp_path):
    told = []
    found = spread(cluster, tmp_path, [[1, 2, 17, 3], [4], [5, 6], []], told)
    assert sorted(found) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (17, 2)]
    assert len(told) == 1 and "was lost" in told[0]


@needs_ray
def test_episodes_that_lose_every_worker_are_named(cluster, tmp_path):
    with pytest.raises(NegolabError, match=r"3 workers were lost .* while they played episodes 18, 3 \(the last: "):
        spread(cluster, tmp_path, [[1, 18, 3]])
    assert (tmp_path / "18.txt").read_text() == "3" and (tmp_path / "1.txt").read_text() == "1"


@needs_ray
@pytest.mark.parametrize(
    ("episode", "kind", "why"),
    [(13, NegolabError, "thirteen is not liked"), (14, RuntimeError, "ZeroDivisionError: fourteen")],
)
def test_what_a_worker_raises_is_raised_here(episode, kind, why, cluster, tmp_path):
    with pytest.raises(kind, match=why):
        spread(cluster, tmp_path, [[1, episode, 3]])


def cannot_be_set_up(folder):
    """A setup that fails."""
    raise NegolabError("no such player")


@needs_ray
def test_a_setup_that_fails_is_told_and_nothing_to_do_starts_nobody(cluster):
    with pytest.raises(NegolabError, match="no such player"):
        list(cluster.spread(cannot_be_set_up, "", [[1]], list, print))
    assert list(cluster.spread(cannot_be_set_up, "", [], list, print)) == []


# -- an interrupt -----------------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_the_cluster_and_what_was_finished(how, code, cluster, tmp_path):
    import ray

    process = started(tmp_path, "--ray", ray.get_runtime_context().gcs_address)
    os.killpg(process.pid, how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "what was finished is kept, run the same command again to go on" in one_line(err)
    deadline = time.monotonic() + 20  # the cluster goes on, its processors are free again
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2


# -- what cannot be used ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://head:10001", "allowed: nothing for a cluster of this machine, auto, or HOST:PORT"),
        ("somewhere", "allowed: nothing for a cluster of this machine, auto, or HOST:PORT"),
        ("head:0", "allowed: nothing"),
        ("head:99999", "allowed: nothing"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("no-such-host.invalid:6379", "no Ray cluster answers at no-such-host.invalid:6379"),
    ],
)
@needs_ray
def test_an_address_that_is_none_is_told_before_a_folder_appears(address, says, tmp_path, capsys):
    code, _, err = call(capsys, *evaluate_args(tmp_path / "run", "--ray", address))
    assert code == 2 and says in one_line(err) and not (tmp_path / "run").exists()


def test_without_ray_it_is_told_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(negolab.ray_start.importlib.util, "find_spec", lambda name: None)
    code, _, err = call(capsys, *evaluate_args(tmp_path / "run", "--ray"))
    assert code == 2 and "pip install 'negolab[ray]'" in one_line(err) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("models", "needed"),
    [
        ([], 0),
        ([("openai:m", {})], 0),
        ([("transformers:m", {})], 1),
        ([("transformers:m", {"device": "cpu"})], 0),
        ([("transformers:m", {"device": "cuda:2"})], 3),
        ([("vllm:m", {"tensor_parallel": 4}), ("transformers:m", {})], 4),
    ],
)
def test_how_many_gpus_a_worker_takes(models, needed):
    assert negolab.cluster._gpus([spec_of(*model) for model in models]) == needed
