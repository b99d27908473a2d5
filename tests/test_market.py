"""The rules of the market: the paper's own runs first, then every reading that the module's docstring states."""

import pytest

from markets import CADDY, OPEN_TRAINED, TRAINED, TRAINED_MARKET, UNTRAINED, UNTRAINED_MARKET, market, step, text_of
from negolab.environment import Market, Move, Outcome, Sale, Violation
from negolab.parser import parse_seller
from negolab.prompts import board
from negolab.reward import seller_reward

OPEN3 = OPEN_TRAINED


def _move(verb, cents):
    return Move(verb, () if cents is None else ((1, cents),), None, "", "")


def reward_of(env):
    return seller_reward(env.outcome, [(3499, 1875)])


def test_untrained_run_of_section_14_2():
    env = Market(UNTRAINED_MARKET)
    turns = step(env, *UNTRAINED)
    assert env.outcome == Outcome("deal", "seller_deal", 0, (Sale(1, 1, 1900, 0),))
    assert reward_of(env) == pytest.approx(0.0153941, abs=5e-8)
    assert [t.turn for t in turns] == [1, 1, 1, 1, 2, 2, 3, 3]
    assert UNTRAINED_MARKET.rank(1) == 2 and UNTRAINED_MARKET.rank(3) == 1


def test_trained_run_of_section_14_3():
    env = Market(TRAINED_MARKET)
    turns = step(env, *TRAINED)
    assert env.outcome == Outcome("deal", "seller_deal", 0, (Sale(1, 2, 3250, 0),))
    assert reward_of(env) == pytest.approx(0.8466749, abs=5e-8)
    assert [t.turn for t in turns] == [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert TRAINED_MARKET.rank(2) == 1
    # The accepting message is Buyer 2's third: turns 1, 4 and 5 are exactly K.
    assert env._channels[1].sent == 3


# Section 11.2, at the seller's third turn. The paper prints it as running text with a typographic apostrophe; the line
# breaks are ours.
BOARD = """=== Standing offers ===
- Buyer 1: active, you can send 2 more messages to this buyer.
  Buyer 1's action history: [BUY] $9.95 @ turn 1, [BUY] $9.95 @ turn 3
  Your messages history to Buyer 1: [SELL] $34.99 @ turn 2
- Buyer 2: active, you can send 2 more messages to this buyer.
  Buyer 2's action history: [BUY] $10.45 @ turn 1, [BUY] $18.00 @ turn 2
  Your messages history to Buyer 2: [SELL] $34.99 @ turn 1
- Buyer 3: active, you can send 3 more messages to this buyer.
  Buyer 3's action history: [BUY] $9.28 @ turn 1
  Your messages history to Buyer 3: (none yet)
Seller messages remaining (T): 5. List price: $34.99. Your cost (do not sell below this): $18.75."""


def board_of(env):
    (request,) = env.requests()
    view = request.view
    return board(
        view.heard,
        n_buyers=len(view.channels),
        per_buyer_cap=view.per_buyer_cap,
        message_budget=view.message_budget,
        list_cents=3499,
        cost_cents=1875,
    )


def test_board_of_section_11_2_at_turn_3():
    env = Market(TRAINED_MARKET)
    step(env, *TRAINED[:7])
    assert env.requests()[0].view.turn == 3
    assert board_of(env) == BOARD


def test_board_of_quit_and_capped_buyers():
    env = Market(market(k=1))
    step(env, *OPEN3, (0, "SELL", 3499, 1), (1, "QUIT", None, None), (0, "SELL", 3400, 2), (2, "BUY", 1800, None))
    lines = board_of(env).splitlines()
    assert lines[1] == "- Buyer 1: quit."
    assert lines[2] == "  Buyer 1's action history: [BUY] $9.95 @ turn 1, [QUIT] @ turn 2"
    assert lines[4] == "- Buyer 2: capped."
    assert [c.status for c in env.requests()[0].view.channels] == ["quit", "capped", "active"]


def test_openings_are_one_batch_then_only_the_target_answers():
    env = Market(TRAINED_MARKET)
    assert [r.seat for r in env.requests()] == [1, 2, 3]
    step(env, *OPEN3)
    assert [r.seat for r in env.requests()] == [0]
    step(env, (0, "SELL", 3499, 3))
    assert [r.seat for r in env.requests()] == [3]


def violation(env, verb, cents, target):
    turn = env.submit({0: parse_seller(text_of(0, verb, cents, target), "baby-products_17")})[0]
    assert env.outcome is not None and env.requests() == []
    return turn.violation, env.outcome, reward_of(env)


@pytest.mark.parametrize(
    ("verb", "cents", "target", "kind"),
    [
        ("SELL", 1874, 1, "below_cost"),
        ("DEAL", 995, 1, "below_cost"),  # a real bid, but below cost
        ("DEAL", 1000, 1, "below_cost"),  # never bid and below cost: clause (i) comes first
        ("DEAL", 2000, 2, "deal"),
        ("SELL", 3499, 4, "target"),
        ("SELL", 1000, 4, "target"),
        ("QUIT", None, 9, "target"),
    ],
)
def test_seller_violations_end_the_episode_at_minus_one(verb, cents, target, kind):
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3)
    assert violation(env, verb, cents, target) == (kind, Outcome("violation", kind, seat=0), -1.0)


