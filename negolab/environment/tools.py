"""The seven tools of the trade game (2604.16472, tables 1 and 9): names, arguments, limits and effects, said once.

The parser reads calls by these definitions, prompts explain them, and chat models get them as native tools. The paper
gives most tools an argument ``agent``, one's own role; here whoever speaks is who acts, and nobody has to say it.
"""

from typing import NamedTuple

from negolab.environment.base import SELLER, TOOLS
from negolab.money import MAX_CENTS

MAX_WAIT = 86_400
"""Seconds of ``wait_for_time_period``: a day."""
MAX_PRICE = MAX_CENTS // 100
"""Dollars of ``make_offer``."""
MAX_CODE = 20_000
"""Characters of a reply's block; no turn needs more."""


class Argument(NamedTuple):
    """One argument of a tool."""

    name: str
    type: str
    """``number``, ``boolean`` or ``string``, as JSON schema calls them."""
    help: str
    required: bool = True
    most: int | None = None
    """A number is above zero, and this at most."""


class Tool(NamedTuple):
    """One tool; ``{other}`` in its texts is the other side's role."""

    name: str
    arguments: tuple[Argument, ...]
    """In the order in which they may be given by position."""
    effect: str
    terminal: bool = False
    """Nothing may follow it in a turn."""


_PRICE = Argument("price", "number", "dollars, two decimals at most", most=MAX_PRICE)
_SIDE = Argument("side_offer", "string", "something besides the price that sweetens the offer", required=False)

TOOL_SET: tuple[Tool, ...] = (
    Tool(
        "make_offer",
        (_PRICE, _SIDE),
        "Propose a price for the item. Your offer waits for the {other}'s answer. It takes the place of the offer you "
        "made before, and it rejects the {other}'s offer that waits for your answer.",
    ),
    Tool(
        "respond_to_offer",
        (Argument("response", "boolean", "True accepts, False rejects"),),
        "Answer the {other}'s offer that waits for you. True closes the deal at its price and ends the negotiation at "
        "once. False rejects it, and the negotiation goes on. Where no offer waits, the call is lost.",
    ),
    Tool(
        "send_message",
        (Argument("content", "string", "what the {other} is to read; not empty"),),
        "Send the {other} a message in plain words. It makes no offer, answers none, and binds nobody.",
    ),
    Tool(
        "search_price",
        (),
        "Look up the lowest and the highest price that the item has had. Only you are told. If your first search is "
        "all that you do in a turn, you go on in the same round; otherwise you are told when your next turn begins.",
    ),
    Tool(
        "quit_negotiation",
        (),
        "End the negotiation at once and without a deal; the utility of both sides is zero.",
        terminal=True,
    ),
    Tool("wait_for_response", (), "Give the turn to the {other}.", terminal=True),
    Tool(
        "wait_for_time_period",
        (Argument("duration", "number", "seconds", most=MAX_WAIT),),
        "Let time pass and then speak again yourself, in a new round.",
        terminal=True,
    ),
)
TOOL_BY_NAME = {tool.name: tool for tool in TOOL_SET}
assert tuple(TOOL_BY_NAME) == TOOLS


def role_of(seat: int) -> str:
    """``seller`` or ``buyer``."""
    return "seller" if seat == SELLER else "buyer"
