"""Metrics of the trade game on negotiations worked by hand: the paper's two examples (2604.16472, tables 10 and 11),
and what counts, for whom, and out of how many."""

import math

import pytest

from markets import CADDY
from negolab.environment import BUYER, SELLER, Outcome, Sale
from negolab.environment.base import Turn
from negolab.episodes import Episode, replay
from negolab.metrics import TRADE_MAIN, TRADE_METRICS, metrics_of, paired, summarise
from negolab.metrics.trade import PROBLEMS, utility_cents
from negolab.policies.base import Reply
from negolab.rollout import play
from negolab.scenario import Scenario


def trade(reserve=90_000, value=120_000, rounds=10, rep=0) -> Scenario:
    """A negotiation with everything given; money in cents."""
    return Scenario(
        episode=rep,
        rep=rep,
        regime="trade",
        unit=CADDY.listing.codename,
        products=(CADDY,),
        per_buyer_cap=rounds,
        message_budget=rounds,
        valuations=((value,),),
        openings=None,
        buyer_types=("trader",),
        keys=(11, 12),
        game="trade",
        protocol="tools",
        reserve=reserve,
    )


class Reads:
    """Says the given blocks of calls, one a turn; then waits. ``None`` is an answer that never came."""

    name = "reads"

    def __init__(self, blocks, tokens=None):
        self.blocks, self.tokens = blocks, tokens

    def describe(self):
        """Nothing but a name."""
        return {"name": self.name}

    def reply(self, requests):
        """The next block of each request."""
        return [self._reply(len(r.view.own)) for r in requests]

    def _reply(self, at):
        block = self.blocks[at] if at < len(self.blocks) else "wait_for_response()"
        if block is None:
            return Reply("", "timeout")
        if self.tokens:
            return Reply(text(block), prompt_tokens=self.tokens[0], completion_tokens=self.tokens[1])
        return Reply(text(block))


def text(block: str) -> str:
    """A whole reply; a block that begins with ``!`` is the reply itself."""
    return block[1:] if block.startswith("!") else f"Thought: none\nCode:\n```python\n{block}\n```"


def played(scenario, sellers, buyers, tokens=(None, None)) -> Episode:
    """The episode of two lists of blocks, through the real parser and rules."""
    (episode,) = play([scenario], Reads(sellers, tokens[0]), {"trader": Reads(buyers, tokens[1])})
    assert replay(episode) == []
    return episode


def values(episode: Episode) -> dict:
    """All metrics of an episode."""
    return {name: metric(episode) for name, metric in TRADE_METRICS.items()}


def offer(dollars: float) -> str:
    return f"make_offer({dollars})"


def gft() -> Episode:
    """Table 10: s = 900, b = 1,200 (recovered from the utilities), a deal at 1,050."""
    return played(
        trade(),
        [
            offer(1400),
            'send_message("I can\'t go that low, but I can offer a discount")\nmake_offer(1150)',
            "respond_to_offer(True)",
        ],
        ['send_message("Your price is too high for a used laptop")\nmake_offer(950)', offer(1050)],
    )


def ngft() -> Episode:
    """Table 11: no deal. Its values are not stated: any with b < s that fit what is said do. The buyer speaks in rounds
    4 and 5 both, which takes a tactical delay."""
    return played(
        trade(110_000, 85_000),
        [offer(1300), 'send_message("I can\'t go below $1,100")'],
        [offer(800), 'send_message("I can\'t go above $850")\nwait_for_time_period(60)', "quit_negotiation()"],
    )


# -- the paper's examples ---------------------------------------------------------------------------------------------


def test_example_with_gains_from_trade():
    found = values(gft())
    assert gft().outcome == Outcome("deal", "seller_deal", SELLER, (Sale(1, BUYER, 105_000, SELLER),))
    assert found["gft_rate"] == found["deal_rate"] == found["deal_rate_gft"] == 1
    assert found["seller_utility"] == found["buyer_utility"] == 150
    assert found["seller_utility_deals_gft"] == found["buyer_utility_deals_gft"] == 150
    assert found["seller_surplus_share"] == found["buyer_surplus_share"] == 0.5
    assert found["seller_initial_aggressiveness"] == pytest.approx(1.5556, abs=5e-5)
    assert found["buyer_initial_aggressiveness"] == pytest.approx(0.3214, abs=5e-5)
    assert found["buyer_reservation_ratio"] == pytest.approx(0.2083, abs=5e-5)
    assert found["seller_concession_rate"] == (0.5,) and found["buyer_concession_rate"] == (0.4,)
    assert found["rounds"] == found["rounds_gft"] == 5
    assert found["seller_violation"] == found["buyer_violation"] == found["any_violation"] == 0
    # Nobody goes back on anything, and every call takes effect: three terms are 1, the fourth the share.
    assert found["reward"] == found["buyer_reward"] == (1 + 1 + 1 + 0.5) / 4
    # Not a word of it belongs to the other kind.
    assert {found[name] for name in found if name.endswith("_ngft")} == {None}


