"""Worker processes: results, errors of every kind, and nothing left behind. Kills: see ``test_evaluate.py``."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, plan
from negolab.policies.spec import spec_of
from negolab.shares import _worker
from negolab.store import EPISODES
from negolab.workers import spread
from runs import contents
from servers import MODEL, ModelServer


def squares(offset):
    """A setup whose work squares, and misbehaves for some numbers."""

    def work(number):
        if number == 13:
            raise NegolabError("thirteen is not liked")
        if number == 14:
            raise ZeroDivisionError("fourteen")
        if number == 15:
            os._exit(7)
        if number == 16:
            time.sleep(60)
        yield number * number + offset

    return work


def no_setup(argument):
    """A setup that fails."""
    raise ValueError(f"cannot set up {argument}")


@pytest.mark.parametrize("count", [1, 3])
def test_every_task_comes_back_once(count):
    assert sorted(spread(squares, 1, range(10), count)) == sorted(n * n + 1 for n in range(10))
    assert not multiprocessing.active_children()


def counted(pause):
    """A setup whose work counts up to its task, and waits before the last number."""

    def work(number):
        for i in range(number):
            if i == number - 1:
                time.sleep(pause)
            yield number, i

    return work


def test_a_task_may_have_any_number_of_results():
    assert sorted(spread(counted, 0, [0, 3, 1, 0, 2], 2)) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert list(spread(counted, 0, [0, 0, 0], 2)) == []


def test_a_result_comes_before_its_task_is_finished():
    results = spread(counted, 60, [3], 1)
    began = time.monotonic()
    assert [next(results), next(results)] == [(3, 0), (3, 1)]
    results.close()
    assert time.monotonic() - began < 30
    assert not multiprocessing.active_children()


def unlucky(argument):
    """A setup whose work fails after two results."""

    def work(number):
        yield from (1, 2)
        raise NegolabError("no third")

    return work


def test_what_came_before_an_error_is_given_out():
    results = spread(unlucky, 0, ["task"], 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(NegolabError, match="no third"):
        next(results)


def test_no_task_no_process():
    assert list(spread(squares, 0, [], 4)) == []


def test_large_tasks_and_results_do_not_block_each_other():
    big = "x" * 3_000_000
    assert all(result == 2 * len(big) for result in spread(doubled_length, big, [big] * 7, 2))


def doubled_length(first):
    """Setup and task are both large."""
    return lambda second: [len(first) + len(second)]


@pytest.mark.parametrize(
    ("tasks", "kind", "why"),
    [
        ([1, 2, 13, 3], NegolabError, "thirteen is not liked"),
        ([1, 2, 14, 3], RuntimeError, "ZeroDivisionError: fourteen"),
        ([1, 2, 15, 3], NegolabError, "a worker process ended with exit code 7; what was finished is kept"),
    ],
)
def test_what_a_worker_raises_is_raised_here(tasks, kind, why):
    with pytest.raises(kind, match=why):
        list(spread(squares, 0, tasks, 2))
    assert not multiprocessing.active_children()


def test_a_setup_that_fails_is_told():
    with pytest.raises(RuntimeError, match="cannot set up this"):
        list(spread(no_setup, "this", [1, 2, 3], 2))


def test_whoever_stops_listening_does_not_wait_for_what_is_in_play():
    began = time.monotonic()
    results = spread(squares, 0, [2, 16, 16, 3], 2)
    assert next(results) == 4
    results.close()
    assert time.monotonic() - began < 20
    assert not multiprocessing.active_children()


# -- episodes ---------------------------------------------------------------------------------------------------------

SLOW = """
import time

from negolab.policies.scripted_sellers import ProberSeller


class Slow(ProberSeller):
    name = "slow"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        time.sleep(0.06)
        return super().reply(requests)
"""


def test_slow_players_episodes_are_told_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("slow_in_worker.py").write_text(SLOW, encoding="utf-8")
    made = plan(Settings("slow_in_worker:Slow", products=4))
    batches = list(spread(_worker, (made, tmp_path, os.getpid()), [list(range(8))], 1))
    assert sorted(number for batch in batches for number in batch.numbers) == list(range(8))
    assert len(batches) > 2 and all(len(batch.numbers) == len(batch.lines) < 8 for batch in batches)


def test_why_a_worker_could_not_play_an_episode_reaches_the_parent(tmp_path):
    pytest.importorskip("openai")
    wrong: set[str] = set()

    def faults(body, nth):
        return "broken" if any(code in str(body["messages"]) for code in wrong) else None

    with ModelServer(faults) as server:
        settings = Settings(spec_of(f"openai:{MODEL}", {"base_url": server.url, "retries": 0}), products=6)
        made = plan(settings)
        wrong |= {f"Codename: {made.schedule[4].product.listing.codename},"}
        with pytest.raises(NegolabError, match=r"^2 of 12 episodes could not be played \(episode [45]: .*HTTP 500"):
            evaluate(settings, tmp_path / "run", workers=2, progress=False)
        assert (tmp_path / "run" / EPISODES).read_bytes().count(b"\n") == 10
        wrong.clear()
        evaluate(settings, tmp_path / "run", workers=2, progress=False)
        evaluate(settings, tmp_path / "whole", progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
