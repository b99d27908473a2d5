"""Scripted buyers ``iter-50``, ``iter-60``, ``iter-70``: stand-ins, not the paper's trained language models.

2607.05863 plays its seller against three checkpoints of a trained buyer. These rules reproduce what the paper
publishes about them (tables 11 and 12, section 13) and what its transcripts show (section 14): a buyer bargains against
the standing ask. Each counter is a fraction of that ask which grows with the messages the buyer has had, and it never
exceeds the budget. So an ask near cost draws a bid below cost, a firm ask at list price lifts a rich buyer, and a buyer
that cannot pay the ask stays where it is.

All that varies comes from the request's seeds; a buyer keeps no state.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import BuyerView, Request
from negolab.errors import NegolabError
from negolab.policies.base import Reply
from negolab.seeds import mix

VERSION = 1
"""Counts up whenever a rule or parameter changes what a buyer says."""

_U = 1.0 / (1 << 16)  # four uniform numbers are cut out of one 64-bit word: a word costs more than all else here
_TRAITS = 0x51A7B0C39E2D4F68  # keeps the seat's traits apart from its first reply's seed
_CENTS = [f".{cents:02d}" for cents in range(100)]  # a look-up costs a fifth of formatting with leading zeros
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class BuyerType:
    """What tells one type from another; ``tests/benchmarks/calibrate_players.py`` prints what it leads to."""

    name: str
    """As scenarios name it."""
    lowball_rate: float
    """Probability of a free opening that says nothing about the budget."""
    fractions: tuple[float, ...]
    """Counter as a fraction of the ask after one, two, ... seller messages; the last one holds from then on."""
    open_share: float = 0.505
    """A telling free opening as a fraction of the budget; nobody counts a budget above the list price."""
    open_noise: float = 0.012
    """Half-width of the uniform noise on a telling opening, as a fraction of the list price."""
    lowball: tuple[float, float] = (0.14, 0.32)
    """Range of an opening that tells nothing, as fractions of the list price."""
    fraction_noise: float = 0.05
    """Half-width of the uniform noise on the counter's fraction, drawn for every reply."""
    fraction_trait: float = 0.07
    """Half-width of the uniform noise on that fraction, drawn once per seat and episode."""
    wealth: float = 0.09
    """Added to that fraction per unit of budget over list price beyond 0.75: richer buyers give way sooner."""
    flat_below: float = 0.93
    """Budget over ask at or below which the buyer does not move."""
    lifted_above: float = 0.99
    """Budget over ask at or above which it moves all the way to its counter; in between in proportion."""
    accept_below: float = 0.65
    """An ask at or below this fraction of the budget may be accepted as it is."""
    accept_rate: float = 0.07
    """Probability that it is."""
    quit_rate: float = 0.09
    """Probability, at every seller message, of leaving the market."""


BUYER_TYPES = {
    t.name: t
    for t in (
        BuyerType(name="iter-50", lowball_rate=0.10, fractions=(0.86, 0.97, 0.98)),
        BuyerType(name="iter-60", lowball_rate=0.48, fractions=(0.59, 0.85, 0.93)),
        BuyerType(name="iter-70", lowball_rate=0.20, fractions=(0.70, 0.86, 0.93)),
    )
}
"""The three types by name."""


def _lines(verb: str, *said: tuple[str, str, str]) -> tuple[tuple[str, str], ...]:
    """Replies cut at the places where the price goes: (Thought, Talk before the price, Talk after it)."""
    return tuple((f"Thought: {why}\nTalk: {before}", f"{after}\nAction: [{verb}] ") for why, before, after in said)


_OPENINGS = _lines(
    "BUY",
    ("Start well under the list price and see who blinks.", "Hello! I could take it home for ", "."),
    ("A low first number leaves me room.", "My first number is ", ", what do you say?"),
    ("The list price is no place to start from.", "Would ", " work for you?"),
    ("Anchor low, stay friendly.", "I like it, and I have ", " in mind for it."),
)
_RISES = _lines(
    "BUY",
    ("The ask is within reach, but I can get it lower.", "Let us meet closer to my side: ", "."),
    ("I can climb a little and keep a margin.", "I can stretch to ", ", paid at once."),
    ("There is room left below my limit.", "What about ", "? That seems right to me."),
    ("One more step, not the whole way.", "I am moving up to ", ", now it is your turn."),
)
_STAYS = _lines(
    "BUY",
    ("That ask is more than I can spend.", "That is beyond me; ", " is where I stand."),
    ("I cannot follow there, hold the line.", "I have to stay near ", ", sorry."),
    ("Too expensive for my purse.", "Honestly, ", " is about all I can do."),
    ("No room to follow this ask.", "Your price is too steep, I keep to ", "."),
)
_ACCEPTS = _lines(
    "DEAL",
    ("Well under my limit, take it.", "Good, I take it at ", "."),
    ("No need to haggle over the rest.", "Agreed, ", " it is."),
    ("This leaves me enough.", "Fine by me: ", "."),
    ("Close it before the price moves.", "Yes, ", " works."),
)
_QUITS = (
    "Thought: Out of reach, no point in going on.\nTalk: I will look elsewhere, thank you.\nAction: [QUIT]",
    "Thought: We are too far apart.\nTalk: That is not going to work for me, goodbye.\nAction: [QUIT]",
)


