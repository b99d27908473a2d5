"""Random play of the market of several items: what must hold whatever anybody says, and what a seat gets to see."""

import random
import re
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from item_markets import Wild, market, random_market, read
from negolab.catalog import Listing, Product
from negolab.environment import SELLER, Market, Move, Outcome, Violation
from negolab.episodes import Episode, parse_line, replay
from negolab.games import game_of
from negolab.metrics import ITEM_METRICS
from negolab.oracle import best_matching, most_surplus
from negolab.rollout import play
from negolab.scenario import Scenario

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32)
SIZES = st.integers(1, 5)


def one(scenario: Scenario, mischief: float = 0.0, **how) -> tuple[Episode, Wild]:
    players = Wild(mischief, **how)
    (episode,) = play([scenario], players, dict.fromkeys(scenario.buyer_types, players))
    return episode, players


def money(scenario: Scenario) -> tuple[list[int], list[int]]:
    """List prices and costs."""
    return [p.listing.list_cents for p in scenario.products], [p.cost_cents for p in scenario.products]


@MANY
@given(seed=SEEDS, n=SIZES, m=SIZES, k=st.integers(1, 4), t=st.integers(1, 14), mischief=st.sampled_from([0, 0.1, 0.4]))
def test_what_holds_in_every_episode(seed, n, m, k, t, mischief):
    scenario = random_market(random.Random(seed), n, m, k, t)
    episode, _ = one(scenario, mischief)
    outcome, sales = episode.outcome, episode.outcome.sales
    lists, costs = money(scenario)
    assert len({sale.item for sale in sales}) == len({sale.buyer for sale in sales}) == len(sales) <= min(n, m, t)
    assert all(costs[s.item - 1] <= s.price <= scenario.valuations[s.buyer - 1][s.item - 1] for s in sales)
    sent = [turn.buyer for turn in episode.turns if turn.seat == SELLER and turn.verb in ("SELL", "DEAL")]
    assert len(sent) <= t and all(sent.count(buyer) <= k for buyer in range(1, n + 1))
    assert -1 <= episode.reward <= 1
    gained = sum(min(s.price, lists[s.item - 1]) - costs[s.item - 1] for s in sales)
    assert gained <= most_surplus(scenario.valuations, lists, costs, t)
    assert gained <= best_matching(scenario.valuations, lists, costs).surplus_cents
    if outcome.kind == "violation":
        assert outcome.seat == SELLER and mischief and episode.reward == -1
    else:
        assert outcome.kind == ("deal" if sales else "no_deal")
        assert episode.reward == gained / (sum(lists) - sum(costs))
        assert episode.reward <= ITEM_METRICS["reward_bound"](episode)
    ended = outcome.reason in ("sold_out", "seller_deal", "buyer_deal")
    assert ended == (len(sales) == m) and (not ended or (outcome.reason == "sold_out") == (m > 1))
    again = Episode.from_json(parse_line(episode.to_line()), {p.listing.codename: p for p in scenario.products})
    assert again == episode and replay(again) == []


def test_random_play_meets_every_end_and_every_violation():
    """What the other tests here rest on: nothing of the market is out of the random players' reach."""
    ends, kinds, refused = set(), set(), set()
    rng = random.Random(3)
    for _ in range(1500):
        scenario = random_market(rng, rng.randint(1, 4), rng.randint(2, 4), rng.randint(1, 3), rng.randint(1, 9))
        episode, _ = one(scenario, rng.choice([0, 0.15]))
        (kinds if episode.outcome.kind == "violation" else ends).add(
            (episode.outcome.reason, bool(episode.outcome.sales))
        )
        refused |= {row["kind"] for note in episode.notes.values() for row in note.get("refused", ())}
    reasons = ("all_inactive", "messages_exhausted", "seller_quit")
    assert ends == {("sold_out", True), *[(reason, sold) for reason in reasons for sold in (False, True)]}
    assert kinds >= {(kind, sold) for kind in ("format", "target", "below_cost", "deal") for sold in (False, True)}
    assert ("item", True) in kinds
    assert refused == {"format", "budget", "deal", "opening"}


def test_the_identity_of_reward_violations_and_surplus():
    rng = random.Random(9)
    episodes = [one(random_market(rng, 3, 3), 0.1)[0] for _ in range(400)]
    mean = {
        name: (lambda values: sum(values) / len(values))(
            [v for e in episodes if (v := ITEM_METRICS[name](e)) is not None]
        )
        for name in ("reward", "violation_rate", "surplus_ratio")
    }
    v = mean["violation_rate"]
    assert 0.1 < v < 0.9 and mean["surplus_ratio"] > 0
    assert mean["reward"] == pytest.approx((1 - v) * mean["surplus_ratio"] - v, abs=1e-12)


# -- labels -----------------------------------------------------------------------------------------------------------


