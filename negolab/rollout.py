"""Lock-step play: many episodes at once, one batched call per policy and tick, and the opponent guard.

The guard (section 3.1, "re-samples"): a buyer's malformed or illegal reply is asked again at most ``REASKS`` times,
then replaced by ``Market.fallback``. Refused replies and fallbacks are kept in the episode. The seller is never
guarded: its violation ends the episode.

Which episodes share a tick has no influence on any of them as long as the policies themselves are deterministic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from negolab.environment.base import SELLER, Move, Request, Turn, Violation
from negolab.environment.market import Market
from negolab.episodes import REASKS, Episode
from negolab.errors import NegolabError
from negolab.parser.lines import parse_buyer, parse_seller, render_buyer
from negolab.policies.base import Policy, Reply
from negolab.reward import seller_reward
from negolab.scenario import Scenario
from negolab.seeds import mix

WINDOW = 64
"""Open episodes at once: as many as stay in a core's cache. Players that gain from larger batches want more."""


class _Game:
    """One open episode and what has been recorded of it."""

    __slots__ = ("answers", "awaited", "codename", "env", "notes", "pending", "scenario", "slots", "turns")

    def __init__(self, scenario: Scenario, slots: tuple[int, ...]) -> None:
        self.scenario = scenario
        self.env = Market(scenario)
        self.codename = scenario.product.listing.codename
        self.slots = slots  # by seat, which policy plays it
        self.turns: list[Turn] = []
        self.notes: dict[int, dict[str, Any]] = {}
        self.awaited = 0  # how many seats must speak in this tick
        self.answers: dict[int, Move | Violation] = {}
        self.pending: dict[int, dict[str, Any]] = {}

    def note(self, seat: int, reply: Reply) -> None:
        """Keep what the record needs of an accepted reply beyond the turn itself."""
        extra = self.pending.setdefault(seat, {})
        if reply.finish_reason != "stop":
            extra["finish"] = reply.finish_reason
        if reply.prompt_tokens is not None or reply.completion_tokens is not None:
            extra["tokens"] = [reply.prompt_tokens, reply.completion_tokens]
        if reply.prompt_sha256 is not None:
            extra["prompt_sha256"] = reply.prompt_sha256

    def refuse(self, seat: int, read: Violation, reply: Reply) -> None:
        """Record a reply that the guard turned down."""
        refused: dict[str, Any] = {"kind": read.kind, "detail": read.detail, "text": clean_text(reply.text)}
        if reply.finish_reason != "stop":
            refused["finish"] = reply.finish_reason
        if reply.prompt_tokens is not None or reply.completion_tokens is not None:
            refused["tokens"] = [reply.prompt_tokens, reply.completion_tokens]
        self.pending.setdefault(seat, {}).setdefault("refused", []).append(refused)

    def answer(self, seat: int, read: Move | Violation) -> None:
        """Take what a seat says. Once nobody is missing, hand it to the environment and record the turns."""
        self.answers[seat] = read
        if len(self.answers) < self.awaited:
            return
        turns = self.env.submit(self.answers)
        if self.pending:
            for position, turn in enumerate(turns, len(self.turns)):
                if turn.seat in self.pending:
                    self.notes[position] = self.pending[turn.seat]
            self.pending = {}
        self.turns += turns
        self.answers.clear()

    def episode(self, names: Sequence[str]) -> Episode:
        """The finished episode, ``names`` those of the policies. Only valid once the environment has an outcome."""
        outcome, product = self.env.outcome, self.scenario.product
        assert outcome is not None
        reward = seller_reward(outcome, list_cents=product.listing.list_cents, cost_cents=product.cost_cents)
        players = tuple([names[slot] for slot in self.slots])
        return Episode(self.scenario, players, self.turns, self.notes, outcome, reward)


