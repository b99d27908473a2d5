"""Which columns a panel's table has: those of the market that it plays, of one item or of several.

The columns are the papers' own: tables 1 and 9 of 2607.05863 for replies written in lines, table 1 of 2609.33289 for
replies written with tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from negolab.metrics import METRICS, SIX, VIOLATIONS, Metric, metrics_of
from negolab.metrics.items import VIOLATIONS as ITEM_VIOLATIONS
from negolab.papers.tables import TABLE_METRICS
from negolab.scenario import REGIMES, Regime


@dataclass(frozen=True, slots=True)
class Columns:
    """A table's metrics, by their names in ``metrics``."""

    metrics: Mapping[str, Metric]
    """All metrics of the market."""
    main: tuple[str, ...]
    """Columns of the table."""
    short: tuple[str, ...]
    """Their heads on the terminal."""
    compared: tuple[str, ...]
    """Metrics whose differences to the baseline are in the CSV file."""
    kinds: tuple[str, ...]
    """Rates of the seller's violations, by kind."""
    more: tuple[str, ...]
    """Further metrics in the CSV file."""
    unit: str = "product"
    """What is repeated, and what standard errors are clustered by: ``product`` or ``cluster``."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics in the CSV file, in order."""
        return (*self.main, *(kind for kind in self.kinds if kind not in self.main), *self.more)


_ONE_ITEM = Columns(
    metrics=METRICS,
    main=(*TABLE_METRICS, "violation_rate"),
    short=("reward", "surplus", "deals", "buyers", "top buyer", "below cost", "violations"),
    compared=TABLE_METRICS,
    kinds=tuple("below_cost_rate" if kind == "below_cost" else f"violation_{kind}" for kind in VIOLATIONS),
    more=("aborted_rate", "reward_bound"),
)
_TAGS = Columns(
    metrics=metrics_of("market", "tags"),
    main=SIX,
    short=("reward", "items sold", "violations", "surplus", "coverage", "top buyer"),
    compared=SIX,
    kinds=tuple(f"violation_{kind}" for kind in ITEM_VIOLATIONS),
    more=("items_sold", "distinct_buyers", "aborted_rate", "reward_bound"),
)
_TAGS_CLUSTERS = Columns(
    _TAGS.metrics, _TAGS.main, _TAGS.short, _TAGS.compared, _TAGS.kinds, _TAGS.more, unit="cluster"
)


def columns_of(drawn: Regime) -> Columns:
    """The columns of the regime's market."""
    if drawn.protocol == "lines":
        return _ONE_ITEM
    return _TAGS_CLUSTERS if drawn.n_items > 1 else _TAGS


def changes(name: str, drawn: Regime) -> str:
    """What differs from the regime ``name``, in words; empty where nothing does."""
    usual = REGIMES[name]
    knobs = [f.name for f in fields(Regime) if f.name != "name" and getattr(drawn, f.name) != getattr(usual, f.name)]
    return ", ".join(f"{knob} {_plain(getattr(drawn, knob))}" for knob in knobs)


def _plain(value: object) -> str:
    """A knob's value as it is written on the command line."""
    if value is None:
        return "free"
    if isinstance(value, tuple):
        pair = len(value) == 2 and not isinstance(value[0], str | tuple)
        return ("-" if pair else ",").join(map(_plain, value))
    return str(value)