def relabelled(scenario: Scenario, buyers: list[int], items: list[int]) -> Scenario:
    """The same market with other numbers: new Buyer k is old Buyer ``buyers[k - 1]``; items likewise."""
    openings = scenario.openings
    fixed = openings and tuple(
        None if (row := openings[old - 1]) is None else tuple(row[j - 1] for j in items) for old in buyers
    )
    return scenario._replace(
        products=tuple(scenario.products[j - 1] for j in items),
        valuations=tuple(tuple(scenario.valuations[i - 1][j - 1] for j in items) for i in buyers),
        openings=fixed,
        keys=(scenario.keys[0], *[scenario.keys[old] for old in buyers]),
    )


def replies(episode: Episode) -> list[tuple[int, Move | Violation]]:
    """What was said in an episode, turn by turn, as the parser reads it."""
    m = episode.scenario.n_items
    return [
        (t.seat, Move(t.verb, t.offers, None, "", t.text, True) if t.fallback else read(t.seat, t.text, m))
        for t in episode.turns
    ]


@MANY
@given(seed=SEEDS, n=SIZES, m=SIZES, t=st.integers(1, 12), mischief=st.sampled_from([0, 0.2]))
def test_other_labels_change_nothing_but_labels(seed, n, m, t, mischief):
    rng = random.Random(seed)
    scenario = random_market(rng, n, m, 3, t)
    episode, _ = one(scenario, mischief)
    buyers, items = rng.sample(range(1, n + 1), n), rng.sample(range(1, m + 1), m)
    new_buyer = {old: new for new, old in enumerate(buyers, 1)}
    new_item = {old: new for new, old in enumerate(items, 1)}

    def offers(old):
        return tuple((new_item[item], price) for item, price in old)

    def move(reply):
        if isinstance(reply, Violation):
            return reply
        whom = reply.target and new_buyer.get(reply.target, reply.target)  # one that does not exist stays so
        return reply._replace(offers=offers(reply.offers), target=whom)

    other = relabelled(scenario, buyers, items)
    env, said = Market(other), replies(episode)
    opening = {new_buyer[seat]: move(reply) for seat, reply in said[:n]}
    env.submit(opening)
    for seat, reply in said[n:]:
        assert [request.seat for request in env.requests()] == [new_buyer.get(seat, SELLER)]
        env.submit({new_buyer.get(seat, SELLER): move(reply)})
    was = episode.outcome
    expected = [
        s._replace(item=new_item[s.item], buyer=new_buyer[s.buyer], seat=new_buyer.get(s.seat, SELLER))
        for s in was.sales
    ]
    closer = was.seat and new_buyer[was.seat]
    assert env.outcome == Outcome(was.kind, was.reason, closer, tuple(expected))
    assert game_of(other).reward(other, env.outcome, ()) == episode.reward
    turns = [
        t._replace(seat=new_buyer.get(t.seat, SELLER), buyer=t.buyer and new_buyer[t.buyer]) for t in episode.turns
    ]
    moved = Episode(other, episode.players, [t._replace(offers=offers(t.offers)) for t in turns], {}, env.outcome, 0.0)
    for name in ("item_deal_rate", "optimal_pair_coverage", "top_buyer_rate", "reward_bound", "seller_messages"):
        now, then = ITEM_METRICS[name](moved), ITEM_METRICS[name](episode)
        assert now == then or sorted(now) == sorted(then), name


@MANY
@given(seed=SEEDS, n=SIZES, t=st.integers(1, 12), mischief=st.sampled_from([0, 0.2]))
def test_one_item_is_the_same_game_in_both_protocols(seed, n, t, mischief):
    tags = random_market(random.Random(seed), n, 1, 3, t)
    lines = tags._replace(protocol="lines")
    (first, _), (second, _) = one(tags, mischief), one(lines, mischief)
    assert first.outcome == second.outcome and first.reward == second.reward
    assert [t._replace(text="", detail="") for t in first.turns] == [
        t._replace(text="", detail="") for t in second.turns
    ]


# -- what a seat sees -------------------------------------------------------------------------------------------------


def marked(n: int, m: int) -> Scenario:
    """A market in which every secret is a number of its own: list prices end in 1, costs in 2, valuations in 3, and
    regulated openings in 4. What the players below say ends in 5 (asks) and 6 (bids)."""
    products = [
        Product(Listing(f"lamp_{'abcdefgh'[j]}", "A lamp", "Plain.", "lamps", 80_001 + 10 * j), 40_002 + 10 * j)
        for j in range(m)
    ]
    values = [[70_003 + 100 * i + 10 * j for j in range(m)] for i in range(n)]
    fixed = [tuple(20_004 + 100 * i + 10 * j for j in range(m)) if i % 2 else None for i in range(n)]
    keys = tuple(7_000_000_000_009 + seat * 10**10 for seat in range(n + 1))
    return market(products, values, tuple(fixed), t=9)._replace(keys=keys)