def test_example_without_gains_from_trade():
    episode = ngft()
    found = values(episode)
    assert episode.outcome == Outcome("no_deal", "buyer_quit", BUYER)
    assert found["gft_rate"] == found["deal_rate"] == found["deal_rate_ngft"] == 0
    assert found["seller_utility_ngft"] == found["buyer_utility_ngft"] == 0
    assert found["seller_utility_deals"] is found["seller_surplus_share"] is found["deal_rate_gft"] is None
    assert found["seller_concession_rate"] == found["buyer_concession_rate"] == ()
    assert found["rounds_ngft"] == 5 and found["any_violation_ngft"] == 0
    assert found["seller_initial_aggressiveness_ngft"] == 1300 / 1100
    assert found["buyer_initial_aggressiveness"] == 500 / 1300 and found["buyer_reservation_ratio"] == 50 / 850
    # The block of the offer and of the message both count as good; the utility is nothing.
    assert found["reward"] == found["buyer_reward"] == 0.75


# -- individual rationality -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reserve", "value", "price", "seller", "buyer"),
    [
        (900, 1200, 1050, 0, 0),
        (900, 1200, 900, 0, 0),  # at the limit nobody loses
        (900, 1200, 1200, 0, 0),
        (900, 1200, 899.99, 1, 0),
        (900, 1200, 1200.01, 0, 1),
        (1100, 850, 1000, 1, 1),  # without gains from trade one side loses at any price, both in between
        (1100, 850, 1100, 0, 1),
        (1100, 850, 850, 1, 0),
    ],
)
def test_violations_by_side(reserve, value, price, seller, buyer):
    found = values(played(trade(reserve * 100, value * 100), [offer(price)], ["respond_to_offer(True)"]))
    kind = "_gft" if value >= reserve else "_ngft"
    for name in ("", kind):
        assert found[f"seller_violation{name}"] == seller and found[f"buyer_violation{name}"] == buyer
        assert found[f"any_violation{name}"] == max(seller, buyer)
    assert found["seller_utility"] == pytest.approx(price - reserve)
    assert found["buyer_utility"] == pytest.approx(value - price)
    # A share exists where neither loses; a loss has none, and without gains from trade there is nothing to share.
    assert (found["seller_surplus_share"] is None) == bool(seller or buyer)
    if found["seller_surplus_share"] is not None:
        assert found["seller_surplus_share"] + found["buyer_surplus_share"] == pytest.approx(1)


def test_no_deal_is_no_violation_and_no_utility():
    found = values(played(trade(110_000, 85_000), [offer(500), "quit_negotiation()"], [offer(2000)]))
    assert found["seller_violation"] == found["buyer_violation"] == found["seller_utility"] == 0


def test_equal_values_have_gains_from_trade_of_nothing():
    found = values(played(trade(90_000, 90_000), [offer(900)], ["respond_to_offer(True)"]))
    assert found["gft_rate"] == found["deal_rate_gft"] == 1 and found["any_violation_gft"] == 0
    assert found["seller_surplus_share"] is None and found["seller_concession_rate"] == ()


def test_violation_rate_is_the_deal_rate_without_gains_from_trade():
    prices = (700, 850, 1000, 1100, 1300)
    episodes = [played(trade(110_000, 85_000), [offer(p)], ["respond_to_offer(True)"]) for p in prices]
    episodes.append(ngft())
    found = summarise(episodes)
    assert found["any_violation_ngft"].mean == found["deal_rate_ngft"].mean == 5 / 6
    assert found["seller_violation_ngft"].mean == found["buyer_violation_ngft"].mean == 3 / 6


# -- behaviour --------------------------------------------------------------------------------------------------------


