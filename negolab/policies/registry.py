"""Which scripted players there are, and how to make them by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from negolab.errors import NegolabError
from negolab.policies.base import Policy
from negolab.policies.scripted_buyers import BUYER_TYPES, ScriptedBuyer
from negolab.policies.scripted_sellers import (
    GreedySeller,
    OracleSeller,
    ProberSeller,
    RandomSeller,
    SatisficerSeller,
)
from negolab.scenario import Schedule


def _budgets_of(schedule: Schedule) -> Callable[[int], Sequence[int]]:
    """Budgets by episode; some thousands are kept, since drawing a market anew costs more than playing a turn."""

    @lru_cache(maxsize=4096)
    def budgets(episode: int) -> Sequence[int]:
        return schedule[episode].budgets

    return budgets


_MAKERS: Mapping[str, Callable[[Schedule], Policy]] = {
    "random": lambda schedule: RandomSeller(),
    "satisficer": lambda schedule: SatisficerSeller(),
    "greedy": lambda schedule: GreedySeller(),
    "prober": lambda schedule: ProberSeller(),
    "oracle": lambda schedule: OracleSeller(_budgets_of(schedule)),
}

SELLERS: tuple[str, ...] = tuple(_MAKERS)
"""Names of the scripted sellers, from the weakest to the upper reference."""
BUYERS: tuple[str, ...] = tuple(BUYER_TYPES)
"""Names of the scripted buyer types."""


def make_seller(name: str, schedule: Schedule) -> Policy:
    """The scripted seller ``name`` for the run over ``schedule``, which only ``oracle`` looks into.

    Raises ``NegolabError`` for a name that does not exist.
    """
    if name not in _MAKERS:
        raise NegolabError(f"unknown seller {name!r}; allowed: {', '.join(SELLERS)}")
    return _MAKERS[name](schedule)


def make_buyers(types: Iterable[str]) -> dict[str, Policy]:
    """One scripted buyer per type named. Raises ``NegolabError`` for a type that does not exist."""
    return {name: ScriptedBuyer(name) for name in types}
