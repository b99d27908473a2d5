"""The scripted players of several items: never illegal where they must not be, the paper's ordering, and no look at
what is hidden."""

import random
from collections import defaultdict

import pytest

from item_markets import random_market
from negolab.catalog import Listing, Product
from negolab.clusters import Cluster, load_clusters
from negolab.environment.base import SELLER, SellerView
from negolab.episodes import replay
from negolab.errors import NegolabError
from negolab.games import game_of
from negolab.metrics import ITEM_METRICS, paired
from negolab.money import MAX_CENTS
from negolab.parser import parse_item_buyer, parse_item_seller
from negolab.policies.base import Reply
from negolab.policies.registry import BUYERS, ITEM_SELLERS, SELLERS, is_scripted, make_buyers, make_seller
from negolab.policies.scripted_item_matching import ItemOracleSeller, ScreenerSeller
from negolab.policies.scripted_items import EarlyCloserSeller
from negolab.rollout import play
from negolab.scenario import REGIMES, Schedule, regime

BUYER_POLICIES = make_buyers(BUYERS, "tags")
MULTI = [name for name, drawn in REGIMES.items() if drawn.n_items > 1]
LAWFUL = ("early-closer", "screener", "oracle")
CLUSTERS = load_clusters("sample").clusters


def big_cluster(size):
    """Clusters of the sample put together, for markets of more items than one has."""
    return Cluster("big", "things", "thing", tuple(p for cluster in CLUSTERS for p in cluster.products)[:size])


def schedule_of(name, clusters=CLUSTERS, per_product=1, seed=0, **knobs):
    return Schedule(regime(name, **knobs), clusters, seed=seed, per_product=per_product)


def run(seller, schedule, **options):
    return list(play(schedule, make_seller(seller, schedule), BUYER_POLICIES, **options))


# -- never illegal ---------------------------------------------------------------------------------------------------

SHAPES = [
    ("multi_product", {"n_buyers": 1}),
    ("multi_product", {"n_items": 2, "n_buyers": 5}),
    ("multi_product", {"n_items": 5, "n_buyers": 2}),
    ("multi_product", {"n_items": 1}),
    ("multi_product", {"n_items": 1, "n_buyers": 1}),
    ("multi_product", {"per_buyer_cap": 1}),
    ("multi_product", {"message_budget": 1}),
    ("multi_product", {"per_buyer_cap": 9, "message_budget": 40}),
    ("multi_product", {"budget_tiers": ((0.001, 0.01),)}),
    ("multi_product", {"budget_tiers": ((1.0, 3.0),), "buyer_types": BUYERS}),
    ("multi_product", {"first_offer_rate": 1.0}),
    ("multi_product", {"first_offer": "free"}),
    ("multi_item_correlation", {"buyer_correlation": 0.2}),
]


def must_be_lawful(schedule, seller):
    episodes = run(seller, schedule)
    for episode in episodes:
        assert not episode.notes, "the guard refused a buyer's reply"
        assert replay(episode) == []
        assert episode.outcome.kind != "violation" or seller not in LAWFUL, episode.turns[-1]
    return episodes


@pytest.mark.parametrize("name", MULTI)
def test_every_regime_is_played_within_the_rules(name):
    kinds = set()
    for seller in ITEM_SELLERS:
        for episode in must_be_lawful(schedule_of(name, per_product=2), seller):
            kinds.update((turn.seat == SELLER, turn.verb) for turn in episode.turns)
    assert {(True, "SELL"), (True, "DEAL"), (False, "BUY"), (False, "QUIT")} <= kinds


@pytest.mark.parametrize(("name", "knobs"), SHAPES, ids=str)
def test_odd_shapes_are_played_within_the_rules(name, knobs):
    for seller in ITEM_SELLERS:
        assert must_be_lawful(schedule_of(name, CLUSTERS[:30], 2, **knobs), seller)


@pytest.mark.parametrize(
    "knobs",
    [
        {"n_buyers": 20, "n_items": 20, "message_budget": 60},
        {"n_buyers": 50, "n_items": 3, "message_budget": 60},
        {"n_buyers": 4, "n_items": 30, "message_budget": 11},
    ],
    ids=str,
)
def test_large_markets_are_played_within_the_rules(knobs):
    schedule = schedule_of("multi_varied", [big_cluster(40)], 6, **knobs)
    for seller in ITEM_SELLERS:
        for episode in must_be_lawful(schedule, seller):
            assert all(len(turn.offers) <= 5 for turn in episode.turns if turn.seat != SELLER)


