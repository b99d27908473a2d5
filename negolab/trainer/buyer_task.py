"""Learn to buy: the bilateral game of 2604.09855, one buyer against one regulated seller. See ``trainer.task.Task``.

Steps are drawn as the seller's task draws them: the rollouts of a group share product, budget, persona and the seller's
words of randomness, and differ in the buyer's own. The paper's scale (64 groups of 8, as two replications report it) is
in the run's settings; here is what only this task knows.

Where this departs from the paper: the opponent may be the scripted seller (the paper's is the untrained model itself,
here ``seller: {model: ENGINE:NAME, temperature: 0.7}``), and further personas may be trained against or evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from negolab.catalog import Catalog
from negolab.environment.base import BUYER
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import BILATERAL_METRICS, Metric
from negolab.policies.base import Policy
from negolab.policies.cast import Cast
from negolab.policies.registry import make_bilateral, make_models
from negolab.policies.scripted_bilateral import PersonaSeller
from negolab.policies.spec import ModelSpec, is_model, spec_of
from negolab.rollout import play
from negolab.scenario import BILATERAL, PERSONAS, Regime, Scenario
from negolab.trainer.markets import ProductTask, Weighted

if TYPE_CHECKING:
    from negolab.trainer.settings import TrainSettings
    from negolab.trainer.task import Task

(LEARNER,) = BILATERAL.buyer_types


@dataclass(frozen=True, slots=True, kw_only=True)
class BuyerOptions:
    """The game that is learnt; ``task_options`` of a training profile. Raises ``NegolabError`` for a bad value."""

    seller: str | ModelSpec = PersonaSeller.name
    """The opponent: the scripted seller, ``module:factory``, or a language model."""
    personas: tuple[str, ...] = ("neutral",)
    """How the seller behaves in training: drawn for each group of rollouts."""
    eval_personas: tuple[str, ...] = ("neutral",)
    """How it behaves in evaluations: one evaluation each (table 3 has four)."""
    reject: bool = False
    """Whether ``[REJECT]`` is an action."""
    turns: int = 6
    """Messages of each side."""
    budget: float = 0.8
    """The buyer's budget as a fraction of the list price."""

    def __post_init__(self) -> None:
        if not isinstance(self.seller, str | ModelSpec):
            raise NegolabError(f"task_options, seller: {self.seller!r}; allowed: a name, or model: ENGINE:NAME")
        if self.seller in PERSONAS:
            raise NegolabError(
                f"task_options, seller: {self.seller!r} is a persona; give personas: [{self.seller}], and eval_personas"
            )
        if not isinstance(self.eval_personas, tuple) or not self.eval_personas:
            raise NegolabError(f"task_options, eval_personas is {self.eval_personas!r}; allowed: a list of personas")
        if len({str(persona) for persona in self.eval_personas}) < len(self.eval_personas):
            raise NegolabError(f"task_options, eval_personas is {self.eval_personas!r}; allowed: each persona once")
        self.regime()
        for persona in self.eval_personas:
            self.evaluation(persona)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> BuyerOptions:
        """From plain data; lists are as good as tuples. Raises ``NegolabError`` for an unknown key or bad value."""
        known = {option.name for option in fields(cls)}
        unknown = sorted(str(key) for key in given if key not in known)
        if unknown:
            raise NegolabError(f"task_options: unknown option {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        if "seller" in values:
            values["seller"] = _seller(values["seller"])
        return cls(**values)

    def regime(self) -> Regime:
        """The games of training."""
        return BILATERAL.override(
            per_buyer_cap=self.turns,
            message_budget=self.turns,
            budget_tiers=((self.budget, self.budget),),
            personas=self.personas,
            reject=self.reject,
        )

    def evaluation(self, persona: str) -> Regime:
        """The games of an evaluation: ``bilateral`` for the neutral persona, else ``bilateral_PERSONA``."""
        if persona not in PERSONAS:
            raise NegolabError(f"task_options, eval_personas: {persona!r}; allowed: {', '.join(PERSONAS)}")
        name = BILATERAL.name if persona == "neutral" else f"{BILATERAL.name}_{persona}"
        return self.regime().override(name=name, personas=(persona,))


def _seller(given: Any) -> str | ModelSpec:
    if isinstance(given, Mapping):
        options = {str(key): value for key, value in given.items() if key != "model"}
        if not isinstance(given.get("model"), str):
            raise NegolabError("task_options, seller: give model (ENGINE:NAME) and its options")
        return spec_of(given["model"], options)
    if isinstance(given, str) and is_model(given):
        return spec_of(given)
    player: str | ModelSpec = given  # anything else is for the options' own check to refuse
    return player


class BuyerTask(ProductTask):
    """Learn to buy from one regulated seller. See ``Task``."""

    name = "buyer"
    seat = BUYER

    def __init__(
        self,
        catalog: Catalog,
        options: BuyerOptions = BuyerOptions(),
        *,
        seed: int,
        groups: int,
        group_size: int,
        train_split: str = "train",
        eval_split: str = "test",
        eval_products: int | None = None,
        eval_per_product: int = 4,
    ) -> None:
        """Raises ``NegolabError`` for a split, seller or number that does not exist. The paper plays every product of
        an evaluation four times."""
        super().__init__(
            catalog,
            [Weighted(options.regime(), 1.0)],
            [options.evaluation(persona) for persona in options.eval_personas],
            seed=seed,
            groups=groups,
            group_size=group_size,
            train_split=train_split,
            eval_split=eval_split,
            eval_products=eval_products,
            eval_per_product=eval_per_product,
        )
        self._options = options
        seller = options.seller
        self._seller: Policy = (
            make_models([seller])[seller] if isinstance(seller, ModelSpec) else make_bilateral("seller", seller)
        )

    @property
    def opponents(self) -> Sequence[Policy]:
        """See ``Task``."""
        return [self._seller]

    def cast(self, regime: Regime, learner: Policy) -> Cast:
        """See ``ProductTask``."""
        return Cast(self._seller, {LEARNER: learner})

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``."""
        return play(scenarios, self._seller, {LEARNER: learner})

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """See ``Task``; ``metrics.FOUR_PHASES`` are among them."""
        return BILATERAL_METRICS

    def opponent_name(self, evaluation: str) -> str:
        """See ``ProductTask``."""
        seller = self._options.seller
        return seller if isinstance(seller, str) else f"{seller.engine}:{seller.label}"

    def describe(self) -> dict[str, Any]:
        """See ``Task``."""
        return self.described([self._options.regime().to_json()], {"seller": self._seller.describe()})


def make_buyer_task(settings: TrainSettings, catalog: Catalog) -> Task:
    """The task of a training run whose settings say ``task: buyer``. Raises ``NegolabError`` for settings of the
    seller's task, and for what ``BuyerOptions`` and ``BuyerTask`` do not allow."""
    if settings.buyers:
        raise NegolabError("buyers are the seller's opponents; for task: buyer give task_options, seller")
    if dict(settings.regimes) != {"in_distribution": {}}:
        raise NegolabError("regimes are the seller's markets; for task: buyer give task_options, such as turns")
    return BuyerTask(
        catalog,
        BuyerOptions.from_mapping(settings.task_options),
        seed=settings.seed,
        groups=settings.groups,
        group_size=settings.group_size,
        train_split=settings.train_split,
        eval_split=settings.eval_split,
        eval_products=settings.eval_products,
        eval_per_product=settings.eval_per_product,
    )
