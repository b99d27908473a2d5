"""When a request is tried again, how long to wait before, and when a server is given up.

Waits double from try to try and are drawn from the upper half of their span, so that requests that failed together do
not come back together. A wait that the server itself asks for (``Retry-After``) is kept, up to a limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may pass by themselves; every status from 500 may."""


def may_pass(status: int) -> bool:
    """Whether the same request may be answered another time."""
    return status in AGAIN or status >= 500


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between tries."""

    first: float = 0.5
    """Before the second try."""
    limited: float = 2.0
    """The same after a rate limit that came without a time: limits are counted by the minute."""
    most: float = 60.0
    """The longest wait of our own choice."""
    told: float = 300.0
    """The longest wait that a server may ask for; a longer one is cut to this."""

    def seconds(self, failed: int, limited: bool, chance: float) -> float:
        """The wait after ``failed`` tries (from 1); ``chance`` from 0 to 1 places it in its span."""
        span = min((self.limited if limited else self.first) * 2.0 ** min(failed - 1, 30), self.most)
        return span * (0.5 + 0.5 * chance)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a server asks to wait, None where it does not say or is not understood.

    ``headers`` must find names in any case. ``Retry-After`` is seconds or a date (``now``: the time in seconds since
    the epoch, for dates); ``retry-after-ms`` is what some servers send beside it, more exactly.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            found = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        if 0 <= found < float("inf"):
            return found
    try:
        date = parsedate_to_datetime(headers.get("retry-after") or "")
        return max(0.0, date.timestamp() - (time.time() if now is None else now))
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return None


class Circuit:
    """Counts requests that ended without a reply, in a row."""

    def __init__(self, most: int) -> None:
        self.most = most
        """How many in a row open it."""
        self.row = 0
        """How many it has been now."""

    def good(self) -> None:
        """A request was answered."""
        self.row = 0

    def bad(self) -> bool:
        """A request was not, in all its tries; True when it is time to stop."""
        self.row += 1
        return self.row >= self.most
