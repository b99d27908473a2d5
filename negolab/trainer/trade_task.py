"""Learn to trade: either seat of the game of 2604.16472, against one opponent. See ``trainer.task.Task``.

Steps are drawn as the other tasks draw theirs: the rollouts of a group share item, both reservation prices and the
opponent's words of randomness, and differ in the learner's own. Paid is equation 8 for the learner's seat, with weights
of one's choice (the paper's are not published); the reward that an episode's record holds stays the seller's, with
equal ones.

Evaluations are played against the training opponent and against others that the learner has never met (the paper:
GPT-4.1 and o3-mini), with gains from trade and without. The share of training games with gains from trade is not
published: by default it is the tournament's, 400 to 200.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from negolab.catalog import Catalog
from negolab.environment.base import BUYER, SELLER
from negolab.environment.tools import role_of
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import TRADE_METRICS, Metric
from negolab.metrics.trade import PARTS, values_of
from negolab.policies.base import Policy
from negolab.policies.cast import Cast
from negolab.policies.registry import make_models, make_trader
from negolab.policies.spec import ModelSpec, is_model, spec_of
from negolab.reward import WEIGHTS, trade_reward
from negolab.rollout import play
from negolab.scenario import TRADE, Regime, Scenario
from negolab.trainer.markets import ProductTask, Weighted

if TYPE_CHECKING:
    from negolab.trainer.settings import TrainSettings
    from negolab.trainer.task import Task

(TRADER,) = TRADE.buyer_types
SEATS: Mapping[str, int] = {"seller": SELLER, "buyer": BUYER}
Player = str | ModelSpec
"""A scripted trader's name, ``module:factory``, or a language model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOptions:
    """The game that is learnt; ``task_options`` of a training profile. Raises ``NegolabError`` for a bad value."""

    seat: str = "buyer"
    """Who learns: ``seller`` or ``buyer``."""
    opponent: Player = "taper"
    """Who plays the other seat in training: a scripted trader, ``module:factory``, or a language model."""
    unseen: tuple[Player, ...] = ("anchor",)
    """Whom the learner meets in evaluations only, beside the opponent; may be empty."""
    gft_share: float = 2 / 3
    """Share of training games with gains from trade; the others have none."""
    trade_draw: str = "redraw"
    """How values are drawn (``scenario.TRADE_DRAWS``)."""
    rounds: int = 10
    """Rounds, one side's turn each."""
    weights: tuple[float, float, float, float] = WEIGHTS
    """Of the reward's parts: parsing, execution, constraints, utility."""

    def __post_init__(self) -> None:
        if self.seat not in SEATS:
            raise NegolabError(f"task_options, seat is {self.seat!r}; allowed: {', '.join(SEATS)}")
        if not _number(self.gft_share) or self.gft_share > 1:
            raise NegolabError(f"task_options, gft_share is {self.gft_share!r}; allowed: a number from 0 to 1")
        weights = self.weights
        if not isinstance(weights, tuple) or len(weights) != len(PARTS) or not all(map(_number, weights)):
            raise NegolabError(
                f"task_options, weights is {weights!r}; allowed: four numbers from 0 for {', '.join(PARTS)}"
            )
        if not any(weights):
            raise NegolabError("task_options, weights: all are 0, so there is nothing to learn")
        if not isinstance(self.unseen, tuple):
            raise NegolabError(f"task_options, unseen is {self.unseen!r}; allowed: a list of players")
        for key, player in (("opponent", self.opponent), *(("unseen", player) for player in self.unseen)):
            if not isinstance(player, str | ModelSpec) or not player:
                raise NegolabError(f"task_options, {key}: {player!r}; allowed: a name, or model: ENGINE:NAME")
        labels = [label(player) for player in (self.opponent, *self.unseen)]
        if len(set(labels)) < len(labels):
            raise NegolabError(
                f"task_options: opponent and unseen name {', '.join(labels)}; each has to have a name of its own, and "
                "who is trained against is not unseen"
            )
        self.regime("gft")

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> TradeOptions:
        """From plain data; lists are as good as tuples. Raises ``NegolabError`` for an unknown key or bad value."""
        known = {option.name for option in fields(cls)}
        unknown = sorted(str(key) for key in given if key not in known)
        if unknown:
            raise NegolabError(f"task_options: unknown option {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        if "opponent" in values:
            values["opponent"] = _player(values["opponent"], "opponent")
        if isinstance(values.get("unseen"), tuple):
            values["unseen"] = tuple([_player(one, "unseen") for one in values["unseen"]])
        return cls(**values)

    def regime(self, gains: str, against: str = "") -> Regime:
        """The games with (``gft``) or without (``ngft``) gains from trade; ``against``: the label of an unseen
        opponent, which is part of the name."""
        name = f"{TRADE.name}_{gains}" + (f"_{against}" if against else "")
        return TRADE.override(
            name=name,
            gains=gains,
            trade_draw=self.trade_draw,
            per_buyer_cap=self.rounds,
            message_budget=self.rounds,
        )

    def trained(self) -> list[Weighted]:
        """The games of training."""
        shares = (("gft", self.gft_share), ("ngft", 1 - self.gft_share))
        return [Weighted(self.regime(gains), share) for gains, share in shares if share > 0]

    def evaluated(self) -> list[tuple[Regime, Player]]:
        """The games of evaluations, each with the opponent: both kinds against everybody."""
        return [
            (self.regime(gains, "" if player is self.opponent else label(player)), player)
            for player in (self.opponent, *self.unseen)
            for gains in ("gft", "ngft")
        ]


def label(player: Player) -> str:
    """What a player is called in names of folders."""
    return re.sub(r"[^\w.-]+", "-", player if isinstance(player, str) else player.label)


def _number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]


