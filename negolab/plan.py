"""What decides a run: settings, checked, with everything they name loaded. Nothing is played here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from negolab.catalog import SAMPLE, Catalog, load_catalog
from negolab.clusters import FILE_TYPES, ClusterCatalog, load_clusters
from negolab.errors import NegolabError
from negolab.policies.base import Policy
from negolab.policies.cast import Cast, make_cast
from negolab.policies.registry import is_scripted
from negolab.policies.spec import ModelSpec
from negolab.scenario import Regime, Schedule, Unit, regime
from negolab.store import new_manifest


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides a run's episodes. Two runs with equal settings, data and code are equal to the byte."""

    seller: str | ModelSpec
    """The selling policy: a name (see ``policies.registry.make_seller``) or a language model."""
    regime: str = "in_distribution"
    """Name of the regime."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Overridden regime knobs (``Regime``'s fields)."""
    split: str = "test"
    """``train``, ``test``, ``all``, with clusters also ``held_out``, or the path of a JSON list of names."""
    per_product: int = 2
    """Episodes for each product, or cluster of products (the paper's group size at evaluation)."""
    products: int | None = None
    """Play only the split's first so many products, or clusters; None: all."""
    seed: int = 0
    buyers: Mapping[str, str | ModelSpec] = field(default_factory=dict)
    """Language models by buyer type; ``"*"`` stands for every type not named. Types without one are scripted. The
    bilateral game has one type, ``learner``, the trade game ``trader``, and a model or a player's name for it."""


@dataclass(slots=True)
class Plan:
    """Checked settings with everything they name loaded."""

    settings: Settings
    catalog: Catalog | ClusterCatalog
    schedule: Schedule
    max_cost: float | None = None
    """No further episode is begun once the run has used so many dollars; None: no limit."""
    _cast: Cast | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> tuple[Settings, Catalog | ClusterCatalog, Schedule, float | None]:
        return self.settings, self.catalog, self.schedule, self.max_cost  # players are made anew in every process

    def __setstate__(self, state: tuple[Settings, Catalog | ClusterCatalog, Schedule, float | None]) -> None:
        self.settings, self.catalog, self.schedule, self.max_cost = state
        self._cast = None

    @property
    def warnings(self) -> list[str]:
        """What a user should know before trusting the numbers."""
        left_out = [f"left out: {problem}" for problem in self.catalog.problems]
        asked, there = self.settings.products, len(self.schedule.units)
        what = "products" if self.schedule.regime.n_items == 1 else "clusters"
        short = [f"the split has {there} {what}, not {asked}"] if asked is not None and there < asked else []
        return [*self.catalog.notes, *left_out, *short, *self.schedule.regime.warnings]

    def cast(self) -> Cast:
        """The players. Language models are named and checked, but load only when they are first asked."""
        if self._cast is None:
            self._cast = make_cast(self.settings.seller, self.settings.buyers, self.schedule)
        return self._cast

    @property
    def models(self) -> dict[str, ModelSpec]:
        """The language models by the names they play under."""
        return {model.name: model.spec for model in self.cast().models}

    @property
    def scripted(self) -> bool:
        """Whether all players are this package's scripted ones, who can be asked again."""
        buyers = self.settings.buyers.values()
        sides = (("seller", self.settings.seller), *(("buyer", buyer) for buyer in buyers))
        return all(self._is_scripted(side, player) for side, player in sides)

    def _is_scripted(self, side: str, player: object) -> bool:
        return is_scripted(side, player, self.schedule.regime.game, self.schedule.regime.protocol)

    @property
    def who(self) -> str:
        """Who plays against whom, and what kind of players they are."""
        cast = self.cast()
        if self.schedule.regime.game != "market":
            (buyer,), (named,) = cast.buyers.values(), self.settings.buyers.values()
            buys = f"{buyer.name} ({self._kind('buyer', buyer, named)})"
            sells = f"{cast.seller.name} ({self._kind('seller', cast.seller, self.settings.seller)})"
            # Who is evaluated comes first; where both are, who begins.
            return f"{sells} sells to {buys}" if self.schedule.regime.game == "trade" else f"{buys} buys from {sells}"
        modelled = [kind for kind, buyer in cast.buyers.items() if buyer in cast.models]
        own = "scripted" if self._is_scripted("seller", self.settings.seller) else "your own"
        seller = "language model" if cast.seller in cast.models else own
        name = self.settings.seller if own == "your own" and seller == own else cast.seller.name
        names = ", ".join(dict.fromkeys(cast.buyers[kind].name for kind in modelled))
        if not modelled:
            return f"{name} ({seller}) against scripted buyers"
        mixed = " and scripted ones" if len(modelled) < len(cast.buyers) else ""
        return f"{name} ({seller}) against {names} (language model){mixed} as buyers"

    def _kind(self, side: str, player: Policy, named: str | ModelSpec) -> str:
        """What kind of player plays a side of a game of two."""
        if player in self.cast().models:
            return "language model"
        return "scripted" if self._is_scripted(side, named) else "your own"

    def manifest(self) -> dict[str, Any]:
        """The run's manifest."""
        seller, buyers = self.cast().seller, self.cast().buyers
        settings = {**asdict(self.settings), "regime": self.schedule.regime.to_json()}
        del settings["knobs"], settings["buyers"]  # contained in the regime and the players
        if isinstance(self.settings.seller, ModelSpec):
            settings["seller"] = f"{self.settings.seller.engine}:{self.settings.seller.label}"
        settings["products"] = len(self.schedule.units)
        if self.settings.split != "all" and not set(self.settings.split.split("+")) <= set(self.catalog.splits):
            settings["split"] = "file"  # not its path: the products themselves are part of the run
        players = {"seller": seller.describe(), "buyers": {kind: p.describe() for kind, p in buyers.items()}}
        data = {
            # A folder's name as text in every locale: what is not UTF-8 could not be stored.
            "name": os.fsencode(self.catalog.name).decode("utf-8", "replace"),
            "sha256": self.catalog.data_sha256,
            "codenames": self.catalog.rule,
            "fingerprint": self.catalog.fingerprint,
        }
        return new_manifest(settings, players, data, self.schedule.units, len(self.schedule))


