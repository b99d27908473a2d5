"""Play: many episodes at once, one batched call per plain policy and tick, and the opponent guard.

Streaming players (models, servers) are told what is wanted and deliver when they can: each episode goes on as soon as
its own replies are there, whatever the others wait for.

The guard (section 3.1, "re-samples"): an opponent's malformed or illegal reply is asked again at most ``REASKS``
times, then replaced by the environment's ``fallback``. Refused replies and fallbacks are kept in the episode. The
learner (the market's seller, the bilateral game's buyer) is never guarded: its violation ends the episode. Nor is an
opponent that could not speak at all: the episode is ``aborted``.

Which episodes share a tick has no influence on any of them as long as the policies themselves are deterministic.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from queue import SimpleQueue
from typing import Any

from negolab.environment.base import ABORTS, SELLER, Calls, Move, Request, Turn, Violation
from negolab.episodes import REASKS, Episode
from negolab.errors import NegolabError
from negolab.games import game_of
from negolab.policies.base import Failed, Inbox, Policy, Reply, Streaming
from negolab.scenario import Scenario
from negolab.seeds import mix

WINDOW = 64
"""Open episodes at once where all players are plain: as many as stay in a core's cache. Streaming players say how many
keep them busy."""

Dropped = Callable[[int, str], object]
"""Told of an episode that could not be played to its end, and why."""


_BARE = Reply("")[1:]
"""What a reply holds that is text and nothing else."""


class _Game:
    """One open episode and what has been recorded of it."""

    __slots__ = (
        "answers",
        "awaited",
        "env",
        "learner",
        "notes",
        "parse",
        "pending",
        "prompt_ids",
        "prompts",
        "rules",
        "scenario",
        "slots",
        "subject",
        "turns",
    )

    def __init__(self, scenario: Scenario, slots: tuple[int, ...]) -> None:
        self.scenario = scenario
        self.rules = rules = game_of(scenario)
        self.env = rules.environment(scenario)
        self.learner, self.parse = rules.learner, (rules.parse_seller, rules.parse_buyer)
        self.subject = rules.subject(scenario)
        self.slots = slots  # by seat, which policy plays it
        self.turns: list[Turn] = []
        self.notes: dict[int, dict[str, Any]] = {}
        self.awaited = 0  # how many seats must speak before the environment moves on; 0 once it has
        self.answers: dict[int, Any] = {}
        self.pending: dict[int, dict[str, Any]] = {}
        self.prompt_ids: dict[int, Sequence[int]] = {}
        self.prompts: dict[int, Sequence[int]] = {}  # by position in ``turns``

    def note(self, seat: int, reply: Reply) -> None:
        """Keep what the record needs of an accepted reply beyond the turn itself."""
        self.pending.setdefault(seat, {}).update(_facts(reply))
        if reply.prompt_ids is not None:
            self.prompt_ids[seat] = reply.prompt_ids

    def refuse(self, seat: int, read: Violation, reply: Reply) -> None:
        """Record a reply that the guard turned down."""
        refused = {"kind": read.kind, "detail": read.detail, "text": clean_text(reply.text), **_facts(reply)}
        self.pending.setdefault(seat, {}).setdefault("refused", []).append(refused)

    def answer(self, seat: int, read: Move | Calls | Violation) -> None:
        """Take what a seat says. Once nobody is missing, hand it to the environment and record the turns."""
        self.answers[seat] = read
        if len(self.answers) < self.awaited:
            return
        turns = self.env.submit(self.answers)
        if self.pending:
            for position, turn in enumerate(turns, len(self.turns)):
                if turn.seat in self.pending:
                    self.notes[position] = self.pending[turn.seat]
                if turn.seat in self.prompt_ids:
                    self.prompts[position] = self.prompt_ids[turn.seat]
            self.pending, self.prompt_ids = {}, {}
        self.turns += turns
        self.answers.clear()
        self.awaited = 0

    def episode(self, names: Sequence[str]) -> Episode:
        """The finished episode, ``names`` those of the policies. Only valid once the environment has an outcome."""
        outcome = self.env.outcome
        assert outcome is not None
        reward = self.rules.reward(self.scenario, outcome, self.turns)
        players = tuple([names[slot] for slot in self.slots])
        return Episode(self.scenario, players, self.turns, self.notes, outcome, reward, self.prompts)


def _facts(reply: Reply) -> dict[str, Any]:
    """What a record holds of a reply beside its text."""
    facts: dict[str, Any] = {}
    if reply.finish_reason != "stop":
        facts["finish"] = reply.finish_reason
    if reply.prompt_tokens is not None or reply.completion_tokens is not None:
        facts["tokens"] = [reply.prompt_tokens, reply.completion_tokens]
    if reply.prompt_sha256 is not None:
        facts["prompt_sha256"] = reply.prompt_sha256
    if reply.reasoning is not None:
        facts["reasoning"] = clean_text(reply.reasoning)
    if reply.ids is not None:
        facts["ids"] = list(reply.ids)
    if reply.logprobs is not None:
        facts["logprobs"] = list(reply.logprobs)
    return facts


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
    window: int | None = None,
    dropped: Dropped | None = None,
) -> Iterator[Episode]:
    """Play ``scenarios`` and yield each episode when it ends (not in order); at most ``window`` are open at once.

    ``buyers`` maps a scenario's buyer types to policies (the bilateral regime's only one: ``learner``); a missing type
    raises ``KeyError`` before anything is played.
    An exception of a policy is passed on: the episodes yielded before are complete, the open ones are not recorded.
    An episode for which a streaming player gives up (``Failed``) is told to ``dropped``, or raises ``NegolabError``.
    """
    return chain.from_iterable(ticks(scenarios, seller, buyers, window=window, dropped=dropped))


def ticks(
    scenarios: Iterable[Scenario],
    seller: Policy,
    buyers: Mapping[str, Policy],
    *,
    window: int | None = None,
    dropped: Dropped | None = None,
) -> Iterator[list[Episode]]:
    """``play``, tick by tick: after each one the episodes that it ended, often none. Who stores episodes learns so
    that nothing more is to come before the players are asked again, however long they take."""
    # The same object may play several seats: it still gets one call per tick.
    policies = list({id(policy): policy for policy in (seller, *buyers.values())}.values())
    slot = {id(policy): i for i, policy in enumerate(policies)}
    slots = {kind: slot[id(policy)] for kind, policy in buyers.items()}
    table = _Table(policies, dropped)
    if window is None:
        window = max([WINDOW if not table.streaming else 1, *[player.window for player in table.streaming.values()]])
    source = iter(scenarios)
    more = True
    while table.open or more:
        while more and table.open < window:
            scenario = next(source, None)
            if scenario is None:
                more = False
            else:
                table.add(_Game(scenario, (0, *[slots[kind] for kind in scenario.buyer_types])))
        if table.open:
            yield table.tick()


class _Table:
    """The open episodes and who is waited for."""

    def __init__(self, policies: Sequence[Policy], dropped: Dropped | None) -> None:
        self._policies = policies
        self._names = [policy.name for policy in policies]
        self._dropped = dropped
        self.streaming = {i: policy for i, policy in enumerate(policies) if isinstance(policy, Streaming)}
        self._engines = list({id(player.engine): player.engine for player in self.streaming.values()}.values())
        self._inbox: Inbox = SimpleQueue()
        self._ready: list[_Game] = []  # their seats are to be asked
        self._waited: dict[tuple[int, int], _Game] = {}  # by episode and seat: asked, not yet answered
        self._numbers: set[int] = set()
        self.open = 0

    def add(self, game: _Game) -> None:
        """One more episode. Raises ``ValueError`` where one of its number is open: replies could not be told apart."""
        number = game.scenario.episode
        if self.streaming:
            if number in self._numbers:
                raise ValueError(f"two open episodes have the number {number}")
            self._numbers.add(number)
        self._ready.append(game)
        self.open += 1

    def tick(self) -> list[Episode]:
        """Ask everybody who must speak, take what is there, and return the episodes that are over."""
        asked, self._ready = self._ready, []
        self._ask_all(asked)
        if self.streaming:
            moved = [game for game in asked if game.awaited == 0]
            if not moved:
                self._wait()
            moved += self._take()
        else:
            moved = asked
        over = [game for game in moved if game.env.outcome is not None]
        if not over:
            self._ready += moved
            return []
        self._ready += [game for game in moved if game.env.outcome is None]
        self.open -= len(over)
        self._numbers.difference_update([game.scenario.episode for game in over])
        for player in self.streaming.values():
            for game in over:
                player.forget(game.scenario.episode)
        return [game.episode(self._names) for game in over]

    def _ask_all(self, games: Sequence[_Game]) -> None:
        asked: list[list[Request]] = [[] for _ in self._policies]
        players: list[list[_Game]] = [[] for _ in self._policies]
        for game in games:
            requests = game.env.requests()
            game.awaited = len(requests)
            for request in requests:
                slot = game.slots[request.seat]
                asked[slot].append(request)
                players[slot].append(game)
        # Those that take their time first: a server works while the plain ones think.
        for slot in self.streaming:
            if asked[slot]:
                self._start(slot, asked[slot], players[slot])
        for slot, policy in enumerate(self._policies):
            if asked[slot] and slot not in self.streaming:
                _ask(policy, asked[slot], players[slot])

    def _start(self, slot: int, requests: Sequence[Request], games: Sequence[_Game]) -> None:
        for request, game in zip(requests, games, strict=True):
            self._waited[request.episode, request.seat] = game
        self.streaming[slot].start(requests, self._inbox)

    def _wait(self) -> None:
        """Until something is in the inbox."""
        for engine in self._engines:
            if self._inbox.empty():
                engine.run()
        if self._inbox.empty():
            first = self._inbox.get()
            self._inbox.put(first)  # the order of arrival means nothing

    def _take(self) -> list[_Game]:
        """What has arrived, judged; returns the games that moved on."""
        arrived: dict[int, tuple[list[Request], list[_Game], list[Reply]]] = {}
        touched = []
        while not self._inbox.empty():
            request, reply = self._inbox.get()
            if isinstance(reply, BaseException):
                raise reply
            game = self._waited.pop((request.episode, request.seat), None)
            if game is None:  # another seat of its episode failed before
                continue
            if isinstance(reply, Failed):
                self._drop(game, reply.reason)
                continue
            requests, games, replies = arrived.setdefault(game.slots[request.seat], ([], [], []))
            requests.append(request)
            games.append(game)
            replies.append(reply)
            touched.append(game)
        for slot, (requests, games, replies) in arrived.items():
            again, owners = _judge(self._policies[slot], requests, games, replies)
            if again:
                self._start(slot, again, owners)
        return [game for game in {id(game): game for game in touched}.values() if game.awaited == 0]

    def _drop(self, game: _Game, reason: str) -> None:
        episode = game.scenario.episode
        if self._dropped is None:
            raise NegolabError(f"episode {episode} cannot be played: {reason}")
        for seat in range(len(game.slots)):
            self._waited.pop((episode, seat), None)
        for player in self.streaming.values():
            player.forget(episode)
        self.open -= 1
        self._numbers.discard(episode)
        self._dropped(episode, reason)


def _ask(policy: Policy, requests: list[Request], games: list[_Game]) -> None:
    """One batched call, and the guard's further calls for the opponents that broke a rule; requests go with games."""
    while requests:
        replies = policy.reply(requests[:])  # a copy: a player may do with its list as it likes
        if not isinstance(replies, list) or len(replies) != len(requests):
            given = f"{len(replies)} replies" if isinstance(replies, list) else f"a {type(replies).__name__}, no list,"
            raise NegolabError(f"player {policy.name} gave {given} to {len(requests)} requests")
        requests, games = _judge(policy, requests, games, replies)


