"""The market of several items: the paper's worked example first, then every reading that the environment states."""

import json
from pathlib import Path

import pytest

from item_markets import RECORDERS, Fixed, market, read, step, text_of
from markets import market as one_item
from negolab.catalog import Listing, Product
from negolab.environment import Market, Move, Outcome, Sale, Violation
from negolab.episodes import Episode, parse_line, replay
from negolab.games import game_of
from negolab.metrics import ITEM_METRICS
from negolab.money import dollars
from negolab.oracle import best_matching
from negolab.policies.base import Reply
from negolab.reward import seller_reward
from negolab.rollout import play

# -- appendix H -------------------------------------------------------------------------------------------------------

APPENDIX_H = json.loads((Path(__file__).parent / "golden" / "items_appendix_h.json").read_text(encoding="utf-8"))
KNOWN, BY_HAND = APPENDIX_H["published"], APPENDIX_H["by_hand"]


def cents(amount: str) -> int:
    whole, part = amount.split(".")
    return int(whole) * 100 + int(part)


def appendix_h():
    """The market that both episodes are played on."""
    given = APPENDIX_H["market"]
    products = [
        Product(Listing(f"recorders_{at}", row["title"], "", "recorders", cents(row["list"])), cents(row["cost"]))
        for at, row in enumerate(given["items"], 1)
    ]
    values = [[cents(value) for value in row] for row in given["valuations"]]
    return market(products, values, None, KNOWN["per_buyer_cap"], KNOWN["message_budget"])


def played(name: str) -> Episode:
    """An episode of appendix H: played from its texts, stored, read back and played again."""
    texts: dict[int, list[str]] = {}
    for turn in APPENDIX_H["episodes"][name]:
        texts.setdefault(turn["seat"], []).append(turn["text"])
    scenario, players = appendix_h(), Fixed(texts)
    (episode,) = play([scenario], players, {"iter-60": players})
    line = episode.to_line()
    again = Episode.from_json(parse_line(line), {p.listing.codename: p for p in scenario.products})
    assert again == episode and again.to_line() == line and replay(again) == []
    assert [turn.text for turn in again.turns] == [turn["text"] for turn in APPENDIX_H["episodes"][name]]
    return again


def test_the_market_of_appendix_h_is_as_published():
    scenario = appendix_h()
    lists, costs = [p.listing.list_cents for p in scenario.products], [p.cost_cents for p in scenario.products]
    assert sum(lists) - sum(costs) == cents(KNOWN["margin"])
    assert (costs, sum(lists), lists[1]) == ([5599, 10_000, 4207], 47_597, 24_999)
    assert (scenario.n_buyers, scenario.n_items) == (KNOWN["buyers"], KNOWN["items"])
    for buyer, item, value in KNOWN["valuations"]:
        assert scenario.valuations[int(buyer[-1]) - 1][int(item[-1]) - 1] == cents(value)
    margins = [price - cost for price, cost in zip(lists, costs, strict=True)]
    assert margins.index(max(margins)) == 1 and "Lorex" in scenario.products[1].listing.title
    assert scenario.openings is None
    assert scenario.rank(2, 1) == scenario.rank(2, 2) == 1
    assert max(scenario.valuations[2]) < 15_000
    best = best_matching(scenario.valuations, lists, costs)
    trained = {(int(buyer[-1]), int(item[-1])) for item, buyer, _ in KNOWN["sales"]["trained"]}
    assert set(best.pairs) == trained == set(map(tuple, BY_HAND["best matching"]["pairs"]))
    assert best.surplus_cents == cents(BY_HAND["best matching"]["surplus"])


@pytest.mark.parametrize("name", ["trained", "untrained"])
def test_the_episodes_of_appendix_h(name):
    episode, hand = played(name), BY_HAND[name]
    sales = [(f"Item_{sale.item}", f"Buyer {sale.buyer}", dollars(sale.price)) for sale in episode.outcome.sales]
    assert sales == [(item, buyer, f"${price}") for item, buyer, price in KNOWN["sales"][name]]
    assert (episode.outcome.kind, episode.outcome.reason) == ("deal", hand["outcome"])
    assert episode.reward == cents(hand["gained"]) / cents(KNOWN["margin"])
    assert round(episode.reward, 3) == KNOWN["rewards"][name]
    found = {metric: ITEM_METRICS[metric](episode) for metric in ITEM_METRICS}
    assert found["reward"] == found["surplus_ratio"] == episode.reward
    assert found["item_deal_rate"] == tuple(hand["item_deal_rate"])
    assert found["optimal_pair_coverage"] == tuple(hand["coverage"])
    assert found["top_buyer_rate"] == tuple(hand["top_buyer"])
    assert found["violation_rate"] == 0 and found["seller_messages"] == hand["messages"]
    assert found["reward_bound"] == cents(BY_HAND["best matching"]["surplus"]) / cents(KNOWN["margin"])


