"""A table on the terminal that grows while sellers play: progress, means so far, violations, tokens, cost.

Only shown where standard error is a terminal; elsewhere nothing is printed and ``rich`` is not even loaded. What it
counts comes from the stored records and from the journals of replies, so that worker processes need not report, and
what an earlier start left in a folder is counted with the rest.

Means so far are of the episodes that are over: short ones end first, so they move towards the end of a run. The tables
are made from finished runs only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from negolab.costs import Account, Meter, dollars, tokens
from negolab.environment.base import BUYER, SELLER
from negolab.plan import Plan
from negolab.statistics import Accumulator
from negolab.store import EPISODES, scan

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REFRESH = 0.5  # seconds between two looks at the journals


class Row:
    """One seller's state. ``Row`` is a ``Watcher``; its numbers may be read from another thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "waits"
        """``waits``, ``plays``, ``done`` or ``not played``."""
        self.total = 0
        self.before = 0
        """Episodes that were there when this start began."""
        self.reward = Accumulator()
        self.deals = 0
        self.endings: Counter[str] = Counter()
        """Violations of the seller by kind, and ``aborted``."""
        self.account = Account({}, None)
        self._meter: Meter | None = None
        self._began = self._ended = 0.0
        self._lock = threading.Lock()

    # -- told by the run ----------------------------------------------------------------------------------------

    def begin(self, made: Plan, folder: Path) -> None:
        """See ``Watcher``."""
        self.total, self._meter = len(made.schedule), Meter(folder, made.models)
        path = folder / EPISODES
        if path.exists():
            self.add(line.raw for line in scan(path) if line.data is not None)
        self.before, self.status, self._began = self.reward.n, "plays", time.monotonic()

    def add(self, lines: Iterable[bytes]) -> None:
        """See ``Watcher``."""
        with self._lock:
            for line in lines:
                self._count(orjson.loads(line))

    def end(self) -> None:
        """See ``Watcher``."""
        self._ended = time.monotonic()
        self.look()
        self.status = "done" if self.reward.n == self.total else "not played"

    def _count(self, record: dict[str, Any]) -> None:
        self.reward.add(record["reward"], record["scenario"]["unit"])
        outcome = record["outcome"]
        self.deals += outcome["kind"] == "deal"
        learner = BUYER if record["scenario"].get("game") == "bilateral" else SELLER
        if outcome["kind"] == "violation" and outcome["seat"] == learner:
            self.endings[outcome["reason"]] += 1
        elif outcome["kind"] == "aborted":
            self.endings["aborted"] += 1

    # -- shown ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read on in the journals."""
        with self._lock:
            if self._meter is not None:
                self.account = self._meter.account()

    @property
    def done(self) -> int:
        """Episodes that are over, earlier starts' included."""
        return self.reward.n

    def rate(self) -> float | None:
        """Episodes a second in this start; None before the first."""
        fresh = self.done - self.before
        seconds = (time.monotonic() if self.status == "plays" else self._ended) - self._began
        return fresh / seconds if fresh > 0 and seconds > 0 else None

    def cells(self) -> list[str]:
        """The row's texts, in the order of ``HEAD``."""
        with self._lock:
            found, rate, used = self.reward.estimate(), self.rate(), self.account.used
            n, deals, endings = self.done, self.deals, dict(self.endings)
        if not self.total:
            return [self.name, self.status, *[""] * (len(HEAD) - 2)]
        left = "" if self.status != "plays" or not rate else _duration((self.total - n) / rate)
        bad = " ".join(f"{kind} {count}" for kind, count in sorted(endings.items(), key=lambda x: (-x[1], x[0])))
        asked = used.replies > 0
        return [
            self.name,
            f"{n}/{self.total}" + (f" ({self.before} before)" if self.before and self.status == "plays" else ""),
            "" if rate is None else f"{rate:.2f}" if rate < 100 else f"{rate:.0f}",
            left or ("" if self.status == "plays" else self.status),
            found.text() if n else "",
            f"{100 * deals / n:.1f}%" if n else "",
            bad,
            f"{tokens(used.prompt_tokens)} ({tokens(used.cached_tokens)})" if asked else "",
            tokens(used.completion_tokens) if asked else "",
            dollars(self.account.dollars) if asked else "",
        ]


HEAD = (
    "seller",
    "episodes",
    "per second",
    "left",
    "reward so far",
    "deals",
    "violations",
    "tokens in (cached)",
    "out",
    "cost",
)


def _duration(seconds: float) -> str:
    """``2:05`` or ``1:02:05``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Board:
    """The rows, and the terminal they are shown on, if there is one. A context manager."""

    def __init__(self, names: Sequence[str], console: Console | None = None) -> None:
        """``console``: where to show them; None: standard error, where that is a terminal."""
        self.rows = {name: Row(name) for name in names}
        self._console = console
        self._live: Live | None = None
        self._looked = 0.0

    def __enter__(self) -> Board:
        console = self._console
        if console is None and sys.stderr.isatty():
            from rich.console import Console

            console = Console(stderr=True)
        if console is not None and console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self.table, console=console, refresh_per_second=4, redirect_stdout=False, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()  # the last state goes too: what is printed next says it better

    @property
    def shown(self) -> bool:
        """Whether there is a terminal to see it."""
        return self._live is not None

    def table(self) -> RenderableType:
        """The rows as they are now."""
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        if now - self._looked > _REFRESH:
            self._looked = now
            for row in self.rows.values():
                if row.status == "plays":
                    row.look()
        table = Table(box=None, pad_edge=False)
        used = {i for row in self.rows.values() for i, cell in enumerate(row.cells()) if cell} | {0, 1}
        for i, name in enumerate(HEAD):
            if i in used:
                table.add_column(name, justify="left" if i in (0, 6) else "right", no_wrap=i != 6, overflow="ellipsis")
        for row in self.rows.values():
            style = {"plays": "bold", "waits": "dim", "not played": "red"}.get(row.status, "")
            # Text, not markup: a seller may be called "[red]".
            table.add_row(*(Text(cell) for i, cell in enumerate(row.cells()) if i in used), style=style)
        if len(self.rows) > 1:
            spent = [row.account.dollars for row in self.rows.values() if row.account.by_player]
            if spent:
                known = [value for value in spent if value is not None]
                more = "" if len(known) == len(spent) else " and what has no price"
                table.caption = f"cost so far: {dollars(sum(known))}{more}"
        return table
