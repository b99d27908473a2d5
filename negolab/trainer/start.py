"""One start of a training run, of whatever kind: folder, trainer, progress, and what is left when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.trainer import checkpoints
from negolab.trainer.progress import Progress

if TYPE_CHECKING:
    from negolab.trainer.trl_common import StepTrainer

MODEL = "model"
"""The trained model's folder within the run's."""


class Start:
    """What ``loop`` and ``sft`` make their runs of."""

    def __init__(self, folder: Path, steps: int, model: Any, tokenizer: Any, progress: bool | None) -> None:
        """``folder``: the run's; ``progress``: show it, None: as ``Progress`` finds right."""
        self.folder, self.steps = folder, steps
        self.model, self.tokenizer = model, tokenizer
        self._shown = progress
        self.progress: Progress | None = None
        self.trainer: Any = None
        """A ``StepTrainer``, once there is one."""

    @contextmanager
    def showing(self, done: int) -> Iterator[None]:
        """With a bar of the run's steps, ``done`` of them behind it, or lines in its place."""
        with Progress(self.steps, done, self._shown) as self.progress:
            yield

    def advance(self, text: str) -> None:
        """One step more, with a word about it."""
        if self.progress is not None:
            self.progress.advance(text)

    def tell(self, text: str) -> None:
        """A line about where the run stands, where there is no bar."""
        if self.progress is not None:
            self.progress.tell(text)

    def save_whole_steps(self) -> None:
        """A checkpoint of the last whole step, where the weights are still its own and it has none yet."""
        trainer: StepTrainer | None = self.trainer
        if trainer is None or trainer.updating or trainer.optimizer is None:
            return
        if trainer.steps_done > 0 and trainer.steps_done not in checkpoints.complete(self.folder):
            trainer.save_now()

    def keep(self, write: Callable[[Path], object], main: bool = True) -> None:
        """The trained model as a folder that players can be made of. ``write`` fills it under another name; all
        processes call it, ``main`` puts it in its place."""
        from negolab.policies.hf_model import quiet

        place, half = self.folder / MODEL, self.folder / (MODEL + ".saving")
        if main:
            shutil.rmtree(half, ignore_errors=True)
        with quiet():
            write(half)
            if not main:
                return
            self.tokenizer.save_pretrained(half)
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)
