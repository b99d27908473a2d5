"""Markets of several items for tests. First three recorders in the tag format and one episode of them, for the tests
that look at prompts; then replies through the real parser, random players, random markets.

No amount of the recorders stands for two things, so that one found in a prompt says where it comes from.
"""

import random

from negolab.catalog import Listing, Product
from negolab.clusters import Cluster
from negolab.environment import Move
from negolab.money import dollars
from negolab.parser import (
    parse_item_buyer,
    parse_item_seller,
    render_buyer,
    render_item_buyer,
    render_item_seller,
    render_seller,
)
from negolab.policies.base import Reply
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


# -- replies in the tag format, read by the real parser ---------------------------------------------------------------


def text_of(seat, verb, offers=(), target=None, talk=None, thought=None):
    """A reply that makes this move; where nothing else is given, its words name the seat."""
    talk = f"words-of-{seat}" if talk is None else talk
    thought = f"thought-of-{seat}" if thought is None else thought
    if seat == 0:
        return render_item_seller(verb, offers, target, talk, thought)
    return render_item_buyer(verb, offers, talk, thought)


def read(seat, text, items):
    """What the parser makes of it."""
    return (parse_item_buyer if seat else parse_item_seller)(text, items)


def step(env, items, *moves):
    """Play (seat, verb, offers, target) moves through the parser, one request after the other; checks who was asked."""
    turns, left = [], list(moves)
    while left:
        asked = [request.seat for request in env.requests()]
        now, left = left[: len(asked)], left[len(asked) :]
        assert [one[0] for one in now] == asked
        replies = {one[0]: read(one[0], text_of(*one), items) for one in now}
        assert all(isinstance(reply, Move) for reply in replies.values()), replies
        turns += env.submit(replies)
    return turns


class Fixed:
    """Speaks given texts by seat, one after the other."""

    def __init__(self, texts, name="fixed"):
        self.name, self.texts, self.asked = name, texts, []

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        self.asked += requests
        return [Reply(self.texts[request.seat][len(request.view.own)]) for request in requests]


class Wild:
    """Random play of every seat, legal or with mischief: what it says follows from the request's seed and its view.

    The same moves come out in both protocols. ``mischief``: how often a reply tries to break a rule.
    """

    def __init__(self, mischief=0.0, talk=True, quits=0.05):
        self.name, self.mischief, self.talk, self.quits = "wild", mischief, talk, quits
        self.asked = []

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        self.asked += requests
        return [Reply(self._text(request)) for request in requests]

    def _text(self, request):
        rng, view, seat = random.Random(request.seed), request.view, request.seat
        bad = rng.random() < self.mischief
        verb, offers, target = self._sell(rng, view, bad) if seat == 0 else self._buy(rng, view, bad)
        if verb is None:
            return f"I am seat {seat} and write as I like"
        talk = f"words-of-{seat}-to-{target}" if self.talk else ""
        if view.protocol == "tags":
            return text_of(seat, verb, offers, target, talk)
        price = offers[0][1] if offers else None
        if seat == 0:
            return render_seller(verb, price, target, talk, "thought-of-0", view.product.listing.codename)
        return render_buyer(verb, price, talk, f"thought-of-{seat}", view.listing.codename)

    def _sell(self, rng, view, bad):
        m, channels = len(view.items), view.channels
        gone = {sale.item for sale in view.sales}
        unsold = [item for item in range(1, m + 1) if item not in gone]
        costs = [0, *[product.cost_cents for product in view.items]]
        lists = [0, *[product.listing.list_cents for product in view.items]]
        active = [seat for seat, channel in enumerate(channels, 1) if channel.status == "active"]
        if rng.random() < self.quits:
            return "QUIT", (), None
        target = rng.choice(active)
        menu = tuple(
            (item, rng.randint(costs[item], lists[item] * 6 // 5))
            for item in rng.sample(unsold, rng.randint(1, len(unsold)))
        )
        bids = [bid for bid in channels[target - 1].bids if bid[0] not in gone and bid[1] >= costs[bid[0]]]
        if bad:
            kind = rng.choice(["text", "target", "inactive", "sold", "cost", "deal"])
            if kind == "text":
                return None, (), None
            if kind == "target":
                return "SELL", menu, len(channels) + 1
            inactive = [seat for seat in range(1, len(channels) + 1) if seat not in active]
            if kind == "inactive" and inactive:
                return "SELL", menu, rng.choice(inactive)
            if kind == "sold" and gone:
                item = rng.choice(sorted(gone))
                return "SELL", (*menu, (item, lists[item])), target
            item = menu[0][0]
            if kind == "deal":
                return "DEAL", ((item, lists[item] + rng.randint(1, 99)),), target
            return "SELL", ((item, max(1, costs[item] - rng.randint(1, 99))), *menu[1:]), target
        if bids and rng.random() < 0.4:
            return "DEAL", (rng.choice(bids),), target
        return "SELL", menu, target

    def _buy(self, rng, view, bad):
        m, worth = len(view.listings), view.budgets
        items = rng.sample(range(1, m + 1), rng.randint(1, m))
        bids = tuple((item, rng.randint(1, worth[item - 1])) for item in items)
        first = not view.own
        if first and view.openings is not None:
            bids = tuple((item, view.openings[item - 1]) for item in items)
        if bad:
            kind = rng.choice(["text", "budget", "deal", "quit"])
            if kind == "text":
                return None, (), None
            item = items[0]
            if kind == "deal":
                return "DEAL", ((item, worth[item - 1]),), None
            if kind == "quit":
                return "QUIT", (), None
            return "BUY", ((item, worth[item - 1] + rng.randint(1, 99)), *bids[1:]), None
        if first:
            return "BUY", bids, None
        good = [offer for offer in view.heard[-1].offers if offer[1] <= worth[offer[0] - 1]]
        if good and rng.random() < 0.4:
            return "DEAL", (rng.choice(good),), None
        if rng.random() < self.quits:
            return "QUIT", (), None
        return "BUY", bids, None


def random_market(rng, n, m, k=3, t=7, protocol="tags", regulated=0.5):
    """An invented market: N buyers, M items, costs below list prices, valuations around both. ``rng``: a ``Random``."""
    products = []
    for item in range(1, m + 1):
        price = rng.randint(200, 60_000)
        listing = Listing(f"things_{item}", f"Thing {item}", "Plain.", "things", price)
        products.append(Product(listing, rng.randint(1, price - 1)))
    values = [[max(1, round(rng.uniform(0.2, 1.3) * p.listing.list_cents)) for p in products] for _ in range(n)]
    fixed = [tuple(rng.randint(1, worth) for worth in row) if rng.random() < regulated else None for row in values]
    keys = tuple(rng.getrandbits(63) for _ in range(n + 1))
    drawn = market(products, values, None if fixed == [None] * n else tuple(fixed), k, t)
    return drawn._replace(keys=keys, protocol=protocol, unit="things" if m > 1 else "things_1")


def cluster(name="lamps", size=5, list_cents=100_000_000):
    """An invented cluster; with the default price a ratio can be read off to eight digits."""
    return Cluster(
        name,
        "things",
        "lamp",
        tuple(
            Product(Listing(f"{name}_{at}", f"Lamp {at}", "Plain.", "things", list_cents + at), list_cents // 2)
            for at in range(1, size + 1)
        ),
    )
