"""Small markets that several tests play: the two example runs of 2607.05863, section 14."""

from collections.abc import Sequence

from negolab.catalog import Listing, Product
from negolab.environment import Market, Move, Turn
from negolab.parser import parse_buyer, parse_seller, render_buyer, render_seller
from negolab.scenario import REGIMES, Scenario

CODE = "baby-products_17"
CADDY = Product(Listing(CODE, "Stroller caddy", "Holds two bottles.", "baby-products", 3499), 1875)

ONE_ITEM = {name: drawn for name, drawn in REGIMES.items() if drawn.n_items == 1}
"""The regimes of 2607.05863, whose markets sell one product."""

# Prices from table 13 and sections 14.2 and 14.3; (seat, verb, cents, target).
Script = Sequence[tuple[int, str, int, int | None]]
UNTRAINED: Script = [
    (1, "BUY", 1050, None),
    (2, "BUY", 905, None),
    (3, "BUY", 933, None),
    (0, "SELL", 2200, 1),
    (1, "BUY", 1800, None),
    (0, "SELL", 2000, 1),
    (1, "BUY", 1900, None),
    (0, "DEAL", 1900, 1),
]
TRAINED: Script = [
    (1, "BUY", 995, None),
    (2, "BUY", 1045, None),
    (3, "BUY", 928, None),
    (0, "SELL", 3499, 2),
    (2, "BUY", 1800, None),
    (0, "SELL", 3499, 1),
    (1, "BUY", 995, None),
    (0, "SELL", 3499, 3),
    (3, "BUY", 1000, None),
    (0, "SELL", 3499, 2),
    (2, "BUY", 3250, None),
    (0, "DEAL", 3250, 2),
]
OPEN_TRAINED = TRAINED[:3]


def market(budgets=(1764, 3837, 2583), openings=(995, 1045, 928), k=3, t=7, types=None, product=CADDY) -> Scenario:
    """A market with everything given; the default is the trained run's."""
    types = types or ("iter-60",) * len(budgets)
    return Scenario(
        episode=0,
        rep=0,
        regime="in_distribution",
        unit=product.listing.codename,
        products=(product,),
        per_buyer_cap=k,
        message_budget=t,
        valuations=tuple((budget,) for budget in budgets),
        openings=None if openings is None else tuple((opening,) for opening in openings),
        buyer_types=types,
        keys=tuple(range(len(budgets) + 1)),
    )


def openings_of(scenario: Scenario) -> tuple[int, ...]:
    """Every buyer's regulated first offer for the only item."""
    assert all(fixed is not None and len(fixed) == 1 for fixed in scenario.openings)
    return tuple(fixed[0] for fixed in scenario.openings)


UNTRAINED_MARKET = market(budgets=(2540, 1813, 4011), openings=(1050, 905, 933))
TRAINED_MARKET = market()


def text_of(seat: int, verb: str, cents: int | None, target: int | None) -> str:
    """A reply that makes this move."""
    if seat == 0:
        return render_seller(verb, cents, target, f"words of the seller {verb.lower()}", "a private thought", CODE)
    return render_buyer(verb, cents, f"words of buyer {seat}", f"the thought of buyer {seat}", CODE)


def step(env: Market, *script: tuple[int, str, int | None, int | None]) -> list[Turn]:
    """Play moves through the real parser, one request after the other; checks who was asked."""
    turns: list[Turn] = []
    at = 0
    while at < len(script):
        asked = [request.seat for request in env.requests()]
        replies = {}
        for seat, verb, cents, target in script[at : at + len(asked)]:
            text = text_of(seat, verb, cents, target)
            replies[seat] = parse_seller(text, CODE) if seat == 0 else parse_buyer(text, CODE)
            assert isinstance(replies[seat], Move), replies[seat]
        assert sorted(replies) == sorted(asked), f"asked {asked}, script says {sorted(replies)}"
        turns += env.submit(replies)
        at += len(asked)
    return turns
