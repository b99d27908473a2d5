"""What the pocket model first reads: whole conversations of scripted play, as tokens with a weight each.

Products are invented (``product``), with cost shares like those of the published catalogue's train split, so that no
real product is needed to make the model and none is seen. Markets vary in the number of buyers and messages from the
first example on; who has never seen five buyers writes nonsense to five.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from negolab.bilateral import LEARNER
from negolab.catalog import Listing, Product
from negolab.conversations import conversations
from negolab.environment.base import BUYER, SELLER
from negolab.episodes import Episode
from negolab.money import dollars
from negolab.pocket.settings import PocketSettings
from negolab.pocket.teacher import BilateralTeacher, Teacher
from negolab.pocket.tokenizer import CATEGORIES
from negolab.pocket.words import COMPARISONS, InWords, thought
from negolab.policies.registry import make_buyers
from negolab.policies.scripted_bilateral import PersonaSeller
from negolab.prompts import MarketPrompts
from negolab.rollout import play
from negolab.scenario import BILATERAL, IN_DISTRIBUTION, OOD_DIVERSE, PERSONAS, Regime, Scenario, draw
from negolab.seeds import generator

BUYER_TYPES = ("iter-50", "iter-60", "iter-70")
COMPARED = 3.0
"""Weight of the tokens that say which bid is best, how high it is and whether it covers the cost, and of the ends of
codenames: few, hard, and all else follows from them."""
LOW, HIGH = 600, 430_000
"""Range of invented list prices, in cents."""
EVEN = (500, 130_000)
"""Range of those that are drawn evenly."""
DRILLS = 3
"""Drills that take the place of a market."""


def product(seed: int, index: int) -> Product:
    """An invented product: every second list price log-normal with median $150, the others drawn evenly, so that no
    amount is rare; cost about half of it. Its texts are empty: the model reads none."""
    g = generator(seed, "pocket product", index)
    if g.random() < 0.5:
        listing = int(g.integers(*EVEN))
    else:
        listing = int(np.clip(15_000 * np.exp(1.1 * g.standard_normal()), LOW, HIGH))
    share = float(np.clip(g.beta(2.4, 2.3), 0.08, 0.97))
    ends = (99, 99, 99, 95, 0, int(g.integers(100)))
    listing = listing // 100 * 100 + ends[int(g.integers(6))]
    cost = int(share * listing)
    if g.random() < 0.5:
        cost = cost // 100 * 100 + ends[int(g.integers(6))]
    cost = min(max(cost, 50), listing - 50)
    code = f"{CATEGORIES[int(g.integers(len(CATEGORIES)))]}_{1 + int(g.integers(999))}"
    return Product(Listing(code, "", "", code.rpartition("_")[0], listing), cost)


def market(seed: int, index: int) -> Scenario:
    """An invented market: half as in the paper's benchmark, a fifth as in its five-buyer suite, else anything small."""
    g = generator(seed, "pocket market", index)
    kind, types = g.random(), BUYER_TYPES
    if kind < 0.5:
        regime = IN_DISTRIBUTION.override(buyer_types=types)
    elif kind < 0.7:
        regime = OOD_DIVERSE
    else:
        n, k = int(g.integers(1, 7)), int(g.integers(2, 5))
        t = int(g.integers(max(2, n), min(n * k, 12) + 1)) if n * k > max(2, n) else n * k
        regime = Regime(
            name="pocket",
            n_buyers=n,
            per_buyer_cap=k,
            message_budget=max(1, t),
            budget_tiers=IN_DISTRIBUTION.budget_tiers if g.random() < 0.5 else OOD_DIVERSE.budget_tiers,
            first_offer=IN_DISTRIBUTION.first_offer if g.random() < 0.5 else None,
            buyer_types=types,
        )
    return draw(regime, product(seed, index), seed=seed, rep=0, episode=index)


@dataclass(frozen=True, slots=True)
class Text:
    """One conversation of one seat."""

    ids: np.ndarray
    """Token ids, int32."""
    weights: np.ndarray
    """By token, its weight in the loss: 1 for what the seat says, more where that takes a comparison (``COMPARED``),
    less for what it is told, 0 for its instructions."""


