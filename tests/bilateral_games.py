"""Small bilateral games that several tests play, and players who say what they are told."""

from collections.abc import Callable, Sequence

from markets import CADDY, CODE
from negolab.environment import BUYER, SELLER, Bilateral, Move, Turn, Violation
from negolab.parser import parse_bilateral_seller, parse_buyer, render_buyer
from negolab.policies.base import Reply
from negolab.scenario import Scenario

Script = Sequence[tuple[int, str, int | None]]
"""(seat, verb, cents)."""


def game(budget=2799, turns=6, reject=False, persona="neutral", product=CADDY) -> Scenario:
    """A game with everything given; by default the papers' example product: list 34.99, cost 18.75, 0.8 x list."""
    return Scenario(
        episode=0,
        rep=0,
        regime="bilateral",
        unit=product.listing.codename,
        products=(product,),
        per_buyer_cap=turns,
        message_budget=turns,
        valuations=((budget,),),
        openings=None,
        buyer_types=("learner",),
        keys=(11, 12),
        game="bilateral",
        reject=reject,
        persona=persona,
    )


def text_of(seat: int, verb: str, cents: int | None) -> str:
    """A reply that makes this move, with words that name their author."""
    who = "seller" if seat == SELLER else "buyer"
    return render_buyer(verb, cents, f"words of the {who}", f"thought of the {who}", CODE)


def read(seat: int, text: str, reject: bool = False) -> Move | Violation:
    """A reply through the real parser."""
    return (parse_bilateral_seller if seat == SELLER else parse_buyer)(text, CODE, reject=reject)


def step(env: Bilateral, *script: tuple[int, str, int | None], reject: bool = False) -> list[Turn]:
    """Play moves through the real parser; checks who was asked."""
    turns: list[Turn] = []
    for seat, verb, cents in script:
        (request,) = env.requests()
        assert request.seat == seat, f"seat {request.seat} is asked, the script says {seat}"
        move = read(seat, text_of(seat, verb, cents), reject)
        assert isinstance(move, Move), move
        turns += env.submit({seat: move})
    return turns


def turns_of(n: int, bid: int = 1000, ask: int = 3000) -> Script:
    """n whole turns in which both sides creep towards each other."""
    return [move for k in range(n) for move in ((BUYER, "BUY", bid + k), (SELLER, "SELL", ask - k))]


class Says:
    """Plays what a function of the request says."""

    def __init__(self, say: Callable[..., str], name: str = "says") -> None:
        self.name, self._say, self.requests = name, say, []

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        self.requests += requests
        return [Reply(self._say(request)) for request in requests]