def test_invented_markets_at_the_edge_of_money():
    """Prices of cents and of a million dollars, costs next to the list price, valuations far from it."""
    rng, played = random.Random(5), 0
    prices = [(2, 1), (3, 2), (101, 100), (1999, 1), (100_000_000, 99_999_999), (99_999_900, 7)]
    prices += [(150, 0), (MAX_CENTS, MAX_CENTS - 1), (MAX_CENTS, 0)]
    products = [Product(Listing(f"odd_{i}", "odd", "", "odd", p), cost) for i, (p, cost) in enumerate(prices)]
    odd = Cluster("odd", "odd", "odd", tuple(products))
    for seller in ITEM_SELLERS:
        must_be_lawful(schedule_of("multi_varied", [odd], 60, n_items=6, n_buyers=6, message_budget=18), seller)
    markets = []
    for episode in range(600):
        shape = (rng.randint(1, 6), rng.randint(1, 6), rng.randint(1, 4), rng.randint(1, 14))
        markets.append(random_market(rng, *shape)._replace(episode=episode))
    values = {market.episode: market.valuations for market in markets}
    for policy in (EarlyCloserSeller(), ScreenerSeller(), ItemOracleSeller(values)):
        for episode in play(markets, policy, BUYER_POLICIES):
            assert not episode.notes and episode.outcome.kind != "violation", episode.turns[-1]
            played += 1
    assert played == 1800


def test_replies_are_varied_and_take_the_parsers_short_way(monkeypatch):
    schedule = schedule_of("multi_varied", CLUSTERS[:40])
    episodes = [episode for seller in LAWFUL for episode in run(seller, schedule)]
    monkeypatch.setattr("negolab.parser.tags._PLAIN_OFFERS", lambda menu: pytest.fail("the short way was not taken"))
    short, said = 0, defaultdict(set)
    for episode in episodes:
        for turn in episode.turns:
            parse = parse_item_seller if turn.seat == SELLER else parse_item_buyer
            if turn.verb == "QUIT" or any(cents < 100 for _, cents in turn.offers):
                continue
            with pytest.raises(pytest.fail.Exception, match="short way"):
                parse(turn.text, 3)  # it came as far as the menu of the short way
            short += 1
            talk = turn.text.partition("<Talk>")[2].partition("Item_")[0]
            said["seller" if turn.seat == SELLER else "buyer"].add((turn.verb, talk))
    assert short > 1000
    assert len(said["seller"]) >= 10 and len(said["buyer"]) >= 12


# -- the same, whatever the batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multi_product", "multi_expanded"])
def test_an_episode_does_not_depend_on_its_batch(name):
    schedule = schedule_of(name, CLUSTERS[:20], seed=3)
    for seller in ITEM_SELLERS:
        together = {e.scenario.episode: e.to_line() for e in run(seller, schedule)}
        alone = {e.scenario.episode: e.to_line() for e in run(seller, schedule, window=1)}
        policy = make_seller(seller, schedule)
        turned = play([schedule[i] for i in reversed(range(20))], policy, make_buyers(BUYERS, "tags"), window=7)
        assert together == alone == {e.scenario.episode: e.to_line() for e in turned}


# -- the paper's ordering --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=MULTI)
def ordered(request):
    """The lawful sellers and the satisficer on the same 416 markets of a regime."""
    schedule = schedule_of(request.param, per_product=4, seed=17)
    return {seller: run(seller, schedule) for seller in ("satisficer", *LAWFUL)}


def difference(ordered, first, second):
    found, common = paired(ordered[first], ordered[second], ITEM_METRICS)
    assert common == 416
    return found


def test_the_screener_beats_the_early_closer_with_no_more_deals(ordered):
    found = difference(ordered, "early-closer", "screener")
    for metric in ("reward", "surplus_ratio", "optimal_pair_coverage"):
        assert found[metric].mean > 4 * found[metric].se, metric
    assert found["item_deal_rate"].mean < 0


