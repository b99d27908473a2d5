"""What a side of the trade game is told of its own earlier turns."""

from negolab.environment import BUYER, SELLER
from negolab.environment.base import Call, Calls, Taken
from negolab.environment.trade import Trade
from test_trade_metrics import trade


def calls(*made, problems=()):
    return Calls(made, problems, "said")


def test_a_view_tells_of_each_of_its_own_turns_and_of_no_other():
    env = Trade(trade())
    (first,) = env.requests()
    assert first.view.taken == ()
    env.submit({SELLER: calls(Call("search_price"))})  # goes on in the same round
    env.submit({SELLER: calls(Call("make_offer", 140_000), Call("wait_for_time_period", seconds=60.0))})
    (again,) = env.requests()
    one, two = again.view.taken
    assert one == Taken(1, 0.0, (), True, 0.0)
    assert (two.round, two.problems, two.searched, two.waited) == (1, (), False, 60.0)
    assert 0.5 <= two.time <= 2.0 and again.view.now >= two.time + 60.5
    env.submit({SELLER: calls(Call("wait_for_response"))})
    (buyer,) = env.requests()
    assert (buyer.seat, buyer.view.taken, buyer.view.round) == (BUYER, (), 3)
    wrong = ("unknown_tool", "call 1: there is no tool 'haggle'")
    env.submit({BUYER: calls(Call("make_offer", 95_000), Call("respond_to_offer", answer=True), problems=(wrong,))})
    (seller,) = env.requests()
    assert len(seller.view.taken) == len(seller.view.own) == 3 and seller.view.taken[:2] == (one, two)
    env.submit({SELLER: calls()})
    (buyer,) = env.requests()
    (only,) = buyer.view.taken
    assert only.problems == (wrong, ("no_pending_offer", "there is no offer to answer"))
    assert (only.round, only.searched, only.waited) == (3, False, 0.0)
