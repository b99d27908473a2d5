"""Players by name: the scripted ones, a user's own, and language models."""

import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.policies.base import Policy
from negolab.policies.engine import TextEngine
from negolab.policies.model import LanguageModel
from negolab.policies.scripted_bilateral import (
    BILATERAL_BUYERS,
    BILATERAL_SELLERS,
    BilateralBuyer,
    PersonaSeller,
)
from negolab.policies.scripted_buyers import BUYER_TYPES, ScriptedBuyer
from negolab.policies.scripted_item_buyers import ItemBuyer
from negolab.policies.scripted_item_matching import ItemOracleSeller, ScreenerSeller
from negolab.policies.scripted_items import EarlyCloserSeller, ItemRandomSeller, ItemSatisficerSeller
from negolab.policies.scripted_sellers import (
    GreedySeller,
    OracleSeller,
    ProberSeller,
    RandomSeller,
    SatisficerSeller,
)
from negolab.policies.scripted_traders import TRADERS, Trader
from negolab.policies.spec import ENGINES, ModelSpec, located
from negolab.scenario import PERSONAS, Schedule


def _budgets_of(schedule: Schedule) -> Callable[[int], Sequence[int]]:
    """Budgets by episode; some thousands are kept, since drawing a market anew costs more than playing a turn."""

    @lru_cache(maxsize=4096)
    def budgets(episode: int) -> Sequence[int]:
        return schedule[episode].budgets

    return budgets


def _valuations_of(schedule: Schedule) -> Callable[[int], Sequence[Sequence[int]]]:
    """The same of several items: valuations by episode, by buyer, then by item."""

    @lru_cache(maxsize=4096)
    def valuations(episode: int) -> Sequence[Sequence[int]]:
        return schedule[episode].valuations

    return valuations


_MAKERS: Mapping[str, Callable[[Schedule], Policy]] = {
    "random": lambda schedule: RandomSeller(),
    "satisficer": lambda schedule: SatisficerSeller(),
    "greedy": lambda schedule: GreedySeller(),
    "prober": lambda schedule: ProberSeller(),
    "oracle": lambda schedule: OracleSeller(_budgets_of(schedule)),
}

_ITEM_MAKERS: Mapping[str, Callable[[Schedule], Policy]] = {
    "random": lambda schedule: ItemRandomSeller(),
    "satisficer": lambda schedule: ItemSatisficerSeller(),
    "early-closer": lambda schedule: EarlyCloserSeller(),
    "screener": lambda schedule: ScreenerSeller(),
    "oracle": lambda schedule: ItemOracleSeller(_valuations_of(schedule)),
}

SELLERS: tuple[str, ...] = tuple(_MAKERS)
"""Names of the scripted sellers, from the weakest to the upper reference."""
ITEM_SELLERS: tuple[str, ...] = tuple(_ITEM_MAKERS)
"""The same where replies are written with tags, as in the market of several items."""
BUYERS: tuple[str, ...] = tuple(BUYER_TYPES)
"""Names of the scripted buyer types."""


def make_seller(name: str, schedule: Schedule) -> Policy:
    """The seller ``name`` for the run over ``schedule``, which only ``oracle`` looks into.

    ``name`` is a scripted seller's (``SELLERS``, or ``ITEM_SELLERS`` where the regime's protocol is ``tags``), or
    ``module:factory`` for a player of the user's own: what ``factory()`` returns, the module found as Python finds it
    or in the current folder. By name, so that every worker process can make it.
    Raises ``NegolabError`` for a name that does not exist and for something that is no player.
    """
    makers = _ITEM_MAKERS if schedule.regime.protocol == "tags" else _MAKERS
    if name in makers:
        return makers[name](schedule)
    module, colon, factory = name.partition(":")
    if not (colon and module and factory):
        elsewhere = ""
        if name in _MAKERS or name in _ITEM_MAKERS:
            elsewhere = (
                f" (it plays markets written with {'lines' if name in _MAKERS else 'tags: the regimes multi_*'})"
            )
        raise NegolabError(
            f"unknown seller {name!r}{elsewhere}; allowed: {', '.join(makers)}, module:factory for one of your own, or "
            f"a language model as {', '.join(f'{engine}:MODEL' for engine in ENGINES)}"
        )
    return _own_player("seller", module, factory, {*makers, *BUYERS})


