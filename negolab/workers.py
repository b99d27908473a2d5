"""Worker processes for tasks whose results only the parent keeps.

A task may have any number of results, each sent as soon as it is there: whoever waits for slow work is told of what is
finished, and a lost worker loses only what was under way.

One pipe per worker, for these reasons: a worker that is killed while it sends shows as the end of its own pipe, where
workers that share a pipe would block each other and the parent for ever; and a worker whose parent is gone, however it
went, sees the other end of the same pipe close and leaves at once, also in the middle of a task.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from negolab.errors import NegolabError

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")

_AHEAD = 2  # tasks that a worker has in hand: one in play and one waiting, so that it never idles
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def spread(
    setup: Callable[[A], Callable[[T], Iterable[R]]], argument: A, tasks: Iterable[T], count: int
) -> Iterator[R]:
    """All results of ``tasks`` as they come in, from at most ``count`` processes that each call ``setup(argument)``
    once; what that returns is called with a task and gives its results one after the other.

    ``setup``, tasks and results must be picklable. Raises ``NegolabError`` when a worker is lost or when it raised one,
    ``RuntimeError`` with the worker's traceback for any other error. However the iteration ends, no process stays.
    """
    todo = iter(tasks)
    first = list(islice(todo, count))
    workers: list[_Worker] = []
    try:
        for _ in first:
            workers.append(_Worker())
        payload = pickle.dumps((setup, argument))
        for worker, task in zip(workers, first, strict=True):
            worker.send_bytes(payload)
            worker.send(task)
        for worker in workers * (_AHEAD - 1):
            for task in islice(todo, 1):
                worker.send(task)
        busy = {worker.connection: worker for worker in workers}
        while busy:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                finished, result = worker.receive()
                if not finished:
                    yield result
                    continue
                for task in islice(todo, 1):
                    worker.send(task)
                if not worker.in_hand:
                    del busy[worker.connection]
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.end()


class _Worker:
    """The parent's side of one process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.in_hand = 0
        with _signals_held():
            self.process.start()
        theirs.close()  # or the end of the process would not show

    def send(self, task: Any) -> None:
        self.send_bytes(pickle.dumps(task))
        self.in_hand += 1

    def send_bytes(self, content: bytes) -> None:
        try:
            self.connection.send_bytes(content)
        except OSError:
            raise self._lost() from None

    def receive(self) -> tuple[bool, Any]:
        """Whether a task is finished, and if not, one of its results."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if kind == "finished":
            self.in_hand -= 1
        if kind in ("finished", "result"):
            return kind == "finished", value
        raise NegolabError(value) if kind == "mistake" else RuntimeError(f"in a worker process:\n{value}")

    def end(self) -> None:
        """Wait for the process, whose pipe is closed; one that does not leave is killed."""
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def _lost(self) -> NegolabError:
        self.process.join(5)
        code = self.process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return NegolabError(
            f"a worker process {how}; what was finished is kept, run the same command again to go on"
            + (" (with fewer --workers if memory is short)" if code == -9 else "")
        )


@contextmanager
def _signals_held() -> Iterator[None]:
    """Keep an interrupt away from a process that is being made, on both sides, and give it out afterwards.

    The new process inherits the blocked signals. Here blocking is not enough: a numerical library's threads do not
    block them, and Python runs its handlers in the main thread whichever thread was hit.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: found for number in _SIGNALS if callable(found := signal.getsignal(number))}
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting it would release the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for found in came[:1]:
            signal.raise_signal(found)


def _serve(connection: Connection) -> None:
    """A worker's life: the setup, then tasks until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # nobody waits for what is being played

    threading.Thread(target=listen, daemon=True).start()
    try:
        setup, argument = pickle.loads(inbox.get())
        work = setup(argument)
        while True:
            for result in work(pickle.loads(inbox.get())):
                connection.send(("result", result))
            connection.send(("finished", None))
    except NegolabError as error:
        answer = ("mistake", str(error))
    except Exception:
        answer = ("error", traceback.format_exc())
    with suppress(OSError):
        connection.send(answer)
    threading.Event().wait()  # the parent closes the pipe once it has read that
