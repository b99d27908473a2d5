"""What tells one game from another wherever replies are read: rules, grammar, who learns, and the reward.

Whoever plays or replays an episode asks ``game_of`` its scenario, and is then the same for all games.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from negolab.environment.base import BUYER, SELLER, Environment, Move, Outcome, Violation
from negolab.environment.bilateral import Bilateral
from negolab.environment.market import Market
from negolab.parser.lines import parse_bilateral_seller, parse_buyer, parse_seller
from negolab.reward import buyer_reward, seller_reward
from negolab.scenario import Scenario


class Parser(Protocol):
    """Text, the item's codename and the finish reason to a move or a violation. Never raises."""

    def __call__(self, text: str | None, codename: str, finish_reason: str = "stop", /) -> Move | Violation: ...


class Game(NamedTuple):
    """One set of rules with all that belongs to it."""

    environment: Callable[[Scenario], Environment]
    learner: int
    """The seat that is trained and evaluated. It is never guarded: its violation ends the episode. Every other seat is:
    its illegal replies are asked again, then replaced (``rollout``)."""
    parse_seller: Parser
    parse_buyer: Parser
    reward: Callable[[Scenario, Outcome], float]
    """The learner's."""


def _seller(scenario: Scenario, outcome: Outcome) -> float:
    product = scenario.product
    return seller_reward(outcome, list_cents=product.listing.list_cents, cost_cents=product.cost_cents)


def _buyer(scenario: Scenario, outcome: Outcome) -> float:
    return buyer_reward(outcome, budget_cents=scenario.budgets[0], cost_cents=scenario.product.cost_cents)


MARKET = Game(Market, SELLER, parse_seller, parse_buyer, _seller)
"""2607.05863: the seller learns."""
BILATERAL = Game(Bilateral, BUYER, parse_bilateral_seller, parse_buyer, _buyer)
"""2604.09855: the buyer learns."""
_BILATERAL_REJECT = BILATERAL._replace(
    parse_seller=partial(parse_bilateral_seller, reject=True), parse_buyer=partial(parse_buyer, reject=True)
)


def game_of(scenario: Scenario) -> Game:
    """The game that ``scenario`` is of."""
    if scenario.game == "market":
        return MARKET
    return _BILATERAL_REJECT if scenario.reject else BILATERAL
