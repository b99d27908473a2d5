"""A market of three recorders in the tag format, and one episode of it, for the tests that look at its prompts.

No amount in it stands for two things, so that one found in a prompt says where it comes from.
"""

from negolab.catalog import Listing, Product
from negolab.environment import Move
from negolab.money import dollars
from negolab.scenario import Scenario

RECORDERS = (
    Product(
        Listing("cameras_1", "Lorin 8-channel recorder", "Eight channels, two terabytes.", "cameras", 24_999), 10_013
    ),
    Product(Listing("cameras_2", "Zosin 5MP recorder", "Records in 5MP.", "cameras", 18_349), 5_599),
    Product(Listing("cameras_3", "Annex mini recorder", "Four channels, no disk.", "cameras", 5_511), 4_207),
)
VALUES = ((17_117, 21_221, 2_333), (25_212, 19_919, 6_161), (12_121, 9_191, 5_353))
OPENINGS = (None, (6_789, 4_567, 1_432), None)


def market(products=RECORDERS, values=VALUES, openings=OPENINGS, k=3, t=7):
    n = len(values)
    return Scenario(
        episode=0,
        rep=0,
        regime="multi_product",
        unit="recorders",
        products=tuple(products),
        per_buyer_cap=k,
        message_budget=t,
        valuations=tuple(map(tuple, values)),
        openings=openings,
        buyer_types=("iter-60",) * n,
        keys=tuple(range(n + 1)),
        protocol="tags",
    )


def move(seat, verb, offers=(), target=None, talk=None):
    """A move, and the reply that says it, with a Thought that marks whose it is."""
    talk = f"talk-of-{seat}-{verb}-to-{target}" if talk is None else talk
    named = "; ".join(f"{dollars(price)} (1x Item_{item})" for item, price in offers)
    whom = f"<Target>Buyer {target}</Target>\n" if seat == 0 else ""
    action = f"[{verb}] {named}".strip()
    text = f"<Thought>thought-of-{seat}</Thought>\n{whom}<Talk>{talk}</Talk>\n<Action>{action}</Action>"
    return Move(verb, tuple(offers), target, talk, text)


def play(env, *moves):
    """Submit (seat, move) pairs in the order in which the seats are asked."""
    left = list(moves)
    while left:
        asked = [request.seat for request in env.requests()]
        now, left = left[: len(asked)], left[len(asked) :]
        assert [seat for seat, _ in now] == asked
        env.submit(dict(now))


def script(*steps):
    return [(step[0], move(*step)) for step in steps]


OPEN = script(
    (1, "BUY", ((1, 5_101), (3, 1_013))),
    (2, "BUY", ((1, 6_789), (2, 4_567))),
    (3, "BUY", ((3, 4_444),)),
)
REST = script(
    (0, "SELL", ((1, 24_998), (2, 18_301)), 1),
    (1, "BUY", ((1, 14_017), (2, 7_019))),
    (0, "DEAL", ((1, 14_017),), 1),
    (0, "SELL", ((2, 18_303), (3, 5_507)), 2),
    (2, "DEAL", ((2, 18_303),)),
    (0, "SELL", ((3, 5_351),), 3),
    (3, "BUY", ((3, 5_003),)),
)


def request_of(env, seat):
    return next(request for request in env.requests() if request.seat == seat)