# -- the seller's rules -----------------------------------------------------------------------------------------------

# The recorders: list prices 249.99, 183.49, 55.11; costs 100.13, 55.99, 42.07.
ITEMS = [(p.listing.list_cents, p.cost_cents) for p in RECORDERS]
ROOM = sum(price - cost for price, cost in ITEMS)
OPEN = (
    (1, "BUY", ((1, 5_101), (3, 4_300))),
    (2, "BUY", ((1, 11_000), (2, 6_000))),
    (3, "BUY", ((3, 4_444),)),
)
# Rich enough for anything below.
VALUES = ((30_000, 30_000, 9_000), (40_000, 20_000, 8_000), (20_000, 10_000, 7_000))


def opened(*moves, values=VALUES, k=3, t=7, openings=None, start=OPEN):
    """A market of three after its openings, and what follows."""
    env = Market(market(values=values, openings=openings, k=k, t=t))
    step(env, 3, *start, *moves)
    return env


def judged(env, verb, offers=(), target=None):
    """The kind of the violation that the seller's reply is, if it is one; the reply goes through the parser."""
    (turn,) = env.submit({0: read(0, text_of(0, verb, offers, target), 3)})
    if turn.violation is not None:
        assert env.outcome == Outcome("violation", turn.violation, 0, env.outcome.sales)
        assert env.requests() == [] and seller_reward(env.outcome, ITEMS) == -1.0
        assert (turn.verb, turn.offers, turn.buyer) == (None, (), None)
    return turn.violation


SOLD_1 = ((0, "SELL", ((1, 20_000), (3, 5_000)), 1), (1, "DEAL", ((1, 20_000),)))
"""Item 1 goes to Buyer 1."""


@pytest.mark.parametrize(
    ("move", "kind"),
    [
        # Who is addressed comes first, whatever is said.
        (("SELL", ((2, 6_000),), 1), "target"),
        (("SELL", ((1, 9),), 1), "target"),
        (("SELL", ((2, 6_000),), 4), "target"),
        (("DEAL", ((1, 9),), 4), "target"),
        (("QUIT", (), 1), "target"),
        (("QUIT", (), 9), "target"),
        # Then what is offered.
        (("SELL", ((1, 20_000),), 2), "item"),
        (("SELL", ((2, 6_000), (1, 20_000)), 2), "item"),
        (("SELL", ((2, 9), (1, 9)), 2), "item"),
        (("DEAL", ((1, 11_000),), 2), "item"),  # a bid that died with the sale
        (("DEAL", ((1, 9),), 2), "item"),
        # Then its cost, of every offer of the menu.
        (("SELL", ((2, 5_598),), 2), "below_cost"),
        (("SELL", ((3, 5_000), (2, 5_598)), 2), "below_cost"),
        (("DEAL", ((2, 5_598),), 2), "below_cost"),
        # Then whether it was bid.
        (("DEAL", ((2, 6_001),), 2), "deal"),
        (("DEAL", ((3, 6_000),), 2), "deal"),  # the price of its bid for another item
        (("DEAL", ((3, 4_300),), 2), "deal"),  # another buyer's bid
        (("DEAL", ((3, 4_300),), 3), "deal"),
        (("SELL", ((2, 5_599), (3, 4_207)), 2), None),
        (("DEAL", ((2, 6_000),), 2), None),
        (("DEAL", ((3, 4_444),), 3), None),
        (("QUIT", (), None), None),
        (("QUIT", (), 2), None),
    ],
)
def test_what_the_seller_may_do_after_a_sale(move, kind):
    env = opened(*SOLD_1)
    assert judged(env, *move) == kind
    if kind is not None:
        assert env.outcome.sales == (Sale(1, 1, 20_000, 1),)


