"""What is learnt: which seat, on which markets, against whom, for which reward.

``Task`` is all that the training loop knows of a paper. ``SellerTask`` is the seller of 2607.05863 (sections 3, 9.2)
and, where regimes sell several items, of 2609.33289; how all tasks draw their markets stands in ``trainer.markets``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from negolab.catalog import Catalog
from negolab.clusters import ClusterCatalog
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import Metric, metrics_of
from negolab.policies.base import Policy
from negolab.policies.cast import Cast
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers, make_models
from negolab.policies.spec import ModelSpec
from negolab.rollout import play
from negolab.scenario import Regime, Scenario, Schedule
from negolab.trainer.markets import ProductTask, Weighted


class Task(Protocol):
    """What is learnt. One instance serves a whole run; it may hold opponents that are language models."""

    name: str
    """For manifests and messages."""
    seat: int
    """The learner's, in every market: 0 the seller, 1..N the buyers."""
    steps_per_epoch: float
    """Steps in which every product, or cluster, of the train split comes once."""

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

    def evaluate(self, evaluation: str, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """Play markets of the evaluation of that name; like ``play``, against its own opponents where it has some."""
        ...

    def reward(self, episode: Episode) -> float:
        """What the learner is paid for an episode."""
        ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Columns of ``metrics.csv`` and ``eval.csv`` that are means over episodes, or over items, pairs and sales."""
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


class SellerTask(ProductTask):
    """Learn to sell one item (2607.05863, reward of equation (1)) or several (2609.33289) to sealed
    buyers. See ``Task``."""

    name = "seller"
    seat = SELLER

    def __init__(
        self,
        catalog: Catalog | ClusterCatalog,
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
        """``catalog``: products, or clusters where the regimes sell several items (``plan.catalog_for``).
        ``buyers``: language models by buyer type, ``"*"`` for all types not named; the others are scripted.

        Raises ``NegolabError`` for a split, type or number that does not exist, and for regimes of one item beside
        regimes of several.
        """
        other = next((w.regime for w in regimes if w.regime.game != "market"), None)
        if other is not None:  # there the buyer is paid, and the seller guarded
            raise NegolabError(f"regime {other.name}: the task seller learns in markets, not in the {other.game} game")
        names = [weighted.regime.name for weighted in regimes]
        if len(set(names)) < len(names):
            raise NegolabError(f"two regimes of a training task have the same name: {', '.join(names)}")
        super().__init__(
            catalog,
            regimes,
            [weighted.regime for weighted in regimes],
            seed=seed,
            groups=groups,
            group_size=group_size,
            train_split=train_split,
            eval_split=eval_split,
            eval_products=eval_products,
            eval_per_product=eval_per_product,
        )
        self._buyers = opponents([w.regime for w in regimes], buyers or {})

    @property
    def opponents(self) -> Sequence[Policy]:
        """See ``Task``."""
        return list(self._buyers.values())

    def cast(self, regime: Regime, learner: Policy) -> Cast:
        """See ``ProductTask``."""
        return Cast(learner, {kind: self._buyers[kind] for kind in regime.buyer_types})

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``."""
        return play(scenarios, learner, self._buyers)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """See ``Task``."""
        regime = self._markets.regimes[0].regime  # all have the same protocol
        return metrics_of(regime.game, regime.protocol)

    def describe(self) -> dict[str, Any]:
        """See ``Task``."""
        regimes = [{**w.regime.to_json(), "weight": w.weight} for w in self._markets.regimes]
        return self.described(regimes, {"buyers": {kind: buyer.describe() for kind, buyer in self._buyers.items()}})


def opponents(regimes: Sequence[Regime], models: Mapping[str, ModelSpec]) -> dict[str, Policy]:
    """The buyers of all ``regimes``, which share a protocol, by type: ``models`` by type (``"*"``: every type not
    named), the others scripted.

    Raises ``NegolabError`` for a type that no regime has.
    """
    types = list(dict.fromkeys(kind for regime in regimes for kind in regime.buyer_types))
    for kind in models:
        if kind != "*" and kind not in types:
            raise NegolabError(f"no buyer of type {kind!r} in this task; allowed: {', '.join(types)}, or *")
    by_type = {kind: spec for kind in types if (spec := models.get(kind, models.get("*"))) is not None}
    made = make_models(by_type.values())
    scripted = make_buyers([kind for kind in types if kind not in by_type], regimes[0].protocol)
    return {kind: made[by_type[kind]] if kind in by_type else scripted[kind] for kind in types}
