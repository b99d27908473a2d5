"""Several processes that train one model together (``accelerate launch``): who plays what, and who writes.

Each process plays whole groups and gets to know all episodes, so that every number of a step is the same everywhere;
of the training rows each computes its share. The first process alone writes the run folder. Without a launcher there is
one process, and nothing here costs anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from negolab.errors import NegolabError
from negolab.trainer.batches import SubStep
from negolab.trainer.settings import TrainSettings

T = TypeVar("T")


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

    def from_main(self, make: Callable[[], T]) -> T:
        """What ``make`` returns in the first process, where alone it is called."""
        if self.world == 1:
            return make()
        import torch

        holder: list[Any] = [make() if self.main else None]
        torch.distributed.broadcast_object_list(holder, src=0)
        found: T = holder[0]
        return found

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