@pytest.mark.parametrize("verb", ["SELL", "DEAL"])
def test_an_item_that_never_was_is_item_whoever_is_addressed(verb):
    """The parser knows the items and finds that before the market is asked; it does not know the buyers."""
    for target in (2, 1, 4):
        assert judged(opened(*SOLD_1), verb, ((4, 9),), target) == "item"
    found = opened(*SOLD_1)._channels
    assert [channel.status for channel in found] == ["bought", "active", "active"]


def test_a_move_on_an_item_that_never_was_is_also_the_markets_to_refuse():
    env = opened()
    (turn,) = env.submit({0: Move("SELL", ((4, 9_999),), 2, "", "x")})
    assert turn.violation == "item" and "Item_4" in turn.detail
    env = opened((0, "SELL", ((2, 6_000),), 2))
    assert env.check(2, Move("BUY", ((4, 1),), None, "", "")).kind == "item"


def test_any_earlier_bid_on_an_unsold_item_can_be_accepted_and_gets_no_answer():
    env = opened((0, "SELL", ((1, 30_000), (2, 9_000)), 2), (2, "BUY", ((1, 25_000),)))
    step(env, 3, (0, "SELL", ((1, 28_000),), 2), (2, "BUY", ((2, 7_000),)))
    assert env.requests()[0].view.channels[1].bids == ((1, 11_000), (2, 6_000), (1, 25_000), (2, 7_000))
    step(env, 3, (0, "DEAL", ((2, 6_000),), 2))
    (request,) = env.requests()
    view = request.view
    assert request.seat == 0 and view.sales == (Sale(2, 2, 6_000, 0),)
    assert [channel.status for channel in view.channels] == ["active", "bought", "active"]
    assert (view.turn, view.messages_left, view.channels[1].sent) == (4, 4, 3)


def test_a_buyer_buys_only_once_and_cannot_be_addressed_again():
    env = opened((0, "SELL", ((1, 30_000),), 2), (2, "DEAL", ((1, 30_000),)))
    assert judged(env, "DEAL", ((2, 6_000),), 2) == "target"


def test_a_capped_buyer_keeps_its_bids_and_they_are_out_of_reach():
    env = opened((0, "SELL", ((1, 30_000),), 2), (2, "BUY", ((1, 29_000),)), k=1)
    channel = env.requests()[0].view.channels[1]
    assert channel.status == "capped" and channel.bids[-1] == (1, 29_000)
    assert judged(env, "DEAL", ((1, 29_000),), 2) == "target"


def test_a_buyer_can_close_or_quit_on_its_last_message():
    last = (0, "SELL", ((1, 30_000), (3, 5_000)), 2)
    assert opened(last, (2, "DEAL", ((3, 5_000),)), k=1).requests()[0].view.channels[1].status == "bought"
    env = opened(last, (2, "QUIT"), k=1)
    assert env.requests()[0].view.channels[1].status == "quit"
    assert judged(env, "SELL", ((1, 30_000),), 2) == "target"


# -- the buyers' rules ------------------------------------------------------------------------------------------------


def checked(env, seat, verb, offers=()):
    found = env.check(seat, read(seat, text_of(seat, verb, offers), 3))
    return found and found.kind


@pytest.mark.parametrize(
    ("verb", "offers", "kind"),
    [
        ("DEAL", ((2, 7_000),), None),
        ("DEAL", ((3, 5_500),), None),
        ("DEAL", ((2, 7_001),), "deal"),
        ("DEAL", ((3, 7_000),), "deal"),  # the price of another item of the menu
        ("DEAL", ((1, 15_000),), "deal"),  # on an earlier menu only
        ("DEAL", ((3, 5_400),), "deal"),  # its price on the earlier menu
        ("DEAL", ((2, 20_001),), "budget"),
        ("BUY", ((1, 40_000), (2, 20_000), (3, 8_000)), None),
        ("BUY", ((3, 8_001),), "budget"),
        ("BUY", ((1, 1), (2, 20_001)), "budget"),
        ("QUIT", (), None),
    ],
)
def test_what_a_buyer_may_answer_to_a_menu(verb, offers, kind):
    env = opened(
        (0, "SELL", ((1, 15_000), (3, 5_400)), 2), (2, "BUY", ((2, 6_500),)), (0, "SELL", ((2, 7_000), (3, 5_500)), 2)
    )
    assert checked(env, 2, verb, offers) == kind


