"""Prompts of the market of several items: whole snapshots, what they must hold, and what they must not.

``UPDATE_SNAPSHOTS=1 pytest tests/test_prompts_items.py`` rewrites the snapshots.
"""

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from item_markets import OPEN, OPENINGS, RECORDERS, REST, VALUES, market, play, request_of, script
from negolab.catalog import Listing, Product
from negolab.environment import Market
from negolab.environment.base import Said
from negolab.errors import NegolabError
from negolab.money import dollars
from negolab.prompts import MarketPrompts, item_board
from negolab.prompts.shared import ITEM_TEMPLATES

SNAPSHOTS = Path(__file__).parent / "prompts"
PROMPTS = MarketPrompts()


def shown(messages):
    return "\n".join(f"##### {m['role']}\n{m['content']}" for m in messages) + "\n"


def collected(env, moves):
    """Every prompt of an episode: (seat, messages), as it was asked for."""
    found = []
    left = list(moves)
    while True:
        requests = env.requests()
        found += [(request.seat, request.view, PROMPTS.messages(request)) for request in requests]
        if not left:
            return found
        play(env, *left[: len(requests)])
        left = left[len(requests) :]


def check_snapshot(name, messages):
    path, text = SNAPSHOTS / f"{name}.txt", shown(messages)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# -- whole prompts --


def test_snapshot_of_the_seller_after_a_deal_of_each_kind():
    env = Market(market())
    play(env, *OPEN, *REST)
    check_snapshot("items_seller_turn_5", PROMPTS.messages(request_of(env, 0)))


def test_snapshots_of_a_regulated_opening_and_of_a_buyer_that_answers_a_menu():
    env = Market(market())
    check_snapshot("items_buyer_opening", PROMPTS.messages(request_of(env, 2)))
    play(env, *OPEN, *REST[:4])
    check_snapshot("items_buyer_menu", PROMPTS.messages(request_of(env, 2)))


def test_snapshots_of_one_item_in_tags():
    env = Market(market(RECORDERS[:1], [row[:1] for row in VALUES], [(5_000,), None, None]))
    check_snapshot("items_one_buyer_opening", PROMPTS.messages(request_of(env, 1)))
    play(env, *script((1, "BUY", ((1, 5_000),)), (2, "BUY", ((1, 9_000),)), (3, "BUY", ((1, 100),))))
    check_snapshot("items_one_seller", PROMPTS.messages(request_of(env, 0)))


def test_a_free_opening_is_told_of_no_constraint():
    env = Market(market())
    texts = [shown(PROMPTS.messages(request_of(env, seat))) for seat in (1, 2, 3)]
    assert ["First-offer" in text for text in texts] == [False, True, False]
    for cents in OPENINGS[1]:
        assert [dollars(cents) in text for text in texts] == [False, True, False]


def test_the_system_prompt_states_the_constants_and_the_catalogue():
    env = Market(market(k=4, t=9))
    play(env, *OPEN)
    system = PROMPTS.messages(request_of(env, 0))[0]["content"]
    for line in ("N = 3 (", "M = 3 (", "K = 4 (", "T = 9 ("):
        assert system.count(f"\n{line}") == 1
    margin = sum(p.listing.list_cents - p.cost_cents for p in RECORDERS)
    assert f"is {dollars(margin)}," in system
    for number, product in enumerate(RECORDERS, 1):
        prices = f"list price {dollars(product.listing.list_cents)} (public), cost {dollars(product.cost_cents)} ("
        assert f"\nItem_{number}: {prices}" in system and product.listing.description in system
    env = Market(market(t=9))  # N * K messages: none is missing
    play(env, *OPEN)
    assert "not every buyer" in system
    assert "not every buyer" not in PROMPTS.messages(request_of(env, 0))[0]["content"]


# -- the conversation --


def test_conversations_only_grow_and_roles_alternate():
    prompts = collected(Market(market()), [*OPEN, *REST])
    for seat in range(4):
        of_seat = [messages for who, _, messages in prompts if who == seat]
        assert len(of_seat) == (5 if seat == 0 else 2)
        for before, after in pairwise(of_seat):
            assert after[: len(before)] == before and len(after) == len(before) + 2
        for messages in of_seat:
            roles = [message["role"] for message in messages]
            assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]


