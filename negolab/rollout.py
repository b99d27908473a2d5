"""Lock-step play: many episodes at once, one batched call per policy and tick, and the opponent guard.

The guard (section 3.1, "re-samples"): a buyer's malformed or illegal reply is asked again at most ``REASKS`` times,
then replaced by ``Market.fallback``. Refused replies and fallbacks are kept in the episode. The seller is never
guarded: its violation ends the episode.

Which episodes share a tick has no influence on any of them as long as the policies themselves are deterministic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from negolab.environment.base import SELLER, Move, Request, Turn, Violation
from negolab.environment.market import Market
from negolab.episodes import Episode
from negolab.parser.lines import parse_buyer, parse_seller, render_buyer
from negolab.policies.base import Policy, Reply
from negolab.reward import seller_reward
from negolab.scenario import Scenario
from negolab.seeds import mix

_FREE = Reply("")[1:]  # a reply with nothing to record beside its text

REASKS = 5
WINDOW = 256


class _Game:
    """One open episode and what has been recorded of it."""

    __slots__ = ("answers", "codename", "env", "notes", "pending", "players", "scenario", "turns")

    def __init__(self, scenario: Scenario, players: tuple[Policy, ...]) -> None:
        self.scenario = scenario
        self.env = Market(scenario)
        self.codename = scenario.product.listing.codename
        self.players = players
        self.turns: list[Turn] = []
        self.notes: dict[int, dict[str, Any]] = {}
        self.answers: dict[int, Move | Violation] = {}
        self.pending: dict[int, dict[str, Any]] = {}

    def judge(self, request: Request, reply: Reply) -> Move | Violation:
        """Parse a reply; a buyer's is also held against the rules, so that the guard can refuse it."""
        text = reply.text
        if text is None or not text.isascii():
            text = clean_text(text)
        if request.seat == SELLER:
            return parse_seller(text, self.codename, reply.finish_reason)
        read = parse_buyer(text, self.codename, reply.finish_reason)
        if isinstance(read, Move):
            return self.env.check(request.seat, read) or read
        return read

    def note(self, seat: int, reply: Reply) -> None:
        """Keep what the record needs of an accepted reply beyond the turn itself."""
        extra = self.pending.setdefault(seat, {})
        if reply.finish_reason != "stop":
            extra["finish"] = reply.finish_reason
        if reply.completion_tokens is not None:
            extra["tokens"] = [reply.prompt_tokens, reply.completion_tokens]
        if reply.prompt_sha256 is not None:
            extra["prompt_sha256"] = reply.prompt_sha256

    def refuse(self, seat: int, read: Violation, reply: Reply) -> None:
        """Record a reply that the guard turned down."""
        refused: dict[str, Any] = {"kind": read.kind, "detail": read.detail, "text": clean_text(reply.text)}
        if reply.finish_reason != "stop":
            refused["finish"] = reply.finish_reason
        if reply.completion_tokens is not None:
            refused["tokens"] = [reply.prompt_tokens, reply.completion_tokens]
        self.pending.setdefault(seat, {}).setdefault("refused", []).append(refused)

    def advance(self) -> None:
        """Hand the collected answers to the environment and record the turns."""
        turns = self.env.submit(self.answers)
        if self.pending:
            for position, turn in enumerate(turns, len(self.turns)):
                if turn.seat in self.pending:
                    self.notes[position] = self.pending[turn.seat]
            self.pending = {}
        self.turns += turns
        self.answers = {}

    def episode(self) -> Episode:
        """The finished episode. Only valid once the environment has an outcome."""
        outcome, product = self.env.outcome, self.scenario.product
        assert outcome is not None
        reward = seller_reward(outcome, list_cents=product.listing.list_cents, cost_cents=product.cost_cents)
        names = tuple([player.name for player in self.players])
        return Episode(self.scenario, names, self.turns, self.notes, outcome, reward)


def clean_text(text: str | None) -> str:
    """A reply as it can be stored and sent anywhere: None becomes empty, lone surrogates become U+FFFD."""
    if text is None:
        return ""
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
    reasks: int = REASKS,
) -> Iterator[Episode]:
    """Play ``scenarios`` and yield each episode when it ends (not in order); at most ``window`` are open at once.

    ``buyers`` maps a scenario's buyer types to policies; a missing type raises ``KeyError`` before anything is played.
    An exception of a policy is passed on: the episodes yielded before are complete, the open ones are not recorded.
    """
    source = iter(scenarios)
    games: list[_Game] = []
    more = True
    while games or more:
        while more and len(games) < window:
            scenario = next(source, None)
            if scenario is None:
                more = False
            else:
                games.append(_Game(scenario, (seller, *[buyers[t] for t in scenario.buyer_types])))
        _tick(games, reasks)
        still = []
        for game in games:
            if game.env.outcome is None:
                still.append(game)
            else:
                yield game.episode()
        games = still


def _tick(games: Sequence[_Game], reasks: int) -> None:
    """Everybody who must speak does, once."""
    batches: dict[int, list[tuple[_Game, Request]]] = {}
    policies: dict[int, Policy] = {}
    for game in games:
        for request in game.env.requests():
            policy = game.players[request.seat]
            batch = batches.get(id(policy))
            if batch is None:
                batch = batches[id(policy)] = []
                policies[id(policy)] = policy
            batch.append((game, request))
    for key, batch in batches.items():
        _ask(policies[key], batch, reasks)
    for game in games:
        game.advance()


def _ask(policy: Policy, batch: list[tuple[_Game, Request]], reasks: int) -> None:
    """One batched call, and the guard's further calls for the buyers that broke a rule."""
    for attempt in range(reasks + 1):
        replies = policy.reply([request for _, request in batch])
        if len(replies) != len(batch):
            raise RuntimeError(f"policy {policy.name} gave {len(replies)} replies to {len(batch)} requests")
        again = []
        for (game, request), reply in zip(batch, replies, strict=True):
            read = game.judge(request, reply)
            seat = request.seat
            if read.__class__ is Move or seat == SELLER:
                game.answers[seat] = read
                if reply[1:] != _FREE:
                    game.note(seat, reply)
                continue
            assert isinstance(read, Violation)
            game.refuse(seat, read, reply)
            if attempt < reasks:
                seed = mix(request.seed + attempt + 1)
                again.append((game, request._replace(seed=seed, attempt=attempt + 1, complaint=read.detail)))
                continue
            move = game.env.fallback(seat)
            text = render_buyer(move.verb, move.price, "", "", game.codename)
            game.answers[seat] = move._replace(text=text)
        if not again:
            return
        batch = again
