"""Small negotiations of the trade game that several tests play, and players who say what they are told."""

import random
from collections.abc import Sequence

from negolab.catalog import Listing, Product
from negolab.environment import BUYER, SELLER, Call, Calls, Trade, Turn
from negolab.parser import parse_tools, render_tools
from negolab.policies.base import Reply
from negolab.scenario import Scenario

LAPTOP = Product(Listing("electronics_70", "A laptop", "Used, 16 GB.", "electronics", 170_000), 120_000)
"""Highest price of its history 1,700.00, lowest 1,200.00."""
NOTHING = "wait_for_response()"


def trade(reserve=90_000, value=120_000, rounds=10, episode=0, keys=(11, 12), product=LAPTOP) -> Scenario:
    """A negotiation with everything given, in cents; by default the values of the paper's table 10."""
    return Scenario(
        episode=episode,
        rep=0,
        regime="trade",
        unit=product.listing.codename,
        products=(product,),
        per_buyer_cap=rounds,
        message_budget=rounds,
        valuations=((value,),),
        openings=None,
        buyer_types=("trader",),
        keys=keys,
        game="trade",
        protocol="tools",
        reserve=reserve,
    )


def text_of(code: str, thought: str = "Secret.") -> str:
    """A reply with this block; one that begins with ``!`` is the reply itself."""
    return code[1:] if code.startswith("!") else f"Thought: {thought}\nCode:\n```python\n{code}\n```"


def read(seat: int, code: str) -> Calls:
    """A block through the real parser."""
    got = parse_tools(text_of(code), None, seat=seat)
    assert isinstance(got, Calls)
    return got


def step(env: Trade, *script: tuple[int, str]) -> list[Turn]:
    """Play (seat, block) through the real parser; checks who was asked."""
    turns: list[Turn] = []
    for seat, code in script:
        (request,) = env.requests()
        assert request.seat == seat, f"seat {request.seat} is asked, the script says {seat}"
        turns += env.submit({seat: read(seat, code)})
    return turns


def view(env: Trade):
    """What the side whose turn it is may see."""
    (request,) = env.requests()
    return request.view


class Reads:
    """Says the given blocks, one a reply, then passes; a ``Reply`` is said as it is. Keeps what it was asked."""

    def __init__(self, blocks: Sequence[str | Reply], name: str = "reads") -> None:
        self.name, self.blocks, self.requests = name, blocks, []

    def describe(self):
        """Nothing but a name."""
        return {"name": self.name}

    def reply(self, requests):
        """The next block of each request."""
        self.requests += requests
        return [self._say(len(request.view.own)) for request in requests]

    def _say(self, at):
        said = self.blocks[at] if at < len(self.blocks) else NOTHING
        return said if isinstance(said, Reply) else Reply(text_of(said))


_WORDS = ("Deal?", 'He said "no".', "it's\ntwo lines", "```", "<think>", "\u20ac 5", "Code:", "\\$5")


class Wild:
    """Plays at random, often against the rules; the same for the same request."""

    def __init__(self, name: str = "wild") -> None:
        self.name, self.requests = name, []

    def describe(self):
        """Nothing but a name."""
        return {"name": self.name}

    def reply(self, requests):
        """Something."""
        self.requests += requests
        return [Reply(wild_text(random.Random(request.seed))) for request in requests]


def wild_text(rng: random.Random) -> str:
    """A reply that is mostly well formed, seldom makes sense, and names its author's secret in its Thought."""
    odd = rng.random()
    if odd < 0.05:
        return rng.choice(["", "I offer $5.", "<think>hm</think>", text_of("x = search_price()"), text_of("import os")])
    if odd < 0.15:
        return text_of(rng.choice(["make_offer(0)", "foo()", "make_offer(1)\n" * 5, "search_price()\nmake_offer('a')"]))
    calls = [_call(rng) for _ in range(rng.choice([1, 1, 2, 2, 3, 4]))]
    return render_tools(tuple(calls), "SECRET-THOUGHT")


def _call(rng: random.Random) -> Call:
    tool = rng.choice(
        ["make_offer"] * 5
        + ["respond_to_offer"] * 4
        + ["send_message"] * 4
        + ["search_price", "wait_for_response", "wait_for_time_period", "wait_for_time_period", "quit_negotiation"]
    )
    if tool == "make_offer":
        return Call(tool, price=rng.randint(1, 200_000), text=rng.choice(["", "", "with a bag"]))
    if tool == "respond_to_offer":
        return Call(tool, answer=rng.random() < 0.15)
    if tool == "send_message":
        return Call(tool, text=rng.choice(_WORDS))
    return Call(tool, seconds=rng.choice([0.5, 60.0, 86_400.0]) if tool == "wait_for_time_period" else 0.0)


__all__ = [
    "BUYER",
    "LAPTOP",
    "NOTHING",
    "SELLER",
    "Reads",
    "Wild",
    "read",
    "step",
    "text_of",
    "trade",
    "view",
    "wild_text",
]