def test_own_replies_stand_as_they_were_written():
    prompts = collected(Market(market()), [*OPEN, *REST])
    for seat, view, messages in prompts:
        own = [message["content"] for message in messages if message["role"] == "assistant"]
        assert own == list(view.own)
        assert own == [made.text for who, made in [*OPEN, *REST] if who == seat][: len(own)]


def test_who_bought_what_is_told_after_either_kind_of_deal():
    env = Market(market())
    play(env, *OPEN, *REST[:3])  # the seller took a bid: nobody answers
    last = PROMPTS.messages(request_of(env, 0))[-1]["content"]
    assert last.startswith("Deal: Buyer 1 bought Item_1 at $140.17.\n\n=== Standing offers ===\n")
    play(env, *REST[3:5])  # a buyer took an offer
    last = PROMPTS.messages(request_of(env, 0))[-1]["content"]
    words, deal, rest = last.split("\n\n")
    assert words == ("Buyer 2:\n<Talk>talk-of-2-DEAL-to-None</Talk>\n<Action>[DEAL] $183.03 (1x Item_2)</Action>")
    assert deal == "Deal: Buyer 2 bought Item_2 at $183.03."
    assert "\nSold: Item_1 to Buyer 1 at $140.17; Item_2 to Buyer 2 at $183.03\n" in rest


# -- the board --


def board_after(env):
    last = PROMPTS.messages(request_of(env, 0))[-1]["content"]
    return last[last.index("=== Standing offers ===") :].splitlines()


def test_the_board_shows_best_bids_on_what_is_left_and_the_latest_menu():
    env = Market(market(openings=None, k=3, t=9))
    play(env, *script((1, "BUY", ((1, 5_100), (2, 900))), (2, "BUY", ((1, 4_000),)), (3, "BUY", ((1, 3_000),))))
    play(env, *script((0, "SELL", ((1, 20_000), (2, 9_000)), 1), (1, "BUY", ((1, 5_000), (2, 950), (3, 1_000)))))
    assert board_after(env)[3] == (
        "- Buyer 1: active, 2 more to send. Best bids: Item_1 $51.00, Item_2 $9.50, Item_3 $10.00. "
        "Your latest menu: Item_1 $200.00, Item_2 $90.00."
    )
    play(env, *script((0, "SELL", ((3, 5_000), (2, 8_000)), 1), (1, "BUY", ((2, 7_000),))))
    play(env, *script((0, "SELL", ((2, 7_500),), 2), (2, "DEAL", ((2, 7_500),))))
    play(env, *script((0, "SELL", ((3, 5_353),), 3), (3, "QUIT")))
    assert board_after(env) == [
        "=== Standing offers ===",
        "Unsold: Item_1 (list $249.99, cost $100.13); Item_3 (list $55.11, cost $42.07)",
        "Sold: Item_2 to Buyer 2 at $75.00",
        "- Buyer 1: active, 1 more to send. Best bids: Item_1 $51.00, Item_3 $10.00. Your latest menu: Item_3 $50.00.",
        "- Buyer 2: bought Item_2 at $75.00.",
        "- Buyer 3: quit.",
        "Messages left (T): 5. Never offer or sell an item below its cost, nor one that is sold.",
    ]


def test_a_capped_buyers_bids_are_gone():
    env = Market(market(openings=None, k=1))
    play(env, *OPEN[:1], *script((2, "BUY", ((1, 4_000),)), (3, "BUY", ((1, 3_000),))))
    play(env, *script((0, "SELL", ((1, 20_000),), 1), (1, "BUY", ((1, 17_000),))))
    assert board_after(env)[3] == "- Buyer 1: capped."


def test_board_and_environment_agree_about_every_channel():
    for seat, view, messages in collected(Market(market()), [*OPEN, *REST]):
        if seat:
            continue
        lines = messages[-1]["content"].split("=== Standing offers ===")[1].splitlines()
        sold = {sale.item for sale in view.sales}
        for number, channel in enumerate(view.channels, 1):
            line = next(line for line in lines if line.startswith(f"- Buyer {number}: "))
            assert line.startswith(f"- Buyer {number}: {channel.status}")
            if channel.status != "active":
                continue
            assert f"active, {view.per_buyer_cap - channel.sent} more" in line
            best = {item: max(p for i, p in channel.bids if i == item) for item, _ in channel.bids if item not in sold}
            bids = re.findall(r"Item_(\d+) \$([0-9]+\.[0-9]{2})", line.split("Your latest")[0])
            assert {int(item): round(100 * float(price)) for item, price in bids} == best
        assert f"Messages left (T): {view.messages_left}." in lines[-1]
        assert len(re.findall(r"Item_\d+ to Buyer", lines[2])) == len(view.sales)


