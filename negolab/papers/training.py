"""How training went in the papers, and the rules by which phases are told in a run of ours.

The seller: 2607.05863, section 4 (figures 4 to 9, three phases). The buyer: 2604.09855, as others report it (four
phases). The published numbers lie in ``data/papers/<arXiv>/training_*.csv``; ``SOURCE.md`` there says where each is
from.

Neither paper says how it drew the line between two phases. Here a phase is what a stated rule finds in a run's own
curves, and a phase that the rule does not find is reported as absent: a smaller model that begins elsewhere need not go
through the paper's phases, nor in its order.

This module may be imported without pandas; only the functions that return frames need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from negolab.errors import NegolabError
from negolab.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

SELLER, BUYER = "2607.05863", "2604.09855"
TABLES = {
    SELLER: ("training_marks", "training_phases"),
    BUYER: ("results", "training_phases", "training_ranges"),
}
"""Files of published numbers on training, by paper."""
CURVES: tuple[tuple[str, int], ...] = (
    ("reward", 4),
    ("below_cost_rate", 5),
    ("deal_rate", 6),
    ("surplus_ratio", 7),
    ("distinct_buyers", 8),
    ("top_buyer_rate", 9),
)
"""The seller's training curves and the figures of 2607.05863 that show them."""
OPPONENTS = (50, 60, 70)
"""The buyer's steps whose checkpoints are the opponents of 2607.05863 (section 9.1 and table 12)."""

MIN_STEPS = 12
"""Below so many steps no phases are told."""
FLOOR = 0.02
"""Below-cost rate under which the cost floor counts as learnt: one episode in fifty."""
CLOSING = 0.75
"""Share of its final level that the deal rate has reached when closing counts as learnt."""
FEW = 0.05
"""A deal rate under which nobody closes."""
DIP, MOVE = 0.10, 0.02
"""A fall of the deal rate that is a deadlock; a change of the first-turn offer ratio that counts."""

SELLER_RULE = (
    "Phase 1 (cost floor) ends at the first step from which the moving mean of the below-cost rate stays under "
    f"{FLOOR}. Phase 2 (concentrated closing) ends when the moving mean of the deal rate first reaches {CLOSING:.0%} "
    "of its final level, the mean of the last tenth of the steps. Phase 3 (surplus and routing) is the rest."
)
BUYER_RULE = (
    f"There is a deadlock where the moving mean of the deal rate falls by {DIP:.2f} or more below its start. Phase 1 "
    "(aggressive anchoring) ends where half of that fall has happened, phase 2 (deadlock) where half of the way from "
    "the trough to the final level is made up. Phase 3 (rational concession) ends at the highest first-turn offer "
    f"ratio after that, phase 4 (advanced persuasion) is the rest if the ratio falls by {MOVE:.2f} or more in it."
)


class Phase(NamedTuple):
    """A phase, from ``first`` to ``last`` as the papers write it: the next one begins at ``last``."""

    number: int
    name: str
    first: int
    last: int


class Phases(NamedTuple):
    """What a rule found in a run's curves."""

    found: tuple[Phase, ...]
    notes: tuple[str, ...]
    """Which of the paper's phases are absent or out of its order, and why; empty where all is as in the paper."""
    window: int
    """Steps of the moving mean."""

    @property
    def text(self) -> str:
        """One line for each phase and note."""
        lines = [f"phase {p.number} ({p.name}): steps {p.first} to {p.last}" for p in self.found]
        return "\n".join([*lines, *self.notes])


# -- published numbers ----------------------------------------------------------------------------------------------


def table(arxiv: str, name: str) -> pd.DataFrame:
    """A published table on training, such as ``table(SELLER, "training_marks")``; a number not stated is NaN.

    Rates are fractions. Raises ``NegolabError`` for a table that is not in ``TABLES``.
    """
    import pandas as pd

    if name not in TABLES.get(arxiv, ()):
        known = "; ".join(f"{paper}: {', '.join(names)}" for paper, names in TABLES.items())
        raise NegolabError(f"no table {name!r} on training of arXiv {arxiv}; known: {known}")
    path = data_dir() / "papers" / arxiv / f"{name}.csv"
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise NegolabError(f"published table not found: {path}") from None
    numbers = [str(c) for c in frame.columns if c not in ("metric", "name", "source", "note")]
    return frame.assign(**{column: pd.to_numeric(frame[column]) for column in numbers})


def phases_of(arxiv: str) -> tuple[Phase, ...]:
    """The paper's own phases; the last one's ``last`` is where its training ends, or is known until."""
    rows = table(arxiv, "training_phases").to_dict("records")
    return tuple(Phase(int(r["phase"]), str(r["name"]), int(r["first_step"]), int(r["last_step"])) for r in rows)


# -- rules ----------------------------------------------------------------------------------------------------------


def window_of(steps: int) -> int:
    """Steps of the moving mean in a run of ``steps``: an odd number near a fourteenth, 3 at least (5 of 72)."""
    return max(3, 2 * round(steps / 36) + 1)


def moving_mean(values: Sequence[float | None], window: int) -> list[float]:
    """The centred moving mean over ``window`` (odd) values, over fewer at both ends; missing values (None, NaN) are
    left out, and where all are missing it is NaN."""
    half, made = window // 2, []
    for at in range(len(values)):
        near = [v for v in values[max(0, at - half) : at + half + 1] if v is not None and not math.isnan(v)]
        made.append(math.fsum(near) / len(near) if near else math.nan)
    return made


