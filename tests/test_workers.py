"""Worker processes: results, errors of every kind, and nothing left behind. Kills: see ``test_evaluate.py``."""

import multiprocessing
import os
import time

import pytest

from negolab.errors import NegolabError
from negolab.workers import spread


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
