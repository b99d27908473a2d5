"""The composite reward of the trade game (2604.16472, equation 8 and table 8) against values by hand, both sides."""

import pytest

from negolab.environment import BUYER, SELLER, Outcome, Trade
from negolab.reward import WEIGHTS, inconsistencies, trade_parts, trade_reward
from trade_games import NOTHING, step, trade

S, B = SELLER, BUYER


def parts(*script, seat=S, **knobs):
    env = Trade(trade(**knobs))
    turns = step(env, *script)
    outcome = env.outcome or Outcome("no_deal", "turns_exhausted")
    money = trade(**knobs)
    return trade_parts(money.reserve or 0, money.budgets[0], outcome, turns, seat)


def flags(*script) -> dict[int, tuple[bool, bool]]:
    env = Trade(trade())
    turns = step(env, *script)
    outcome = env.outcome or Outcome("no_deal", "turns_exhausted")
    return {seat: inconsistencies(outcome, turns, seat) for seat in (S, B)}


YES, NO = "respond_to_offer(True)", "respond_to_offer(False)"


def say(*offers: object) -> list[tuple[int, str]]:
    """A script of alternating turns, a number an offer, a text a block."""
    return [(at % 2, what if isinstance(what, str) else f"make_offer({what})") for at, what in enumerate(offers)]


@pytest.mark.parametrize(
    ("script", "seller", "buyer"),
    [
        # (proposed worse than rejected, accepted worse later), by side
        (say(1400, 950, 1150, 1050, YES), (False, False), (False, False)),  # the paper's example
        (say(1400, 950, 1450), (True, False), (False, False)),  # a counter-offer rejects
        (say(1400, 950, 1400), (False, False), (False, False)),  # the same again is not worse
        (say(1400, NO, 1400.01), (True, False), (False, False)),
        (say(1400, NO, 1399.99), (False, False), (False, False)),
        (say(1400, NOTHING, 1450), (False, False), (False, False)),  # nobody rejected it
        (say(1400, 'send_message("No!")', 1450), (False, False), (False, False)),  # words are no answer
        (say(1400, 950, NO, 940), (False, False), (True, False)),
        (say(1400, 950, 1150, 940), (False, False), (True, False)),
        (say(1400, 950, NO, 960), (False, False), (False, False)),
        (say(1400, 950, NOTHING, 940), (False, False), (False, False)),
        # Only the last rejected counts: 1,000 was, then 1,100; 1,050 is better than the latter.
        (say(1000, NO, 1100, NO, 1050, YES), (True, False), (False, False)),
        (say(1000, NO, 1100, YES), (True, False), (False, True)),
        (say(1000, NO, 1000, YES), (False, False), (False, False)),  # the very price that was rejected is not worse
        (say(1200, 950, NO, 900, YES), (False, True), (True, False)),
        (say(1200, 900, NO, 950, NO, 920, YES), (False, True), (True, False)),
        (say(1200, 950, NO, 900, 1000, NO, 910, 905, YES), (False, False), (True, False)),  # the last rejected is 900
        # Who closed does not matter: the buyer rejected 1,000, and 1,050 of its own is taken.
        (say(1000, 1050, YES), (False, False), (False, True)),
        # Without a deal nothing was accepted.
        (say(1000, NO, 1100, "quit_negotiation()"), (True, False), (False, False)),
        # An offer that its own author replaced was never rejected.
        (say("make_offer(1300)\nmake_offer(1200)", 900, 1250), (True, False), (False, False)),
        (say("make_offer(1200)\nmake_offer(1300)", 900, 1250), (False, False), (False, False)),
        # Answer and offer in one turn.
        (say(1400, f"{NO}\nmake_offer(900)", f"{NO}\nmake_offer(1500)"), (True, False), (False, False)),
        ([(S, "make_offer(1000)\nwait_for_time_period(5)"), (S, "make_offer(1100)")], (False, False), (False, False)),
    ],
)
def test_inconsistencies_by_hand(script, seller, buyer):
    assert flags(*script) == {S: seller, B: buyer}
    for seat, (worse_offer, worse_deal) in ((S, seller), (B, buyer)):
        assert parts(*script, seat=seat)[2] == 1 - 0.5 * worse_offer - 0.5 * worse_deal


def test_both_flags_at_once():
    script = say(1000, NO, 1100, 1200, NO, 1150, YES)  # the buyer: rejected 1,000 then 1,100, then pays 1,150
    assert flags(*script) == {S: (True, True), B: (True, True)}
    assert parts(*script, seat=S)[2] == parts(*script, seat=B)[2] == 0.0


@pytest.mark.parametrize(
    ("price", "seller", "buyer"),
    [(90_000, 0, 1), (120_000, 1, 0), (105_000, 0.5, 0.5), (97_500, 0.25, 0.75), (80_000, 0, 1), (130_000, 1, 0)],
)
def test_utility_is_the_share_clipped(price, seller, buyer):
    script = [(S, f"make_offer({price / 100})"), (B, YES)]
    assert parts(*script, seat=S)[3] == seller and parts(*script, seat=B)[3] == buyer


@pytest.mark.parametrize(("reserve", "value"), [(90_000, 90_000), (90_000, 80_000)])
def test_without_gains_from_trade_a_deal_has_no_utility(reserve, value):
    for seat in (S, B):
        assert parts((S, "make_offer(850)"), (B, YES), seat=seat, reserve=reserve, value=value)[3] == 0.0


def test_parsing_and_execution_by_hand():
    seller = ["make_offer(1400)", "import os", "foo()\nmake_offer(1300)", "respond_to_offer(False)", "make_offer(1200)"]
    script = [(at % 2, what) for pair in zip(seller, [NOTHING] * 5, strict=True) for at, what in enumerate(pair)]
    assert parts(*script)[:2] == (4 / 5, 2 / 4)  # one unreadable; of the four others two with a lost call
    assert parts(*script, seat=B)[:2] == (1.0, 1.0)
    assert parts((S, "import os"))[:2] == (0.0, 0.0)
    assert parts((S, "foo()"))[:2] == (1.0, 0.0)


def test_a_side_that_said_nothing_gets_the_defaults():
    assert trade_parts(900, 1200, Outcome("no_deal", "seller_quit", S), [], B) == (1.0, 0.0, 1.0, 0.0)


def test_weights():
    turns = step(env := Trade(trade()), *say(1000, NO, 1100, YES))
    assert env.outcome is not None
    expected = (1.0, 1.0, 0.5, 2 / 3)
    assert trade_parts(90_000, 120_000, env.outcome, turns, S) == pytest.approx(expected)
    assert WEIGHTS == (0.25,) * 4
    assert trade_reward(90_000, 120_000, env.outcome, turns, S) == pytest.approx(sum(expected) / 4)
    for at in range(4):
        alone = tuple(float(part == at) for part in range(4))
        assert trade_reward(90_000, 120_000, env.outcome, turns, S, alone) == pytest.approx(expected[at])
    weights = (0.1, 0.2, 0.3, 0.4)
    assert trade_reward(90_000, 120_000, env.outcome, turns, B, weights) == pytest.approx(0.1 + 0.2 + 0.15 + 0.4 / 3)