def _judge(
    policy: Policy, requests: Sequence[Request], games: Sequence[_Game], replies: Sequence[Reply]
) -> tuple[list[Request], list[_Game]]:
    """Read the replies and hand them to their games; returns what the guard asks again, and of which games."""
    again: list[Request] = []
    owners: list[_Game] = []
    for game, request, reply in zip(games, requests, replies, strict=True):
        seat = request.seat
        if reply.__class__ is not Reply:
            raise NegolabError(f"player {policy.name} must give Reply objects, not {type(reply).__name__}")
        text, finish = reply[:2]
        if text.__class__ is not str or not text.isascii():
            text = clean_text(text)
        read = game.parse[seat != SELLER](text, game.subject, finish)
        # An opponent's reply is also held against the rules, so that the guard can refuse it.
        if seat != game.learner and game.rules.guarded:
            found = read if isinstance(read, Violation) else game.env.check(seat, read)
            if found is not None and found.kind not in ABORTS:
                game.refuse(seat, found, reply)
                if request.attempt < REASKS:
                    attempt = request.attempt + 1
                    seed = mix(request.seed + attempt)
                    again.append(request._replace(seed=seed, attempt=attempt, complaint=found.detail))
                    owners.append(game)
                    continue
                move = game.env.fallback(seat)
                game.answer(seat, move._replace(text=game.rules.render_opponent(move, game.subject)))
                continue
        if reply[1:] != _BARE:
            game.note(seat, reply)
        game.answer(seat, read)
    return again, owners