def bilateral(seed: int, index: int) -> Scenario:
    """An invented bilateral game, every persona alike; ``[REJECT]`` is an action in every third."""
    regime = BILATERAL.override(personas=PERSONAS, reject=index % 3 == 0)
    return draw(regime, product(seed, index), seed=seed, rep=0, episode=index)


def numbers(episodes: Iterable[int]) -> Iterator[tuple[str, int, int]]:
    """Which conversations are read of these numbers of a stream: game, number, seat (-1: some buyer's).

    Each number is a market, of which the seller's side is read, and in every fourth one buyer's as well. Every fourth
    number is a bilateral game besides, of which the buyer's side is read, and the seller's in every third of them.
    """
    for index in episodes:
        yield "market", index, SELLER
        if index % 4 == 0:
            yield "market", index, -1
        if index % 4 == 2:
            yield "bilateral", index, BUYER
        if index % 12 == 2:
            yield "bilateral", index, SELLER


def examples(tokenizer: Any, settings: PocketSettings, episodes: Sequence[int]) -> list[Text]:
    """What is read of these numbers of the stream: drills before ``settings.first_played``, after that conversations
    and a drill beside every few of them. ``count`` tells how many."""
    drilled, played = _split(settings, episodes)
    found = [drill(tokenizer, settings.seed, at) for at in drilled]
    return [*found, *texts(tokenizer, settings.seed, played, settings.told)]


def count(settings: PocketSettings, episodes: Sequence[int]) -> int:
    """How many texts ``examples`` makes of these numbers."""
    drilled, played = _split(settings, episodes)
    return len(drilled) + sum(1 for _ in numbers(played))


def _split(settings: PocketSettings, episodes: Sequence[int]) -> tuple[list[int], list[int]]:
    played = [at for at in episodes if at >= settings.first_played]
    drilled = [DRILLS * at + more for at in episodes for more in range(DRILLS) if at < settings.first_played]
    return drilled + [DRILLS * at for at in played if at % settings.drill_every == 0], played


def texts(tokenizer: Any, seed: int, episodes: Sequence[int], told: float = 0.2) -> Iterator[Text]:
    """The conversations that ``numbers`` names, of the stream ``seed``, in no particular order."""
    wanted: dict[tuple[str, int], list[int]] = {}
    for game, index, seat in numbers(episodes):
        wanted.setdefault((game, index), []).append(seat)
    renderer = MarketPrompts()
    for game, played in zip(("market", "bilateral"), _played(seed, wanted), strict=True):
        for episode in played:
            index, n = episode.scenario.episode, episode.scenario.n_buyers
            for seat in wanted[game, index]:
                yield conversation(tokenizer, renderer, episode, seat if seat >= 0 else 1 + index // 4 % n, told)


def _played(seed: int, wanted: Iterable[tuple[str, int]]) -> tuple[Iterator[Episode], Iterator[Episode]]:
    buyers = {kind: InWords(buyer) for kind, buyer in make_buyers(list(BUYER_TYPES)).items()}
    wanted = list(wanted)
    markets = (market(seed, index) for game, index in wanted if game == "market")
    games = (bilateral(seed, index) for game, index in wanted if game == "bilateral")
    return (
        play(markets, InWords(Teacher()), buyers),
        play(games, InWords(PersonaSeller()), {LEARNER: InWords(BilateralTeacher())}),
    )


def conversation(tokenizer: Any, renderer: MarketPrompts, episode: Episode, seat: int, told: float) -> Text:
    """What ``seat`` was shown and said in an episode, as it stands in its context after its last reply."""
    ids: list[int] = []
    weights: list[float] = []
    compared = _compared(tokenizer)
    for message in conversations(episode, renderer)[seat].messages:
        text = f"<|{message['role']}|>{message['content']}<|end|>"
        part = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += part
        if message["role"] == "assistant":
            weights += [0.0, *_of_said(part, compared)]
        else:
            weights += [0.0, *([0.0 if message["role"] == "system" else told] * (len(part) - 1))]
    return Text(np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32))