def test_the_oracle_is_above_the_screener_and_the_satisficer_below_the_early_closer(ordered):
    for metric in ("reward", "surplus_ratio"):
        found = difference(ordered, "screener", "oracle")[metric]
        assert found.mean > 4 * found.se, metric
    found = difference(ordered, "satisficer", "early-closer")["reward"]
    assert found.mean > 4 * found.se
    broken = difference(ordered, "early-closer", "satisficer")["violation_rate"]
    assert broken.mean > 0.3


def test_the_satisficer_breaks_rules_about_as_often_as_the_untrained_model():
    episodes = run("satisficer", schedule_of("multi_product", per_product=10, seed=1))
    rate = sum(e.outcome.kind == "violation" for e in episodes) / len(episodes)
    assert rate == pytest.approx(0.433, abs=0.06)  # published: 43.3 % (section 3.8 of the facts)
    assert sum(e.reward for e in episodes) / len(episodes) == pytest.approx(-0.329, abs=0.08)
    kinds = {e.outcome.reason for e in episodes if e.outcome.kind == "violation"}
    assert {"below_cost", "item", "format"} <= kinds


# -- who knows what --------------------------------------------------------------------------------------------------


class Said:
    """Buyers that repeat what was said in a finished episode."""

    name = "said"

    def __init__(self, episode):
        self.texts = defaultdict(list)
        for turn in episode.turns:
            self.texts[turn.seat].append(turn.text)

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        return [Reply(self.texts[request.seat][len(request.view.own)]) for request in requests]


@pytest.mark.parametrize("seller", [name for name in ITEM_SELLERS if name != "oracle"])
def test_a_seller_cannot_tell_valuations_that_led_to_the_same_words(seller):
    schedule = schedule_of("multi_varied", CLUSTERS[:30], seed=9)
    for episode in run(seller, schedule):
        old = episode.scenario
        other = old._replace(valuations=tuple(tuple(v * (3 + i) for v in row) for i, row in enumerate(old.valuations)))
        (again,) = play([other], make_seller(seller, schedule), dict.fromkeys(BUYERS, Said(episode)))
        assert not again.notes
        assert [turn.text for turn in again.turns] == [turn.text for turn in episode.turns]


def test_the_oracle_does_use_the_valuations():
    schedule = schedule_of("multi_product", CLUSTERS[:30], seed=9)
    changed = 0
    for episode in run("oracle", schedule):
        old = episode.scenario
        other = old._replace(valuations=tuple(reversed(old.valuations)), openings=None)
        env = game_of(old).environment(other._replace(valuations=tuple((10**8,) * 3 for _ in range(3))))
        env.submit({r.seat: parse_item_buyer(episode.turns[r.seat - 1].text, 3) for r in env.requests()})
        first = ItemOracleSeller({old.episode: other.valuations}).reply(env.requests())[0].text
        changed += first != next(turn.text for turn in episode.turns if turn.seat == SELLER)
    assert changed > 15
    assert not {"valuations", "budgets"} & {*SellerView._fields}


def test_the_oracle_asks_what_the_buyer_can_pay():
    schedule, asked = schedule_of("multi_product", CLUSTERS[:30], seed=2), 0
    for episode in run("oracle", schedule):
        for turn in episode.turns:
            if turn.seat == SELLER and turn.verb == "SELL":
                for item, cents in turn.offers:
                    assert cents == episode.scenario.valuations[turn.buyer - 1][item - 1]
                    asked += 1
    assert asked > 60


def test_a_buyer_depends_on_nothing_of_the_other_buyers():
    schedule, same = schedule_of("multi_product", CLUSTERS[:20], seed=4), 0
    for at in range(len(schedule)):
        one = schedule[at]
        other = one._replace(valuations=(one.valuations[0], *[tuple(v * 2 for v in row) for row in one.valuations[1:]]))
        texts = []
        for scenario in (one, other):
            (first, *_) = game_of(scenario).environment(scenario).requests()
            texts.append(BUYER_POLICIES["iter-60"].reply([first])[0].text)
        same += texts[0] == texts[1]
    assert same == len(schedule)


# -- sellers ---------------------------------------------------------------------------------------------------------