def make_bilateral(side: str, name: str) -> Policy:
    """The ``side`` (``seller`` or ``buyer``) of the bilateral game: a scripted player, or ``module:factory``.

    Raises ``NegolabError`` for a name that does not exist and for something that is no player.
    """
    scripted = BILATERAL_SELLERS if side == "seller" else BILATERAL_BUYERS
    shown = (*scripted, *PERSONAS) if side == "seller" else scripted
    if name in scripted:
        return PersonaSeller() if side == "seller" else BilateralBuyer(name)
    module, colon, factory = name.partition(":")
    if not (colon and module and factory):
        raise NegolabError(
            f"unknown {side} {name!r} of the bilateral game; allowed: {', '.join(shown)}, module:factory for one of "
            f"your own, or a language model as {', '.join(f'{engine}:MODEL' for engine in ENGINES)}"
        )
    return _own_player(side, module, factory, {*BILATERAL_SELLERS, *BILATERAL_BUYERS})


def make_trader(side: str, name: str) -> Policy:
    """The ``side`` (``seller`` or ``buyer``) of the trade game: a scripted player, or ``module:factory``.

    Raises ``NegolabError`` for a name that does not exist and for something that is no player.
    """
    if name in TRADERS:
        return Trader(name)
    module, colon, factory = name.partition(":")
    if not (colon and module and factory):
        raise NegolabError(
            f"unknown {side} {name!r} of the trade game; allowed: {', '.join(TRADERS)}, module:factory for one of your "
            f"own, or a language model as {', '.join(f'{engine}:MODEL' for engine in ENGINES)}"
        )
    return _own_player(side, module, factory, TRADERS)


def make_side(game: str, side: str, name: str) -> Policy:
    """The ``side`` (``seller`` or ``buyer``) of a game of two (``bilateral`` or ``trade``), by name. Raises
    ``NegolabError`` for a name that does not exist and for something that is no player."""
    return make_trader(side, name) if game == "trade" else make_bilateral(side, name)


def is_scripted(side: str, name: object, game: str, protocol: str = "lines") -> bool:
    """Whether ``name`` is one of this package's players for the ``side`` (``seller`` or ``buyer``) of ``game``, where
    replies are written in ``protocol``."""
    if game == "market":
        sellers = ITEM_SELLERS if protocol == "tags" else SELLERS
        return name in (sellers if side == "seller" else BUYERS)
    if game == "trade":
        return name in TRADERS
    return name in (BILATERAL_SELLERS if side == "seller" else BILATERAL_BUYERS)


def _own_player(side: str, module: str, factory: str, taken: Collection[str]) -> Policy:
    name = f"{module}:{factory}"
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made: Policy = getattr(importlib.import_module(module), factory)()
        described = made.describe()
    except (Exception, SystemExit) as error:  # the user's own code may fail in any way
        raise NegolabError(f"{side} {name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(described, dict) or described.get("name") != made.name:
        raise NegolabError(f"{side} {name}: describe() must return a dictionary whose 'name' is the player's name")
    if not isinstance(made.name, str) or not made.name.strip():
        raise NegolabError(f"{side} {name}: its name is {made.name!r}; allowed: any text that is not empty")
    if made.name in taken:
        raise NegolabError(f"{side} {name} calls itself {made.name!r}, which is a scripted player's name")
    if not callable(getattr(made, "reply", None)):
        raise NegolabError(f"{side} {name} has no method reply(requests)")
    return made


def make_engine(specs: Sequence[ModelSpec]) -> TextEngine:
    """The engine for models that differ in sampling and adapter only. Loads no weights yet.

    Raises ``NegolabError`` where the engine's package is not installed, or the model cannot be used.
    """
    module = importlib.import_module(f"negolab.policies.{specs[0].engine}")
    made: TextEngine = module.make_engine(specs)
    return made


def make_models(specs: Iterable[ModelSpec]) -> dict[ModelSpec, LanguageModel]:
    """A player for each; those that can share one engine do."""
    alike: dict[tuple[Any, ...], list[ModelSpec]] = {}
    for spec in specs:
        alike.setdefault(spec.engine_key(), []).append(spec)
    made: dict[ModelSpec, LanguageModel] = {}
    for group in alike.values():
        different = list(dict.fromkeys(group))
        # A server has its own names; only what this process loads lies somewhere.
        here = [replace(spec, model=located(spec.model)) for spec in different if spec.engine != "openai"]
        engine = make_engine(here or different)
        made |= {spec: LanguageModel(spec, engine) for spec in different}
    return made


def make_buyers(types: Iterable[str], protocol: str = "lines") -> dict[str, Policy]:
    """One scripted buyer per type named, who writes in ``protocol`` (``lines`` or ``tags``). Raises ``NegolabError``
    for a type that does not exist."""
    return {name: ItemBuyer(name) if protocol == "tags" else ScriptedBuyer(name) for name in types}
