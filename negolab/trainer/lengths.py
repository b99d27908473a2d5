"""How long a training run's conversations are, from scripted episodes on its own products and games.

Nothing is loaded: characters are counted and not tokens, and a model's replies are given a length. Everything that was
assumed and not computed is a constant with a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from negolab.environment.base import BUYER, SELLER, Request
from negolab.policies.base import Policy, Reply
from negolab.policies.spec import ModelSpec
from negolab.trainer.settings import TrainSettings

if TYPE_CHECKING:
    from negolab.catalog import Product
    from negolab.clusters import Cluster
    from negolab.scenario import Regime, Schedule
    from negolab.trainer.trade_task import TradeOptions

CHARACTERS_PER_TOKEN = 4.0
"""Of English text with prices; the model's tokenizer is not asked."""
LEARNER_REPLY = 160
"""Tokens of one reply of the learner: three sentences of reasoning and three short lines. Assumed."""
OPPONENT_REPLY = 100
"""Tokens of one reply of an opponent that is a language model. Assumed."""
SAMPLE = 48
"""Episodes of each game that are played for the lengths."""
_SELLERS = {"lines": "prober", "tags": "screener"}
"""Who plays the markets', by protocol: sellers that use up their messages, as trained ones do."""


@dataclass(frozen=True)
class Lengths:
    """Tokens and turns of one episode, on average unless said otherwise."""

    learner_turns: float
    learner_conversation: float
    """Tokens of the learner's conversation when it ends, its own replies included."""
    longest: int
    """The longest conversation of any seat among the products with the longest texts."""
    opponent_turns: float
    """Replies of all opponents together that are language models."""
    opponent_conversations: float
    """Tokens of all of their conversations when they end."""

    @property
    def sampled(self) -> float:
        """Tokens that models write in one episode."""
        return self.learner_turns * LEARNER_REPLY + self.opponent_turns * OPPONENT_REPLY

    @property
    def read(self) -> float:
        """Tokens that models read in one episode, each once (prefixes are cached)."""
        return self.learner_conversation + self.opponent_conversations - self.sampled


class _Noted:
    """A scripted player, whose requests are kept."""

    def __init__(self, player: Policy, kept: list[Request]) -> None:
        self._player, self._kept, self.name = player, kept, player.name

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        self._kept += requests
        return self._player.reply(requests)

    def describe(self) -> dict[str, Any]:
        return self._player.describe()


def opponents_of(settings: TrainSettings) -> dict[str, ModelSpec]:
    """Opponents that are language models: a seller's buyers by type (``*``: all others), a buyer's ``seller``, a
    trader's ``opponent`` and ``unseen``.

    Raises ``NegolabError`` for one that is not described so.
    """
    if settings.task == "seller":
        return settings.opponents()
    if settings.task == "trade":
        from negolab.trainer.trade_task import label

        chosen = _traders(settings)
        named = {"opponent": chosen.opponent, **{f"unseen {label(player)}": player for player in chosen.unseen}}
        return {kind: player for kind, player in named.items() if isinstance(player, ModelSpec)}
    from negolab.trainer.buyer_task import BuyerOptions

    seller = BuyerOptions.from_mapping(settings.task_options).seller
    return {"seller": seller} if isinstance(seller, ModelSpec) else {}


def learner_of(settings: TrainSettings) -> int:
    """The learner's seat."""
    if settings.task == "trade":
        return SELLER if _traders(settings).seat == "seller" else BUYER
    return BUYER if settings.task == "buyer" else SELLER


def _traders(settings: TrainSettings) -> TradeOptions:
    from negolab.trainer.trade_task import TradeOptions

    return TradeOptions.from_mapping(settings.task_options)


class _Game(NamedTuple):
    """Games of a run that are alike."""

    regime: Regime
    weight: float
    players: Callable[[Schedule], tuple[Policy, dict[str, Policy]]]
    """Scripted stand-ins for all seats: the seller, and the buyers by type."""


