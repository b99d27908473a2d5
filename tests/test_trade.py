"""Rules of the trade game (2604.16472): turns, offers, the clock, what a side may see, rewards, and how it is drawn."""

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negolab.environment import BUYER, SELLER, Event, Outcome, Sale, Trade, Violation
from negolab.episodes import Episode, parse_line, replay
from negolab.metrics import TRADE_METRICS
from negolab.parser import parse_tools
from negolab.policies.base import Reply
from negolab.reward import trade_parts, trade_reward
from negolab.rollout import play
from trade_games import LAPTOP, NOTHING, Reads, Wild, read, step, text_of, trade, view

S, B = SELLER, BUYER
GOLDEN = Path(__file__).parent / "golden"


def ended(*script, **knobs) -> Outcome | None:
    env = Trade(trade(**knobs))
    step(env, *script)
    return env.outcome


def deal(price: int, seat: int) -> Outcome:
    return Outcome("deal", "seller_deal" if seat == S else "buyer_deal", seat, (Sale(1, B, price, seat),))


# -- the paper's examples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gft", "ngft"])
def test_worked_examples_from_texts_to_the_stored_line_and_back(name):
    golden = json.loads((GOLDEN / f"trade_{name}.json").read_text(encoding="utf-8"))
    seller, buyer = (Reads(["!" + text for text in golden[side]], side) for side in ("seller", "buyer"))
    (episode,) = play([trade(golden["reserve"], golden["value"])], seller, {"trader": buyer})
    line = episode.to_line()
    assert line.decode() == golden["line"]
    again = Episode.from_json(parse_line(line), {LAPTOP.listing.codename: LAPTOP})
    assert again == episode and replay(again) == []
    published = golden["published"]
    price = None if published["price"] is None else int(published["price"]) * 100
    assert episode.outcome == (Outcome("no_deal", "buyer_quit", B) if price is None else deal(price, S))
    found = {metric: compute(episode) for metric, compute in TRADE_METRICS.items()}
    for side, dollars in published["utilities"].items():
        assert found[f"{side}_utility"] == dollars
    for side, share in published.get("surplus_shares", {}).items():
        assert found[f"{side}_surplus_share"] == share
    for metric, value in published["derived"].items():
        value_found = found[metric][0] if isinstance(found[metric], tuple) else found[metric]
        assert value_found == pytest.approx(value, abs=5e-5), metric
    assert episode.turns[-1].turn == 5 and episode.notes == {}


def test_a_replay_notices_what_was_changed():
    golden = json.loads((GOLDEN / "trade_gft.json").read_text(encoding="utf-8"))
    episode = Episode.from_json(parse_line(golden["line"].encode()), {LAPTOP.listing.codename: LAPTOP})
    turns = list(episode.turns)
    turns[1] = turns[1]._replace(text=turns[1].text.replace("950", "951"))
    assert "turn 1" in replay(replace(episode, turns=turns))[0]
    assert "reward" in replay(replace(episode, reward=0.9))[0]
    poorer = episode.scenario._replace(reserve=80_000)
    assert "reward" in replay(replace(episode, scenario=poorer))[0]


# -- turns and rounds -------------------------------------------------------------------------------------------------


def test_the_seller_begins_the_sides_alternate_and_ten_rounds_are_the_end():
    env = Trade(trade())
    turns = step(env, *[(seat, "make_offer(5)") for _ in range(5) for seat in (S, B)])
    assert [(turn.turn, turn.seat, turn.buyer) for turn in turns] == [(n + 1, n % 2, B) for n in range(10)]
    assert env.outcome == Outcome("no_deal", "turns_exhausted") and env.requests() == []
    with pytest.raises(ValueError, match="over"):
        env.submit({S: read(S, NOTHING)})


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_number_of_rounds_is_a_knob(n):
    env = Trade(trade(rounds=n))
    for at in range(n):
        assert env.outcome is None and view(env).round == at + 1 and view(env).max_rounds == n
        step(env, (at % 2, NOTHING))
    assert env.outcome == Outcome("no_deal", "turns_exhausted")


