"""Rules of the bilateral game (2604.09855): who speaks, what is legal, how it ends, what it is worth."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bilateral_games import Says, game, read, step, text_of, turns_of
from markets import CADDY, CODE
from negolab.bilateral import play_bilateral
from negolab.environment import BUYER, SELLER, Bilateral, Move, Outcome, Sale, Violation
from negolab.episodes import REASKS, Episode, parse_line, replay
from negolab.errors import NegolabError
from negolab.parser import parse_bilateral_seller, parse_buyer, render_buyer
from negolab.reward import buyer_reward
from negolab.rollout import play
from negolab.scenario import BILATERAL, Regime, Scenario, draw, regime


def outcome_of(*script, **knobs) -> Outcome | None:
    env = Bilateral(game(**knobs))
    step(env, *script, reject=knobs.get("reject", False))
    return env.outcome


# -- turns ------------------------------------------------------------------------------------------------------------


def test_the_buyer_begins_and_the_sides_take_turns():
    env = Bilateral(game())
    turns = step(env, *turns_of(3))
    assert [(t.turn, t.seat) for t in turns] == [(1, 1), (1, 0), (2, 1), (2, 0), (3, 1), (3, 0)]
    assert env.requests()[0].seat == BUYER and env.requests()[0].view.turn == 4


def test_six_turns_and_nobody_answers_the_sellers_last_message():
    env = Bilateral(game())
    turns = step(env, *turns_of(6))
    assert len(turns) == 12 and env.outcome == Outcome("no_deal", "turns_exhausted") and env.requests() == []
    with pytest.raises(ValueError, match="over"):
        env.submit({BUYER: read(BUYER, text_of(BUYER, "QUIT", None))})


@pytest.mark.parametrize("n", [1, 2, 9])
def test_the_number_of_turns_is_a_knob(n):
    env = Bilateral(game(turns=n))
    step(env, *turns_of(n))
    assert env.outcome.reason == "turns_exhausted"


def test_a_bid_in_the_last_turn_can_be_taken():
    assert outcome_of(*turns_of(5), (BUYER, "BUY", 2000), (SELLER, "DEAL", 2000)) == Outcome(
        "deal", "seller_deal", SELLER, (Sale(1, BUYER, 2000, SELLER),)
    )


def test_ends():
    opened = (BUYER, "BUY", 1000)
    asked = (opened, (SELLER, "SELL", 2500))
    assert outcome_of(*asked, (BUYER, "DEAL", 2500)) == Outcome(
        "deal", "buyer_deal", BUYER, (Sale(1, BUYER, 2500, BUYER),)
    )
    assert outcome_of(*asked, (BUYER, "QUIT", None)) == Outcome("no_deal", "buyer_quit", seat=BUYER)
    assert outcome_of(opened, (SELLER, "QUIT", None)) == Outcome("no_deal", "seller_quit", seat=SELLER)
    assert outcome_of((BUYER, "QUIT", None)) == Outcome("no_deal", "buyer_quit", seat=BUYER)  # the reward names it: 0


def test_only_the_asked_seat_may_be_submitted():
    env = Bilateral(game())
    move = read(SELLER, text_of(SELLER, "SELL", 3000))
    for replies in ({SELLER: move}, {}, {BUYER: move, SELLER: move}):
        with pytest.raises(ValueError, match="expected"):
            env.submit(replies)


# -- legality ---------------------------------------------------------------------------------------------------------

LATER = ((BUYER, "BUY", 1000), (SELLER, "SELL", 2600), (BUYER, "BUY", 1900), (SELLER, "SELL", 2400))


@pytest.mark.parametrize(
    "before, seat, verb, cents, kind",
    [
        ((), BUYER, "BUY", 2799, None),
        ((), BUYER, "BUY", 2800, "budget"),
        ((), BUYER, "DEAL", 2000, "opening"),
        (LATER[:2], BUYER, "DEAL", 2600, None),
        (LATER[:2], BUYER, "DEAL", 2599, "deal"),
        (LATER, BUYER, "DEAL", 2600, None),  # an earlier offer stays open
        (LATER, BUYER, "DEAL", 1900, "deal"),  # its own bid is no offer of the seller
        (LATER, BUYER, "DEAL", 2801, "budget"),
        (LATER[:1], SELLER, "SELL", 1875, None),
        (LATER[:1], SELLER, "SELL", 1874, "below_cost"),
        (LATER[:1], SELLER, "DEAL", 1000, "below_cost"),
        (LATER[:3], SELLER, "DEAL", 1900, None),
        (LATER[:3], SELLER, "DEAL", 1901, "deal"),
        (LATER[:3], SELLER, "DEAL", 1000, "below_cost"),
        (LATER[:3], SELLER, "QUIT", None, None),
    ],
)
def test_what_is_legal(before, seat, verb, cents, kind):
    env = Bilateral(game())
    step(env, *before)
    move = read(seat, text_of(seat, verb, cents))
    found = env.check(seat, move)
    assert (found and found.kind) == kind
    turns = env.submit({seat: move})
    assert turns[0].violation == kind and (env.outcome is not None and env.outcome.kind == "violation") == bool(kind)
    if kind:
        assert env.outcome.seat == seat and (turns[0].verb, turns[0].price) == (verb, cents)


def test_a_deal_over_the_budget_that_was_asked_for_is_a_violation_of_the_buyer():
    env = Bilateral(game())
    step(env, (BUYER, "BUY", 1000), (SELLER, "SELL", 3000))
    env.submit({BUYER: read(BUYER, text_of(BUYER, "DEAL", 3000))})
    assert env.outcome == Outcome("violation", "budget", seat=BUYER)


def test_reject_is_an_action_only_where_the_game_has_it():
    text = text_of(BUYER, "REJECT", None)
    for parse in (parse_buyer, parse_bilateral_seller):
        off, on = parse(text, CODE), parse(text, CODE, reject=True)
        assert isinstance(off, Violation) and off.kind == "format"
        assert isinstance(on, Move) and on[:2] == ("REJECT", ())
        assert parse(text + f" $5 (1x {CODE})", CODE, reject=True).kind == "format"


def test_a_rejection_names_no_price_and_goes_on():
    env = Bilateral(game(reject=True))
    script = ((BUYER, "BUY", 1000), (SELLER, "REJECT", None), (BUYER, "BUY", 1900), (SELLER, "SELL", 2500))
    turns = step(env, *script, (BUYER, "REJECT", None), reject=True)
    assert [t.price for t in turns] == [1000, None, 1900, 2500, None]
    assert env.check(SELLER, read(SELLER, text_of(SELLER, "DEAL", 1000))).kind == "below_cost"
    step(env, (SELLER, "DEAL", 1900), reject=True)  # the bid before the rejection is still open
    assert env.outcome.price == 1900


def test_nothing_can_be_rejected_before_it_was_offered():
    env = Bilateral(game(reject=True))
    assert env.check(BUYER, read(BUYER, text_of(BUYER, "REJECT", None), True)).kind == "opening"
    step(env, (BUYER, "BUY", 1000), (SELLER, "REJECT", None), reject=True)
    assert env.check(BUYER, read(BUYER, text_of(BUYER, "REJECT", None), True)).kind == "deal"


@pytest.mark.parametrize("quantity, legal", [("1x", True), ("1", True), ("2x", False)])
def test_both_sides_write_the_quantity_as_buyers_do(quantity, legal):
    for parse, verb in ((parse_buyer, "BUY"), (parse_bilateral_seller, "SELL")):
        text = f"Thought: a\nTalk: b\nAction: [{verb}] $20 ({quantity} {CODE})"
        assert isinstance(parse(text, CODE), Move) == legal


def test_each_side_has_its_own_offer_and_no_target():
    assert parse_bilateral_seller(text_of(BUYER, "BUY", 2000), CODE).kind == "format"
    assert parse_buyer(text_of(SELLER, "SELL", 2000), CODE).kind == "format"
    with_target = f"Thought: a\nTarget: Buyer 1\nTalk: b\nAction: [SELL] $20.00 (1x {CODE})"
    assert parse_bilateral_seller(with_target, CODE).kind == "format"
    assert parse_bilateral_seller(text_of(SELLER, "SELL", 2000), CODE, "length").kind == "truncated"


@given(st.sampled_from(["SELL", "DEAL", "QUIT"]), st.integers(1, 10**9), st.text(alphabet="ab c>", max_size=20))
def test_what_is_written_is_read_back(verb, cents, talk):
    price = None if verb == "QUIT" else cents
    move = parse_bilateral_seller(render_buyer(verb, price, talk, "t", CODE), CODE)
    assert isinstance(move, Move) and (move.verb, move.price, *move[2:4]) == (verb, price, None, talk.strip())
    assert move.offers == (() if price is None else ((1, price),))


def test_a_seat_that_could_not_speak_aborts_the_game():
    for seat, before in ((BUYER, ()), (SELLER, LATER[:1])):
        env = Bilateral(game())
        step(env, *before)
        env.submit({seat: Violation("context_limit", "no room", "")})
        assert env.outcome == Outcome("aborted", "context_limit", seat=seat)
        assert buyer_reward(env.outcome, budget_cents=2799, cost_cents=1875) == 0.0


# -- reward -----------------------------------------------------------------------------------------------------------


def deal(price: int) -> Outcome:
    return Outcome("deal", "seller_deal", SELLER, (Sale(1, BUYER, price, SELLER),))


@pytest.mark.parametrize(
    "budget, cost, price, expected",
    [
        (2799, 1875, 1875, 1.0),
        (2799, 1875, 2799, 0.0),
        (2799, 1875, 2337, 0.5),
        (2000, 1999, 1999, 1.0),
        (1500, 1875, 1400, 100 / 375),  # nobody sells below cost, but the formula says this
        (1500, 1875, 1000, 1.0),  # clipped
        (1500, 1875, 1900, -1.0),  # clipped
        (1875, 1875, 1875, 0.0),
    ],
)
def test_reward_of_a_deal(budget, cost, price, expected):
    assert buyer_reward(deal(price), budget_cents=budget, cost_cents=cost) == pytest.approx(expected)


def test_reward_without_a_deal_and_for_violations():
    money = {"budget_cents": 2799, "cost_cents": 1875}
    for reason in ("buyer_quit", "seller_quit", "turns_exhausted"):
        assert buyer_reward(Outcome("no_deal", reason), **money) == 0.0
    assert buyer_reward(Outcome("violation", "budget", seat=BUYER), **money) == -1.0
    assert buyer_reward(Outcome("violation", "format", seat=SELLER), **money) == 0.0
    with pytest.raises(ValueError, match="without a price"):
        buyer_reward(Outcome("deal", "seller_deal"), **money)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_reward_is_the_exact_ratio_clipped(budget, cost, price):
    found = buyer_reward(deal(price), budget_cents=budget, cost_cents=cost)
    if budget != cost:
        exact = Fraction(budget - price, abs(budget - cost))
        assert found == pytest.approx(float(max(Fraction(-1), min(Fraction(1), exact))), abs=1e-12)
    assert -1.0 <= found <= 1.0


# -- the guard follows who learns -------------------------------------------------------------------------------------


def only(buyer: Says, seller: Says, scenario: Scenario | None = None) -> Episode:
    (episode,) = play([scenario or game()], seller, {"learner": buyer})
    return episode


def patient_bids(request):
    return text_of(BUYER, "BUY", 1000 + len(request.view.own))


@pytest.mark.parametrize(
    "bad, kind",
    [
        (text_of(SELLER, "SELL", 1874), "below_cost"),
        (text_of(SELLER, "DEAL", 1000), "below_cost"),
        (text_of(SELLER, "DEAL", 2222), "deal"),
        ("I would sell for $20.", "format"),
        ("", "format"),
        (text_of(BUYER, "BUY", 2000), "format"),
    ],
)
def test_the_seller_is_asked_again_and_at_last_played_for(bad, kind):
    episode = only(Says(patient_bids), Says(lambda request: bad))
    fallbacks = [t for t in episode.turns if t.fallback]
    assert episode.outcome.reason == "turns_exhausted" and episode.reward == 0.0
    assert len(fallbacks) == 6 and {(t.seat, t.verb, t.price) for t in fallbacks} == {(SELLER, "SELL", 3499)}
    for position in (1, 3, 11):
        assert [r["kind"] for r in episode.notes[position]["refused"]] == [kind] * (REASKS + 1)
    assert replay(episode) == []


def test_a_refused_seller_is_told_why_and_asked_with_other_words_of_randomness():
    seller = Says(lambda request: text_of(SELLER, "SELL", 1800 + 100 * request.attempt))
    episode = only(Says(patient_bids), seller)
    first = [request for request in seller.requests if not request.view.own]
    assert [request.attempt for request in first] == [0, 1] and len({request.seed for request in first}) == 2
    assert first[0].complaint == "" and "below the cost" in first[1].complaint
    assert episode.turns[1].price == 1900 and not episode.turns[1].fallback
    assert [r["kind"] for r in episode.notes[1]["refused"]] == ["below_cost"]


def test_the_fallback_repeats_the_latest_ask_and_is_never_below_cost():
    seller = Says(lambda r: text_of(SELLER, "SELL", 2500) if not r.view.own else "no")
    episode = only(Says(patient_bids), seller)
    assert [t.price for t in episode.turns if t.seat == SELLER] == [2500] * 6
    odd = replace(CADDY, cost_cents=5000)
    env = Bilateral(game(product=odd))
    step(env, (BUYER, "BUY", 1000))
    assert env.fallback(SELLER).price == 5000
    with pytest.raises(ValueError, match="never played for"):
        env.fallback(BUYER)


@pytest.mark.parametrize(
    "bad, kind",
    [
        (text_of(BUYER, "BUY", 2800), "budget"),
        (text_of(BUYER, "DEAL", 1000), "opening"),
        ("Action: [BUY] $5", "format"),
        (text_of(SELLER, "SELL", 2000), "format"),
    ],
)
def test_the_buyer_is_never_guarded(bad, kind):
    buyer = Says(lambda request: bad)
    episode = only(buyer, Says(lambda request: text_of(SELLER, "SELL", 3000)))
    assert len(buyer.requests) == 1 and episode.outcome == Outcome("violation", kind, seat=BUYER)
    assert episode.reward == -1.0 and replay(episode) == []


# -- scenarios and records --------------------------------------------------------------------------------------------


def test_a_drawn_game_has_the_papers_numbers(sample_catalog):
    for product in sample_catalog.products[:20]:
        drawn = draw(BILATERAL, product, seed=3, rep=0)
        assert drawn.budgets == (int(0.8 * product.listing.list_cents + 0.5),)
        assert (drawn.message_budget, drawn.openings, drawn.game, drawn.reject) == (6, None, "bilateral", False)
        assert len(drawn.keys) == 2


def test_personas_are_drawn_evenly_and_leave_the_other_draws_alone(sample_catalog):
    personas = ("neutral", "begging", "insulting", "unyielding")
    mixed = BILATERAL.override(personas=personas)
    pairs = [
        (draw(mixed, p, seed=1, rep=rep), draw(BILATERAL, p, seed=1, rep=rep))
        for p in sample_catalog.products
        for rep in range(4)
    ]
    counts = Counter(a.persona for a, _ in pairs)
    assert all(a._replace(persona="neutral") == b for a, b in pairs)
    assert all(abs(counts[persona] - len(pairs) / 4) < 4 * (len(pairs) * 3 / 16) ** 0.5 for persona in personas)


@pytest.mark.parametrize(
    "knobs", [{}, {"reject": True, "personas": ["begging"]}, {"message_budget": 2, "per_buyer_cap": 2}]
)
def test_games_and_regimes_come_back_from_their_records(sample_catalog, knobs):
    chosen = regime("bilateral", **knobs)
    assert Regime.from_json(chosen.to_json()) == chosen
    item = sample_catalog.products[0]
    scenario = draw(chosen, item, seed=5, rep=1, episode=4)
    assert Scenario.from_json(4, scenario.to_json(), {item.listing.codename: item}) == scenario


@pytest.mark.parametrize(
    "knobs, says",
    [
        ({"n_buyers": 2}, "one buyer"),
        ({"first_offer": (0.2, 0.3)}, "no regulated first offer"),
        ({"message_budget": 5}, "must be equal"),
        ({"personas": ("sad",)}, "neutral, begging"),
        ({"personas": ()}, "neutral, begging"),
        ({"reject": 1}, "true or false"),
        ({"game": "chess"}, "market, bilateral"),
    ],
)
def test_bad_knobs(knobs, says):
    with pytest.raises(NegolabError, match=says):
        regime("bilateral", **knobs)


def test_a_market_has_no_knobs_of_the_bilateral_game_and_its_record_names_none():
    for knobs in ({"reject": True}, {"personas": ("begging",)}):
        with pytest.raises(NegolabError, match="bilateral game"):
            regime("in_distribution", **knobs)
    assert not {"game", "reject", "personas"} & set(regime("in_distribution").to_json())


@pytest.mark.parametrize("reject", [False, True])
def test_stored_games_replay_to_what_was_stored(sample_catalog, reject):
    products = {p.listing.codename: p for p in sample_catalog.products}
    personas = ("neutral", "insulting", "unyielding")
    verbs = set()
    for episode in play_bilateral(60, "naive", "persona", personas=personas, reject=reject, seed=2):
        again = Episode.from_json(parse_line(episode.to_line()), products)
        assert again == episode and replay(again) == []
        verbs |= {turn.verb for turn in episode.turns}
    assert ("REJECT" in verbs) == reject


def test_a_changed_price_is_found():
    episode = next(e for e in play_bilateral(20, "naive", "persona") if e.outcome.reason == "seller_deal")
    last = episode.turns[-1]
    episode.turns[-1] = last._replace(offers=((1, last.price + 1),))
    assert "offers replays as" in replay(episode)[0]
    episode.turns[-1], episode.reward = last, episode.reward + 0.01
    assert "reward replays as" in replay(episode)[0]