def _games(settings: TrainSettings) -> Iterator[_Game]:
    from negolab.policies.registry import make_bilateral, make_buyers, make_seller, make_trader

    if settings.task == "buyer":
        from negolab.trainer.buyer_task import BuyerOptions

        drawn = BuyerOptions.from_mapping(settings.task_options).regime()
        (kind,) = drawn.buyer_types
        yield _Game(
            drawn, 1.0, lambda _: (make_bilateral("seller", "persona"), {kind: make_bilateral("buyer", "patient")})
        )
        return
    if settings.task == "trade":
        for traded in _traders(settings).trained():
            yield _Game(
                *traded,
                lambda s: (
                    make_trader("seller", "anchor"),
                    {kind: make_trader("buyer", "anchor") for kind in s.regime.buyer_types},
                ),
            )
        return
    for market, weight in settings.weighted_regimes():
        yield _Game(
            market,
            weight,
            lambda s: (
                make_seller(_SELLERS[s.regime.protocol], s),
                make_buyers(s.regime.buyer_types, s.regime.protocol),
            ),
        )


def lengths_of(settings: TrainSettings) -> Lengths:
    """Lengths of the run's episodes, from ``SAMPLE`` of each game played by scripted players on its own products.

    Characters of the messages by ``CHARACTERS_PER_TOKEN``; a model's replies are longer than a script's, so each of
    the conversation's replies counts ``LEARNER_REPLY`` or ``OPPONENT_REPLY`` in place of the script's own. Raises
    ``NegolabError`` for settings whose task cannot be made.
    """
    from negolab.scenario import Schedule
    from negolab.trainer.preparation import catalog_of

    units: Sequence[Product | Cluster] = catalog_of(settings).split(settings.train_split)
    by_size = sorted(units, key=_text)
    even = [by_size[i * len(by_size) // SAMPLE] for i in range(min(SAMPLE, len(by_size)))]
    found: list[_Spoken] = []
    longest = weights = 0.0
    for game in _games(settings):
        weights += game.weight
        for some, counts in ((even, True), (by_size[-4:], False)):
            schedule = Schedule(game.regime, some, seed=settings.seed, per_product=1)
            spoken = _played(settings, game, schedule)
            longest = max(longest, spoken.longest)
            if counts:
                found.append(spoken)
    mean = [sum(s.share * s.sums[i] for s in found) / weights for i in range(4)]
    return Lengths(mean[0], mean[1], math.ceil(longest), mean[2], mean[3])


def _text(unit: Product | Cluster) -> int:
    """Characters that the products of a game are described in: of one, or of a cluster of several."""
    from negolab.clusters import Cluster

    listings = [product.listing for product in (unit.products if isinstance(unit, Cluster) else (unit,))]
    return sum(len(listing.title) + len(listing.description) for listing in listings)


def _played(settings: TrainSettings, game: _Game, schedule: Schedule) -> _Spoken:
    """What is said in the episodes of ``schedule``."""
    from negolab.prompts import MarketPrompts
    from negolab.rollout import play

    kept: list[Request] = []
    seller, buyers = game.players(schedule)
    for _ in play(schedule, _Noted(seller, kept), {kind: _Noted(buyer, kept) for kind, buyer in buyers.items()}):
        pass
    learner, models = learner_of(settings), opponents_of(settings)
    playing = settings.task == "trade" and "opponent" in models
    prompts, spoken = MarketPrompts(), _Spoken(game.weight / len(schedule))
    for (episode, seat), requests in _by_seat(kept).items():
        tokens = _conversation(prompts.messages(requests[-1]), seat == learner)
        spoken.longest = max(spoken.longest, tokens)
        kind = "seller" if seat == SELLER else schedule[episode].buyer_types[seat - 1]
        if seat == learner or kind in models or playing or (seat != SELLER and "*" in models):
            spoken.add(seat == learner, len(requests), tokens)
    return spoken


class _Spoken:
    """Sums over the episodes of one regime."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.sums = [0.0, 0.0, 0.0, 0.0]
        self.longest = 0.0

    def add(self, learner: bool, turns: int, tokens: float) -> None:
        at = 0 if learner else 2
        self.sums[at] += turns
        self.sums[at + 1] += tokens


def _by_seat(requests: Sequence[Request]) -> dict[tuple[int, int], list[Request]]:
    found: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        found.setdefault((request.episode, request.seat), []).append(request)
    return found


def _conversation(messages: Sequence[Mapping[str, str]], learner: bool) -> float:
    """Tokens of a conversation whose last request shows ``messages``, the last reply included."""
    said = sum(m["role"] == "assistant" for m in messages) + 1
    others = sum(len(m["content"]) for m in messages if m["role"] != "assistant")
    frame = 5 * len(messages)  # the template's own tokens
    return others / CHARACTERS_PER_TOKEN + frame + said * (LEARNER_REPLY if learner else OPPONENT_REPLY)