def test_the_last_round_can_close():
    assert ended((S, "make_offer(10)"), (B, "respond_to_offer(True)"), rounds=2) == deal(1000, B)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("I sell for $5", "unparseable"),
        (text_of("import os"), "unparseable"),
        ("", "unparseable"),
        (text_of("foo()"), "unknown_tool"),
        (text_of("make_offer(0)"), "bad_argument"),
    ],
)
def test_a_reply_without_effect_passes_the_turn_and_is_counted(text, kind):
    env = Trade(trade())
    (turn,) = env.submit({S: parse_tools(text, None, seat=S)})
    assert (turn.violation, turn.verb, turn.offers, turn.text) == (kind, None, (), text) and turn.detail
    assert env.outcome is None and view(env).seat == B and view(env).heard == ((),) and view(env).speakers == (S,)


def test_a_cut_reply_has_no_effect_even_where_it_is_whole():
    env = Trade(trade())
    (turn,) = env.submit({S: parse_tools(text_of("make_offer(5)"), None, "length", seat=S)})
    assert (turn.violation, turn.offers) == ("truncated", ()) and view(env).pending is None


def test_three_calls_take_effect_and_the_fourth_does_not():
    env = Trade(trade())
    (turn,) = step(env, (S, 'send_message("a")\nmake_offer(9)\nsend_message("b")\nmake_offer(7)'))
    assert turn.verb == "message+offer+message" and turn.offers == ((1, 900),) and turn.violation == "too_many_calls"
    assert [(event.kind, event.price, event.text) for event in view(env).heard[0]] == [
        ("message", None, "a"),
        ("offer", 900, ""),
        ("message", None, "b"),
    ]


def test_the_record_names_the_first_problem_and_tells_of_the_others():
    env = Trade(trade())
    (turn,) = step(env, (S, "respond_to_offer(False)\nfoo()\nmake_offer(0)"))
    assert turn.violation == "unknown_tool" and turn.verb is None
    assert turn.detail.startswith("call 2: there is no tool 'foo'; bad_argument: call 3: make_offer")
    assert turn.detail.endswith("; no_pending_offer: there is no offer to answer")


def test_a_turn_without_a_terminal_tool_passes_like_one_with_it():
    for end in ("", "\nwait_for_response()"):
        env = Trade(trade())
        (turn,) = step(env, (S, "make_offer(5)" + end))
        assert turn.verb == "offer" and turn.violation is None and view(env).seat == B and view(env).round == 2
    (turn,) = step(Trade(trade()), (S, NOTHING))
    assert (turn.verb, turn.violation) == (None, None)


# -- offers and answers -----------------------------------------------------------------------------------------------


def test_an_offer_waits_until_it_is_answered():
    env = Trade(trade())
    step(env, (S, "make_offer(14)"))
    assert (view(env).pending, view(env).mine) == (1400, None)
    step(env, (B, 'send_message("Hm.")'))
    assert (view(env).pending, view(env).mine) == (None, 1400)
    step(env, (S, NOTHING), (B, "respond_to_offer(True)"))
    assert env.outcome == deal(1400, B)


def test_a_counter_offer_rejects_and_only_one_offer_is_pending():
    env = Trade(trade())
    step(env, (S, "make_offer(14)"), (B, "make_offer(9)"))
    assert (view(env).pending, view(env).mine) == (900, None)
    (turn,) = step(env, (S, NOTHING))
    (turn,) = step(env, (B, "respond_to_offer(True)"))  # the 14 are gone
    assert turn.violation == "no_pending_offer" and env.outcome is None
    step(env, (S, "respond_to_offer(True)"))
    assert env.outcome == deal(900, S)


