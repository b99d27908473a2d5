"""Scripted traders: legal in either seat, the same whatever they are played with, blind to the other side's limit."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from markets import market
from negolab.catalog import load_catalog
from negolab.environment import BUYER, SELLER, Call, Trade
from negolab.environment.base import MAX_CALLS, Calls
from negolab.errors import NegolabError
from negolab.metrics import TRADE_METRICS, summarise
from negolab.money import MAX_CENTS, dollars
from negolab.parser import parse_tools
from negolab.parser.tools import _parse
from negolab.policies.scripted_buyers import ScriptedBuyer
from negolab.policies.scripted_traders import SENSIBLE_TRADERS, TRADER_STYLES, TRADERS, Trader
from negolab.policies.trader_talk import SIDE_OFFERS, TALK, THOUGHTS
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.statistics import Accumulator
from trade_games import LAPTOP, Reads, Wild, trade

PRODUCTS = load_catalog("sample").products


def drawn(gains="gft", products=120, rounds=10):
    knobs = {"gains": gains, "message_budget": rounds, "per_buyer_cap": rounds}
    schedule = Schedule(regime("trade", **knobs), PRODUCTS[:products], seed=3)
    return [schedule[i] for i in range(len(schedule))]


def played(scenarios, seller, buyer):
    """In the order of the scenarios."""
    sides = [Trader(side) if isinstance(side, str) else side for side in (seller, buyer)]
    return sorted(play(scenarios, sides[0], {"trader": sides[1]}), key=lambda e: e.scenario.episode)


@pytest.fixture(scope="module")
def tournament():
    """Every ordered pair of the sensible traders on the same 120 negotiations with gains from trade."""
    scenarios = drawn()
    return {(s, b): played(scenarios, s, b) for s in SENSIBLE_TRADERS for b in SENSIBLE_TRADERS}


# -- the rules --------------------------------------------------------------------------------------------------------


def check(episode, seat, name):
    """One side's play: every call took effect, no offer and (but for the irrational) no deal leaves it without a gain,
    and no offer takes back what an earlier one gave."""
    scenario, sign = episode.scenario, 1 if seat == SELLER else -1
    limit = scenario.reserve if seat == SELLER else scenario.valuations[0][0]
    mine = [turn for turn in episode.turns if turn.seat == seat]
    assert all(turn.violation is None and turn.verb for turn in mine)
    offers = [turn.price for turn in mine if turn.price is not None]
    assert all(sign * (price - limit) > 0 for price in offers)
    assert all(sign * (before - after) >= 0 for before, after in pairwise(offers))
    if episode.outcome.price is not None and name != "irrational":
        assert sign * (episode.outcome.price - limit) > 0
    for turn in mine:
        read = parse_tools(turn.text, None, seat=seat)
        assert isinstance(read, Calls) and not read.problems and len(read.calls) <= MAX_CALLS
        assert read == _parse(turn.text, seat, False)


@pytest.mark.parametrize("gains", ["gft", "ngft", "any"])
@pytest.mark.parametrize("rounds", [1, 2, 3, 10])
def test_every_call_of_every_trader_takes_effect_and_no_offer_loses(gains, rounds):
    scenarios = drawn(gains, 12, rounds)
    for seller in TRADERS:
        for buyer in TRADERS:
            for episode in played(scenarios, seller, buyer):
                check(episode, SELLER, seller)
                check(episode, BUYER, buyer)


@pytest.mark.parametrize("name", TRADERS)
def test_against_somebody_who_plays_at_random_as_well(name):
    scenarios, ends = drawn("any", 120), set()
    for episode in played(scenarios, name, Wild()):
        check(episode, SELLER, name)
        ends.add(episode.outcome.reason)
    for episode in played(scenarios, Wild(), name):
        check(episode, BUYER, name)
        ends.add(episode.outcome.reason)
    assert {"seller_deal", "buyer_deal", "seller_quit", "buyer_quit"} <= ends


@pytest.mark.parametrize("name", TRADERS)
@pytest.mark.parametrize(
    ("reserve", "value"), [(1, 1), (1, 2), (1, 3), (2, 1), (MAX_CENTS, MAX_CENTS), (MAX_CENTS - 1, MAX_CENTS), (1, 7)]
)
def test_the_smallest_and_largest_limits(name, reserve, value):
    for other in TRADERS:
        for seller, buyer in ((name, other), (other, name)):
            (episode,) = played([trade(reserve, value)], seller, buyer)
            check(episode, SELLER, seller)
            check(episode, BUYER, buyer)
            if value - reserve < 2 and "irrational" not in (seller, buyer):  # no price leaves both a gain
                assert episode.outcome.kind == "no_deal"


def test_nobody_offers_in_the_last_round_what_nobody_can_answer():
    for rounds in (2, 9, 10):
        for seller in TRADERS:
            for episode in played(drawn("any", 12, rounds), seller, "taper"):
                assert all(turn.price is None for turn in episode.turns if turn.turn == rounds)


# -- always the same --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRADERS)
def test_what_is_said_depends_on_the_negotiation_alone(name):
    scenarios = drawn("any", 30)
    for seller, buyer in ((name, "taper"), ("taper", name)):
        together = [e.to_line() for e in played(scenarios, seller, buyer)]
        alone = {s.episode: next(iter(played([s], seller, buyer))).to_line() for s in reversed(scenarios)}
        assert together == [alone[s.episode] for s in scenarios]


@pytest.mark.parametrize("name", TRADERS)
def test_a_sides_words_are_its_own(name):
    """Another key of one side changes what it does, and nothing of what the other does before it is told."""
    scenarios = drawn("gft", 40)
    changed = [s._replace(keys=(s.keys[0], s.keys[1] + 1)) for s in scenarios]
    pairs = list(zip(played(scenarios, "hasty", name), played(changed, "hasty", name), strict=True))
    assert all(a.turns[0] == b.turns[0] for a, b in pairs)
    assert sum(a.turns[1:] != b.turns[1:] for a, b in pairs) > 20


# -- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRADERS)
@pytest.mark.parametrize("seat", [SELLER, BUYER])
def test_the_other_sides_limit_reaches_nobody(name, seat):
    """Against the same words of the other side a trader says the same, whatever the other's limit; its own decides."""
    script = [f"make_offer({900 + 40 * k if seat == SELLER else 1900 - 60 * k})" for k in range(6)]

    def said(reserve, value):
        other = Reads(script)
        sides = (name, other) if seat == SELLER else (other, name)
        episodes = [played([trade(reserve, value, keys=(k, k + 50))], *sides)[0] for k in range(12)]
        return [[turn.text for turn in e.turns if turn.seat == seat] for e in episodes]

    mine = said(95_000, 130_000)
    others = ((95_000, 96_000), (95_000, 5), (95_000, 400_000))
    if seat == BUYER:
        others = ((129_000, 130_000), (5, 130_000), (400_000, 130_000))
    assert all(said(*limits) == mine for limits in others)
    assert said(105_000, 115_000) != mine


