"""What the scripted players of the market of several items say, and how a reply in the tag format is put together.

Sentences are cut where the first offer goes ("Item_2 for $12.50"), so that a reply is joined from a few pieces. They
hold no ``<`` and announce no deal: the parser's short way reads them all (``parser.tags``).
"""

from collections.abc import Iterable

from negolab.environment.base import Offer
from negolab.money import MAX_CENTS

Heads = tuple[str, ...]
"""A seller's reply up to the number of the buyer."""
Tails = tuple[tuple[str, str], ...]
"""What comes before the first offer's name in the Talk, and from there to the menu."""

_CENTS = [f".{cents:02d}" for cents in range(100)]  # a look-up costs a fifth of formatting with leading zeros
_END = "</Action>"
QUITS = (
    "<Thought>None of this is within my reach.</Thought>\n<Talk>I will look around elsewhere, thank you.</Talk>\n"
    "<Action>[QUIT]</Action>",
    "<Thought>We will not meet.</Thought>\n<Talk>That is not going to work for me, goodbye.</Talk>\n"
    "<Action>[QUIT]</Action>",
)
"""A buyer's ways to leave."""
SELLER_QUITS = (
    "<Thought>Nobody here values anything above its cost.</Thought>\n<Target>[QUIT]</Target>\n"
    "<Talk>Thank you all for coming.</Talk>\n<Action>[QUIT]</Action>"
)


def heads(*thoughts: str) -> Heads:
    """A seller's beginnings."""
    return tuple(f"<Thought>{thought}</Thought>\n<Target>Buyer " for thought in thoughts)


def tails(verb: str, *said: tuple[str, str]) -> Tails:
    """A seller's endings: (Talk before the first offer, Talk after it)."""
    return tuple((f"</Target>\n<Talk>{before}", f"{after}</Talk>\n<Action>[{verb}] ") for before, after in said)


def lines(verb: str, *said: tuple[str, str, str]) -> Tails:
    """A buyer's replies: (Thought, Talk before the first offer, Talk after it)."""
    return tuple(
        (f"<Thought>{why}</Thought>\n<Talk>{before}", f"{after}</Talk>\n<Action>[{verb}] ")
        for why, before, after in said
    )


def _menu(offers: Iterable[Offer]) -> str:
    return "; ".join([f"${cents // 100}{_CENTS[cents % 100]} (1x Item_{item})" for item, cents in offers])


def say_buyer(said: Tails, bits: int, offers: list[Offer]) -> str:
    """A buyer's reply; the two highest of 64 random ``bits`` choose among the four of ``said``."""
    before, after = said[bits >> 62]
    item, cents = offers[0]
    money = f"${cents // 100}{_CENTS[cents % 100]}"
    if len(offers) == 1:
        return f"{before}Item_{item} for {money}{after}{money} (1x Item_{item}){_END}"
    return f"{before}Item_{item} for {money}{after}{_menu(offers)}{_END}"


def say_seller(thoughts: Heads, said: Tails, bits: int, buyer: int, offers: list[Offer]) -> str:
    """A seller's reply to ``buyer``; ``bits`` choose among two ``thoughts`` and the four of ``said``."""
    before, after = said[bits >> 62]
    offers = [(item, 1 if cents < 1 else MAX_CENTS if cents > MAX_CENTS else cents) for item, cents in offers]
    item, cents = offers[0]
    money = f"${cents // 100}{_CENTS[cents % 100]}"
    head = thoughts[bits >> 61 & 1]
    if len(offers) == 1:
        return f"{head}{buyer}{before}Item_{item} for {money}{after}{money} (1x Item_{item}){_END}"
    return f"{head}{buyer}{before}Item_{item} for {money}{after}{_menu(offers)}{_END}"