def plausible(cents: int) -> int:
    """The amount rounded down to a step that people use at its size: 1 cent below $2, up to whole tens of dollars."""
    if cents < 1000:
        return cents - cents % 5 if cents >= 200 else cents
    if cents < 10_000:
        return cents - cents % (25 if cents < 5000 else 50)
    return cents - cents % (100 if cents < 100_000 else 1000)


class ScriptedBuyer:
    """A rule-based buyer of one type. Legal at every request: it never needs the opponent guard."""

    def __init__(self, type: str | BuyerType) -> None:
        """Raises ``NegolabError`` for a type that does not exist."""
        if isinstance(type, str):
            if type not in BUYER_TYPES:
                raise NegolabError(f"unknown buyer type {type!r}; allowed: {', '.join(BUYER_TYPES)}")
            type = BUYER_TYPES[type]
        self.type = type
        self.name = type.name

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        return {"name": self.name, "kind": "scripted stand-in", "version": VERSION, "parameters": asdict(self.type)}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        answer, opening, made = self._answer, self._opening, []
        for request in requests:
            view: Any = request.view  # a buyer's seat is only ever shown a buyer's view
            speak = answer if view.heard else opening
            text = speak(view, request.seed, request.seat_seed)
            made.append(_new(Reply, (text, "stop", None, None, None, None, None, None, None)))
        return made

    def _opening(self, view: BuyerView, _: int, seat_seed: int) -> str:
        t, bits, price = self.type, mix(seat_seed ^ _TRAITS), view.opening
        if price is None:
            budget, list_price = view.budget, view.listing.list_cents
            place = (bits >> 16 & 0xFFFF) * _U
            if (bits & 0xFFFF) * _U < t.lowball_rate:
                low, high = t.lowball
                amount = (low + (high - low) * place) * list_price
            else:
                shown = budget if budget < list_price else list_price
                amount = t.open_share * shown + t.open_noise * (2.0 * place - 1.0) * list_price
            price = max(1, min(plausible(int(amount)), budget))
        return _say(_OPENINGS, bits, price, view.listing.codename)

    def _answer(self, view: BuyerView, bits: int, seat_seed: int) -> str:
        t = self.type
        (listing,), (budget,), _, _, heard, _, _ = view
        # A buyer's channel is its opening, then the seller's messages and its own bids in turn.
        ask, bid, sent = heard[-1].offers[0][1], heard[-2].offers[0][1], len(heard) >> 1
        chance = (bits & 0xFFFF) * _U
        if ask <= budget and (ask <= bid or (ask <= t.accept_below * budget and chance < t.accept_rate)):
            return _say(_ACCEPTS, bits, ask, listing.codename)
        if chance > 1.0 - t.quit_rate:
            return _QUITS[bits >> 63]
        lift = (budget / ask - t.flat_below) / (t.lifted_above - t.flat_below)
        if lift > 0.0:
            fractions = t.fractions
            trait = (mix(seat_seed ^ _TRAITS) >> 32 & 0xFFFF) * _U
            share = (
                (fractions[sent - 1] if sent <= len(fractions) else fractions[-1])
                + t.wealth * (budget / listing.list_cents - 0.75)
                + t.fraction_noise * (2.0 * (bits >> 16 & 0xFFFF) * _U - 1.0)
                + t.fraction_trait * (2.0 * trait - 1.0)
            )
            counter = ask * share
            if counter > bid:
                counter = plausible(int(bid + (counter - bid) * lift if lift < 1.0 else counter))
                if counter >= ask and ask <= budget:
                    return _say(_ACCEPTS, bits, ask, listing.codename)
                if counter > budget:
                    counter = budget
                if counter > bid:
                    return _say(_RISES, bits, counter, listing.codename)
        return _say(_STAYS, bits, bid, listing.codename)


def _say(lines: tuple[tuple[str, str], ...], bits: int, cents: int, codename: str) -> str:
    head, tail = lines[bits >> 62]
    money = f"${cents // 100}{_CENTS[cents % 100]}"
    return f"{head}{money}{tail}{money} (1x {codename})"
