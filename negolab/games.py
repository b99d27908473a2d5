"""What tells one game from another wherever replies are read: rules, grammar, who learns, and the reward.

Whoever plays or replays an episode asks ``game_of`` its scenario, and is then the same for all games.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from negolab.environment.base import BUYER, SELLER, Calls, Environment, Move, Outcome, Turn, Violation
from negolab.environment.bilateral import Bilateral
from negolab.environment.market import Market
from negolab.environment.trade import Trade
from negolab.parser.lines import parse_bilateral_seller, parse_buyer, parse_seller, render_buyer
from negolab.parser.tags import parse_item_buyer, parse_item_seller, render_item_buyer
from negolab.parser.tools import parse_tools
from negolab.reward import buyer_reward, seller_reward, trade_reward
from negolab.scenario import Scenario


class Parser(Protocol):
    """Text, what is on sale and the finish reason to a move (or tool calls), or a violation. Never raises."""

    def __call__(self, text: str | None, subject: Any, finish_reason: str = "stop", /) -> Move | Calls | Violation: ...


class Game(NamedTuple):
    """One set of rules with all that belongs to it."""

    environment: Callable[[Scenario], Environment]
    learner: int
    """The seat that is trained and evaluated. It is never guarded: its violation ends the episode. Every other seat is:
    its illegal replies are asked again, then replaced (``rollout``)."""
    parse_seller: Parser
    parse_buyer: Parser
    subject: Callable[[Scenario], Any]
    """What is on sale, as the parsers want it: the item's codename, or with tags the number of items."""
    render_opponent: Callable[[Move, Any], str]
    """The reply that makes a move of an opponent of the learner (the guard's); the other argument is the subject."""
    reward: Callable[[Scenario, Outcome, Sequence[Turn]], float]
    """The learner's; where both sides are under test the seller's."""
    guarded: bool = True
    """Whether the opponent guard holds the other seats to the rules."""


def _seller(scenario: Scenario, outcome: Outcome, _: Sequence[Turn]) -> float:
    return seller_reward(outcome, [(p.listing.list_cents, p.cost_cents) for p in scenario.products])


def _buyer(scenario: Scenario, outcome: Outcome, _: Sequence[Turn]) -> float:
    return buyer_reward(outcome, budget_cents=scenario.budgets[0], cost_cents=scenario.product.cost_cents)


def _codename(scenario: Scenario) -> str:
    return scenario.products[0].listing.codename


def _in_lines(move: Move, codename: str) -> str:
    return render_buyer(move.verb, move.price, "", "", codename)  # whatever the game, opponents write these three parts


def _in_tags(move: Move, _: int) -> str:
    return render_item_buyer(move.verb, move.offers, "", "")


def _no_opponent(move: Move, _: Any) -> str:
    raise ValueError("nobody is played for in the trade game")


def _seller_of_two(scenario: Scenario, outcome: Outcome, turns: Sequence[Turn]) -> float:
    return trade_reward(scenario.reserve or 0, scenario.valuations[0][0], outcome, turns, SELLER)


MARKET = Game(Market, SELLER, parse_seller, parse_buyer, _codename, _in_lines, _seller)
"""2607.05863: the seller learns."""
MARKET_IN_TAGS = Game(
    Market, SELLER, parse_item_seller, parse_item_buyer, lambda scenario: len(scenario.products), _in_tags, _seller
)
"""2609.33289: the same market, of any number of items, replies written with tags."""
BILATERAL = Game(Bilateral, BUYER, parse_bilateral_seller, parse_buyer, _codename, _in_lines, _buyer)
"""2604.09855: the buyer learns."""
TRADE = Game(
    Trade,
    SELLER,
    partial(parse_tools, seat=SELLER),
    partial(parse_tools, seat=BUYER),
    _codename,
    _no_opponent,
    _seller_of_two,
    guarded=False,
)
"""2604.16472: two traders under test."""
_BILATERAL_REJECT = BILATERAL._replace(
    parse_seller=partial(parse_bilateral_seller, reject=True), parse_buyer=partial(parse_buyer, reject=True)
)


def game_of(scenario: Scenario) -> Game:
    """The game that ``scenario`` is of."""
    if scenario.game == "market":
        return MARKET if scenario.protocol == "lines" else MARKET_IN_TAGS
    if scenario.game == "trade":
        return TRADE
    return _BILATERAL_REJECT if scenario.reject else BILATERAL