def seller_phases(below_cost: Sequence[float | None], deals: Sequence[float | None]) -> Phases:
    """The three phases of section 4.3.1 by ``SELLER_RULE``, from the below-cost rate and the deal rate of every step.

    Raises ``ValueError`` for curves of different lengths.
    """
    steps = _same_length(below_cost, deals)
    window = window_of(steps)
    if steps < MIN_STEPS:
        return Phases((), (_too_few(steps),), window)
    first, second, third = (phase.name for phase in phases_of(SELLER))
    floor, closing = moving_mean(below_cost, window), moving_mean(deals, window)
    final = _final(deals, window)
    learnt = _stays_under(floor, FLOOR)
    reached = next((at for at, rate in enumerate(closing) if final >= FEW and rate >= CLOSING * final), None)
    found: list[Phase] = []
    notes: list[str] = []
    if learnt == 0:
        notes.append(f"phase 1 is absent: from the start the below-cost rate is under {FLOOR}")
    else:
        found.append(Phase(1, first, 0, steps if learnt is None else learnt))
    if learnt is None:
        notes.append(f"phases 2 and 3 are absent: the below-cost rate does not come to stay under {FLOOR}")
    elif reached is None:
        notes.append(f"phases 2 and 3 are absent: at the end there is a deal in fewer than {FEW:.0%} of episodes")
    else:
        if reached > learnt:
            found.append(Phase(2, second, learnt, reached))
        else:
            notes.append(f"phase 2 is absent: {_early(reached, learnt)}")
        found.append(Phase(3, third, max(learnt, reached), steps))
    if learnt and reached is not None and reached < learnt:
        notes.append(f"the order is not the paper's: closing is learnt by step {reached}, the cost floor by {learnt}")
    elif learnt is None and reached is not None:
        notes.append(f"the order is not the paper's: closing is learnt by step {reached}, the cost floor never")
    return Phases(tuple(found), tuple(notes), window)


def _early(reached: int, learnt: int) -> str:
    when = "from the start" if reached == 0 else f"by step {reached}"
    then = "" if learnt == 0 else f", before the cost floor (step {learnt})"
    return f"the deal rate is at {CLOSING:.0%} of its final level {when}{then}"


def buyer_phases(first_offers: Sequence[float | None], deals: Sequence[float | None]) -> Phases:
    """The four phases of 2604.09855 by ``BUYER_RULE``, from the first-turn offer ratio and the deal rate of every step.

    Raises ``ValueError`` for curves of different lengths.
    """
    steps = _same_length(first_offers, deals)
    window = window_of(steps)
    if steps < MIN_STEPS:
        return Phases((), (_too_few(steps),), window)
    names = [phase.name for phase in phases_of(BUYER)]
    offers, closing = moving_mean(first_offers, window), moving_mean(deals, window)
    trough = min(range(steps), key=lambda at: (math.isnan(closing[at]), closing[at]))
    fall, rise = closing[0] - closing[trough], _final(deals, window) - closing[trough]
    if not fall >= DIP:
        text = f"no phases are told: there is no deadlock, the deal rate falls by {max(0.0, fall):.2f} at most"
        return Phases((), (text,), window)
    locked = next(at for at in range(trough + 1) if closing[at] <= closing[0] - fall / 2)
    found = [Phase(1, names[0], 0, locked)]
    notes = [] if offers[0] - offers[locked] >= MOVE else ["in phase 1 the first offers do not fall, as the paper's do"]
    if not rise >= DIP:
        notes.append(f"phases 3 and 4 are absent: after the deadlock the deal rate rises by {max(0.0, rise):.2f} only")
        return Phases((*found, Phase(2, names[1], locked, steps)), tuple(notes), window)
    freed = next((at for at in range(trough, steps) if closing[at] >= closing[trough] + rise / 2), steps - 1)
    found.append(Phase(2, names[1], locked, freed))
    later = [at for at in range(freed, steps) if not math.isnan(offers[at])]
    peak = max(later, key=lambda at: offers[at], default=steps)
    falls_again = bool(later) and offers[peak] - offers[later[-1]] >= MOVE
    end = peak if falls_again else steps
    if end > freed:
        found.append(Phase(3, names[2], freed, end))
    else:
        notes.append("phase 3 is absent: after the deadlock the first offers only fall")
    if falls_again:
        found.append(Phase(4, names[3], end, steps))
    else:
        notes.append("phase 4 is absent: the first offers do not fall again")
    return Phases(tuple(found), tuple(notes), window)


def _same_length(one: Sequence[object], other: Sequence[object]) -> int:
    if len(one) != len(other):
        raise ValueError(f"curves of {len(one)} and {len(other)} steps")
    return len(one)


def _too_few(steps: int) -> str:
    return f"no phases are told: {steps} steps are too few, at least {MIN_STEPS} are needed"


def _final(values: Sequence[float | None], window: int) -> float:
    """The level at the end: the mean of the last tenth, of ``window`` values at least; NaN without any."""
    last = [v for v in values[-max(window, len(values) // 10) :] if v is not None and not math.isnan(v)]
    return math.fsum(last) / len(last) if last else math.nan


def _stays_under(values: Sequence[float], limit: float) -> int | None:
    """The first position from which every value is under ``limit``; None where the last one is not."""
    over = [at for at, value in enumerate(values) if not value < limit]
    start = over[-1] + 1 if over else 0
    return start if start < len(values) else None


# -- the same share of training -------------------------------------------------------------------------------------


def same_share(step: float, steps_there: int, steps_here: int) -> float:
    """Where in a run of ``steps_here`` the same share of training is done as after ``step`` of ``steps_there``."""
    return step / steps_there * steps_here