def drill(tokenizer: Any, seed: int, index: int) -> Text:
    """A board of random bids and a Thought about each buyer on it, the highest bid's first.

    No play leads here: amounts of every size are equally frequent, bids lie close together or far apart, and each
    board is read several times: more to copy and to compare in a text than in a whole conversation, and amounts that no
    product has are read too.
    """
    g = generator(seed, "pocket drill", index)

    def amount(most: int) -> int:
        return (
            int(g.integers(100, most))
            if g.random() < 0.5
            else int(100 * math.exp(g.uniform(0.0, math.log(most / 100))))
        )

    n, top = int(g.integers(1, 7)), amount(_DRILLED)
    close = g.random() < 0.5
    bids = []
    for _ in range(n):
        first = max(1, int(top * g.uniform(0.8, 1.0))) if close else amount(_DRILLED)
        bids.append([first] if g.random() < 0.6 else sorted([first, max(1, int(first * g.uniform(0.5, 1.0)))]))
    cost = max(1, int(max(map(max, bids)) * g.uniform(0.7, 1.3))) if g.random() < 0.5 else amount(_DRILLED)
    lines = []
    for at, made in enumerate(bids, 1):
        heard = ", ".join(f"[BUY] {dollars(bid)} @ turn {turn}" for turn, bid in enumerate(made, 1))
        told = "(none yet)" if len(made) == 1 else f"[SELL] {dollars(amount(_DRILLED))} @ turn 1"
        lines.append(
            f"\n- Buyer {at}: active, you can send {int(g.integers(1, 5))} more messages to this buyer.\n"
            f"  Buyer {at}'s action history: {heard}\n  Your messages history to Buyer {at}: {told}"
        )
    board = (
        f"\n\n=== Standing offers ==={''.join(lines)}\nSeller messages remaining (T): {int(g.integers(1, 13))}. "
        f"List price: {dollars(amount(_DRILLED))}. Your cost (do not sell below this): {dollars(cost)}."
    )
    ids: list[int] = tokenizer(f"<|user|>{board}<|end|>", add_special_tokens=False)["input_ids"]
    weights = [0.0] * len(ids)
    best = max(range(n), key=lambda at: (max(bids[at]), -at))
    compared = _compared(tokenizer)
    for asked in [best, *(at for at in g.permutation(n).tolist() if at != best)]:
        text = thought(asked + 1, max(bids[asked]), cost)
        part = tokenizer(f"<|assistant|>{text}<|end|>", add_special_tokens=False)["input_ids"]
        ids += part
        weights += [0.0, *_of_said(part, compared)]
        if asked != best:
            weights[-len(part) + 1] = 0.0  # which buyer is asked about is no answer to anything
        weights[-1] = 0.0
    return Text(np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32))


_DRILLED = 100_000
"""Amounts in drills are below this, in cents."""


@lru_cache(maxsize=2)  # the whole vocabulary is gone through
def _compared(tokenizer: Any) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of what takes a comparison or a look-up, and of phrases behind which the next two tokens do."""
    ends = [token for text, token in tokenizer.get_vocab().items() if re.fullmatch("_[0-9]", text)]
    ids = frozenset(tokenizer.convert_tokens_to_ids(list(COMPARISONS))) | frozenset(ends)
    return ids, frozenset(tokenizer.convert_tokens_to_ids([text for text in COMPARISONS if text.endswith("$")]))


def _of_said(part: Sequence[int], compared: tuple[frozenset[int], frozenset[int]]) -> Iterator[float]:
    """Weights of a reply's tokens but the first, which stands for its role."""
    hard, before = compared
    for at, token in enumerate(part[1:], 1):
        yield COMPARED if token in hard or part[at - 1] in before or part[at - 2] in before else 1.0


def shown(episodes: int = 400) -> Iterator[str]:
    """Messages of every role, seat and game, for the tokenizer to find its phrases in."""
    renderer = MarketPrompts()
    for episode in chain(*_played(1, [(game, at) for game in ("market", "bilateral") for at in range(episodes)])):
        for found in conversations(episode, renderer).values():
            for message in found.messages:
                yield message["content"]