@pytest.mark.parametrize("name", TRADERS)
def test_the_same_view_gets_the_same_reply_and_no_text_names_a_limit(name):
    for seller, buyer in ((name, "taper"), ("taper", name)):
        for scenario in drawn("any", 20):
            limits = {dollars(cents)[1:] for cents in (scenario.reserve, scenario.valuations[0][0])}
            sides, env = (Trader(seller), Trader(buyer)), Trade(scenario)
            while env.outcome is None:
                (request,) = env.requests()
                (reply,) = sides[request.seat].reply([request])
                again = Trader(sides[request.seat].name).reply([request._replace(episode=99), request])
                assert [one.text for one in again] == [reply.text] * 2
                thought, _, code = reply.text.partition("\nCode:")
                assert not re.search(r"[0-9]", thought) and not any(f"price={limit})" in code for limit in limits)
                env.submit({request.seat: parse_tools(reply.text, None, seat=request.seat)})


def test_no_line_names_a_price_and_every_kind_has_lines():
    kinds = {"open", "hold", "step", "accept", "quit"}
    assert all(set(TALK[seat]) == kinds and SIDE_OFFERS[seat] for seat in (SELLER, BUYER))
    assert set(THOUGHTS) == kinds | {"search"}
    lines = [line for seat in TALK.values() for said in seat.values() for line in said]
    assert not any(re.search(r"[0-9$]", line) for line in [*lines, *THOUGHTS.values(), *SIDE_OFFERS[0]])


# -- how they bargain -------------------------------------------------------------------------------------------------


