"""Which markets a training run meets: units of one split in training, of another in evaluations. A unit is a product,
or the cluster from which the items of a market of several are drawn.

Everything random of step k is a function of (seed, k): its units, markets and seats' words are the same whatever
happened before, so a resumed run meets the markets that an uninterrupted one meets. The rollouts of a group share the
market and the opponents' words of randomness; only the learner's own word differs.

Readings of the papers that are not spelled out there: a group shares its market draw (without that the group mean is no
baseline for it); units come in a seeded shuffle, epoch by epoch, and the last ones that do not fill a step are left out
of their epoch (802 products, 64 a step: 12 steps an epoch, as the phases of 2607.05863 suggest; 960 clusters of
2609.33289: 15 steps). An epoch draws one market of each cluster: three of its five products, others in the next epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from negolab.catalog import Catalog
from negolab.clusters import Cluster, ClusterCatalog
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.policies.base import Policy
from negolab.policies.cast import Cast
from negolab.policies.model import LanguageModel
from negolab.scenario import Regime, Scenario, Schedule, Unit, draw
from negolab.seeds import generator, mix
from negolab.store import new_manifest, products_bytes, products_of


class Weighted(NamedTuple):
    """A regime and how often it is drawn."""

    regime: Regime
    weight: float


def unit_of(regimes: Sequence[Regime]) -> str:
    """What a run on these regimes repeats, in a word: ``product`` or ``cluster``.

    Raises ``NegolabError`` where they have different ones, or different protocols: such a run would have no common
    catalogue, split or table of metrics.
    """
    first = regimes[0]
    for other in regimes[1:]:
        if (other.n_items > 1) != (first.n_items > 1) or other.protocol != first.protocol:
            raise NegolabError(
                f"regimes {first.name} ({_kind(first)}) and {other.name} ({_kind(other)}) cannot be trained in one "
                "run: their catalogues and metrics are others; train in one kind, then in the other from its model"
            )
    return "cluster" if first.n_items > 1 else "product"


def _kind(regime: Regime) -> str:
    items = "one item" if regime.n_items == 1 else f"{regime.n_items} items of a cluster"
    return f"{items}, replies in {regime.protocol}"


class Markets:
    """Draws the markets of training steps; any task may use it.

    Raises ``NegolabError`` for an empty split, no regime, or a weight that is not above 0.
    """

    def __init__(
        self, regimes: Sequence[Weighted], units: Sequence[Unit], *, seed: int, groups: int, group_size: int
    ) -> None:
        if not units:
            raise NegolabError("nothing to train on: the catalogue or the chosen split is empty")
        if not regimes or not all(0 < weighted.weight < float("inf") for weighted in regimes):
            raise NegolabError("a training task needs at least one regime, each with a weight above 0")
        self.regimes, self.units = tuple(regimes), tuple(units)
        self.seed, self.groups, self.group_size = seed, groups, group_size

    @property
    def steps_per_epoch(self) -> float:
        """Whole steps where the split fills at least one; else the share of a step that it fills."""
        n = len(self.units)
        return n // self.groups if n >= self.groups else n / self.groups

    def schedules(self) -> list[Schedule]:
        """Every unit once in each regime: what players are held against before a run (``Cast.check``)."""
        return [Schedule(w.regime, self.units, seed=self.seed, per_product=1) for w in self.regimes]

    def step(self, step: int, seat: int) -> list[Scenario]:
        """See ``Task.markets``; ``seat`` is the learner's."""
        made: list[Scenario] = []
        for group in range(self.groups):
            unit, epoch, place = self._unit(step, group)
            shared = draw(self._regime(place), unit, seed=self.seed, rep=epoch)
            for rollout in range(self.group_size):
                keys = list(shared.keys)
                keys[seat] = _own_word(keys[seat], rollout)
                made.append(shared._replace(episode=len(made), keys=tuple(keys)))
        return made

    def _unit(self, step: int, group: int) -> tuple[Unit, int, int]:
        """The unit of a group, its epoch, and the group's place in the whole training run."""
        n, place = len(self.units), step * self.groups + group
        if n >= self.groups:
            epoch, at = divmod(step, n // self.groups)
            position = at * self.groups + group
        else:
            epoch, position = divmod(place, n)
        order = generator(self.seed, "training products", epoch).permutation(n)
        return self.units[int(order[position])], epoch, place

    def _regime(self, place: int) -> Regime:
        total = sum(weighted.weight for weighted in self.regimes)
        aim = float(generator(self.seed, "training regime", place).random()) * total
        for weighted in self.regimes:
            aim -= weighted.weight
            if aim < 0:
                return weighted.regime
        return self.regimes[-1].regime


def _name(unit: Unit) -> str:
    return unit.name if isinstance(unit, Cluster) else unit.listing.codename


def _own_word(word: int, rollout: int) -> int:
    """The learner's word in one rollout of a group: 63 bits, another for each rollout."""
    return mix(mix(word) + rollout) >> 1


class ProductTask:
    """What tasks on a catalogue of products, or of clusters, have in common; the rest of ``task.Task`` is theirs."""

    name: str
    seat: int

    def __init__(
        self,
        catalog: Catalog | ClusterCatalog,
        regimes: Sequence[Weighted],
        evaluated: Sequence[Regime],
        *,
        seed: int,
        groups: int,
        group_size: int,
        train_split: str,
        eval_split: str,
        eval_products: int | None,
        eval_per_product: int,
    ) -> None:
        """``regimes`` are trained in, ``evaluated`` are held out, each by its own name; all of one kind (``unit_of``).
        ``catalog``: what ``plan.catalog_for`` gives for them. Raises ``NegolabError`` for a split or number that does
        not exist, and for splits that share a product or a cluster."""
        self._catalog, self._eval_split = catalog, eval_split
        self._unit = unit_of([*(weighted.regime for weighted in regimes), *evaluated])
        train: Sequence[Unit] = catalog.split(train_split)
        held: Sequence[Unit] = catalog.split(eval_split)[:eval_products]
        known = {product.listing.codename for product in products_of(train)}
        shared = [_name(unit) for unit in held if any(p.listing.codename in known for p in products_of([unit]))]
        if shared:
            raise NegolabError(f"{len(shared)} {self._unit}s are in both splits ({min(shared)}, ...)")
        self._markets = Markets(regimes, train, seed=seed, groups=groups, group_size=group_size)
        self.steps_per_epoch = self._markets.steps_per_epoch
        self._schedules = {r.name: Schedule(r, held, seed=seed, per_product=eval_per_product) for r in evaluated}
        self._of_files = {
            f"{part}_products_sha256": hashlib.sha256(products_bytes(units)).hexdigest()
            for part, split, units in (("train", train_split, train), ("eval", eval_split, held))
            if split != "all" and split not in catalog.splits  # those of the catalogue are known by its fingerprint
        }

    @property
    def opponents(self) -> Sequence[Policy]:
        """See ``Task``."""
        raise NotImplementedError

    def cast(self, regime: Regime, learner: Policy) -> Cast:
        """Everybody who plays in a regime."""
        raise NotImplementedError

    def markets(self, step: int) -> list[Scenario]:
        """See ``Task``."""
        return self._markets.step(step, self.seat)

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``."""
        raise NotImplementedError

    def evaluate(self, evaluation: str, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``: by those who play in training."""
        return self.play(scenarios, learner)

    def evaluations(self) -> Mapping[str, Schedule]:
        """See ``Task``."""
        return self._schedules

    def reward(self, episode: Episode) -> float:
        """The paper's, as the game has written it into the episode."""
        return episode.reward

    def check(self, learner: LanguageModel) -> list[str]:
        """See ``Task``."""
        told: list[str] = []
        for schedule in [*self._markets.schedules(), *self._schedules.values()]:
            told += [line for line in self.cast(schedule.regime, learner).check(schedule) if line not in told]
        return told

    def manifest(self, evaluation: str, learner: Policy) -> dict[str, Any]:
        """See ``Task``."""
        schedule = self._schedules[evaluation]
        cast = self.cast(schedule.regime, learner)
        settings = {
            "regime": schedule.regime.to_json(),
            "split": self._eval_split if set(self._eval_split.split("+")) <= {*self._catalog.splits, "all"} else "file",
            "per_product": schedule.per_product,
            "products": len(schedule.units),
            "seed": schedule.seed,
            "seller": f"learner:{learner.name}" if self.seat == SELLER else self.opponent_name(evaluation),
        }
        buyers = {kind: buyer.describe() for kind, buyer in cast.buyers.items()}
        players = {"seller": cast.seller.describe(), "buyers": buyers}
        return new_manifest(settings, players, self._data(), schedule.units, len(schedule))

    def opponent_name(self, evaluation: str) -> str:
        """The seller's name in an evaluation where the learner buys."""
        raise NotImplementedError

    def described(self, regimes: Sequence[Mapping[str, Any]], opponents: Mapping[str, Any]) -> dict[str, Any]:
        """``Task.describe``, made of what is trained in and of who plays against the learner."""
        return {
            "name": self.name,
            "seat": self.seat,
            "regimes": list(regimes),
            f"train_{self._unit}s": len(self._markets.units),
            **self._of_files,
            **opponents,
            "data": self._data(),
        }

    def close(self) -> None:
        """See ``Task``."""
        engines = {id(one.engine): one.engine for one in self.opponents if isinstance(one, LanguageModel)}
        for engine in engines.values():
            engine.close()

    def _data(self) -> dict[str, str]:
        catalog = self._catalog
        return {
            "name": catalog.name,
            "sha256": catalog.data_sha256,
            "codenames": catalog.rule,
            "fingerprint": catalog.fingerprint,
        }