def test_a_bid_on_an_item_that_is_gone_is_legal_and_void():
    env = opened(*SOLD_1, (0, "SELL", ((2, 9_000),), 2), (2, "BUY", ((1, 39_000), (2, 7_000))))
    assert env.requests()[0].view.channels[1].bids[-2:] == ((1, 39_000), (2, 7_000))
    assert judged(env, "DEAL", ((1, 39_000),), 2) == "item"


def test_what_was_legal_at_an_earlier_menu_is_judged_again():
    env = opened((0, "SELL", ((1, 15_000),), 2))
    deal = read(2, text_of(2, "DEAL", ((1, 15_000),)), 3)
    assert env.check(2, deal) is None
    env.submit({2: env.fallback(2)})  # which is not judged, so that the deal stays the last move that was
    step(env, 3, (0, "SELL", ((1, 16_000), (2, 7_000)), 2))
    (turn,) = env.submit({2: deal})
    assert (turn.violation, env.outcome.sales) == ("deal", ())


FIXED = (None, (7_000, 5_000, 1_500), (6_000, 4_000, 1_400))


@pytest.mark.parametrize(
    ("seat", "verb", "offers", "kind"),
    [
        (2, "BUY", ((1, 7_000),), None),
        (2, "BUY", ((3, 1_500), (1, 7_000)), None),
        (2, "BUY", ((1, 7_000), (2, 5_001)), "opening"),
        (2, "BUY", ((1, 5_000),), "opening"),  # what is fixed for another item
        (2, "BUY", ((1, 6_000),), "opening"),  # what is fixed for another buyer
        (2, "QUIT", (), "opening"),
        (2, "DEAL", ((1, 7_000),), "opening"),
        (1, "BUY", ((1, 30_000), (2, 1)), None),  # free
        (1, "BUY", ((1, 30_001),), "budget"),
        (1, "QUIT", (), "opening"),
    ],
)
def test_openings_are_fixed_by_buyer_and_item(seat, verb, offers, kind):
    assert checked(Market(market(values=VALUES, openings=FIXED)), seat, verb, offers) == kind


def test_a_regulated_buyer_is_free_after_its_opening():
    env = Market(market(values=VALUES, openings=FIXED))
    step(env, 3, OPEN[0], (2, "BUY", ((1, 7_000),)), (3, "BUY", ((3, 1_400),)), (0, "SELL", ((1, 30_000),), 2))
    assert checked(env, 2, "BUY", ((1, 7_001), (2, 1))) is None


def test_fallback_bids_again_else_opens_as_fixed_on_everything_else_quits():
    env = Market(market(values=VALUES, openings=FIXED))
    assert env.fallback(1)[:2] == ("QUIT", ())
    assert env.fallback(2)[:2] == ("BUY", ((1, 7_000), (2, 5_000), (3, 1_500)))
    assert all(env.fallback(seat).fallback for seat in (1, 2, 3))
    env.submit({seat: env.fallback(seat) for seat in (1, 2, 3)})
    assert [channel.status for channel in env.requests()[0].view.channels] == ["quit", "active", "active"]
    step(env, 3, (0, "SELL", ((3, 5_000),), 2), (2, "BUY", ((3, 2_000), (2, 5_500))), (0, "SELL", ((3, 4_900),), 2))
    assert env.fallback(2)[:2] == ("BUY", ((3, 2_000), (2, 5_500)))


class Stubborn(Fixed):
    """The seller says what it is given; buyers break the rules at every attempt."""

    def reply(self, requests):
        illegal = Reply(text_of(1, "BUY", ((1, 99_999),)))
        return [illegal if request.seat else super(Stubborn, self).reply([request])[0] for request in requests]


def test_the_guard_plays_fallbacks_that_can_be_replayed():
    """Buyer 3's bids are repeated although one of their items is sold by then."""
    fixed = (None, (11_000, 6_000, 4_300), (10_500, 5_700, 4_250))
    sells = (("SELL", ((3, 5_000),), 2), ("DEAL", ((3, 4_300),), 2), ("SELL", ((1, 25_000),), 3), ("QUIT", (), None))
    players = Stubborn({0: [text_of(0, *move) for move in sells]})
    (episode,) = play([market(values=VALUES, openings=fixed)], players, {"iter-60": players})
    second, third = (tuple(enumerate(row, 1)) for row in fixed[1:])
    assert [(turn.seat, turn.verb, turn.offers) for turn in episode.turns if turn.seat] == [
        (1, "QUIT", ()),
        (2, "BUY", second),
        (3, "BUY", third),
        (2, "BUY", second),
        (3, "BUY", third),
    ]
    assert all(turn.fallback for turn in episode.turns if turn.seat)
    assert episode.outcome == Outcome("deal", "seller_quit", 0, (Sale(3, 2, 4_300, 0),))
    again = Episode.from_json(parse_line(episode.to_line()), {p.listing.codename: p for p in RECORDERS})
    assert again == episode and replay(again) == []


