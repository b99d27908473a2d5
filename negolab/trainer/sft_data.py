"""Episodes as samples of supervised fine-tuning: tokens, and which of them the seat said itself.

A sample holds exactly what the model will read and is to write when it plays: the tokens of its prompts come from the
same place as a player's (``policies.chat_template.Conversations``), a reply's are the text's, and then the token that
the chat template ends a turn with. While the next prompt begins with all that, the sample goes on; where the template
rewrites earlier turns, each reply is a sample of its own. Only the seat's own replies count in the loss.

2604.16472 (figures 13 and 14) cuts every conversation into one sample for each reply (``samples: turn``); a merged
sample trains the same tokens behind the same context, at a fraction of the cost. That paper masks think blocks in the
context and keeps the target's own. Here records keep thinking apart from what was said (``reasoning``), so no prompt
holds any; ``learn_thinking`` puts the target's own before it. The private Thought of the tool format is no thinking: it
is part of the reply, and its author reads it again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from negolab.catalog import find_data
from negolab.conversations import Conversation, conversations
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.errors import DamagedRun, NegolabError
from negolab.games import game_of
from negolab.plan import catalog_for
from negolab.policies.base import Policy
from negolab.policies.chat_template import ChatFormat, Conversations
from negolab.policies.registry import make_bilateral, make_buyers, make_seller, make_trader
from negolab.prompts import MarketPrompts
from negolab.report import columns
from negolab.rollout import play
from negolab.scenario import Regime, Schedule, Unit
from negolab.seeds import generator
from negolab.store import Run
from negolab.trainer.progress import counted
from negolab.trainer.sft_filter import why_not
from negolab.trainer.sft_settings import SftSettings

_PIECE = 512
"""Scripted episodes in memory at once."""
_COUNTED = ("conversations", "samples", "tokens", "learnt", "longest")
_UNWRITTEN = "in words that the tokenizer cannot write"


class Kind(NamedTuple):
    """What samples are counted and mixed by."""

    game: str
    seat: str
    """``seller`` or ``buyer``."""
    buyers: int
    """N."""
    messages: int
    """T, or the bilateral game's number of turns."""
    items: int = 1
    """M."""

    def facts(self) -> dict[str, Any]:
        """Plain data for a manifest. Of one item nothing is said."""
        return {name: value for name, value in self._asdict().items() if name != "items" or value > 1}


@dataclass(slots=True)
class Sample:
    """One sequence. Both arrays have one entry per token."""

    ids: np.ndarray
    """Token ids, int32."""
    own: np.ndarray
    """Whether the seat said the token itself (bool): these are learnt. The first one never is."""
    kind: Kind
    codename: str
    """The product's, or the cluster's name."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class SftData:
    """Everything that is learnt from, and what became of the rest."""

    train: list[Sample] = field(default_factory=list)
    held_out: list[Sample] = field(default_factory=list)
    conversations: Counter[Kind] = field(default_factory=Counter)
    """Those that were kept, by kind."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Conversations that were not kept, by the reason."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Plain data for the manifest: where the episodes come from."""

    @property
    def sha256(self) -> str:
        """Of all tokens and what is learnt of them, in order."""
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for sample in part:
                digest.update(len(sample).to_bytes(4, "little") + sample.ids.tobytes() + sample.own.tobytes())
            digest.update(b"end")
        return digest.hexdigest()

    def lines(self) -> list[str]:
        """For people, printed before training."""
        kept, left = sum(self.conversations.values()), sum(self.left_out.values())
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.left_out.most_common())
        tokens, own = sum(map(len, self.train)), sum(int(sample.own.sum()) for sample in self.train)
        head = f"{kept} of {counted(kept + left, 'conversation')} {'is' if kept == 1 else 'are'} kept" + (
            f" (left out: {reasons})." if left else "."
        )
        several = any(kind.items > 1 for kind in self.conversations)
        rows = [["game", "seat", "N", *["M"] * several, "T", *_COUNTED]]
        groups: dict[Kind, list[Sample]] = {}
        for sample in [*self.train, *self.held_out]:
            groups.setdefault(sample.kind, []).append(sample)
        for kind, samples in sorted(groups.items()):
            tokens_of, learnt = sum(map(len, samples)), sum(int(s.own.sum()) for s in samples)
            counts = [self.conversations[kind], len(samples), tokens_of, learnt, max(map(len, samples))]
            market = [kind.buyers, *[kind.items] * several, kind.messages]
            rows.append([kind.game, kind.seat, *map(str, market), *[f"{n:,}" for n in counts]])
        share = own / tokens if tokens else 0.0
        n_held = len(self.held_out)
        foot = (
            f"Trained on: {counted(len(self.train), 'sample')}, {tokens:,} tokens, {own:,} of them learnt ({share:.1%})"
        )
        foot += f"; {counted(n_held, 'sample')} {'is' if n_held == 1 else 'are'} held out." if self.held_out else "."
        return [head, *columns(rows).splitlines(), foot]

    def manifest(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        kinds = [{**kind.facts(), "conversations": n} for kind, n in sorted(self.conversations.items())]
        return {
            "sources": self.sources,
            "kinds": kinds,
            "left_out": dict(sorted(self.left_out.items())),
            "samples": len(self.train),
            "held_out": len(self.held_out),
            "samples_sha256": self.sha256,
        }


# -- where episodes come from ------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Episodes of one origin, and what a manifest says of it."""

    episodes: Iterable[Episode]
    facts: dict[str, Any]