def test_concessions_are_pooled_steps_between_own_offers():
    episode = played(
        trade(rounds=12),
        [offer(1500), 'send_message("Think again.")', offer(1500), offer(1300), offer(1350), "respond_to_offer(True)"],
        [offer(800), offer(900), offer(900), offer(850), offer(1000)],
    )
    found = values(episode)
    # A turn without an offer is no step; a repeated offer is a step of 0; a retreat is below 0; accepting is none.
    assert found["seller_concession_rate"] == (0.0, 200 / 600, -50 / 400)
    assert found["buyer_concession_rate"] == (100 / 400, 0.0, -50 / 300, 150 / 350)
    pooled = summarise([episode, gft()])
    assert pooled["seller_concession_rate"].n == 4 and pooled["buyer_concession_rate"].n == 5
    assert pooled["seller_concession_rate"].mean == pytest.approx((0 + 1 / 3 - 1 / 8 + 1 / 2) / 4)


def test_steps_from_the_limit_or_beyond_have_no_rate():
    found = values(
        played(trade(), [offer(900), offer(850), offer(1000), "respond_to_offer(True)"], [offer(1)] * 2 + [offer(950)])
    )
    assert found["seller_concession_rate"] == ()
    assert found["buyer_concession_rate"] == (0.0, (950 - 1) / (1200 - 1))


def test_concessions_only_in_deals_that_hurt_nobody():
    sellers, buyers = [offer(1500), offer(1300)], [offer(800), "respond_to_offer(True)"]
    assert values(played(trade(), sellers, buyers))["seller_concession_rate"] == ()  # the buyer pays 1,300 of 1,200
    assert values(played(trade(value=140_000), sellers, buyers))["seller_concession_rate"] == (200 / 600,)
    assert values(played(trade(), sellers, [offer(800)]))["seller_concession_rate"] == ()  # no deal


def test_buyers_first_offer_counts_against_the_sellers_only_as_an_answer():
    silent = ["wait_for_response()", offer(1400)]
    found = values(played(trade(), silent, [offer(700), "quit_negotiation()"]))
    assert found["buyer_initial_aggressiveness"] is None
    assert found["seller_initial_aggressiveness"] == 1400 / 900 and found["buyer_reservation_ratio"] == 500 / 1200
    nothing = values(played(trade(), [], ["quit_negotiation()"]))
    assert nothing["seller_initial_aggressiveness"] is nothing["buyer_reservation_ratio"] is None
    # It answers the seller's first offer, also where the seller has named another one since.
    twice = values(played(trade(), [offer(1400), offer(1300)], ["wait_for_response()", offer(700)]))
    assert twice["buyer_initial_aggressiveness"] == 0.5


def test_patience():
    to_the_end = played(trade(rounds=4), [], [])
    assert to_the_end.outcome == Outcome("no_deal", "turns_exhausted") and values(to_the_end)["rounds"] == 4
    # A search that goes on in the same round is no round of its own.
    searched = played(trade(), ["search_price()", offer(1000)], ["respond_to_offer(True)"])
    assert len(searched.turns) == 3 and values(searched)["rounds"] == 2


def test_aborted_episodes_are_no_deals_and_say_nothing_of_patience():
    episode = played(trade(), [offer(1400)], [None])
    found = values(episode)
    assert episode.outcome == Outcome("aborted", "timeout", BUYER)
    assert found["aborted_rate"] == 1 and found["deal_rate_gft"] == found["seller_utility_gft"] == 0
    assert found["rounds"] is None and found["buyer_unparseable"] == ()
    assert found["seller_unparseable"] == (0.0,)


# -- replies ----------------------------------------------------------------------------------------------------------


def test_problems_by_side_and_kind():
    sellers = [
        offer(1400),
        "!I will not use tools",
        "make_offer(1)\nmake_offer(2)\nmake_offer(3)\nmake_offer(1300)",
        'open("x")',
    ]
    buyers = ["respond_to_offer(False)\nrespond_to_offer(False)", "make_offer(-1)", "quit_negotiation()\nmake_offer(9)"]
    found = values(played(trade(), sellers, buyers))
    expected = {
        "seller_unparseable": (0, 1, 0),
        "seller_too_many_calls": (0, 0, 1),
        "seller_unknown_tool": (0, 0, 0),  # the game is over before
        "buyer_no_pending_offer": (1, 0, 0),
        "buyer_bad_argument": (0, 1, 0),
        "buyer_after_terminal": (0, 0, 1),
    }
    for side in ("seller", "buyer"):
        for kind in PROBLEMS:
            assert found[f"{side}_{kind}"] == expected.get(f"{side}_{kind}", (0, 0, 0)), (side, kind)
    assert found["seller_reward_parsing"] == 2 / 3 and found["seller_reward_execution"] == 1 / 2
    assert found["buyer_reward_parsing"] == 1 and found["buyer_reward_execution"] == 0