def test_a_rejected_offer_is_gone():
    env = Trade(trade())
    (_, turn) = step(env, (S, "make_offer(14)"), (B, "respond_to_offer(False)"))
    assert turn.verb == "reject" and view(env).heard[1][0][1:] == (B, "reject", 1400, "")
    assert (view(env).pending, view(env).mine) == (None, None)
    (_, turn) = step(env, (S, NOTHING), (B, "respond_to_offer(True)"))
    assert turn.violation == "no_pending_offer"


def test_a_new_offer_replaces_ones_own():
    env = Trade(trade())
    step(env, (S, "make_offer(14)\nmake_offer(13)"))
    assert view(env).pending == 1300
    step(env, (B, NOTHING), (S, "make_offer(12)"), (B, "respond_to_offer(True)"))
    assert env.outcome == deal(1200, B)


def test_after_ones_own_offer_there_is_nothing_to_accept():
    env = Trade(trade())
    (_, turn) = step(env, (S, "make_offer(14)"), (B, "make_offer(9)\nrespond_to_offer(True)"))
    assert turn.violation == "no_pending_offer" and turn.verb == "offer" and env.outcome is None
    (turn,) = step(env, (S, "respond_to_offer(False)\nmake_offer(11)"))
    assert turn.verb == "reject+offer" and view(env).pending == 1100


def test_nobody_accepts_its_own_offer():
    env = Trade(trade())
    (_, _, turn) = step(env, (S, "make_offer(14)"), (B, NOTHING), (S, "respond_to_offer(True)"))
    assert turn.violation == "no_pending_offer" and env.outcome is None


def test_an_answer_without_an_offer_is_lost_and_what_follows_it_takes_effect():
    for answer in ("True", "False"):
        (turn,) = step(Trade(trade()), (S, f'send_message("a")\nrespond_to_offer({answer})'))
        assert turn.violation == "no_pending_offer" and turn.verb == "message"
    (turn,) = step(Trade(trade()), (S, "respond_to_offer(False)\nmake_offer(5)"))
    assert turn.violation == "no_pending_offer" and turn.verb == "offer"
    # After an accepting answer nothing is read: whoever writes it holds the game to be over.
    (turn,) = step(Trade(trade()), (S, "respond_to_offer(True)\nmake_offer(5)"))
    assert turn.violation == "after_terminal" and turn.verb is None and "no_pending_offer" in turn.detail


def test_accepting_and_quitting_end_the_game_at_once():
    assert ended((S, "make_offer(14)"), (B, "respond_to_offer(True)")) == deal(1400, B)
    assert ended((S, "make_offer(14)"), (B, "make_offer(9)"), (S, "respond_to_offer(True)")) == deal(900, S)
    assert ended((S, "quit_negotiation()")) == Outcome("no_deal", "seller_quit", S)
    assert ended((S, NOTHING), (B, 'send_message("Bye.")\nquit_negotiation()')) == Outcome("no_deal", "buyer_quit", B)


@pytest.mark.parametrize("price", [1, 89_999, 120_001, 10_000_000])
def test_deals_at_a_loss_are_legal(price):
    assert ended((S, f"make_offer({price / 100})"), (B, "respond_to_offer(True)")) == deal(price, B)


def test_a_side_that_could_not_speak_aborts_the_game():
    for seat, before in ((S, ()), (B, ((S, "make_offer(5)"),))):
        for kind in ("context_limit", "timeout"):
            env = Trade(trade())
            step(env, *before)
            (turn,) = env.submit({seat: Violation(kind, "no room", "")})
            assert env.outcome == Outcome("aborted", kind, seat) and turn.violation == kind


def test_misuse_of_the_environment_is_an_error():
    env = Trade(trade())
    for replies in ({}, {B: read(B, NOTHING)}, {S: read(S, NOTHING), B: read(B, NOTHING)}):
        with pytest.raises(ValueError, match="expected"):
            env.submit(replies)
    with pytest.raises(ValueError, match="never a violation"):
        env.submit({S: Violation("format", "a", "b")})
    with pytest.raises(ValueError, match="nobody is played for"):
        env.fallback(S)
    assert env.check(S, read(S, NOTHING)) is None
    for broken in (trade()._replace(reserve=None), trade()._replace(valuations=((1,), (2,)))):
        with pytest.raises(ValueError, match="one buyer"):
            Trade(broken)


