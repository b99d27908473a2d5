"""What is learnt: which seat, on which markets, against whom, for which reward.

``Task`` is all that the training loop knows of a paper. ``SellerTask`` is the seller of 2607.05863 (sections 3, 9.2).

Everything random of step k is a function of (seed, k): its products, markets and seats' words are the same whatever
happened before, so a resumed run meets the markets that an uninterrupted one meets. The rollouts of a group share the
market and the opponents' words of randomness; only the learner's own word differs.

Readings of the paper that are not spelled out there: a group shares its market draw (without that the group mean is no
baseline for it); products come in a seeded shuffle, epoch by epoch, and the last products that do not fill a step are
left out of their epoch (802 products, 64 a step: 12 steps an epoch, as the paper's phases suggest).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from negolab.catalog import Catalog, Product
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import METRICS, Metric
from negolab.policies.base import Policy
from negolab.policies.cast import Cast
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers, make_models
from negolab.policies.spec import ModelSpec
from negolab.rollout import play
from negolab.scenario import Regime, Scenario, Schedule, draw
from negolab.seeds import generator, mix
from negolab.store import new_manifest


class Task(Protocol):
    """What is learnt. One instance serves a whole run; it may hold opponents that are language models."""

    name: str
    """For manifests and messages."""
    seat: int
    """The learner's, in every market: 0 the seller, 1..N the buyers."""
    steps_per_epoch: float
    """Steps in which every product of the train split comes once."""

    @property
    def opponents(self) -> Sequence[Policy]:
        """All who play against the learner. A sampler's own engine may play those that are the learner's model."""
        ...

    def markets(self, step: int) -> list[Scenario]:
        """The markets of one step, ``groups`` times ``group_size``, group by group. ``Scenario.episode`` counts from 0
        within the step. A function of the run's seed and ``step`` only."""
        ...

    def evaluations(self) -> Mapping[str, Schedule]:
        """The held-out markets by the name of their regime, the same at every evaluation."""
        ...

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """Play with ``learner`` in its seat; episodes come as they end, not in order."""
        ...

    def reward(self, episode: Episode) -> float:
        """What the learner is paid for an episode."""
        ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Columns of ``metrics.csv`` and ``eval.csv`` that are means over episodes."""
        ...

    def check(self, learner: LanguageModel) -> list[str]:
        """Hold the learner and the opponents against the longest conversations. Returns what a user should know;
        raises ``NegolabError`` for what cannot work."""
        ...

    def manifest(self, evaluation: str, learner: Policy) -> dict[str, Any]:
        """The manifest of the run folder that holds an evaluation's episodes (``store.new_manifest``)."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data for the training run's manifest: everything that decides markets, opponents and reward."""
        ...

    def close(self) -> None:
        """Give back what the opponents hold."""
        ...


class Weighted(NamedTuple):
    """A regime and how often it is drawn."""

    regime: Regime
    weight: float


class Markets:
    """Draws the markets of training steps; any task may use it.

    Raises ``NegolabError`` for an empty split, no regime, or a weight that is not above 0.
    """

    def __init__(
        self, regimes: Sequence[Weighted], products: Sequence[Product], *, seed: int, groups: int, group_size: int
    ) -> None:
        if not products:
            raise NegolabError("no products to train on: the catalogue or the chosen split is empty")
        if not regimes or not all(0 < weighted.weight < float("inf") for weighted in regimes):
            raise NegolabError("a training task needs at least one regime, each with a weight above 0")
        self.regimes, self.products = tuple(regimes), tuple(products)
        self.seed, self.groups, self.group_size = seed, groups, group_size

    @property
    def steps_per_epoch(self) -> float:
        """Whole steps where the split fills at least one; else the share of a step that it fills."""
        n = len(self.products)
        return n // self.groups if n >= self.groups else n / self.groups

    def schedules(self) -> list[Schedule]:
        """Every product once in each regime: what players are held against before a run (``Cast.check``)."""
        return [Schedule(w.regime, self.products, seed=self.seed, per_product=1) for w in self.regimes]

    def step(self, step: int, seat: int) -> list[Scenario]:
        """See ``Task.markets``; ``seat`` is the learner's."""
        made: list[Scenario] = []
        for group in range(self.groups):
            product, epoch, place = self._product(step, group)
            shared = draw(self._regime(place), product, seed=self.seed, rep=epoch)
            for rollout in range(self.group_size):
                keys = list(shared.keys)
                keys[seat] = _own_word(keys[seat], rollout)
                made.append(shared._replace(episode=len(made), keys=tuple(keys)))
        return made

    def _product(self, step: int, group: int) -> tuple[Product, int, int]:
        """The product of a group, its epoch, and the group's place in the whole training run."""
        n, place = len(self.products), step * self.groups + group
        if n >= self.groups:
            epoch, at = divmod(step, n // self.groups)
            position = at * self.groups + group
        else:
            epoch, position = divmod(place, n)
        order = generator(self.seed, "training products", epoch).permutation(n)
        return self.products[int(order[position])], epoch, place

    def _regime(self, place: int) -> Regime:
        total = sum(weighted.weight for weighted in self.regimes)
        aim = float(generator(self.seed, "training regime", place).random()) * total
        for weighted in self.regimes:
            aim -= weighted.weight
            if aim < 0:
                return weighted.regime
        return self.regimes[-1].regime


def _own_word(word: int, rollout: int) -> int:
    """The learner's word in one rollout of a group: 63 bits, another for each rollout."""
    return mix(mix(word) + rollout) >> 1


class SellerTask:
    """Learn to sell (2607.05863): reward of equation (1), sealed buyers by type. See ``Task``."""

    name = "seller"
    seat = SELLER

    def __init__(
        self,
        catalog: Catalog,
        regimes: Sequence[Weighted],
        *,
        seed: int,
        groups: int,
        group_size: int,
        buyers: Mapping[str, ModelSpec] | None = None,
        train_split: str = "train",
        eval_split: str = "test",
        eval_products: int | None = None,
        eval_per_product: int = 2,
    ) -> None:
        """``buyers``: language models by buyer type, ``"*"`` for all types not named; the others are scripted.

        Raises ``NegolabError`` for a split, type or number that does not exist.
        """
        self._catalog = catalog
        self._splits = (train_split, eval_split)
        train, held = catalog.split(train_split), catalog.split(eval_split)[:eval_products]
        shared = {p.listing.codename for p in train} & {p.listing.codename for p in held}
        if shared:
            raise NegolabError(f"{len(shared)} products are in both splits ({min(shared)}, ...)")
        self._markets = Markets(regimes, train, seed=seed, groups=groups, group_size=group_size)
        self.steps_per_epoch = self._markets.steps_per_epoch
        other = next((w.regime for w in regimes if w.regime.game != "market"), None)
        if other is not None:  # there the buyer is paid, and the seller guarded
            raise NegolabError(f"regime {other.name}: the task seller learns in markets, not in the {other.game} game")
        names = [weighted.regime.name for weighted in regimes]
        if len(set(names)) < len(names):
            raise NegolabError(f"two regimes of a training task have the same name: {', '.join(names)}")
        self._schedules = {
            weighted.regime.name: Schedule(weighted.regime, held, seed=seed, per_product=eval_per_product)
            for weighted in regimes
        }
        self._buyers = opponents([w.regime for w in regimes], buyers or {})

    @property
    def opponents(self) -> Sequence[Policy]:
        """See ``Task``."""
        return list(self._buyers.values())

    def markets(self, step: int) -> list[Scenario]:
        """See ``Task``."""
        return self._markets.step(step, self.seat)

    def evaluations(self) -> Mapping[str, Schedule]:
        """See ``Task``."""
        return self._schedules

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``."""
        return play(scenarios, learner, self._buyers)

    def reward(self, episode: Episode) -> float:
        """Equation (1), as the episode holds it."""
        return episode.reward

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """See ``Task``."""
        return METRICS

    def check(self, learner: LanguageModel) -> list[str]:
        """See ``Task``."""
        told: list[str] = []
        for schedule in [*self._markets.schedules(), *self._schedules.values()]:
            cast = Cast(learner, {kind: self._buyers[kind] for kind in schedule.regime.buyer_types})
            told += [line for line in cast.check(schedule) if line not in told]
        return told

    def manifest(self, evaluation: str, learner: Policy) -> dict[str, Any]:
        """See ``Task``."""
        schedule = self._schedules[evaluation]
        kinds = schedule.regime.buyer_types
        settings = {
            "regime": schedule.regime.to_json(),
            "split": self._splits[1] if self._splits[1] in self._catalog.splits else "file",
            "per_product": schedule.per_product,
            "products": len(schedule.products),
            "seed": schedule.seed,
            "seller": f"learner:{learner.name}",
        }
        players = {"seller": learner.describe(), "buyers": {kind: self._buyers[kind].describe() for kind in kinds}}
        return new_manifest(settings, players, self._data(), schedule.products, len(schedule))

    def describe(self) -> dict[str, Any]:
        """See ``Task``."""
        markets = self._markets
        return {
            "name": self.name,
            "seat": self.seat,
            "regimes": [{**w.regime.to_json(), "weight": w.weight} for w in markets.regimes],
            "train_products": len(markets.products),
            "buyers": {kind: buyer.describe() for kind, buyer in self._buyers.items()},
            "data": self._data(),
        }

    def close(self) -> None:
        """See ``Task``."""
        engines = {id(b.engine): b.engine for b in self._buyers.values() if isinstance(b, LanguageModel)}
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


def opponents(regimes: Sequence[Regime], models: Mapping[str, ModelSpec]) -> dict[str, Policy]:
    """The buyers of all ``regimes`` by type: ``models`` by type (``"*"``: every type not named), the others scripted.

    Raises ``NegolabError`` for a type that no regime has.
    """
    types = list(dict.fromkeys(kind for regime in regimes for kind in regime.buyer_types))
    for kind in models:
        if kind != "*" and kind not in types:
            raise NegolabError(f"no buyer of type {kind!r} in this task; allowed: {', '.join(types)}, or *")
    by_type = {kind: spec for kind in types if (spec := models.get(kind, models.get("*"))) is not None}
    made = make_models(by_type.values())
    scripted = make_buyers([kind for kind in types if kind not in by_type])
    return {kind: made[by_type[kind]] if kind in by_type else scripted[kind] for kind in types}