def test_cost_itself_is_legal_and_worth_nothing():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 1875, 2), (2, "DEAL", 1875, None))
    assert env.outcome == Outcome("deal", "buyer_deal", 2, (Sale(1, 2, 1875, 2),))
    assert reward_of(env) == 0.0


def test_reward_is_capped_at_one_above_list():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3800, 2), (2, "DEAL", 3800, None))
    assert reward_of(env) == 1.0


def test_any_earlier_bid_of_an_active_buyer_can_be_accepted():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 3000, None), (0, "SELL", 3499, 2), (2, "BUY", 2000, None))
    step(env, (0, "DEAL", 3000, 2))
    assert env.outcome.price == 3000


def test_a_deal_one_cent_off_is_a_violation():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 2750, None))
    assert violation(env, "DEAL", 2751, 2)[0] == "deal"


def test_another_buyers_bid_cannot_be_accepted():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 2750, None))
    assert violation(env, "DEAL", 2750, 3)[0] == "deal"


def to_cap(answer):
    """Buyer 2 gets its K = 2 messages; ``answer`` is its reply to the second."""
    env = Market(market(k=2))
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 2000, None), (0, "SELL", 3000, 2), answer)
    return env


def test_the_bid_that_answers_the_last_message_is_recorded_but_out_of_reach():
    env = to_cap((2, "BUY", 2900, None))
    channel = env.requests()[0].view.channels[1]
    assert channel.status == "capped" and channel.bids[-1] == (1, 2900)
    assert violation(env, "DEAL", 2900, 2)[0] == "target"


def test_the_buyer_can_still_close_on_its_last_message():
    assert to_cap((2, "DEAL", 3000, None)).outcome == Outcome("deal", "buyer_deal", 2, (Sale(1, 2, 3000, 2),))


def test_quitting_on_the_last_message_is_quit_not_capped():
    assert to_cap((2, "QUIT", None, None)).requests()[0].view.channels[1].status == "quit"


def test_an_accepting_message_counts_towards_k_and_t():
    env = Market(market(k=3, t=2))
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 2000, None), (0, "DEAL", 2000, 2))
    assert env._budget_left == 0 and env.outcome.kind == "deal"


def test_the_last_message_is_answered_then_the_budget_is_gone():
    env = Market(market(t=1))
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 3400, None))
    assert env.outcome == Outcome("no_deal", "messages_exhausted")
    env = Market(market(t=1))
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "DEAL", 3499, None))
    assert env.outcome.kind == "deal"


def test_all_channels_inactive_ends_without_a_deal():
    env = Market(market(k=1))
    for buyer, answer in ((1, "QUIT"), (2, "BUY"), (3, "BUY")):
        cents = 1000 if answer == "BUY" else None
        step(env, *(OPEN3 if buyer == 1 else ()), (0, "SELL", 3499, buyer), (buyer, answer, cents, None))
    assert env.outcome == Outcome("no_deal", "all_inactive") and reward_of(env) == 0.0


@pytest.mark.parametrize("target", [None, 2])
def test_a_quit_is_no_violation_and_no_message(target):
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "QUIT", None, target))
    assert env.outcome == Outcome("no_deal", "seller_quit", seat=0)
    assert reward_of(env) == 0.0 and env._budget_left == 7