def clean_text(text: str | None) -> str:
    """A reply as it can be stored and sent anywhere: None becomes empty, lone surrogates become U+FFFD."""
    if text is None:
        return ""
    if not isinstance(text, str):
        raise NegolabError(f"a reply's text must be a string or None, not {type(text).__name__}")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def play(
    scenarios: Iterable[Scenario],
    seller: Policy,
    buyers: Mapping[str, Policy],
    *,
    window: int = WINDOW,
) -> Iterator[Episode]:
    """Play ``scenarios`` and yield each episode when it ends (not in order); at most ``window`` are open at once.

    ``buyers`` maps a scenario's buyer types to policies; a missing type raises ``KeyError`` before anything is played.
    An exception of a policy is passed on: the episodes yielded before are complete, the open ones are not recorded.
    """
    return chain.from_iterable(ticks(scenarios, seller, buyers, window=window))


def ticks(
    scenarios: Iterable[Scenario], seller: Policy, buyers: Mapping[str, Policy], *, window: int = WINDOW
) -> Iterator[list[Episode]]:
    """``play``, tick by tick: after each one the episodes that it ended, often none. Who stores episodes learns so
    that nothing more is to come before the players are asked again, however long they take."""
    source = iter(scenarios)
    # The same object may play several seats: it still gets one call per tick.
    policies = list({id(policy): policy for policy in (seller, *buyers.values())}.values())
    slot = {id(policy): i for i, policy in enumerate(policies)}
    slots = {kind: slot[id(policy)] for kind, policy in buyers.items()}
    names = [policy.name for policy in policies]
    games: list[_Game] = []
    more = True
    while games or more:
        while more and len(games) < window:
            scenario = next(source, None)
            if scenario is None:
                more = False
            else:
                games.append(_Game(scenario, (0, *[slots[kind] for kind in scenario.buyer_types])))
        _tick(games, policies)
        over = [game for game in games if game.env.outcome is not None]
        if over:
            games = [game for game in games if game.env.outcome is None]
        yield [game.episode(names) for game in over]


def _tick(games: Sequence[_Game], policies: Sequence[Policy]) -> None:
    """Everybody who must speak does, once."""
    asked: list[list[Request]] = [[] for _ in policies]
    players: list[list[_Game]] = [[] for _ in policies]
    for game in games:
        requests = game.env.requests()
        game.awaited = len(requests)
        for request in requests:
            slot = game.slots[request.seat]
            asked[slot].append(request)
            players[slot].append(game)
    for policy, batch, owners in zip(policies, asked, players, strict=True):
        if batch:
            _ask(policy, batch, owners)


def _ask(policy: Policy, requests: list[Request], games: list[_Game]) -> None:
    """One batched call, and the guard's further calls for the buyers that broke a rule; requests go with games."""
    for attempt in range(REASKS + 1):
        replies = policy.reply(requests[:])  # a copy: a player may do with its list as it likes
        if not isinstance(replies, list) or len(replies) != len(requests):
            given = f"{len(replies)} replies" if isinstance(replies, list) else f"a {type(replies).__name__}, no list,"
            raise NegolabError(f"player {policy.name} gave {given} to {len(requests)} requests")
        again: list[Request] = []
        owners: list[_Game] = []
        for game, request, reply in zip(games, requests, replies, strict=True):
            seat = request.seat
            if reply.__class__ is not Reply:
                raise NegolabError(f"player {policy.name} must give Reply objects, not {type(reply).__name__}")
            text, finish, prompt_tokens, completion_tokens, sha256 = reply
            if text.__class__ is not str or not text.isascii():
                text = clean_text(text)
            # A buyer's reply is also held against the rules, so that the guard can refuse it.
            if seat == SELLER:
                read = parse_seller(text, game.codename, finish)
            else:
                read = parse_buyer(text, game.codename, finish)
                found = read if isinstance(read, Violation) else game.env.check(seat, read)
                if found is not None:
                    game.refuse(seat, found, reply)
                    if attempt < REASKS:
                        seed = mix(request.seed + attempt + 1)
                        again.append(request._replace(seed=seed, attempt=attempt + 1, complaint=found.detail))
                        owners.append(game)
                        continue
                    move = game.env.fallback(seat)
                    text = render_buyer(move.verb, move.price, "", "", game.codename)
                    game.answer(seat, move._replace(text=text))
                    continue
            if sha256 is not None or completion_tokens is not None or prompt_tokens is not None or finish != "stop":
                game.note(seat, reply)
            game.answer(seat, read)
        if not again:
            return
        requests, games = again, owners