def test_some_look_the_prices_up_first_and_open_by_them():
    searchers = {name for name, style in TRADER_STYLES.items() if style.history is not None}
    assert searchers == {"anchor", "taper"}
    for name in TRADERS:
        for seller, buyer, seat in ((name, "hasty", SELLER), ("hasty", name, BUYER)):
            for episode in played(drawn("gft", 20), seller, buyer):
                mine = [turn for turn in episode.turns if turn.seat == seat]
                assert ("search" in mine[0].verb) == (name in searchers)
                assert not any("search" in turn.verb for turn in mine[1:])
                offers = [turn.price for turn in mine if turn.price is not None]
                if name in searchers and offers:
                    highest, lowest = TRADER_STYLES[name].history
                    product = episode.scenario.product
                    if seat == SELLER:
                        assert offers[0] > 0.99 * highest * product.listing.list_cents - 100
                    else:
                        assert offers[0] <= lowest * product.cost_cents


def test_messages_and_side_offers_come_with_offers(tournament):
    said = {
        name: [t for (s, _), es in tournament.items() if s == name for e in es for t in e.turns] for name in TRADERS
    }
    for name in SENSIBLE_TRADERS:
        offers = [t for t in said[name] if t.seat == SELLER and t.price is not None]
        talked = sum("message" in t.verb for t in offers) / len(offers)
        extras = sum("side_offer" in t.text for t in offers) / len(offers)
        assert talked == pytest.approx(TRADER_STYLES[name].talk, abs=0.06), name
        assert extras == pytest.approx(TRADER_STYLES[name].extras, abs=0.06), name


def test_steps_taper_off():
    """The share of the way that is left shrinks from step to step, against somebody who never moves."""
    steps = {1: [], 2: [], 3: []}
    for episode in played(drawn("gft", 60), replace_style("taper", final=0.0), Reads([])):
        offers = [turn.price for turn in episode.turns if turn.price is not None]
        rates = [(a - b) / (a - episode.scenario.reserve) for a, b in pairwise(offers)]
        for at in steps:
            steps[at].append(rates[at - 1])
    means = [sum(found) / len(found) for found in steps.values()]
    assert means[0] > means[1] + 0.05 > means[2] + 0.1


def replace_style(name, **changes):
    return Trader(replace(TRADER_STYLES[name], **changes))


def test_the_accommodating_takes_any_gain_and_the_patient_wait():
    first = {"seller": ["make_offer(1199)"], "buyer": ["make_offer(901)"]}
    for name, waits in (("accommodating", False), ("anchor", True), ("taper", True), ("walk-away", True)):
        (buys,) = played([trade()], Reads(first["seller"]), name)
        (sells,) = played([trade()], name, Reads(first["buyer"]))
        assert (buys.outcome.price == 119_900 and len(buys.turns) == 2) != waits, name
        if waits:
            assert sells.turns[-1].turn > 3
    # The last chance is taken, however little it brings.
    late = ["wait_for_response()"] * 4 + ["make_offer(1199.99)"]
    (buys,) = played([trade()], Reads(late), "anchor")
    assert buys.outcome.price == 119_999 and buys.turns[-1].turn == 10


def test_few_dollars_are_not_quarrelled_about():
    """What lies within 15 dollars of its own next offer is enough for the hasty: a lot of a cheap item."""
    style = TRADER_STYLES["hasty"]
    near = [played([trade(1_000, 3_500, keys=(k, k))], Reads(["make_offer(20)"]), "hasty")[0] for k in range(8)]
    assert style.shrugs == 1500 and all(e.outcome.price == 2000 and len(e.turns) == 2 for e in near)
    far = [played([trade(100_000, 350_000, keys=(k, k))], Reads(["make_offer(2000)"]), "hasty")[0] for k in range(8)]
    assert not any(e.outcome.price == 200_000 and len(e.turns) == 2 for e in far)


def test_the_irrational_accepts_losses_at_its_rate_and_nobody_else_does():
    def taken(name, n=400):
        scenarios = [trade(100_000, 90_000, keys=(k, k + 7), episode=k, rounds=2) for k in range(n)]
        return sum(e.outcome.kind == "deal" for e in played(scenarios, Reads(["make_offer(1000)"]), name)) / n

    rate = TRADER_STYLES["irrational"].loss_rate
    assert taken("irrational") == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 400) ** 0.5)
    assert [name for name in TRADERS if taken(name, 40)] == ["irrational"]


def test_traders_know_their_game_and_their_names():
    with pytest.raises(NegolabError, match="trade game, and only that"):
        list(play([market()], Trader("anchor"), {"iter-60": ScriptedBuyer("iter-60")}))
    with pytest.raises(NegolabError, match="unknown trader 'shy'; allowed: anchor, taper"):
        Trader("shy")
    described = Trader("hasty").describe()
    assert described["name"] == "hasty" and described["parameters"]["shrugs"] == 1500
    assert SENSIBLE_TRADERS == ("anchor", "taper", "walk-away", "hasty", "accommodating")
    assert set(TRADERS) - set(SENSIBLE_TRADERS) == {"irrational"}