def _player(given: Any, key: str) -> Player:
    if isinstance(given, Mapping):
        options = {str(name): value for name, value in given.items() if name != "model"}
        if not isinstance(given.get("model"), str):
            raise NegolabError(f"task_options, {key}: give model (ENGINE:NAME) and its options")
        return spec_of(given["model"], options)
    if isinstance(given, str) and is_model(given):
        return spec_of(given)
    player: Player = given  # anything else is for the options' own check to refuse
    return player


class TradeTask(ProductTask):
    """Learn to sell or to buy in the trade game. See ``Task``."""

    name = "trade"

    def __init__(
        self,
        catalog: Catalog,
        options: TradeOptions = TradeOptions(),
        *,
        seed: int,
        groups: int,
        group_size: int,
        train_split: str = "train",
        eval_split: str = "test",
        eval_products: int | None = None,
        eval_per_product: int = 1,
    ) -> None:
        """Raises ``NegolabError`` for a split, player or number that does not exist."""
        self.seat = SEATS[options.seat]
        evaluated = options.evaluated()
        super().__init__(
            catalog,
            options.trained(),
            [regime for regime, _ in evaluated],
            seed=seed,
            groups=groups,
            group_size=group_size,
            train_split=train_split,
            eval_split=eval_split,
            eval_products=eval_products,
            eval_per_product=eval_per_product,
        )
        self._options = options
        named = (options.opponent, *options.unseen)
        models = make_models([player for player in named if isinstance(player, ModelSpec)])
        side = role_of(1 - self.seat)
        made = {
            player: models[player] if isinstance(player, ModelSpec) else make_trader(side, player) for player in named
        }
        self._opponent: Policy = made[options.opponent]
        self._unseen: list[Policy] = [made[player] for player in options.unseen]
        self._named = {regime.name: player for regime, player in evaluated}
        self._against = {name: made[player] for name, player in self._named.items()}

    @property
    def opponents(self) -> Sequence[Policy]:
        """See ``Task``; the training opponent first."""
        return [self._opponent, *self._unseen]

    def cast(self, regime: Regime, learner: Policy) -> Cast:
        """See ``ProductTask``."""
        return Cast(*self._seated(learner, self._against[regime.name]))

    def play(self, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``."""
        return play(scenarios, *self._seated(learner, self._opponent))

    def evaluate(self, evaluation: str, scenarios: Iterable[Scenario], learner: Policy) -> Iterator[Episode]:
        """See ``Task``: against the opponent that the evaluation is of."""
        return play(scenarios, *self._seated(learner, self._against[evaluation]))

    def _seated(self, learner: Policy, opponent: Policy) -> tuple[Policy, dict[str, Policy]]:
        return (learner, {TRADER: opponent}) if self.seat == SELLER else (opponent, {TRADER: learner})

    def reward(self, episode: Episode) -> float:
        """Equation 8 for the learner's seat, with the task's weights."""
        return trade_reward(*values_of(episode), episode.outcome, episode.turns, self.seat, self._options.weights)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """See ``Task``: ``reward`` is the learner's own, and ``seller_reward`` what a record holds."""
        rest = {name: metric for name, metric in TRADE_METRICS.items() if name != "reward"}
        return {"reward": self.reward, "seller_reward": TRADE_METRICS["reward"], **rest}

    def opponent_name(self, evaluation: str) -> str:
        """See ``ProductTask``."""
        player = self._named[evaluation]
        return player if isinstance(player, str) else f"{player.engine}:{player.label}"

    def describe(self) -> dict[str, Any]:
        """See ``Task``."""
        regimes = [{**w.regime.to_json(), "weight": w.weight} for w in self._markets.regimes]
        players = {
            "weights": list(self._options.weights),
            "opponent": self._opponent.describe(),
            "unseen": [player.describe() for player in self._unseen],
        }
        return self.described(regimes, players)


def make_trade_task(settings: TrainSettings, catalog: Catalog) -> Task:
    """The task of a training run whose settings say ``task: trade``. Raises ``NegolabError`` for settings of the
    seller's task, and for what ``TradeOptions`` and ``TradeTask`` do not allow."""
    if settings.buyers:
        raise NegolabError("buyers are the market's; for task: trade give task_options, opponent")
    if dict(settings.regimes) != {"in_distribution": {}}:
        raise NegolabError("regimes are the market's; for task: trade give task_options, such as gft_share")
    return TradeTask(
        catalog,
        TradeOptions.from_mapping(settings.task_options),
        seed=settings.seed,
        groups=settings.groups,
        group_size=settings.group_size,
        train_split=settings.train_split,
        eval_split=settings.eval_split,
        eval_products=settings.eval_products,
        eval_per_product=settings.eval_per_product,
    )