def test_the_screener_asks_the_list_price_of_everyone_and_closes_late():
    schedule = schedule_of("multi_product", CLUSTERS, seed=21)
    for episode in run("screener", schedule):
        mine = [turn for turn in episode.turns if turn.seat == SELLER]
        lists = [product.listing.list_cents for product in episode.scenario.products]
        screens = [turn for turn in mine[:3] if turn.verb == "SELL"]
        assert len({turn.buyer for turn in screens}) == len(screens)
        assert all(cents == lists[item - 1] for item, cents in screens[0].offers)
        deals = [at for at, turn in enumerate(mine, 1) if turn.verb == "DEAL"]
        assert not deals or deals[0] > 3


def test_the_early_closer_leaves_no_bid_with_a_margin_standing():
    asked = closed = 0
    for episode in run("early-closer", schedule_of("multi_product", CLUSTERS, seed=21)):
        bids, sent, gone, sold = defaultdict(dict), defaultdict(int), set(), set()
        for turn in episode.turns:
            if turn.seat == SELLER:
                standing = {
                    (buyer, item): cents
                    for buyer, mine in bids.items()
                    for item, cents in mine.items()
                    if buyer not in gone and sent[buyer] < 3 and item not in sold
                }
                margins = {}
                for pair, cents in standing.items():
                    product = episode.scenario.products[pair[1] - 1]
                    room = product.listing.list_cents - product.cost_cents
                    margins[pair] = (cents - product.cost_cents) / room
                if turn.verb == "SELL":
                    asked += 1
                    assert max(margins.values(), default=0) < 0.15
                else:
                    closed += 1
                    assert margins[turn.buyer, turn.offers[0][0]] == max(margins.values())
                sent[turn.buyer] += 1
            elif turn.verb == "BUY":
                bids[turn.seat].update(turn.offers)
            if turn.verb == "DEAL":
                sold.add(turn.offers[0][0])
            if turn.verb == "QUIT" or turn.verb == "DEAL":
                gone.add(turn.buyer)
    assert asked > 300 and closed > 100


# -- the registry ----------------------------------------------------------------------------------------------------


def test_the_protocol_chooses_the_players(sample_catalog):
    lines = Schedule(regime("in_distribution"), sample_catalog.products[:1], seed=0)
    tags = schedule_of("multi_product", CLUSTERS[:1])
    assert make_seller("prober", lines).name == "prober" and make_seller("screener", tags).name == "screener"
    with pytest.raises(
        NegolabError,
        match=r"'screener' \(it plays .* tags: the regimes multi_\*\); allowed: random, satisficer, greedy",
    ):
        make_seller("screener", lines)
    with pytest.raises(
        NegolabError, match=r"'prober' \(it plays .* with lines\); allowed: random, satisficer, early-closer"
    ):
        make_seller("prober", tags)
    with pytest.raises(NegolabError, match="unknown buyer type 'iter-80'; allowed: iter-50, iter-60, iter-70"):
        make_buyers(["iter-80"], "tags")
    assert is_scripted("seller", "screener", "market", "tags") and not is_scripted("seller", "screener", "market")
    assert is_scripted("seller", "prober", "market") and not is_scripted("seller", "prober", "market", "tags")
    assert is_scripted("buyer", "iter-50", "market", "tags")
    assert set(ITEM_SELLERS) != set(SELLERS)


def test_descriptions_name_every_parameter_and_say_scripted():
    schedule = schedule_of("multi_product", CLUSTERS[:1])
    for policy in [*(make_seller(name, schedule) for name in ITEM_SELLERS), *BUYER_POLICIES.values()]:
        described = policy.describe()
        assert described["name"] == policy.name
        assert "scripted" in described["kind"] and isinstance(described["version"], int)
    assert {"fractions", "open_items"} <= set(BUYER_POLICIES["iter-50"].describe()["parameters"])
    assert "rises" in make_seller("screener", schedule).describe()["parameters"]


def test_regimes_of_one_item_may_use_tags_too(sample_catalog):
    schedule = Schedule(regime("in_distribution", protocol="tags"), sample_catalog.products[:40], seed=0)
    for seller in ITEM_SELLERS:
        must_be_lawful(schedule, seller)