# -- searching and waiting --------------------------------------------------------------------------------------------


def test_a_first_search_is_answered_in_the_same_round():
    env = Trade(trade())
    assert view(env).history is None
    (turn,) = step(env, (S, "search_price()"))
    assert (turn.turn, turn.verb) == (1, "search")
    assert (view(env).seat, view(env).round, view(env).history) == (S, 1, (120_000, 170_000))
    (turn,) = step(env, (S, "make_offer(14)"))
    assert turn.turn == 1 and view(env).seat == B and view(env).round == 2 and view(env).history is None
    assert view(env).heard[0] == () and view(env).speakers == (S, S)  # nobody is told of a search


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("search_price()", True),
        ("search_price()\nsearch_price()", True),
        ("search_price()\nfoo()", True),
        ("respond_to_offer(False)\nsearch_price()", True),  # there is no offer: the search is all that took effect
        ('search_price()\nsend_message("a")', False),
        ("search_price()\nmake_offer(5)", False),
        ("search_price()\nwait_for_response()", False),
        ("wait_for_response()\nsearch_price()", False),
    ],
)
def test_only_a_search_alone_goes_on(code, again):
    env = Trade(trade())
    step(env, (S, code))
    assert (view(env).seat == S) == again
    if not code.startswith("wait"):
        step(env, *([(S, NOTHING)] if again else []), (B, NOTHING))
        assert view(env).history == (120_000, 170_000)


def test_later_searches_pass_the_turn():
    env = Trade(trade())
    step(env, (S, "search_price()"), (S, "search_price()"), (B, "search_price()"), (B, NOTHING), (S, "search_price()"))
    assert view(env).seat == B and view(env).round == 4


def test_a_search_in_the_last_round_is_answered_too():
    env = Trade(trade(rounds=1))
    step(env, (S, "search_price()"))
    assert env.outcome is None
    step(env, (S, "make_offer(5)"))
    assert env.outcome == Outcome("no_deal", "turns_exhausted")


def test_a_delay_keeps_the_seat_costs_a_round_and_moves_the_clock():
    env = Trade(trade())
    (turn,) = step(env, (S, "make_offer(14)\nwait_for_time_period(60)"))
    now = view(env)
    assert turn.verb == "offer+wait" and (now.seat, now.round, now.mine) == (S, 2, 1400)
    assert now.now == pytest.approx(now.heard[0][0].time + 60)
    step(env, (S, "make_offer(13)"))
    assert view(env).seat == B and view(env).pending == 1300 and view(env).now < 60 + 4


def test_delays_use_up_the_rounds():
    env = Trade(trade(rounds=3))
    step(env, *[(S, "wait_for_time_period(1)")] * 3)
    assert env.outcome == Outcome("no_deal", "turns_exhausted")


def test_a_turn_is_one_batch_half_a_second_to_two_after_it_began():
    env = Trade(trade(rounds=100))
    before = 0.0
    for at in range(100):
        step(env, (at % 2, 'send_message("a")\nmake_offer(5)'))
        if env.outcome is None:
            batch = view(env).heard[-1]
            assert len(batch) == 2 and batch[0].time == batch[1].time == view(env).now
            assert 0.499 <= batch[0].time - before <= 2.001
            before = batch[0].time
    assert before > 100  # 99 x 1.25 on average