def catalog_for(drawn: Regime, data: str | Path) -> Catalog | ClusterCatalog:
    """What the regime's markets are drawn from: products, or clusters of them where several items are sold or
    valuations are correlated. Raises ``NegolabError`` for a source that cannot be used."""
    if drawn.n_items > 1 or drawn.item_correlation or drawn.buyer_correlation:
        return load_clusters(data)
    if Path(data).suffix.lower() in FILE_TYPES and Path(data).is_file():
        raise NegolabError(
            f"{data} is a file: markets of one item are drawn from a catalogue's folder (or `sample`, `auto`); a file "
            "of clusters goes with several items (a regime multi_*, or 2 items and more)"
        )
    return load_catalog(data)


def plan(settings: Settings, data: str | Path | Catalog | ClusterCatalog = SAMPLE) -> Plan:
    """Load what the settings name and check them. Raises ``NegolabError`` for the first thing that is wrong."""
    knobs = {k: v for k, v in settings.knobs.items() if v is not None}
    chosen = regime(settings.regime, **knobs)
    if settings.products is not None and (type(settings.products) is not int or settings.products < 1):
        raise NegolabError(f"products is {settings.products!r}; allowed: a whole number from 1, or nothing for all")
    catalog = data if isinstance(data, Catalog | ClusterCatalog) else catalog_for(chosen, data)
    units: Sequence[Unit] = catalog.split(settings.split)[: settings.products]
    schedule = Schedule(chosen, units, seed=settings.seed, per_product=settings.per_product)
    made = Plan(settings, catalog, schedule)
    made.cast()  # an unknown player is an error now, not after the folder exists
    return made