def test_reward_is_the_mean_of_its_four_terms_for_both_sides():
    # The buyer rejects 1,000 and later pays 1,100; the seller asks for more than was rejected.
    episode = played(
        trade(),
        [offer(1000), offer(1100)],
        ["respond_to_offer(False)", "respond_to_offer(True)"],
    )
    found = values(episode)
    parts = {
        side: [found[f"{side}_reward_{part}"] for part in ("parsing", "execution", "constraints", "utility")]
        for side in ("seller", "buyer")
    }
    assert parts["seller"] == [1, 1, 0.5, pytest.approx(2 / 3)] and parts["buyer"] == [1, 1, 0.5, pytest.approx(1 / 3)]
    assert found["reward"] == episode.reward == pytest.approx(sum(parts["seller"]) / 4)
    assert found["buyer_reward"] == pytest.approx(sum(parts["buyer"]) / 4)


def test_tokens():
    episode = played(trade(), [offer(1400)], ["quit_negotiation()"], tokens=((100, 7), (90, 5)))
    found = values(episode)
    names = ("seller_prompt_tokens", "seller_sampled_tokens", "buyer_prompt_tokens", "buyer_sampled_tokens")
    assert [found[name] for name in names] == [100, 7, 90, 5]
    assert [values(gft())[name] for name in names] == [None] * 4


# -- many episodes ----------------------------------------------------------------------------------------------------


def test_kinds_are_told_apart_by_the_values_alone():
    found = summarise([gft(), gft(), ngft()])
    assert found["gft_rate"].mean == found["deal_rate"].mean == 2 / 3
    assert (found["deal_rate_gft"].mean, found["deal_rate_gft"].n) == (1, 2)
    assert (found["deal_rate_ngft"].mean, found["deal_rate_ngft"].n) == (0, 1)
    assert found["seller_surplus_share"].n == 2
    names = [name for name in TRADE_METRICS if f"{name}_gft" in TRADE_METRICS]
    for name in names:
        both = [found[f"{name}_{kind}"] for kind in ("gft", "ngft")]
        assert found[name].n == sum(e.n for e in both)
        assert found[name].mean == pytest.approx(sum(e.n * e.mean for e in both if e.n) / found[name].n)
    assert len(names) == 12


def test_metrics_by_game():
    assert metrics_of("trade", "tools") is TRADE_METRICS and set(TRADE_MAIN) <= set(TRADE_METRICS)
    assert list(summarise([gft()])) == list(TRADE_METRICS)
    with pytest.raises(KeyError):
        metrics_of("trade")
    for name, metric in TRADE_METRICS.items():
        assert metric.__doc__ and "None" not in metric.__doc__.split()[:1], name


def test_another_game_is_refused():
    episode = Episode(
        trade()._replace(reserve=None), ("a", "b"), [Turn(1, 0, 1, None, (), "")], {}, Outcome("no_deal", "x"), 0.0
    )
    with pytest.raises(ValueError, match="no reservation price"):
        TRADE_METRICS["gft_rate"](episode)


def test_pairs_share_both_reservation_prices():
    better = played(trade(), [offer(1150)], ["respond_to_offer(True)"])
    difference, common = paired([gft()], [better])
    assert common == 1 and difference["seller_surplus_share"].mean == pytest.approx(250 / 300 - 0.5)
    assert difference["rounds"].mean == -3
    other = played(trade(reserve=91_000), [offer(1150)], ["respond_to_offer(True)"])
    assert paired([gft()], [other])[1] == 0


def test_utility_is_exact_in_cents():
    episode = played(trade(1, 3), [offer(0.02)], ["respond_to_offer(True)"])
    assert [utility_cents(episode, seat) for seat in (SELLER, BUYER)] == [1, 1]
    assert math.isclose(values(episode)["seller_utility"], 0.01)