def test_the_clock_follows_from_the_sides_own_words():
    def times(keys):
        env = Trade(trade(keys=keys))
        step(env, (S, "make_offer(5)"), (B, "make_offer(4)"), (S, "make_offer(5)"))
        heard = view(env).heard
        return [heard[0][0].time, *(round(b[0].time - a[0].time, 3) for a, b in pairwise(heard))]

    assert times((11, 12)) == times((11, 12))
    a, b = times((11, 12)), times((11, 13))
    assert a[0] == b[0] and a[1] != b[1] and a[2] == b[2]  # the buyer's word decides the buyer's delays alone
    assert len(set(a)) == 3


# -- what a side may see ----------------------------------------------------------------------------------------------


def test_both_sides_are_told_the_same_events_and_their_own_limit():
    env = Trade(trade())
    seller = view(env)
    assert (seller.seat, seller.limit, seller.round, seller.max_rounds, seller.now) == (S, 90_000, 1, 10, 0.0)
    assert (seller.heard, seller.own, seller.listing.title) == ((), (), "A laptop")
    step(env, (S, 'send_message("Fine.")\nmake_offer(14, "with a bag")'))
    buyer = view(env)
    at = buyer.now
    assert (buyer.seat, buyer.limit, buyer.own) == (B, 120_000, ())
    assert buyer.heard == ((Event(at, S, "message", None, "Fine."), Event(at, S, "offer", 1400, "with a bag")),)
    step(env, (B, NOTHING))
    assert view(env).heard == (*buyer.heard, ()) and view(env).own == (
        text_of('send_message("Fine.")\nmake_offer(14, "with a bag")'),
    )


def values_in(thing) -> list:
    """Every number and text in a view."""
    if isinstance(thing, tuple):
        return [value for part in thing for value in values_in(part)]
    if thing is not None and hasattr(thing, "__dataclass_fields__"):
        return [value for name in thing.__dataclass_fields__ for value in values_in(getattr(thing, name))]
    return [thing]


ODD = replace(LAPTOP, listing=replace(LAPTOP.listing, list_cents=171_717_171), cost_cents=123_451_234)
WILD_GAMES = [trade(91_357_913, 122_683_226, 10, n, (n, 1000 + n), ODD) for n in range(300)]


@pytest.fixture(scope="module")
def wild():
    """Three hundred games at random, and who was asked what in them."""
    seller, buyer = Wild("wild seller"), Wild("wild buyer")
    episodes = list(play(WILD_GAMES, seller, {"trader": buyer}))
    return episodes, [*seller.requests, *buyer.requests]


def test_a_view_holds_nothing_of_the_other_side(wild):
    searched = 0
    for request in wild[1]:
        found = request.view
        values = values_in(found)
        other = 122_683_226 if request.seat == S else 91_357_913
        assert other not in values and found.limit in values
        assert request.seat_seed != (1000 if request.seat == S else 0) + request.episode
        history = {171_717_171, 123_451_234}
        has_searched = any("search_price()" in text for text in found.own)
        assert found.history is None or has_searched
        assert history.isdisjoint(values) == (found.history is None)
        searched += found.history is not None
        thoughts = [value for value in values if isinstance(value, str) and "SECRET-THOUGHT" in value]
        assert len(thoughts) == sum("SECRET-THOUGHT" in text for text in found.own)
        assert not any("Thought:" in event.text for batch in found.heard for event in batch)
        assert len(found.heard) == len(found.speakers) and found.speakers.count(found.seat) == len(found.own)
    assert searched > 100


