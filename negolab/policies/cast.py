"""Everybody who plays in one run: the seller and the buyers by type, the engines behind them, and their journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from negolab.catalog import Listing
from negolab.clusters import Cluster
from negolab.environment.base import SELLER, Call, Calls, Move, Request
from negolab.errors import NegolabError
from negolab.games import game_of
from negolab.policies.base import Policy
from negolab.policies.engine import TextEngine
from negolab.policies.journal import Journal
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers, make_models, make_seller, make_side
from negolab.policies.spec import ModelSpec, is_model, spec_of
from negolab.prompts import MarketPrompts, shown_length
from negolab.prompts.multi_buyer import Message
from negolab.scenario import Regime, Scenario, Schedule

EVERY = "*"
"""In a mapping of buyers by type: every type that is not named."""


class Cast:
    """The players of a run. Closing it gives back what their engines hold; closed twice is closed."""

    def __init__(self, seller: Policy, buyers: Mapping[str, Policy]) -> None:
        self.seller = seller
        self.buyers = dict(buyers)
        self.models = [
            player
            for player in {id(p): p for p in (seller, *self.buyers.values())}.values()
            if isinstance(player, LanguageModel)
        ]
        """The language models among them."""
        self._journal: Journal | None = None
        self._failures: list[str] = []

    @property
    def engines(self) -> list[TextEngine]:
        """The engines, each once."""
        return list({id(model.engine): model.engine for model in self.models}.values())

    @property
    def why(self) -> str:
        """Why the first of the episodes that could not be played could not."""
        return self._failures[0] if self._failures else "their worker gave no reason"

    def dropped(self, episode: int, reason: str) -> None:
        """Remember an episode that could not be played."""
        self._failures.append(f"episode {episode}: {reason}")

    def check(self, schedule: Schedule) -> list[str]:
        """Hold the models against the longest conversations that the run begins with, before any weights are loaded.

        Returns what their user should know. Raises ``NegolabError`` for what cannot work.
        """
        if not self.models:
            return []
        asked: dict[int, list[list[Message]]] = {id(model): [] for model in self.models}
        prompts = MarketPrompts()
        for request in _first_requests(schedule):
            kind = None if request.seat == SELLER else schedule[request.episode].buyer_types[request.seat - 1]
            player = self.seller if kind is None else self.buyers[kind]
            if isinstance(player, LanguageModel):
                asked[id(player)].append(prompts.messages(request))
        told = []
        for model in self.models:
            for line in model.engine.check(asked[id(model)], model.spec.max_tokens):
                told.append(f"{model.name}: {line}")
        return list(dict.fromkeys(told))

    def keep_replies(self, folder: Path) -> None:
        """From now on keep the models' replies in the run folder until their episodes are there."""
        if self.models and self._journal is None:
            self._journal = Journal(folder)
            for model in self.models:
                model.journal = self._journal

    def close(self) -> None:
        """Close the engines and the journal."""
        for engine in self.engines:
            engine.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None


_SILENCE = Calls((Call("wait_for_response"),), (), "")


def _first_requests(schedule: Schedule, longest: int = 4) -> Iterator[Request]:
    """The openings and the first message of who answers them, in the markets with the longest texts."""
    lengths: dict[int, int] = {}  # by the first episode of a unit
    for episode in range(0, len(schedule), schedule.per_product):
        listings = [product.listing for product in longest_market(schedule, episode).products]
        of_one = shown_length if schedule.regime.protocol == "tags" else _whole_length
        lengths[episode] = sum(map(of_one, listings))
    wanted = set(sorted(lengths, key=lambda at: -lengths[at])[:longest])
    for episode in lengths:
        if episode in wanted:
            wanted.remove(episode)
            scenario = longest_market(schedule, episode)
            env = game_of(scenario).environment(scenario)
            openings = env.requests()
            yield from openings
            # Where the first offer is fixed the guard's move makes it; elsewhere the least bid is legal, and in the
            # trade game, where the seller begins, its silence.
            least = Move("BUY", ((1, 1),), None, "", "") if scenario.game != "trade" else _SILENCE
            fixed = [r.seat for r in openings if getattr(r.view, "openings", None) is not None]
            env.submit({r.seat: env.fallback(r.seat) if r.seat in fixed else least for r in openings})
            yield from env.requests()
        if not wanted:
            return


def longest_market(schedule: Schedule, episode: int) -> Scenario:
    """The market of an episode; of a cluster with the items whose prompts are longest, since any may be drawn."""
    drawn, unit = schedule[episode], schedule.units[episode // schedule.per_product]
    if not isinstance(unit, Cluster):
        return drawn
    longest = sorted(unit.products, key=lambda product: -shown_length(product.listing))
    return drawn._replace(products=tuple(longest[: len(drawn.products)]))


def _whole_length(listing: Listing) -> int:
    return len(listing.title) + len(listing.description)


def make_cast(seller: str | ModelSpec, buyers: Mapping[str, str | ModelSpec], schedule: Schedule) -> Cast:
    """The players of a run over ``schedule``. Raises ``NegolabError`` for one that cannot be made."""
    if schedule.regime.game != "market":
        return _cast_of_two(seller, buyers, schedule.regime)
    types = schedule.regime.buyer_types
    for kind in buyers:
        if kind != EVERY and kind not in types:
            raise NegolabError(f"no buyer of type {kind!r} in this market; allowed: {', '.join(types)}, or {EVERY}")
    chosen = {kind: spec for kind in types if (spec := buyers.get(kind, buyers.get(EVERY))) is not None}
    by_type = {kind: spec for kind, spec in chosen.items() if isinstance(spec, ModelSpec)}
    if len(by_type) < len(chosen):
        named = min(str(spec) for spec in chosen.values() if not isinstance(spec, ModelSpec))
        raise NegolabError(f"the market's buyers are scripted by their type, or language models; {named!r} is neither")
    seller = _spec_or_name(seller)
    models = make_models([spec for spec in (seller, *by_type.values()) if isinstance(spec, ModelSpec)])
    scripted = make_buyers([kind for kind in types if kind not in by_type], schedule.regime.protocol)
    return Cast(
        models[seller] if isinstance(seller, ModelSpec) else make_seller(seller, schedule),
        {kind: models[by_type[kind]] if kind in by_type else scripted[kind] for kind in types},
    )


def _cast_of_two(seller: str | ModelSpec, buyers: Mapping[str, str | ModelSpec], regime: Regime) -> Cast:
    """The two sides of the bilateral or the trade game. The buyer is under test, so there is none by default."""
    game, (kind,) = regime.game, regime.buyer_types
    if set(buyers) - {kind, EVERY}:
        raise NegolabError(f"no buyer of type {min(set(buyers) - {kind, EVERY})!r} in this game; allowed: {kind}")
    given = buyers.get(kind, buyers.get(EVERY))
    if given is None:
        raise NegolabError(f"the {game} game needs its buyer, who is evaluated: --game {game} --buyer NAME")
    seller, buyer = _spec_or_name(seller), _spec_or_name(given)
    models = make_models([spec for spec in (seller, buyer) if isinstance(spec, ModelSpec)])
    sides = [
        models[player] if isinstance(player, ModelSpec) else make_side(game, side, player)
        for side, player in (("seller", seller), ("buyer", buyer))
    ]
    return Cast(sides[0], {kind: sides[1]})


def _spec_or_name(player: str | ModelSpec) -> str | ModelSpec:
    return spec_of(player) if isinstance(player, str) and is_model(player) else player