def crowd(n, m, rounds, per_bid):
    """A market of n buyers and m items in which everybody bids and every menu is full; four-digit prices."""
    products = [
        Product(Listing(f"c_{j}", f"Thing {j}", "Good.", "c", 400_000 + j), 100_000 + j) for j in range(1, m + 1)
    ]
    heard = []
    for buyer in range(1, n + 1):
        bids = tuple((1 + (buyer + j) % m, 110_000 + buyer) for j in range(per_bid))
        heard.append(Said(buyer, buyer, "BUY", bids, "A bid."))
    for turn in range(rounds):
        buyer = 1 + turn % n
        heard.append(Said(0, buyer, "SELL", tuple((j, 390_000 - turn) for j in range(1, m + 1)), "A menu."))
        bids = tuple((1 + (buyer + j) % m, 120_000 + turn) for j in range(per_bid))
        heard.append(Said(buyer, buyer, "BUY", bids, "A bid."))
    limits = {"items": products, "n_buyers": n, "per_buyer_cap": 200, "message_budget": 5_000}
    return item_board(heard, **limits)


def test_the_largest_board_is_bounded_whatever_was_said():
    # The worst there is: nothing sold, nobody gone, 400 standing bids and 400 prices of menus, at 20 characters each,
    # and what the items and the buyers take themselves.
    assert 12_000 < len(crowd(20, 20, 60, per_bid=20)) < 800 * 20 + 20 * 45 + 20 * 80
    assert len(crowd(20, 20, 60, per_bid=3)) < 11_000
    early, late = crowd(20, 20, 60, per_bid=3), crowd(20, 20, 3_000, per_bid=3)
    assert len(late) <= len(early) + 20 and early.count("\n") == late.count("\n") == 23


# -- what a seat may not see --


def test_no_prompt_holds_what_its_seat_may_not_see():
    prompts = collected(Market(market()), [*OPEN, *REST])
    assert {seat for seat, _, _ in prompts} == {0, 1, 2, 3}
    costs = [dollars(product.cost_cents) for product in RECORDERS]
    said = [(seat, made) for seat, made in [*OPEN, *REST]]
    for seat, _, messages in prompts:
        text = shown(messages)
        for buyer, row in enumerate(VALUES, 1):
            for value in row:
                assert (dollars(value) in text) == (buyer == seat)
        assert {f"thought-of-{who}" for who in range(4) if f"thought-of-{who}" in text} <= {f"thought-of-{seat}"}
        assert all((cost in text) == (seat == 0) for cost in costs)
        assert "iter-60" not in text
        if seat == 0:
            continue
        assert "Buyer" not in text and "Sold" not in text and "Standing" not in text and "(T)" not in text
        for who, made in said:
            channel = made.target if who == 0 else who
            if channel == seat:
                continue
            assert made.talk not in text
            assert not [price for _, price in made.offers if dollars(price) in text], (seat, made)


def test_what_a_seat_may_see_is_there():
    prompts = collected(Market(market()), [*OPEN, *REST])
    last = {seat: (view, shown(messages)) for seat, view, messages in prompts}
    for seat, (view, text) in last.items():
        assert view.heard
        for said in view.heard:
            assert said.seat == seat or f"<Talk>{said.talk}</Talk>" in text
        if seat:
            assert all(dollars(value) in text for value in VALUES[seat - 1])
            assert all(dollars(product.listing.list_cents) in text for product in RECORDERS)


# -- formats, dispatch, own templates --


