"""An alarm between processes that train one model: where one of them fails alone, the others end as well.

What fails in something that all do together is made known there (``processes.Processes.agreed``). Anywhere else the
others would go on to their next exchange and wait in it, inside a library, where no exception and no signal reaches
them. So a process that leaves rings, in the key-value store through which they found each other, and a thread in each
of the others looks there once a second and ends its process. Without this a launcher ends them half a minute later,
and who started them by hand waits for ever.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

_KEY = "negolab/alarm"
EVERY = 1.0
"""Seconds between looks."""
GRACE = 5.0
"""Seconds that a process has to end by itself: what breaks is often noticed by the library first."""


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> Any:
        """Keep a value for all to see."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether the keys are there. Raises ``RuntimeError`` where the store has gone with its process."""
        ...


class Alarm:
    """For a ``with`` statement around what a process does while others rely on it."""

    def __init__(self, store: Store, rank: int, end: Callable[[int], object] = os._exit) -> None:
        """``end``: ends this process with an exit code, whatever its main thread is doing."""
        self._store, self._rank, self._end = store, rank, end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alarm", daemon=True)

    def __enter__(self) -> Alarm:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def ring(self) -> None:
        """This process leaves."""
        with suppress(RuntimeError):  # whoever kept the store has left before
            self._store.set(_KEY, str(self._rank))

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            try:
                rung = self._store.check([_KEY])
            except RuntimeError:
                rung = True
            if rung and not self._over.wait(GRACE):
                with suppress(OSError, ValueError):
                    print("negolab: another process of this run has ended, and so does this one", file=sys.stderr)
                    sys.stderr.flush()
                self._end(2)
                return