def sources_of(settings: SftSettings) -> list[Source]:
    """Where the episodes come from: run folders, then scripted games. Nothing is played or read through yet.

    Raises ``NegolabError`` for a folder that is no run, a player or split that does not exist, and where there is
    nothing to learn from.
    """
    found = [_recorded(folder) for folder in settings.runs]
    regimes = settings.weighted_regimes()
    if regimes:
        data = find_data(settings.data)
        catalogs = {regime.n_items > 1: catalog_for(regime, data) for regime, _ in regimes}
        for (regime, _), n in zip(regimes, divided(settings.scripted, [w for _, w in regimes]), strict=True):
            if n == 0:
                raise NegolabError(
                    f"scripted {settings.scripted} leaves no episode for the regime {regime.name}: give more, or it "
                    "more weight"
                )
            catalog = catalogs[regime.n_items > 1]
            units: Sequence[Unit] = catalog.split(settings.split)
            rounds = -(-n // len(units)) if units else 1
            schedule = Schedule(regime, units, seed=settings.seed, per_product=rounds)
            seller, buyers = _players(settings, regime, schedule)
            facts = {
                "regime": regime.to_json(),
                "episodes": n,
                "players": {"seller": seller.describe(), "buyers": {k: b.describe() for k, b in buyers.items()}},
                "data": {"name": catalog.name, "sha256": catalog.data_sha256, "fingerprint": catalog.fingerprint},
            }
            found.append(Source(_scripted(schedule, n, seller, buyers), facts))
    if not found:
        raise NegolabError("nothing to learn from: give run folders (--episodes), or a --teacher for scripted games")
    return found


def _recorded(folder: str) -> Source:
    run = Run(folder)
    facts = {"run": run.manifest["manifest_sha256"], "episodes": run.n}

    return Source(run.episodes(complete=True), facts)


def divided(n: int, weights: Sequence[float]) -> list[int]:
    """``n`` in whole parts that are to each other as ``weights``, by largest remainders."""
    exact = [n * weight / sum(weights) for weight in weights]
    parts = [int(share) for share in exact]
    for at in sorted(range(len(parts)), key=lambda at: parts[at] - exact[at])[: n - sum(parts)]:
        parts[at] += 1
    return parts


def _players(settings: SftSettings, regime: Regime, schedule: Schedule) -> tuple[Policy, dict[str, Policy]]:
    if regime.game == "trade":
        if settings.words == "pocket":
            raise NegolabError(
                f"regime {regime.name}: pocket models have no words for the trade game's tools; give another model"
            )
        (kind,) = regime.buyer_types
        return make_trader("seller", settings.trade_seller), {kind: make_trader("buyer", settings.trade_buyer)}
    if regime.game == "bilateral":
        (kind,) = regime.buyer_types
        seller, buyers = (
            make_bilateral("seller", "persona"),
            {kind: make_bilateral("buyer", settings.bilateral_teacher)},
        )
    else:
        seller = make_seller(settings.teacher, schedule)
        buyers = make_buyers(regime.buyer_types, regime.protocol)
    if settings.words == "pocket":
        from negolab.pocket.words import InWords

        return InWords(seller), {kind: InWords(buyer) for kind, buyer in buyers.items()}
    return seller, buyers


def _scripted(schedule: Schedule, n: int, seller: Policy, buyers: Mapping[str, Policy]) -> Iterator[Episode]:
    """The first ``n`` markets, unit by unit in a seeded order, round by round; in that order."""
    order = generator(schedule.seed, "sft products").permutation(len(schedule.units)).tolist()
    places = [unit * schedule.per_product + turn for turn in range(schedule.per_product) for unit in order][:n]
    for start in range(0, n, _PIECE):
        wanted = places[start : start + _PIECE]
        played = {e.scenario.episode: e for e in play((schedule[at] for at in wanted), seller, buyers)}
        yield from (played[at] for at in wanted)


# -- conversations, chosen and as tokens -------------------------------------------------------------------------------


def build(settings: SftSettings, chat: ChatFormat, context: int) -> SftData:
    """Everything that is learnt from. ``context``: most tokens of a sample that the model can take.

    Raises ``NegolabError`` for a chat template that cannot be learnt with, and where nothing is left to learn from;
    ``DamagedRun`` for a run that is not finished or cannot be trusted.
    """
    check_template(chat, settings.learn_thinking)
    limit = min(context, settings.max_length or context)
    made = SftData()
    prompts = MarketPrompts()
    for source in sources_of(settings):
        made.sources.append(source.facts)
        for episode in source.episodes:
            for conversation in _chosen(settings, episode, prompts):
                samples = _kept(settings, episode, conversation, chat, limit)
                if isinstance(samples, str):
                    made.left_out[samples] += 1
                    continue
                made.conversations[samples[0].kind] += 1
                made.train += samples
    _hold_out(made, settings)
    if not made.train:
        reasons = ", ".join(f"{n} {reason}" for reason, n in made.left_out.most_common()) or "no conversation was found"
        hint = "; pocket models know only what is said with words: pocket" if _UNWRITTEN in made.left_out else ""
        raise NegolabError(f"nothing is left to learn from: {reasons}{hint}")
    return made


def check_template(chat: ChatFormat, thinking: bool = False) -> None:
    """Raise ``NegolabError`` for a chat template whose replies cannot be learnt; ``thinking``: what was thought before
    them is."""
    if chat.end is None:
        raise NegolabError("the chat template writes no token behind a reply, so nothing would teach the model to stop")
    if chat.opened and not thinking:
        raise NegolabError(
            "the chat template opens a thinking block before every reply, and none is learnt; set thinking: false if "
            "the model knows it, learn_thinking: true if the episodes hold it, or give another model"
        )


def _chosen(settings: SftSettings, episode: Episode, prompts: MarketPrompts) -> Iterator[Conversation]:
    """The conversations of the seats that are learnt."""
    try:
        found = conversations(episode, prompts)
    except ValueError as error:
        raise DamagedRun(f"{error}; see `negolab verify`") from None
    learner, seats = game_of(episode.scenario).learner, settings.seats
    for seat, conversation in found.items():
        wanted = {
            "learner": seat == learner,
            "seller": seat == SELLER,
            "buyers": seat != SELLER,
            "all": True,
        }.get(seats, seats == f"buyer-{seat}")
        if wanted:
            yield conversation


def _kept(
    settings: SftSettings, episode: Episode, conversation: Conversation, chat: ChatFormat, limit: int
) -> list[Sample] | str:
    """The samples of a conversation, or why it is left out."""
    seat = conversation.seat
    refused = why_not(settings, episode, seat)
    if refused is not None:
        return refused
    learnt = [not episode.turns[at].fallback and episode.turns[at].text.strip() != "" for at in conversation.positions]
    scenario = episode.scenario
    role = "seller" if seat == SELLER else "buyer"
    kind = Kind(scenario.game, role, scenario.n_buyers, scenario.message_budget, scenario.n_items)
    thoughts: list[str | None] = [None] * len(learnt)
    if settings.learn_thinking:
        thoughts = [episode.notes.get(at, {}).get("reasoning") for at in conversation.positions]
        if chat.opened:  # a reply without thinking cannot be said
            learnt = [counts and thought is not None for counts, thought in zip(learnt, thoughts, strict=True)]
    merge = settings.samples == "auto"
    found = samples_of(conversation, chat, learnt, kind, scenario.unit, merge=merge, thoughts=thoughts)
    if isinstance(found, str):
        return found
    if any(len(sample) > limit for sample in found):
        return f"longer than {limit:,} tokens"
    return found or "without a reply of its own"


def samples_of(
    conversation: Conversation,
    chat: ChatFormat,
    learnt: Sequence[bool],
    kind: Kind,
    codename: str,
    *,
    merge: bool = True,
    thoughts: Sequence[str | None] = (),
) -> list[Sample] | str:
    """A conversation as samples, or why it cannot be one. ``learnt``: by reply, whether it counts in the loss.

    ``merge=False``: a sample for every reply that counts, behind all that was said before. ``thoughts``: by reply, the
    thinking that is learnt with it; no later prompt holds it, so the next reply begins a new sample.
    """
    held, key = Conversations(chat), (0, conversation.seat)
    samples: list[tuple[list[int], list[bool]]] = []
    replies, thinking = iter(learnt), iter(thoughts)
    for at, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = held.prompt_ids(key, conversation.messages[:at])
        text = _thought(chat, next(thinking, None)) + chat.safe(message["content"])
        ids = chat.encode(text)
        if chat.decode(ids) != text:
            return _UNWRITTEN
        assert chat.end is not None
        ids.append(chat.end)
        held.said(key, message["content"], ids)
        counts = next(replies)
        ids_so_far, own = samples[-1] if samples and merge else ([], [])
        if not ids_so_far or prompt[: len(ids_so_far)] != ids_so_far:
            ids_so_far, own = [], []
            samples.append((ids_so_far, own))
        new = [*prompt[len(ids_so_far) :], *ids]
        own += [False] * (len(new) - len(ids)) + [counts] * len(ids)
        ids_so_far += new
    return [
        Sample(np.asarray(ids, dtype=np.int32), np.asarray(own, dtype=bool), kind, codename)
        for ids, own in samples
        if any(own)
    ]


def _thought(chat: ChatFormat, thought: str | None) -> str:
    """A think block as models write it before a reply; without its beginning where the prompt ends with that."""
    if thought is None:
        return ""
    opening = "" if chat.opened else "<think>\n"
    return f"{opening}{chat.safe(thought.strip())}\n</think>\n\n"


def _hold_out(made: SftData, settings: SftSettings) -> None:
    """Move the conversations of some products, or clusters, to those that are only measured."""
    if not settings.held_out or not made.train:
        return
    names = sorted({sample.codename for sample in made.train})
    n = max(1, round(settings.held_out * len(names)))
    if n >= len(names):
        raise NegolabError(f"held_out {settings.held_out:g}: they are about {len(names)} product or cluster only")
    order = generator(settings.seed, "sft held out").permutation(len(names))
    chosen = {names[int(at)] for at in order[:n]}
    made.held_out = [sample for sample in made.train if sample.codename in chosen]
    made.train = [sample for sample in made.train if sample.codename not in chosen]


# -- the order in which they are learnt --------------------------------------------------------------------------------


def order_of(samples: Sequence[Sample], batch: int, steps: int, seed: int) -> list[int]:
    """Places in ``samples`` for all steps, ``batch`` for each; a function of its arguments alone.

    Every epoch is a new order in which each kind is spread evenly: a batch holds the kinds in about the proportion that
    all samples have, from the first one on. Within a batch the short ones come first, so that less is padded. Samples
    that do not fill a batch are left out of their epoch. Raises ``NegolabError`` where they do not fill one.
    """
    n = len(samples)
    if batch > n:
        raise NegolabError(
            f"batch is {batch}, but there {'is' if n == 1 else 'are'} only {counted(n, 'sample')} to learn from"
        )
    groups = [
        list(places)
        for _, places in groupby(
            sorted(range(n), key=lambda at: (samples[at].kind, at)), key=lambda at: samples[at].kind
        )
    ]
    order: list[int] = []
    for epoch in range(-(-steps // (n // batch))):
        g = generator(seed, "sft order", epoch)
        placed: list[tuple[float, int]] = []
        for group in groups:
            shift = float(g.random())
            shuffled = [group[int(at)] for at in g.permutation(len(group))]
            placed += [((at + shift) / len(group), place) for at, place in enumerate(shuffled)]
        spread = [place for _, place in sorted(placed)]
        for start in range(0, n // batch * batch, batch):
            order += sorted(spread[start : start + batch], key=lambda at: (len(samples[at]), at))
    return order[: steps * batch]