@pytest.mark.parametrize(
    ("seat", "move", "kind"),
    [
        (2, ("DEAL", 3400), "deal"),  # not the latest ask
        (2, ("DEAL", 3499), None),
        (2, ("BUY", 3838), "budget"),
        (2, ("BUY", 3837), None),
        (2, ("QUIT", None), None),
    ],
)
def test_what_a_buyer_may_do_after_an_ask(seat, move, kind):
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3400, 2), (2, "BUY", 1800, None), (0, "SELL", 3499, 2))
    found = env.check(seat, _move(*move))
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    ("move", "kind"),
    [(("QUIT", None), "opening"), (("DEAL", 1045), "opening"), (("BUY", 1046), "opening"), (("BUY", 1045), None)],
)
def test_the_opening_is_a_bid_at_the_regulated_price(move, kind):
    found = Market(TRAINED_MARKET).check(2, _move(*move))
    assert (found.kind if found else None) == kind


def test_a_free_opening_is_only_held_to_the_budget():
    env = Market(market(openings=None))
    assert env.check(1, Move("BUY", ((1, 1764),), None, "", "")) is None
    assert env.check(1, Move("BUY", ((1, 1765),), None, "", "")).kind == "budget"
    assert env.check(1, Move("QUIT", (), None, "", "")).kind == "opening"


def test_a_buyers_deal_over_its_budget_is_refused():
    env = Market(TRAINED_MARKET)
    step(env, *OPEN3, (0, "SELL", 3499, 1))
    assert env.check(1, Move("DEAL", ((1, 3499),), None, "", "")).kind == "budget"


def test_fallback_repeats_the_bid_else_the_opening_else_quits():
    env = Market(TRAINED_MARKET)
    assert env.fallback(2)[:2] == ("BUY", ((1, 1045),))
    step(env, *OPEN3, (0, "SELL", 3499, 2), (2, "BUY", 1800, None), (0, "SELL", 3499, 2))
    assert env.fallback(2)[:2] == ("BUY", ((1, 1800),))
    assert Market(market(openings=None)).fallback(1).verb == "QUIT"


def test_a_violating_buyer_without_a_guard_ends_the_episode_but_costs_the_seller_nothing():
    env = Market(market(openings=None))
    turns = env.submit(
        {1: Violation("format", "x", ""), 2: Violation("format", "y", ""), 3: Violation("format", "z", "")}
    )
    assert len(turns) == 1 and env.outcome == Outcome("violation", "format", seat=1)
    assert reward_of(env) == 0.0


def test_wrong_seats_and_dead_episodes_are_programming_errors():
    env = Market(TRAINED_MARKET)
    with pytest.raises(ValueError, match="seats"):
        env.submit({0: Move("QUIT", (), None, "", "")})
    step(env, *OPEN3, (0, "QUIT", None, None))
    with pytest.raises(ValueError, match="over"):
        env.submit({})


def test_views_cannot_be_used_to_change_or_read_the_market():
    env = Market(TRAINED_MARKET)
    for request in env.requests():
        assert isinstance(request.view, tuple) and not hasattr(request.view, "__dict__")
        assert "cost_cents" not in request.view._fields and not hasattr(request.view.listing, "cost_cents")
    step(env, *OPEN3)
    view = env.requests()[0].view
    assert "budgets" not in view._fields and not any("budget" in f and f != "message_budget" for f in view._fields)
    before = env.requests()
    with pytest.raises(AttributeError):
        view.turn = 9
    assert env.requests() == before


@pytest.mark.parametrize(
    ("price", "expected"), [(1875, 0.0), (1900, 25 / 1624), (3250, 1375 / 1624), (3499, 1.0), (9999, 1.0)]
)
def test_reward_equation_1(price, expected):
    outcome = Outcome("deal", "seller_deal", 0, (Sale(1, 1, price, 0),))
    assert seller_reward(outcome, [(3499, 1875)]) == expected


def test_reward_refuses_what_has_no_meaning():
    with pytest.raises(ValueError):
        seller_reward(Outcome("deal", "seller_deal", 0, (Sale(1, 1, 1874, 0),)), [(3499, 1875)])
    with pytest.raises(ValueError):
        seller_reward(Outcome("deal", "seller_deal", 0, (Sale(1, 1, 1875, 0),)), [(1875, 1875)])


def test_a_market_with_fifty_buyers():
    n = 50
    env = Market(market(budgets=(3000,) * n, openings=(900,) * n, t=9))
    assert len(env.requests()) == n
    step(env, *[(i, "BUY", 900, None) for i in range(1, n + 1)], (0, "SELL", 3000, n), (n, "DEAL", 3000, None))
    assert env.outcome.buyer == n
    assert CADDY.cost_cents == 1875