def examples(system):
    """The whole replies that a system prompt shows as examples."""
    return re.findall(r"<Thought>.*?</Action>", system[system.index("from another market") :], re.DOTALL)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_replies_the_prompts_show_are_the_moves_they_claim_to_be(m):
    from negolab.parser.tags import parse_item_buyer, parse_item_seller

    env = Market(market(RECORDERS[:m], [row[:m] for row in VALUES], None))
    buyer = examples(PROMPTS.messages(request_of(env, 1))[0]["content"])
    read = [parse_item_buyer(reply, m, "stop") for reply in buyer]
    bids = ((1, 900), (2, 1_250))[:m]
    assert [(move.verb, move.offers) for move in read] == [("BUY", bids), ("DEAL", ((1, 1_125),))]
    play(env, *script(*((buyer, "BUY", ((1, 100),)) for buyer in (1, 2, 3))))
    seller = examples(PROMPTS.messages(request_of(env, 0))[0]["content"])
    read = [parse_item_seller(reply, m, "stop") for reply in seller]
    menu = ((1, 1_450), (2, 2_100))[:m]
    claimed = [("SELL", menu, 2), ("DEAL", ((1, 1_375),), 1), ("QUIT", (), None)]
    assert [(move.verb, move.offers, move.target) for move in read] == claimed


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_forms_the_prompts_show_are_the_forms_the_parser_reads(m):
    from negolab.parser.tags import parse_item_buyer, parse_item_seller

    env = Market(market(RECORDERS[:m], [row[:m] for row in VALUES], None))
    buyer = PROMPTS.messages(request_of(env, 1))[0]["content"]
    play(env, *script(*((buyer, "BUY", ((1, 100),)) for buyer in (1, 2, 3))))
    seller = PROMPTS.messages(request_of(env, 0))[0]["content"]
    form = r"\[(SELL|BUY|DEAL)\] (\$M \(1x Item_\w\)(?:; \$M \(1x Item_\w\))*)"
    for system, parse, verbs in (
        (seller, parse_item_seller, ["SELL", "DEAL"]),
        (buyer, parse_item_buyer, ["BUY", "DEAL"]),
    ):
        shown_forms = re.findall(form, system)
        assert [verb for verb, _ in shown_forms] == verbs
        assert [offers.count("1x") for _, offers in shown_forms] == ([2, 1] if m > 1 else [1, 1])
        for verb, offers in shown_forms:
            filled = offers.replace("$M", "$20.00").replace("Item_j", "Item_1").replace("Item_k", "Item_2")
            whom = "<Target>Buyer 1</Target>" if system is seller else ""
            reply = f"<Thought>a</Thought>{whom}<Talk>b</Talk><Action>[{verb}] {filled}</Action>"
            assert parse(reply, m, "stop").offers == ((1, 2_000), (2, 2_000))[: offers.count("1x")]
        tags = re.findall(r"^<(\w+)>.*</\1>$", system[: system.index("from another market")], re.MULTILINE)
        assert tags == (["Thought", "Target", "Talk", "Action"] if system is seller else ["Thought", "Talk", "Action"])


def test_what_another_seat_reads_is_written_as_the_parser_reads_it():
    from negolab.parser.tags import parse_item_buyer

    env = Market(market())
    play(env, *OPEN)
    last = PROMPTS.messages(request_of(env, 0))[-1]["content"]
    for seat, made in OPEN:
        words = re.search(rf"Buyer {seat}:\n(<Talk>.*</Talk>\n<Action>.*</Action>)", last)[1]
        read = parse_item_buyer(f"<Thought></Thought>\n{words}", 3, "stop")
        assert (read.verb, read.offers, read.talk) == (made.verb, made.offers, made.talk)


def test_the_protocol_decides_and_nothing_is_guessed():
    for seat in (0, 1):
        env = Market(market())
        if seat == 0:
            play(env, *OPEN)
        request = request_of(env, seat)
        with pytest.raises(NegolabError, match="this market has 3"):
            PROMPTS.messages(request._replace(view=request.view._replace(protocol="lines")))
        with pytest.raises(NegolabError, match="protocol 'xml' is neither"):
            PROMPTS.messages(request._replace(view=request.view._replace(protocol="xml")))
    one = Market(market(RECORDERS[:1], [row[:1] for row in VALUES], None))
    request = request_of(one, 1)
    lines = PROMPTS.messages(request._replace(view=request.view._replace(protocol="lines")))
    assert "Action: [BUY]" in lines[0]["content"] and "<Action>" in PROMPTS.messages(request)[0]["content"]


@pytest.mark.parametrize("name", ITEM_TEMPLATES)
def test_a_folder_of_the_users_own_templates(tmp_path, name):
    (tmp_path / name).write_text("Of my own.", encoding="utf-8")
    env = Market(market())
    own = MarketPrompts(tmp_path)
    found = [message["content"] for message in own.messages(request_of(env, 1))]
    play(env, *OPEN)
    found += [message["content"] for message in own.messages(request_of(env, 0))]
    assert found.count("Of my own.") == 1
    (tmp_path / name).write_text("{% if", encoding="utf-8")
    with pytest.raises(NegolabError, match="template"):
        MarketPrompts(tmp_path)
