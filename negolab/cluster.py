"""Ray: a run's episodes over the processors and GPUs of many machines; what is played is the same as without it.

A worker is a Ray actor that makes the players once. Its results stream back as they come; the driver alone stores them.
An actor that is lost is replaced, and only what it had not yet reported is played again, a bounded number of times.
"""

import os
import pickle
import platform
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from negolab.errors import NegolabError
from negolab.policies.spec import ModelSpec
from negolab.ray_start import connected, short
from negolab.store import code_sha256

R = TypeVar("R")
A = TypeVar("A")

_ATTEMPTS = 3
"""How often episodes are given to a worker before the run stops: what loses workers again and again is their fault."""
_AHEAD = 2  # chunks that a worker has in hand: one in play and one waiting, so that it never idles
_START_SECONDS = 600.0
"""Until some worker must have started: a busy or growing cluster takes its time."""
_FETCH_SECONDS = 60.0
"""For one result to cross the network; where its machine is gone it never does."""
_SEVERAL = 8  # episodes that a message names
_KEPT = "what was finished is kept, run the same command again to go on"


@contextmanager
def joined(address: str, workers: int | None, models: Sequence[ModelSpec] = ()) -> Iterator["Cluster"]:
    """A Ray cluster to play on, see ``connected``.

    ``workers``: None for as many as it has processors; where ``models`` play, as many as its GPUs can hold, or one a
    machine without them, or one where all that they do is ask a server.
    """
    with connected(address, workers) as ray:
        yield Cluster(ray, workers, models)


@dataclass(eq=False, slots=True)
class _Chunk:
    """Episodes given to a worker."""

    left: dict[int, None]
    """Those of which nothing was heard yet, in order."""
    losses: int = 0
    """Workers that were lost while they played them."""
    stream: Any = None


@dataclass(eq=False, slots=True)
class _Worker:
    """The driver's side of one actor."""

    actor: Any
    starting: Any
    """Its answer to ``prepare``; None once that was received."""
    host: str = "a machine of the cluster"
    hand: deque[_Chunk] = field(default_factory=deque)


