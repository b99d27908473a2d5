"""The scripted buyers of several items: what they open on, how they answer a menu, and that with one item they are the
single-item buyers."""

import random
from collections import defaultdict

import pytest

from negolab.catalog import Listing
from negolab.clusters import load_clusters
from negolab.environment.base import SELLER, BuyerView, Move, Request, Said
from negolab.parser import parse_item_buyer, render_item_seller, render_seller
from negolab.policies.base import Reply
from negolab.policies.registry import BUYERS, make_buyers, make_seller
from negolab.policies.scripted_item_buyers import ItemBuyer, ItemRules
from negolab.rollout import play
from negolab.scenario import Schedule, regime


class Asking:
    """A seller of one item in either protocol: now one, now the other buyer, at a price by lot; closes now and then."""

    name = "asking"

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        return [Reply(self._text(request.view, random.Random(request.seed))) for request in requests]

    def _text(self, view, rng):
        target = rng.choice([i for i, channel in enumerate(view.channels, 1) if channel.status == "active"])
        cost, listing = view.product.cost_cents, view.product.listing
        price, verb = int(cost + rng.random() ** 2 * 1.2 * (listing.list_cents - cost)), "SELL"
        bids = [cents for _, cents in view.channels[target - 1].bids if cents >= cost]
        if bids and rng.random() < 0.3:
            price, verb = bids[-1], "DEAL"
        if view.protocol == "tags":
            return render_item_seller(verb, ((1, price),), target, "Well.", "")
        return render_seller(verb, price, target, "Well.", "", listing.codename)


@pytest.mark.parametrize("name", ["in_distribution", "ood_diverse"])
def test_with_one_item_they_do_what_the_single_item_buyers_do(name, sample_catalog):
    """Not only in law: the same random numbers give the same bids, answer by answer."""
    seen = defaultdict(int)
    knobs = {"buyer_types": BUYERS, "message_budget": 12, "per_buyer_cap": 5}
    moves = {}
    for protocol in ("lines", "tags"):
        schedule = Schedule(regime(name, protocol=protocol, **knobs), sample_catalog.products, seed=6, per_product=4)
        episodes = play(schedule, Asking(), make_buyers(BUYERS, protocol))
        moves[protocol] = {e.scenario.episode: [(t.seat, t.verb, t.offers) for t in e.turns] for e in episodes}
        assert all(not turn[2] or turn[2][0][0] == 1 for turns in moves[protocol].values() for turn in turns)
    assert moves["lines"] == moves["tags"]
    for turns in moves["tags"].values():
        for seat, verb, _ in turns:
            seen[verb] += seat != SELLER
    assert min(seen["BUY"], seen["QUIT"]) > 100 and seen["DEAL"] > 20


def view_of(valuations, heard=(), openings=None, lists=None, own=()):
    lists = lists or [10_000] * len(valuations)
    listings = tuple(Listing(f"x_{i}", "x", "", "x", cents) for i, cents in enumerate(lists, 1))
    return BuyerView(listings, tuple(valuations), 3, openings, tuple(heard), tuple(own), "tags")


def asked(buyer, view, seed, seat_seed=77):
    read = parse_item_buyer(buyer.reply([Request(0, 1, view, seed, seat_seed)])[0].text, len(view.listings))
    assert isinstance(read, Move)
    return read


def conversation(opening, *menus, bids=()):
    """What a buyer has heard: its opening, then menus with its bids between them."""
    heard = [Said(1, 1, "BUY", opening, "")]
    for at, menu in enumerate(menus):
        heard.append(Said(0, 1, "SELL", menu, ""))
        if at < len(bids):
            heard.append(Said(1, 1, "BUY", bids[at], ""))
    return heard


def test_openings_name_what_is_worth_most_and_keep_to_the_regulated_prices():
    buyer, values = ItemBuyer("iter-60"), (9_000, 4_200, 8_000, 11_000, 9_500)
    for seat in range(200):
        free = asked(buyer, view_of(values), 0, seat * 7919)
        assert [item for item, _ in free.offers] == [1, 4, 5]  # within a quarter of the best, three at most
        assert all(cents <= values[item - 1] for item, cents in free.offers)
        fixed = asked(buyer, view_of(values, openings=(2_601, 2_702, 2_803, 2_904, 2_505)), 0, seat * 7919)
        assert fixed.offers == ((1, 2_601), (4, 2_904), (5, 2_505))
    chosen = asked(ItemBuyer("iter-60", ItemRules(open_items=1)), view_of(values), 0).offers
    assert [item for item, _ in chosen] == [4]


def test_of_acceptable_offers_the_one_that_leaves_most_is_taken():
    view = view_of((9_000, 9_500, 5_000), conversation(((1, 6_000), (2, 6_000)), ((1, 5_900), (2, 5_950), (3, 4_900))))
    for seed in range(200):
        move = asked(ItemBuyer("iter-60"), view, seed * 104_729)
        assert (move.verb, move.offers) == ("DEAL", ((2, 5_950),))


def test_it_rises_where_it_can_follow_and_stays_where_it_cannot():
    opening, menu = ((1, 2_600), (2, 2_700)), ((1, 9_000), (2, 9_000), (3, 9_000))
    heard = conversation(opening, menu)
    view = view_of((9_500, 7_000, 6_000), heard, openings=(2_600, 2_700, 2_800))
    verbs = defaultdict(int)
    for seed in range(400):
        move = asked(ItemBuyer("iter-60"), view, seed * 15_485_863 << 20 ^ seed * 911)
        verbs[move.verb] += 1
        if move.verb == "BUY":
            bids = dict(move.offers)
            assert 4_000 < bids[1] <= 9_000
            assert bids[2] == 2_700  # where it was
            assert bids[3] == 2_800  # not named before: where it would have opened
    assert set(verbs) == {"BUY", "QUIT"} and 10 < verbs["QUIT"] < 70


def test_bids_never_fall_and_never_exceed_the_valuation():
    schedule, risen = Schedule(regime("multi_varied"), load_clusters("sample").clusters, seed=12, per_product=2), 0
    for episode in play(schedule, make_seller("screener", schedule), make_buyers(BUYERS, "tags")):
        bids = defaultdict(int)
        for turn in episode.turns:
            if turn.seat != SELLER and turn.verb == "BUY":
                for item, cents in turn.offers:
                    assert bids[turn.seat, item] <= cents <= episode.scenario.valuations[turn.seat - 1][item - 1]
                    risen += cents > bids[turn.seat, item] > 0
                    bids[turn.seat, item] = cents
    assert risen > 200