# -- ends -------------------------------------------------------------------------------------------------------------

TWO = (*SOLD_1, (0, "SELL", ((2, 15_000), (3, 5_000)), 2), (2, "DEAL", ((2, 15_000),)))
GAINED_1, GAINED_2 = 20_000 - 10_013, 15_000 - 5_599


def test_sold_out_by_the_buyer_and_by_the_seller():
    env = opened(*TWO, (0, "SELL", ((3, 6_000),), 3), (3, "DEAL", ((3, 6_000),)))
    sales = (Sale(1, 1, 20_000, 1), Sale(2, 2, 15_000, 2), Sale(3, 3, 6_000, 3))
    assert env.outcome == Outcome("deal", "sold_out", 3, sales) and env.requests() == []
    # 60.00 is above the list price of 55.11, which is all that counts.
    assert seller_reward(env.outcome, ITEMS) == (GAINED_1 + GAINED_2 + 5_511 - 4_207) / ROOM
    env = opened(*TWO, (0, "DEAL", ((3, 4_444),), 3))
    assert env.outcome == Outcome("deal", "sold_out", 0, (*sales[:2], Sale(3, 3, 4_444, 0)))
    assert env.outcome.price is None and env.outcome.buyer is None


def test_all_inactive_with_and_without_sales():
    env = opened(*SOLD_1, (0, "SELL", ((2, 15_000),), 2), (2, "QUIT"), (0, "SELL", ((2, 9_000),), 3), (3, "QUIT"))
    assert env.outcome == Outcome("deal", "all_inactive", None, (Sale(1, 1, 20_000, 1),))
    assert (env.outcome.price, env.outcome.buyer) == (20_000, 1)
    assert seller_reward(env.outcome, ITEMS) == GAINED_1 / ROOM
    quits = [turn for seat in (1, 2, 3) for turn in ((0, "SELL", ((1, 20_000),), seat), (seat, "QUIT"))]
    env = opened(*quits)
    assert env.outcome == Outcome("no_deal", "all_inactive") and seller_reward(env.outcome, ITEMS) == 0.0


def test_all_inactive_also_when_the_seller_closes_with_the_last_buyer():
    env = opened((0, "SELL", ((1, 20_000),), 1), (1, "QUIT"), (0, "SELL", ((1, 20_000),), 3), (3, "QUIT"))
    step(env, 3, (0, "DEAL", ((2, 6_000),), 2))
    assert env.outcome == Outcome("deal", "all_inactive", None, (Sale(2, 2, 6_000, 0),))


def test_messages_exhausted_by_an_answered_message_and_by_a_deal_of_the_seller():
    env = opened(*SOLD_1, (0, "SELL", ((2, 15_000),), 2), (2, "BUY", ((2, 14_000),)), t=2)
    assert env.outcome == Outcome("deal", "messages_exhausted", None, (Sale(1, 1, 20_000, 1),))
    env = opened(*SOLD_1, (0, "DEAL", ((2, 6_000),), 2), t=2)
    assert env.outcome == Outcome("deal", "messages_exhausted", None, (Sale(1, 1, 20_000, 1), Sale(2, 2, 6_000, 0)))
    env = opened((0, "SELL", ((2, 15_000),), 2), (2, "BUY", ((2, 14_000),)), t=1)
    assert env.outcome == Outcome("no_deal", "messages_exhausted")


def test_the_last_message_may_sell_the_last_item():
    assert opened(*TWO, (0, "DEAL", ((3, 4_444),), 3), t=3).outcome.reason == "sold_out"