class Cluster:
    """A Ray cluster that is connected. See ``joined``."""

    def __init__(self, ray: Any, workers: int | None, models: Sequence[ModelSpec]) -> None:
        self._ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus, fit = _gpus(models), 0
        if gpus and any(node.get("GPU", 0) for node in nodes):
            fit = sum(int(node.get("GPU", 0)) // gpus for node in nodes)
            if not fit:
                most = int(max(node.get("GPU", 0) for node in nodes))
                raise NegolabError(
                    f"the model takes {gpus} GPUs on one machine; no machine of the Ray cluster has more than {most}"
                )
        else:
            gpus = 0
        cpus = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
        if not cpus:
            raise NegolabError("the Ray cluster has no machine with a processor to give")
        here = any(spec.engine != "openai" for spec in models)  # weights in the workers themselves
        self.workers = workers or (fit if gpus else len(cpus) if here else 1 if models else sum(cpus))
        """How many play at once."""
        # A model without a GPU computes on as many threads as Ray has processors reserved for its worker.
        share = max(1, min(min(cpus), sum(cpus) // self.workers)) if here and not gpus else 1
        self._options = {"num_cpus": share, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}

    def spread(
        self,
        setup: Callable[[A], Callable[[list[int]], Iterable[R]]],
        argument: A,
        chunks: Iterable[list[int]],
        covers: Callable[[R], Iterable[int]],
        say: Callable[[str], object],
    ) -> Iterator[R]:
        """As ``workers.spread``: all results for ``chunks`` of episodes as they come. ``covers`` says of which episodes
        a result is the last word; ``say`` is told of workers that were lost and are replaced.

        Raises ``NegolabError`` when a worker raised one, when none starts, and for episodes that lose every worker;
        ``RuntimeError`` for any other error of a worker.
        """
        play = _Play(self._ray, self._options, (setup, argument), self.workers, say)
        try:
            yield from play.results(iter(chunks), covers)
        finally:
            play.end()


class _Play:
    """One spreading of chunks over actors."""

    def __init__(self, ray: Any, options: dict[str, Any], job: Any, count: int, say: Callable[[str], object]) -> None:
        self._ray, self._say, self._count = ray, say, count
        self._make = ray.remote(**options)(_Actor).remote
        self._job = ray.put(pickle.dumps(job))
        self._about = (code_sha256(), str(Path.cwd()), [path for path in sys.path if path])
        self._workers: list[_Worker] = []
        self._again: deque[_Chunk] = deque()
        self._lost_at_start = 0

    def results(self, chunks: Iterator[list[int]], covers: Callable[[R], Iterable[int]]) -> Iterator[R]:
        """See ``Cluster.spread``."""
        self._again.extend(_Chunk(dict.fromkeys(episodes)) for episodes in islice(chunks, self._count))
        self._workers = [self._worker() for _ in self._again]
        deadline = time.monotonic() + _START_SECONDS
        while waiting := self._waiting(chunks):
            ready, rest = self._ray.wait(list(waiting), num_returns=1, timeout=5)
            if not ready:
                if all(worker.starting is not None for worker in self._workers) and time.monotonic() > deadline:
                    raise NegolabError(
                        f"no worker could start on the Ray cluster within {_START_SECONDS / 60:.0f} minutes: its "
                        "processors and GPUs may all be taken"
                    )
                continue
            # All that have something, or the first in the list would always be served before the last.
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
            for ref in ready:
                worker, chunk = waiting[ref]
                if worker not in self._workers:
                    continue  # lost a moment ago
                if chunk is None:
                    self._started(worker)
                    continue
                result = self._receive(worker, chunk)
                if result is not None:
                    for episode in covers(result):
                        chunk.left.pop(episode, None)
                    yield result

    def end(self) -> None:
        """Stop all actors, whatever they do."""
        for worker in self._workers:
            with suppress(Exception):
                self._ray.kill(worker.actor)
        self._workers = []

    # -- who does what ------------------------------------------------------------------------------------------

    def _worker(self) -> _Worker:
        actor = self._make()
        return _Worker(actor, actor.prepare.remote(self._job, *self._about))

    def _next(self, chunks: Iterator[list[int]]) -> _Chunk | None:
        if self._again:
            return self._again.popleft()
        episodes = next(chunks, None)
        return None if episodes is None else _Chunk(dict.fromkeys(episodes))

    def _waiting(self, chunks: Iterator[list[int]]) -> dict[Any, tuple[_Worker, _Chunk | None]]:
        """Hand out what can be; returns what may be heard of next: empty when nothing is left to be heard."""
        ready = [worker for worker in self._workers if worker.starting is None]
        for length in range(_AHEAD):  # everybody gets a first chunk before anybody a second
            for worker in ready:
                if len(worker.hand) == length and (chunk := self._next(chunks)) is not None:
                    play = worker.actor.play.options(num_returns="streaming")
                    chunk.stream = play.remote(list(chunk.left))
                    worker.hand.append(chunk)
        streams = {chunk.stream: (worker, chunk) for worker in ready for chunk in worker.hand}
        if not streams:
            if (chunk := self._next(chunks)) is None:
                return {}  # whoever still starts comes too late
            self._again.appendleft(chunk)
        return {**streams, **{w.starting: (w, None) for w in self._workers if w.starting is not None}}

    # -- what comes back ----------------------------------------------------------------------------------------

    def _fetch(self, ref: Any) -> Any:
        kind, value = self._ray.get(ref, timeout=_FETCH_SECONDS)
        if kind == "mistake":
            raise NegolabError(value)
        if kind == "error":
            raise RuntimeError(f"in a Ray worker:\n{value}")
        return value

    def _started(self, worker: _Worker) -> None:
        try:
            worker.host = self._fetch(worker.starting)
        except self._ray.exceptions.RayError as error:
            self._lost_at_start += 1
            if self._lost_at_start >= _ATTEMPTS:
                raise NegolabError(
                    f"workers cannot start on the Ray cluster ({short(str(error))}); the same Python and negolab must "
                    "be there"
                ) from error
            self._replace(worker, error)
        else:
            worker.starting = None

    def _receive(self, worker: _Worker, chunk: _Chunk) -> Any:
        """One result; None where the chunk is finished or its worker lost."""
        try:
            return self._fetch(next(chunk.stream))
        except StopIteration:
            worker.hand.remove(chunk)
        except self._ray.exceptions.RayError as error:
            self._replace(worker, error)
        return None

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """Another worker for one that was lost; what it had in hand is to be played again."""
        self._workers.remove(worker)
        with suppress(Exception):
            self._ray.kill(worker.actor)  # it may only be out of reach
        why, left = short(str(error)), 0
        for chunk in reversed(worker.hand):
            if chunk.left:
                chunk.losses += chunk is worker.hand[0]
                left += len(chunk.left)
                self._again.appendleft(chunk)
        if worker.hand and worker.hand[0].losses >= _ATTEMPTS:
            raise NegolabError(
                f"{_ATTEMPTS} workers were lost one after the other while they played {_named(worker.hand[0].left)} "
                f"(the last: {why}); {_KEPT}"
            )
        again = f"; {left} episodes are played again" if left else ""
        self._say(f"a worker on {worker.host} was lost ({why}){again}")
        self._workers.append(self._worker())


class _Actor:
    """A worker. Everything it gives back is tagged, so that a mistake of the user's and a lost worker differ."""

    def prepare(self, job: bytes, code: str, folder: str, paths: list[str]) -> tuple[str, str]:
        """Make the players; gives the machine's name. ``folder`` and ``paths`` are the driver's, used where they are
        here: a player of the user's own and a model by a relative path are then found as they are found there."""
        host = platform.node()
        try:
            if code != code_sha256():
                raise NegolabError(f"another version of negolab is installed on {host}, a machine of the Ray cluster")
            with suppress(OSError):
                os.chdir(folder)
            sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
            setup, argument = pickle.loads(job)
            self._play = setup(argument)
        except NegolabError as error:
            return "mistake", str(error)
        except Exception:
            return "error", traceback.format_exc()
        self._host = host
        return "ready", host

    def play(self, episodes: list[int]) -> Iterator[tuple[str, Any]]:
        """What comes of ``episodes``, as it comes."""
        try:
            for result in self._play(episodes):
                yield "result", result
        except NegolabError as error:
            hint = (
                " (on a Ray cluster the player's module must be importable there)" if "ModuleNot" in str(error) else ""
            )
            yield "mistake", f"on {self._host}: {error}{hint}"
        except Exception:
            yield "error", traceback.format_exc()


def _gpus(models: Sequence[ModelSpec]) -> int:
    """GPUs that one worker needs: its engines share them."""
    needed = 0
    for spec in models:
        device = str(getattr(spec, "device", ""))
        index = re.fullmatch(r"cuda:([0-9]+)", device)
        here = spec.engine == "vllm" or (spec.engine == "transformers" and (not device or device.startswith("cuda")))
        if here:
            needed = max(needed, int(getattr(spec, "tensor_parallel", 1)), int(index[1]) + 1 if index else 1)
    return needed


def _named(episodes: Iterable[int]) -> str:
    """Episodes in words."""
    names = [str(episode) for episode in episodes]
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    return f"episode{'s' * (len(names) > 1)} {', '.join(names[:_SEVERAL])}{more}"