class Marked(Wild):
    """Random players whose own numbers are no secret of anybody's."""

    def _sell(self, rng, view, bad):
        verb, offers, target = super()._sell(rng, view, bad)
        if verb == "SELL":
            offers = tuple((item, price // 10 * 10 + 15) for item, price in offers)
        return verb, offers, target

    def _buy(self, rng, view, bad):
        verb, offers, target = super()._buy(rng, view, bad)
        if verb == "BUY" and (view.own or view.openings is None):
            offers = tuple((item, max(6, price // 10 * 10 - 4)) for item, price in offers)
        return verb, offers, target


def numbers(*things: object) -> set[int]:
    """Every whole number in the written form of what a seat is handed."""
    return {int(digits) for digits in re.findall(r"(?<![\w.])\d+(?![\w.])", repr(things))}


SMALL = set(range(100))
"""Counts: items, seats, turns, limits."""


@pytest.fixture(scope="module")
def seen():
    """Scenarios, and every request that random play of them made."""
    found = []
    for at in range(60):
        scenario = marked(4, 3)._replace(keys=tuple(7_000_000_000_009 + at * 10**11 + s * 10**10 for s in range(5)))
        episode, players = one_of(Marked(0.03, quits=0.02), scenario)
        found.append((scenario, episode, players.asked))
    return found


def one_of(players, scenario):
    (episode,) = play([scenario], players, dict.fromkeys(scenario.buyer_types, players))
    return episode, players


def test_the_market_of_the_next_tests_is_a_lively_one(seen):
    sold = [len(episode.outcome.sales) for _, episode, _ in seen]
    assert {0, 1, 2, 3} <= set(sold)
    after_sale = [r for _, _, asked in seen for r in asked if r.seat == SELLER and r.view.sales]
    assert len(after_sale) > 50


def test_a_buyer_sees_its_own_valuations_the_list_prices_and_its_own_channel(seen):
    looked = 0
    for scenario, _, asked in seen:
        lists, costs = map(set, money(scenario))
        for request in asked:
            view, seat = request.view, request.seat
            if seat == SELLER:
                continue
            opening = scenario.openings[seat - 1]
            prices = {price for said in view.heard for _, price in said.offers}
            assert all(said.buyer == seat for said in view.heard)
            told = numbers(view._replace(own=()))
            assert told <= SMALL | lists | set(scenario.valuations[seat - 1]) | set(opening or ()) | prices
            assert {price % 10 for price in prices - set(opening or ())} <= {5, 6} and not told & costs
            assert view.openings == opening
            looked += 1
    assert looked > 300


def test_the_seller_sees_costs_and_list_prices_and_what_was_said_aloud(seen):
    looked = 0
    for scenario, _, asked in seen:
        lists, costs = map(set, money(scenario))
        secret = set(chain(*scenario.valuations))
        for request in asked:
            if request.seat != SELLER:
                continue
            view = request.view
            said = {price for turn in view.heard for _, price in turn.offers}
            told = numbers(view._replace(own=()))
            assert told <= SMALL | lists | costs | said and not told & secret
            looked += 1
    assert looked > 200


def test_nobody_sees_a_thought_a_key_or_a_word_of_another_channel(seen):
    for scenario, _, asked in seen:
        for request in asked:
            view, seat = request.view, request.seat
            words = repr(view._replace(own=()))
            assert "thought" not in words
            thoughts = set(re.findall(r"thought-of-(\d)", repr(view.own)))
            assert thoughts <= {str(seat)}
            if seat != SELLER:
                assert set(re.findall(r"words-of-(\d)", words)) <= {"0", str(seat)}
                assert set(re.findall(r"words-of-0-to-(\d)", words)) <= {str(seat)}
            others = {key for at, key in enumerate(scenario.keys) if at != seat}
            assert not numbers(tuple(request)) & others and request.seat_seed == scenario.keys[seat]


def test_what_a_buyer_is_asked_follows_from_its_own_channel_alone(seen):
    """Played again with the same words in its channel, but other goods sold to others, it is asked the very same."""
    compared = 0
    for scenario, episode, asked in seen:
        quiet = [turn for turn in episode.turns if turn.seat and turn.turn == 1]
        for buyer in range(1, scenario.n_buyers + 1):
            env = Market(scenario)
            requests = [r for r in env.requests() if r.seat == buyer]
            env.submit({t.seat: read_back(t, scenario) for t in quiet})
            for turn in episode.turns[len(quiet) :]:
                if turn.buyer != buyer or turn.violation or turn.verb in ("DEAL", "QUIT"):
                    continue
                env.submit({turn.seat: read_back(turn, scenario)})
                requests += [r for r in env.requests() if r.seat == buyer]
            then = [r for r in asked if r.seat == buyer and not r.attempt]
            assert requests == then[: len(requests)] and len(requests) == len(then)
            compared += len(then)
    assert compared > 500


def read_back(turn, scenario):
    if turn.fallback:
        return Move(turn.verb, turn.offers, None, "", turn.text, True)
    return read(turn.seat, turn.text, scenario.n_items)