def test_an_environment_where_one_can_only_offer_nothing():
    """A buyer whose limit is one cent can gain nothing, and says so at once; it is told of nothing else."""
    env = Trade(trade(1, 1, product=LAPTOP))
    env.submit({SELLER: Calls((Call("make_offer", 5),), (), "")})
    (request,) = env.requests()
    (reply,) = Trader("hasty").reply([request])
    assert "quit_negotiation()" in reply.text


# -- the paper's findings where scripts embody them -------------------------------------------------------------------


def difference(tournament, metric, side, name, other):
    """Mean and error of name minus other: in pairs of the same negotiation with the same opponent, clustered by
    negotiation."""
    found = Accumulator()
    for opponent in SENSIBLE_TRADERS:
        pairs = [(who, opponent) if side == SELLER else (opponent, who) for who in (name, other)]
        for mine, theirs in zip(*(tournament[pair] for pair in pairs), strict=True):
            values = [TRADE_METRICS[metric](episode) for episode in (mine, theirs)]
            if None not in values:
                found.add(values[0] - values[1], mine.scenario.episode)
    return found.estimate()


@pytest.mark.parametrize("side", [SELLER, BUYER])
def test_aggressive_anchoring_with_patience_earns_the_highest_share_and_accommodating_the_least(tournament, side):
    word = ("seller", "buyer")[side]
    for other in SENSIBLE_TRADERS:
        if other != "anchor":
            found = difference(tournament, f"{word}_surplus_share", side, "anchor", other)
            assert found.n > 300 and found.mean > 3 * found.se_clustered, (other, found)
            bold = difference(tournament, f"{word}_initial_aggressiveness", side, "anchor", other)
            assert bold.mean > 3 * bold.se_clustered, other
        if other != "accommodating":
            found = difference(tournament, f"{word}_surplus_share", side, other, "accommodating")
            assert found.mean > 3 * found.se_clustered, (other, found)
        if other in ("walk-away", "hasty"):
            patience = difference(tournament, "rounds", side, "anchor", other)
            assert patience.mean > 3 * patience.se_clustered, other
        # The same holds where a failed negotiation counts as nothing: the share is not bought by losing deals.
        if other != "anchor":
            earned = difference(tournament, f"{word}_reward_utility", side, "anchor", other)
            assert earned.mean > 0, other


def test_who_leaves_early_closes_less_and_who_gives_in_closes_most(tournament):
    for side in (SELLER, BUYER):
        early = difference(tournament, "deal_rate", side, "taper", "walk-away")
        eager = difference(tournament, "deal_rate", side, "accommodating", "anchor")
        assert early.mean > 3 * early.se_clustered and eager.mean > 3 * eager.se_clustered


@pytest.mark.parametrize("side", [SELLER, BUYER])
def test_the_strong_take_the_same_share_at_every_price_and_the_hasty_do_not(tournament, side):
    """Spread over quintiles of one's own limit: what the paper's figures call scaling with value."""

    def spread(name):
        mine = [e for pair, episodes in tournament.items() if pair[side] == name for e in episodes]
        mine.sort(key=lambda e: e.scenario.reserve if side == SELLER else e.scenario.valuations[0][0])
        parts = [mine[len(mine) * k // 5 : len(mine) * (k + 1) // 5] for k in range(5)]
        metric = f"{('seller', 'buyer')[side]}_surplus_share"
        shares = [summarise(part, TRADE_METRICS)[metric].mean for part in parts]
        return max(shares) - min(shares)

    assert spread("anchor") < 0.12 and spread("hasty") > spread("anchor") + 0.03


def test_without_gains_from_trade_only_the_irrational_close():
    scenarios = drawn("ngft", 40)
    for seller in TRADERS:
        for buyer in TRADERS:
            found = summarise(played(scenarios, seller, buyer), TRADE_METRICS)
            assert (found["deal_rate_ngft"].mean > 0) == ("irrational" in (seller, buyer)), (seller, buyer)
            assert found["seller_violation"].mean == 0 or seller == "irrational"
            assert found["buyer_violation"].mean == 0 or buyer == "irrational"
            assert found["any_violation_ngft"].mean == found["deal_rate_ngft"].mean
