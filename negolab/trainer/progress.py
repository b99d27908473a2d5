"""How far a run is: a bar on a terminal, and elsewhere (a file, a pipe, a batch system) a plain line now and then.

Where this process has put something of its own in the place of standard error, as notebooks and tests do, nothing is
shown unless it is asked for: what captures may not be what a user reads.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from negolab.report import note

EVERY = 30.0
"""Seconds between two lines about steps, at least."""


def counted(n: int, what: str) -> str:
    """``1 step``, ``72 steps``, ``1,200 episodes``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


class Progress:
    """A run's steps as they are done. A context manager."""

    def __init__(self, total: int, done: int, shown: bool | None = None) -> None:
        """``total``: the run's steps, ``done`` of them behind it. ``shown``: whether to show anything; None: on a
        terminal, and on a standard error that nobody in this process has replaced."""
        self.total, self.done = total, done
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._with_bar = terminal and shown is not False
        self._with_lines = not terminal and (shown or (shown is None and sys.stderr is sys.__stderr__))
        self._bar: Any = None
        self._before = done
        self._began = time.monotonic()
        self._told: float | None = None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._with_bar:
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, initial=self.done, unit="step")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, text: str) -> None:
        """One step more, with a word about it."""
        self.done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(text, False)
            self._bar.update()
        now = time.monotonic()
        if self._told is None or self.done == self.total or now - self._told >= EVERY:
            self._told = now
            self.tell(f"{text}; {self._left(now - self._began)}")

    def tell(self, text: str) -> None:
        """A line about where the run stands, where lines are shown. A bar needs none."""
        if self._with_lines:
            note(f"step {self.done} of {self.total}: {text}")

    def _left(self, seconds: float) -> str:
        """What is left, at the pace of this start."""
        if self.done >= self.total:
            return f"took {_clock(seconds)}"
        return f"{_clock(seconds / (self.done - self._before) * (self.total - self.done))} left"


def _clock(seconds: float) -> str:
    """``2:05`` or ``1:02:05``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
