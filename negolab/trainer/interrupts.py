"""What an interrupt does to a training run: weights that are being changed belong to no step, so it waits for them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from negolab.trainer.processes import Elsewhere


class Stoppable(Protocol):
    """What is asked of a trainer."""

    updating: bool
    """Its weights are being changed."""
    stop: bool
    """End after the step under way, with a checkpoint."""


class Interrupts(list[Callable[[], object]]):
    """Those that wait until the weights belong to a step again, as what raises them."""

    def __init__(self, trainer: Stoppable, must_wait: Callable[[], bool]) -> None:
        super().__init__()
        self._trainer, self._must_wait = trainer, must_wait
        self.before: dict[signal.Signals, Any] = {}
        """Who handled the signals before."""

    def handle(self, number: int, frame: Any) -> None:
        """A signal has come."""
        usual = self.before[signal.Signals(number)]
        if not callable(usual):
            raise KeyboardInterrupt
        if self._must_wait() and not self:
            self._trainer.stop = True
            self.append(lambda: usual(number, frame))
            return
        usual(number, frame)

    def raise_caught(self) -> None:
        """Raise the one that waited, if any. Raises ``Elsewhere`` where it came to another process."""
        if self:
            self[0]()
            raise KeyboardInterrupt  # who handles it otherwise did not raise, and the run is over all the same
        if self._trainer.stop:
            raise Elsewhere("another process of this run was interrupted")


@contextmanager
def interrupts(trainer: Stoppable, must_wait: Callable[[], bool] | None = None) -> Iterator[Interrupts]:
    """The first interrupt ends the run after the step under way while ``must_wait`` (None: while the weights are being
    changed), else at once; a second one ends it at once. Outside of the main thread nothing is changed."""
    made = Interrupts(trainer, must_wait or (lambda: trainer.updating))
    if threading.current_thread() is not threading.main_thread():
        yield made
        return
    made.before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, usual in made.before.items():
        if callable(usual):
            signal.signal(number, made.handle)
    try:
        yield made
    finally:
        for number, usual in made.before.items():
            with suppress(ValueError, TypeError):
                signal.signal(number, usual)