def test_random_play_keeps_the_rules(wild):
    episodes, requests = wild
    assert len(episodes) == len(WILD_GAMES)
    reasons = {episode.outcome.reason for episode in episodes}
    assert reasons == {"seller_deal", "buyer_deal", "seller_quit", "buyer_quit", "turns_exhausted"}
    for episode in episodes:
        assert replay(episode) == []
        assert 1 <= episode.turns[-1].turn <= 10 and len(episode.turns) <= 12  # one search a side goes on in its round
        assert [turn.turn for turn in episode.turns] == sorted(turn.turn for turn in episode.turns)
        pending: list[int | None] = [None, None]
        for turn in episode.turns:
            done = (turn.verb or "").split("+")
            assert len(done) <= 3 and turn.buyer == B and not turn.fallback
            if "accept" in done:
                assert turn is episode.turns[-1] and episode.outcome == deal(pending[1 - turn.seat], turn.seat)
            if "quit" in done:
                assert turn is episode.turns[-1] and episode.outcome.seat == turn.seat
            if "reject" in done:
                assert pending[1 - turn.seat] is not None
                pending[1 - turn.seat] = None
            if turn.price is not None:
                pending[turn.seat], pending[1 - turn.seat] = turn.price, None
        assert 0.0 <= episode.reward <= 1.0
    for request in requests:
        times = [event.time for batch in request.view.heard for event in batch]
        assert times == sorted(times) and (not times or times[-1] <= request.view.now)
        assert len({event.time for batch in request.view.heard for event in batch}) == sum(
            map(bool, request.view.heard)
        )


def test_random_play_is_the_same_alone_and_together(wild):
    together = {episode.scenario.episode: episode.to_line() for episode in wild[0]}
    for game in WILD_GAMES[::20]:
        (alone,) = play([game], Wild("wild seller"), {"trader": Wild("wild buyer")})
        assert alone.to_line() == together[game.episode]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=40), st.booleans()), max_size=12), st.integers(1, 6))
def test_any_texts_play_to_an_end_and_replay(said, rounds):
    blocks = [Reply(text) if bare else Reply(f"Thought: a\nCode:\n```python\n{text}\n```") for text, bare in said]
    (episode,) = play([trade(rounds=rounds)], Reads(blocks[::2], "a"), {"trader": Reads(blocks[1::2], "b")})
    assert len(episode.turns) == rounds and replay(episode) == []
    back = Episode.from_json(parse_line(episode.to_line()), {LAPTOP.listing.codename: LAPTOP})
    assert back == episode


def test_both_sides_are_under_test_and_neither_is_guarded():
    bad = Reads(["!nonsense"] * 9, "bad")
    (episode,) = play([trade(rounds=4)], bad, {"trader": bad})
    assert [turn.violation for turn in episode.turns] == ["unparseable"] * 4 and len(bad.requests) == 4
    assert all(request.attempt == 0 for request in bad.requests) and not any(turn.fallback for turn in episode.turns)


def test_an_aborted_game_is_recorded_and_replays():
    (episode,) = play([trade()], Reads(["make_offer(1400)"]), {"trader": Reads([Reply("", "context_limit")])})
    assert episode.outcome == Outcome("aborted", "context_limit", B) and replay(episode) == []
    # What it says of the side that could not speak is nothing: no message of its own, no utility.
    assert trade_parts(90_000, 120_000, episode.outcome, episode.turns, B) == (1.0, 0.0, 1.0, 0.0)
    assert trade_parts(90_000, 120_000, episode.outcome, episode.turns, S) == (1.0, 1.0, 1.0, 0.0)


def test_three_hundred_games_take_a_part_of_a_second():
    games = [trade(episode=n, keys=(n, n + 7)) for n in range(300)]
    offers = [f"make_offer({1400 - 10 * n})" for n in range(5)]
    best = 60.0
    for _ in range(3):
        start = time.perf_counter()
        played = list(play(games, Reads(offers), {"trader": Reads([f"make_offer({n})" for n in range(900, 905)])}))
        best = min(best, time.perf_counter() - start)
    assert len(played) == 300 and best < 3.0  # ten rounds each; 0.15 on a slow core


def test_the_stored_reward_is_the_sellers_and_all_parts_are_in_range(wild):
    for episode in wild[0]:
        money = episode.scenario.reserve, episode.scenario.budgets[0]
        for seat in (S, B):
            found = trade_parts(*money, episode.outcome, episode.turns, seat)
            assert all(0 <= part <= 1 for part in found) and found[2] in (0, 0.5, 1)
        assert episode.reward == trade_reward(*money, episode.outcome, episode.turns, S)