@pytest.mark.parametrize("target", [None, 2])
def test_a_seller_that_quits_keeps_what_it_sold(target):
    env = opened(*SOLD_1, (0, "QUIT", (), target))
    assert env.outcome == Outcome("deal", "seller_quit", 0, (Sale(1, 1, 20_000, 1),))
    assert seller_reward(env.outcome, ITEMS) == GAINED_1 / ROOM
    assert opened((0, "QUIT", (), target)).outcome == Outcome("no_deal", "seller_quit", 0)


@pytest.mark.parametrize("kind", ["format", "truncated"])
def test_a_violation_after_sales_costs_everything_and_the_sales_stay_on_record(kind):
    env = opened(*SOLD_1)
    env.submit({0: Violation(kind, "why", "x")})
    assert env.outcome == Outcome("violation", kind, 0, (Sale(1, 1, 20_000, 1),))
    assert seller_reward(env.outcome, ITEMS) == -1.0


def test_an_unguarded_buyers_violation_does_not_cost_the_seller_what_it_sold():
    env = opened(*SOLD_1, (0, "SELL", ((2, 15_000),), 2))
    env.submit({2: Violation("format", "why", "x")})
    assert env.outcome == Outcome("violation", "format", 2, (Sale(1, 1, 20_000, 1),))
    assert seller_reward(env.outcome, ITEMS) == GAINED_1 / ROOM


@pytest.mark.parametrize("kind", ["context_limit", "timeout"])
@pytest.mark.parametrize("seat", [0, 2])
def test_an_aborted_episode_pays_what_was_sold(kind, seat):
    env = opened(*SOLD_1, *([(0, "SELL", ((2, 15_000),), 2)] if seat else []))
    env.submit({seat: Violation(kind, "", "")})
    assert env.outcome == Outcome("aborted", kind, seat, (Sale(1, 1, 20_000, 1),))
    assert seller_reward(env.outcome, ITEMS) == GAINED_1 / ROOM


# -- sizes ------------------------------------------------------------------------------------------------------------


def sized(n, m, **limits):
    products = [Product(Listing(f"things_{j}", f"Thing {j}", "", "things", 1_000 + j), 500) for j in range(1, m + 1)]
    return market(products, [[2_000] * m for _ in range(n)], None, **limits)


@pytest.mark.parametrize(
    ("n", "m", "reason"), [(3, 5, "all_inactive"), (5, 3, "sold_out"), (4, 4, "sold_out"), (50, 20, "sold_out")]
)
def test_as_many_deals_as_the_smaller_side_has(n, m, reason):
    scenario = sized(n, m, t=2 * n)
    env = Market(scenario)
    step(
        env,
        m,
        *[(seat, "BUY", tuple((j, 100 * seat % 2_000 + 1) for j in range(1, m + 1))) for seat in range(1, n + 1)],
    )
    for at in range(1, min(n, m) + 1):
        buyer, menu = n + 1 - at, tuple((j, 1_000 + j) for j in range(at, m + 1))
        step(env, m, (0, "SELL", menu, buyer), (buyer, "DEAL", (menu[0],)))
    assert (env.outcome.kind, env.outcome.reason, len(env.outcome.sales)) == ("deal", reason, min(n, m))
    margins = [price - cost for price, cost in ((1_000 + j, 500) for j in range(1, m + 1))]
    rules = game_of(scenario)
    assert rules.reward(scenario, env.outcome, ()) == sum(margins[: min(n, m)]) / sum(margins)


def test_one_item_in_tags_is_the_market_of_lines():
    """One item, its regulated openings and its ends, through both protocols' own readers."""
    lines = one_item()
    tags = lines._replace(protocol="tags")
    assert game_of(lines).environment is game_of(tags).environment is Market
    env = Market(tags)
    step(env, 1, (1, "BUY", ((1, 995),)), (2, "BUY", ((1, 1_045),)), (3, "BUY", ((1, 928),)))
    step(env, 1, (0, "SELL", ((1, 3_499),), 2), (2, "BUY", ((1, 3_250),)), (0, "DEAL", ((1, 3_250),), 2))
    assert env.outcome == Outcome("deal", "seller_deal", 0, (Sale(1, 2, 3_250, 0),))
    env = Market(tags)
    step(env, 1, (1, "BUY", ((1, 995),)), (2, "BUY", ((1, 1_045),)), (3, "BUY", ((1, 928),)))
    env.submit({0: read(0, text_of(0, "SELL", ((2, 3_499),), 2), 1)})
    assert env.outcome == Outcome("violation", "item", 0)
