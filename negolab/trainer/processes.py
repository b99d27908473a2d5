"""Several processes that train one model together (``accelerate launch``): who plays what, and who writes.

Each process plays whole groups and gets to know all episodes, so that every number of a step is the same everywhere;
of the training rows each computes its share. The first process alone writes the run folder. Without a launcher there is
one process, and nothing here costs anything.

Who waits for a process that has failed would wait for ever. What each does alone before they meet (playing, looking at
the run folder) is therefore done under ``agreed`` or ``from_main``: where it fails in one process it fails in all,
which can then still save a checkpoint together. ``guarded`` ends the others after any other failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from negolab.errors import NegolabError
from negolab.policies.chat_template import first_line
from negolab.trainer.alarm import Alarm
from negolab.trainer.batches import SubStep
from negolab.trainer.settings import TrainSettings

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
_KNOWN = "_negolab_known_to_all"


class Elsewhere(NegolabError):
    """Another process of this run has failed, and tells its user why."""


def known_to_all(error: BaseException) -> bool:
    """Whether all processes end because of ``error``, each at the same place."""
    return getattr(error, _KNOWN, False)


def as_known(error: E, before: BaseException) -> E:
    """``error``, which takes the place of ``before``: known to all where that was."""
    setattr(error, _KNOWN, known_to_all(before))
    return error


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()

    def agreed(self, make: Callable[[], T]) -> T:
        """What ``make`` returns here, once it has returned in all processes.

        Where it raises in one, it raises in all: ``Elsewhere`` in those in which it did not, or not first.
        """
        if self.world == 1:
            return make()
        found: list[T] = []
        failed: BaseException | None = None
        try:
            found.append(make())
        except BaseException as error:  # an interrupt, too, must not leave the others waiting
            failed = error
        reasons = self.gathered([None if failed is None else first_line(failed)])
        first = next((rank for rank, reason in enumerate(reasons) if reason is not None), None)
        if first is None:
            return found[0]
        raise self._for_all(failed, first, str(reasons[first]))

    def from_main(self, make: Callable[[], T]) -> T:
        """What ``make`` returns in the first process, where alone it is called. Where it raises, all processes raise:
        ``Elsewhere`` in the others."""
        if self.world == 1:
            return make()
        import torch

        holder: list[Any] = [None, None]
        failed: BaseException | None = None
        if self.main:
            try:
                holder[0] = make()
            except BaseException as error:
                failed, holder[1] = error, first_line(error)
        torch.distributed.broadcast_object_list(holder, src=0)
        if holder[1] is not None:
            raise self._for_all(failed, 0, holder[1])
        found: T = holder[0]
        return found

    def _for_all(self, mine: BaseException | None, first: int, reason: str) -> BaseException:
        """What to raise here: the same failure is told by one process only."""
        told_here = mine is not None and (first == self.rank or not isinstance(mine, NegolabError))
        error = mine if told_here and mine is not None else Elsewhere(f"process {first} of this run: {reason}")
        setattr(error, _KNOWN, True)
        return error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around all that a process does from now on: where it fails alone, the others end as well."""
        if self.world == 1:
            yield
            return
        import torch

        store = torch.distributed.distributed_c10d._get_default_store()
        with Alarm(store, self.rank) as alarm:
            try:
                yield
                self.wait()  # the first one may keep the store, and has more to write than the others
            except BaseException as error:
                if not known_to_all(error):
                    alarm.ring()
                if _lost_touch(error):
                    raise NegolabError(
                        "another process of this run has ended; what was finished is kept, run the same command again "
                        "to go on after the last checkpoint"
                    ) from error
                raise

    def gathered(self, mine: Sequence[T]) -> list[T]:
        """The elements of all processes, process by process."""
        if self.world == 1:
            return list(mine)
        import torch

        everybody: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(everybody, list(mine))
        return [element for part in everybody for element in part]

    def groups(self, episodes: Sequence[T], group_size: int) -> list[T]:
        """This process's groups of ``episodes``, which lie group by group."""
        return [one for at, one in enumerate(episodes) if at // group_size % self.world == self.rank]

    def rows(self, part: SubStep) -> SubStep:
        """This process's rows of a sub-step: dealt out by length, so that all have about as much to compute."""
        if self.world == 1:
            return part
        order = sorted(range(len(part.rows)), key=lambda at: (-len(part.rows[at]), at))[self.rank :: self.world]
        return SubStep([part.rows[at] for at in order], [part.advantages[at] for at in order])


ALONE = Processes()


def _lost_touch(error: BaseException) -> bool:
    """Whether a library says that the other end of a connection is gone. Gloo has no exception of its own."""
    import torch

    gone = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    return gone or isinstance(error, torch.distributed.DistError)


def together(settings: TrainSettings) -> Processes:
    """The processes that a launcher started, brought in touch with each other; one where there is no launcher.

    Raises ``NegolabError`` where the trainer's weights are to be spread over them, but the learner would play with the
    trainer's own, or all weights are trained, which are not gathered.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return Processes()
    spread = [name for name in ("FSDP", "DEEPSPEED") if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true"]
    if spread and settings.sampler != "vllm":
        raise NegolabError(
            f"sampler is {settings.sampler}, which plays with the trainer's own weights; where {spread[0]} spreads "
            "them over processes it must be vllm"
        )
    if spread and settings.lora is None:
        raise NegolabError(f"lora is not set: where {spread[0]} spreads weights over processes, an adapter is trained")
    if settings.groups < int(os.environ["WORLD_SIZE"]):
        raise NegolabError(f"groups is {settings.groups}, fewer than the {os.environ['WORLD_SIZE']} processes")
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available())
    return Processes(int(state.process_index), int(state.num_processes))
