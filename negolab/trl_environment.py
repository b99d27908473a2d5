"""The trade game of 2604.16472 as an environment of TRL's tool loop, for those who train with TRL itself.

``TradeGames`` is what ``GRPOTrainer`` wants as ``environment_factory``, and makes the data set that goes with it (TRL
1.16, whose interface is experimental; for what ``negolab train`` adds to it see ``trainer.trade_task``). Rules,
verdicts and rewards are the game's own: calls go through the same parser and environment as everybody's.

What TRL's loop makes different:

* TRL hands over one call at a time and does not say where a reply ends. Calls of a turn are kept until it is over: with
  a terminal tool, an accepting answer, the third call, or a search that is the turn's first call and the side's first
  search. A wrong call counts as one. Only then do they take effect, and the last call's result tells what has happened
  since.
* A reply without a call ends TRL's rollout. Calls that are kept still take effect, and the other side may take an offer
  among them; otherwise there is no deal, and one reply that could not be read.
* A call of an unknown tool, or with arguments of other names, is answered by TRL and never gets here.
* The whole conversation has one budget of tokens (``max_completion_length``), which should hold ten rounds.
* The loop plays one rollout after the other, so opponents are scripted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from negolab.catalog import find_data, load_catalog
from negolab.environment.base import BUYER, MAX_CALLS, Calls, Environment, Outcome, TradeView, Turn
from negolab.environment.tools import TOOL_BY_NAME, role_of
from negolab.errors import NegolabError
from negolab.games import TRADE
from negolab.money import dollars
from negolab.parser.native import NativeCall, parse_native
from negolab.policies.registry import make_trader
from negolab.policies.spec import is_model
from negolab.prompts import MarketPrompts
from negolab.reward import WEIGHTS, trade_reward
from negolab.scenario import Scenario
from negolab.trainer.markets import Markets
from negolab.trainer.trade_task import SEATS, TradeOptions

if TYPE_CHECKING:
    from datasets import Dataset

_NOTE = (
    "# Your tools are native here\n"
    "In this conversation the seven tools are given to you as native functions. Do not write a block of code: write "
    "your Thought, then call one. The calls of a turn are kept until it is over: with a terminal tool, with an answer "
    "that accepts, with your third call, or with your first search if nothing came before it. Then they take effect in "
    "order, and you are told what has happened since. A reply without a call ends the negotiation for you, without a "
    "deal. "
    "Whatever else is said of the tools above holds."
)
_KEPT = "Kept for this turn, calls that are left in it: {left}. Hand over with wait_for_response()."


class TradeGames:
    """Draws games for TRL and makes their environments. With three lines a model of TRL's learns to trade::

        games = TradeGames(seat="buyer", opponent="taper", data="auto")
        trainer = GRPOTrainer("Qwen/Qwen3-8B", train_dataset=games.dataset(), environment_factory=games)
        trainer.train()

    Rows of the data set and the environment's randomness are functions of (``seed``, row): the rollouts of a group meet
    the same item, values and opponent. The model's chat template has to know tools.
    """

    def __init__(
        self,
        *,
        seat: str = "buyer",
        opponent: str = "taper",
        gft_share: float = 2 / 3,
        trade_draw: str = "redraw",
        rounds: int = 10,
        weights: tuple[float, float, float, float] = WEIGHTS,
        data: str = "sample",
        split: str = "train",
        seed: int = 0,
    ) -> None:
        """As in ``trainer.trade_task.TradeOptions``; ``data``: sample, auto, or a folder with the catalogue. Raises
        ``NegolabError`` for a value that is not allowed, a language model as opponent among them."""
        if not isinstance(opponent, str) or is_model(opponent):
            raise NegolabError(f"opponent is {opponent!r}; allowed: a scripted trader, or module:factory")
        options = TradeOptions(
            seat=seat,
            opponent=opponent,
            unseen=(),
            gft_share=gft_share,
            trade_draw=trade_draw,
            rounds=rounds,
            weights=weights,
        )
        self.seat = SEATS[seat]
        self.weights = options.weights
        self.opponent = make_trader(role_of(1 - self.seat), opponent)
        self.prompts = MarketPrompts()
        units = load_catalog(find_data(data)).split(split)
        self._markets = Markets(options.trained(), units, seed=seed, groups=max(1, len(units)), group_size=1)
        self._drawn: dict[int, list[Scenario]] = {}

    def __call__(self) -> TradeEnvironment:
        """An environment for one rollout at a time; TRL resets and reuses it."""
        return TradeEnvironment(self)

    def scenario(self, epoch: int, place: int) -> Scenario:
        """The game of a row of the data set."""
        if epoch not in self._drawn:
            self._drawn[epoch] = self._markets.step(epoch, self.seat)
        return self._drawn[epoch][place]

    def dataset(self, epochs: int = 1) -> Dataset:
        """A row for each item and epoch, in a seeded order: ``prompt``, ``epoch`` and ``place``. Further epochs hold
        other games of the same items. Raises ``NegolabError`` where the package datasets is missing."""
        try:
            from datasets import Dataset
        except ImportError:
            raise NegolabError("TRL's data sets need the package datasets: pip install 'negolab[train]'") from None
        rows = []
        environment = self()
        for epoch in range(epochs):
            for place in range(len(self._markets.units)):
                # TRL puts what reset returns behind the last message.
                environment.reset(epoch=epoch, place=place)
                if environment._system is None:  # the other side quitted before the learner could speak
                    continue
                system = {"role": "system", "content": f"{environment._system}\n\n{_NOTE}"}
                rows.append({"prompt": [system, {"role": "user", "content": ""}], "epoch": epoch, "place": place})
        return Dataset.from_list(rows)


F = TypeVar("F", bound=Callable[..., str])


def _told(method: F) -> F:
    """Give a tool the docstring that chat templates make its schema of, from the one definition of the tools."""
    tool = TOOL_BY_NAME[method.__name__]
    lines = [tool.effect.format(other="other side") + (" Nothing may follow it in a turn." if tool.terminal else "")]
    if tool.arguments:
        lines += ["", "Args:"]
        lines += [f"    {argument.name}: {argument.help.format(other='other side')}" for argument in tool.arguments]
    method.__doc__ = "\n".join(lines)
    return method


class TradeEnvironment:
    """One game at a time. Its public methods are the model's tools, ``reset`` and ``get_reward`` excepted."""

    def __init__(self, games: TradeGames) -> None:
        self._games = games
        self._seat = games.seat
        self._env: Environment | None = None

    def reset(self, epoch: int, place: int, **row: Any) -> str:
        """Begin the game of a row. Returns what the learner is told first, after the system prompt."""
        self._scenario = self._games.scenario(epoch, place)
        self._env = TRADE.environment(self._scenario)
        self._turns: list[Turn] = []
        self._calls: list[NativeCall] = []
        self._outcome: Outcome | None = None
        self._system: str | None = None
        return self._play_on()

    def get_reward(self) -> float:
        """Equation 8 for the learner's seat, from the game's own state. The game is over from now on."""
        if self._env is None:
            raise ValueError("no game has begun")
        if self._outcome is None and self._calls:
            self._submit()
        if self._outcome is None:  # the rollout ended with a reply that called nothing, or was cut
            why = "unparseable", "a reply without a call"
            self._turns.append(Turn(self._view.round, self._seat, BUYER, None, (), "", *why))
            self._outcome = Outcome("no_deal", "stopped", self._seat)
        scenario = self._scenario
        values = scenario.reserve or 0, scenario.valuations[0][0]
        return trade_reward(*values, self._outcome, self._turns, self._seat, self._games.weights)

    # -- the tools --------------------------------------------------------------------------------------------------

    @_told
    def make_offer(self, price: float, side_offer: str = "") -> str:
        return self._call("make_offer", price=price, side_offer=side_offer)

    @_told
    def respond_to_offer(self, response: bool) -> str:
        return self._call("respond_to_offer", response=response)

    @_told
    def send_message(self, content: str) -> str:
        return self._call("send_message", content=content)

    @_told
    def search_price(self) -> str:
        return self._call("search_price")

    @_told
    def quit_negotiation(self) -> str:
        return self._call("quit_negotiation")

    @_told
    def wait_for_response(self) -> str:
        return self._call("wait_for_response")

    @_told
    def wait_for_time_period(self, duration: float) -> str:
        return self._call("wait_for_time_period", duration=duration)

    # -- the game ---------------------------------------------------------------------------------------------------

    def _call(self, tool: str, **arguments: Any) -> str:
        """Keep a call, and play on where the turn is over. Raises ``ValueError`` for a wrong one, which counts all the
        same: TRL tells the model of it."""
        if self._env is None or self._outcome is not None:
            raise ValueError("the negotiation is over" if self._env is not None else "no game has begun")
        call = NativeCall(tool, json.dumps(arguments))
        self._calls.append(call)
        alone = parse_native([call], seat=self._seat)
        problems = alone.problems if isinstance(alone, Calls) else ()
        if len(self._calls) == MAX_CALLS or self._ends(tool, arguments, bool(problems)):
            return self._submit()
        left = _KEPT.format(left=MAX_CALLS - len(self._calls))
        if problems:
            kind, detail = problems[0]
            raise ValueError(f"{kind}: {detail}. {left}")
        return left

    def _ends(self, tool: str, arguments: dict[str, Any], wrong: bool) -> bool:
        """Whether a call ends the turn, whatever was called before."""
        if wrong:
            return False
        if tool == "search_price":
            return len(self._calls) == 1 and self._view.history is None
        return TOOL_BY_NAME[tool].terminal or arguments.get("response") is True

    def _submit(self) -> str:
        """The turn is over: let its calls take effect. Returns what has happened since."""
        assert self._env is not None
        calls, self._calls = parse_native(self._calls, seat=self._seat), []
        self._turns += self._env.submit({self._seat: calls})
        return self._play_on()

    def _play_on(self) -> str:
        """Until the learner has to speak, or the game is over."""
        env, games = self._env, self._games
        assert env is not None
        parse = (TRADE.parse_seller, TRADE.parse_buyer)
        while env.outcome is None:
            (request,) = env.requests()
            if request.seat == self._seat:
                assert isinstance(request.view, TradeView)
                self._view = request.view
                messages = games.prompts.messages(request)
                self._system = self._system or messages[0]["content"]
                return messages[-1]["content"]
            (reply,) = games.opponent.reply([request])
            read = parse[request.seat](reply.text, TRADE.subject(self._scenario), reply.finish_reason)
            self._turns += env.submit({request.seat: read})
        self._outcome = env.outcome
        if self._outcome.price is not None:
            return f"The negotiation is over: a deal at {dollars(self._outcome.price)}."
        return "The negotiation is over, without a deal."
