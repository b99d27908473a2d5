"""Transcripts of the market of several items: what is said of all of it, sales as they happen, and large markets."""

import json
import random
import re

import pytest

from item_markets import RECORDERS, Fixed, Wild, market, random_market, text_of
from negolab.catalog import Listing, Product
from negolab.cli import main
from negolab.metrics import ITEM_METRICS
from negolab.policies.base import Reply
from negolab.prompts.multi_buyer import MarketPrompts
from negolab.rollout import play
from negolab.transcripts import (
    Table,
    engaged_text,
    outcome_text,
    reward_text,
    sections,
    split_tags,
    steps,
    table_lines,
    to_html,
    to_text,
)
from test_market_items import played as appendix_h
from test_transcripts import HARM, Page

# The recorders: list prices 249.99, 183.49, 55.11; costs 100.13, 55.99, 42.07; together 488.59 and 198.19.
VALUES = ((30_000, 12_000, 5_000), (28_000, 17_000, 4_000), (20_000, 10_000, 7_000))
OPEN = ((1, "BUY", ((1, 5_000),)), (2, "BUY", ((1, 6_000), (2, 6_000))), (3, "BUY", ((3, 4_500),)))
FIRST = ((0, "SELL", ((1, 26_000), (3, 5_000)), 1), (1, "DEAL", ((1, 26_000),)))
SECOND = ((0, "DEAL", ((2, 6_000),), 2),)
THIRD = ((0, "DEAL", ((3, 4_500),), 3),)


def scripted(*moves, last=None, scenario=None):
    """An episode of the openings and these moves; ``last`` is the seller's last reply."""
    texts = {}
    for move in (*OPEN, *moves):
        texts.setdefault(move[0], []).append(text_of(*move))
    texts.setdefault(0, []).extend([] if last is None else [last])

    class Player(Fixed):
        def reply(self, requests):
            said = [self.texts[request.seat][len(request.view.own)] for request in requests]
            return [one if isinstance(one, Reply) else Reply(one) for one in said]

    player = Player(texts)
    (episode,) = play([scenario or market(values=VALUES, openings=None)], player, {"iter-60": player})
    return episode


def wild(seed, n=3, m=3, t=7, mischief=0.0, quits=0.05):
    """A market played at random, and its player."""
    player = Wild(mischief=mischief, quits=quits)
    (episode,) = play([random_market(random.Random(seed), n, m, 3, t)], player, {"iter-60": player})
    return episode, player


def flat(text):
    return " ".join(text.split())


def test_appendix_h_before_training_reads_as_the_paper_tells_it():
    text = to_text(appendix_h("untrained"))
    for line in (
        "Episode 0: recorders - 3 items, 3 buyers",
        "Margin:       $277.91 (list prices - costs)",
        "Limits:       N = 3 buyers, M = 3 items, K = 3 per buyer, T = 7 in all (T < N x K)",
        "  Item_3      $49.99   $42.07    $7.92  Buyer 1 at $45.66   A single camera (recorders_3)",
        "  Buyer 2  $182.45 *s   $252.12 *o   $38.20 -",
        "  Item_2  Buyer 2 $252.12  Buyer 2     $149.99  no       nobody",
        "  all                      3           $246.12  0 of 3   2        $145.66   $47.60",
        "  Buyer 2  iter-60  2 of 3    Item_1 at $100.00  free     Item_1 $80.00, Item_2 $110.00",
        "Buyer 2 (values Item_1, Item_2 most) - turn 1",
        "  Action:            [BUY] $80.00 (1x Item_1); $110.00 (1x Item_2)",
        "  Values (hidden):   Item_1 $182.45 (rank 1), Item_2 $252.12 (rank 1)",
        "  Values (hidden):   Buyer 3: Item_1 $96.40 (rank 3)",
        "--- Turn 2: Item_3 is sold ---",
        "  Item_3 sold to Buyer 1 at $45.66: the buyer took the seller's offer. Surplus $3.59.",
        "  Item_1 sold to Buyer 2 at $100.00: the seller accepted its bid. Surplus $44.01.",
        "--- Turn 6: nobody is left ---",
        "2 of 3 items sold, for $145.66 together: every buyer has bought, quit or is capped.",
    ):
        assert line in text.split("\n"), line
    for words in (
        "= (($45.66 - $42.07) + ($100.00 - $55.99)) / $277.91 = $47.60 / $277.91 = 0.171",
        "offered 0 of the 3 best pairs (coverage 0.000); 2 of 2 sales went to the item's top buyer; 5 messages of 7",
        "No seller could get more than 0.886 here.",
    ):
        assert words in flat(text), words
    assert "Standing offers" not in text and "\x1b" not in text


def test_every_way_to_end_has_its_sentence_and_its_reward():
    below, none = text_of(0, "SELL", ((3, 100),), 3), Reply(None, "context_limit")
    tight = market(values=VALUES, openings=None, t=2)
    earned = "(min($260.00, $249.99) - $100.13) + ($60.00 - $55.99)"
    cases = [
        (scripted(*FIRST, *SECOND, *THIRD), "Sold out: all 3 items are sold, for $365.00 together.", 156.80),
        (
            scripted(*FIRST, *SECOND, last=text_of(0, "QUIT")),
            "2 of 3 items sold, for $320.00 together: the seller quit.",
            153.87,
        ),
        (
            scripted(*FIRST, *SECOND, scenario=tight),
            "2 of 3 items sold, for $320.00 together: the seller's 2 messages are used up.",
            153.87,
        ),
        (
            scripted(*FIRST, last=none),
            "Aborted: the seller could not speak: the conversation does not fit into its context. No rule was broken. "
            "1 of 3 items was sold before, for $260.00: that counts.",
            149.86,
        ),
        (scripted(last=text_of(0, "QUIT")), "No deal: the seller quit.", 0),
        (
            scripted(*FIRST, *SECOND, last=below),
            "Violation by the seller (below_cost): [SELL] $1.00 for Item_3 is below the cost $42.07. 2 of 3 items were "
            "sold before, for $320.00, and that counts for nothing.",
            None,
        ),
        (
            scripted(last=below),
            "Violation by the seller (below_cost): [SELL] $1.00 for Item_3 is below the cost $42.07.",
            None,
        ),
    ]
    for episode, sentence, gained in cases:
        assert outcome_text(episode) == sentence
        reward = reward_text(episode)
        assert "but the record says" not in reward
        if gained:
            assert reward.endswith(f"= ${gained:.2f} / $290.40 = {gained / 290.40:.3f}"), reward
        for shown in (flat(to_text(episode)), Page(to_html(episode)).words):
            assert sentence in shown and reward in shown
    assert f"= ({earned}) / $290.40 =" in reward_text(cases[1][0])
    assert reward_text(cases[4][0]) == "reward = 0 (no deal)"
    assert reward_text(cases[5][0]) == "reward = -1 (the seller broke a rule; the $153.87 earned before are lost)"
    assert reward_text(cases[6][0]) == "reward = -1 (the seller broke a rule)"
    closing = [sections(episode)[-1][0] for episode, _, _ in cases]
    assert closing == [
        "Turn 3: Item_3 is sold, sold out",
        "Turn 3: the seller quits",
        "Turn 2: Item_1 is sold, Item_2 is sold, no messages left",  # the answer to message 1, then message 2
        "Turn 2: Item_1 is sold, no reply",
        "Turn 1: concurrent buyer openings, the seller quits",
        "Turn 3: a rule is broken",
        "Turn 1: concurrent buyer openings, a rule is broken",
    ]


def test_a_wrong_stored_reward_is_pointed_at():
    episode = scripted(*FIRST, *SECOND, *THIRD)
    episode.reward = 0.25
    assert reward_text(episode).endswith("; but the record says 0.25: run `negolab verify`")


@pytest.mark.parametrize("shape", [(3, 3, 7), (2, 5, 6), (6, 2, 9), (1, 4, 3)])
def test_what_is_said_of_any_episode_agrees_with_its_record(shape):
    reasons, prompts = set(), MarketPrompts()
    for seed in range(60):
        episode, player = wild(seed, *shape, mischief=0.03)
        text, made, sales = to_text(episode, boards=True), steps(episode), episode.outcome.sales
        reasons.add(episode.outcome.reason)
        assert "but the record says" not in text
        assert max(map(len, text.split("\n"))) <= 100
        assert [step.raw is None for step in made] == [turn.violation is None for turn in episode.turns]
        told = re.findall(r"^  Item_(\d+) sold to Buyer (\d+) at \$([\d.]+): the (seller|buyer)", text, re.MULTILINE)
        assert told == [
            (str(s.item), str(s.buyer), f"{s.price / 100:.2f}", "buyer" if s.seat else "seller") for s in sales
        ]
        coverage = ITEM_METRICS["optimal_pair_coverage"](episode)
        line = engaged_text(episode)
        if coverage:
            assert f"offered {sum(coverage):.0f} of the {len(coverage)} best pairs" in line
            assert f"(coverage {sum(coverage) / len(coverage):.3f})" in line
        else:
            assert line.startswith("No pair has a surplus to offer")
        assert f"more than {ITEM_METRICS['reward_bound'](episode):.3f} here" in line
        assert f"{ITEM_METRICS['seller_messages'](episode):.0f} message" in line
        top = ITEM_METRICS["top_buyer_rate"](episode)
        assert (f"{sum(top):.0f} of {len(top)} sale" if top else "nothing was sold") in line
        # The boards are those that the seller's prompts ended with, and one more where the buyers had the last word.
        asked = [request for request in player.asked if request.seat == 0]
        seen = [prompts.messages(request)[-1]["content"] for request in asked]
        boards = [step.board for step in made if step.board is not None]
        assert len(boards) - len(seen) in (0, 1)
        for shown, prompt in zip(boards, seen, strict=False):
            assert prompt.endswith(shown)
    assert len(reasons) >= 4, reasons


def test_the_matrix_marks_top_buyers_costs_pairs_and_sales():
    episode = scripted(*FIRST, *SECOND, *THIRD)
    text = to_text(episode)
    assert "  Buyer 1  $300.00 *os  $120.00      $50.00" in text
    assert "  Buyer 2  $280.00      $170.00 *os  $40.00 -" in text
    assert "  Buyer 3  $200.00      $100.00      $70.00 *os" in text
    shared = market(values=((30_000, 1, 1), (30_000, 1, 1), (30_000, 1, 1)), openings=None)
    text = to_text(scripted_quit(shared))
    assert "  Item_1  Buyer 1 +2 more $300.00  Buyer 1" in text
    assert "  Item_2  Buyer 1 +2 more $0.01    nobody" in text


def scripted_quit(scenario):
    low = {seat: [text_of(seat, "BUY", ((1, 1),))] for seat in range(1, scenario.n_buyers + 1)}
    player = Fixed({0: [text_of(0, "QUIT")], **low})
    (episode,) = play([scenario], player, {"iter-60": player})
    return episode


def test_it_is_said_whose_opening_was_regulated():
    openings = (None, (6_000, 6_000, 3_000), None)
    episode = scripted(last=text_of(0, "QUIT"), scenario=market(values=VALUES, openings=openings))
    text = to_text(episode)
    assert "First offers: regulated (fixed by the market) for Buyer 2; free for all others" in text
    assert re.findall(r"^  Buyer (\d) .* (free|regulated)  ", text, re.MULTILINE) == [
        ("1", "free"),
        ("2", "regulated"),
        ("3", "free"),
    ]


def test_a_market_of_20_by_20_stays_in_its_columns_and_loses_nothing():
    episode, _ = wild(3, 20, 20, 60)
    text = to_text(episode, boards=True)
    assert max(map(len, text.split("\n"))) <= 100
    assert len(re.findall(r"^  Valuations, continued:$", text, re.MULTILINE)) >= 2
    head = text[text.index("VALUATIONS") : text.index("BEST MATCHING")]
    found = {name: [] for name in re.findall(r"^  (Buyer \d+)", head, re.MULTILINE)}
    for line in head.split("\n"):
        name = re.match(r"  (Buyer \d+)", line)
        if name:
            found[name[1]] += [round(float(v) * 100) for v in re.findall(r"\$([\d.]+)", line)]
    assert [tuple(values) for values in found.values()] == list(episode.scenario.valuations)
    page = Page(to_html(episode))
    assert all(f"Item_{item} " in page.words for item in range(1, 21))


def test_a_market_that_is_larger_still_says_what_is_left_out():
    text = to_text(scripted_quit(random_market(random.Random(1), 45, 50, 3, 7)._replace(openings=None)))
    assert "10 more items are left out, see --json." in text and "5 more buyers are left out, see --json." in text
    assert max(map(len, text.split("\n"))) <= 100 and not re.search(r"^  Buyer 41", text, re.MULTILINE)


def test_long_titles_are_cut_in_the_terminal_and_whole_on_the_page():
    long = " ".join(f"word{i}" for i in range(60))
    items = [Product(Listing(f"x_{j}", long, long, "x", 20_000), 10_000) for j in range(1, 4)]
    episode = scripted(last=text_of(0, "QUIT"), scenario=market(items, VALUES, None))
    text = to_text(episode)
    assert max(map(len, text.split("\n"))) <= 100 and "..." in text and "word59" not in text
    assert Page(to_html(episode)).words.count(f"{long} (x_1)") == 1


def test_one_item_in_tags_is_told_as_one_item_with_its_parts_and_board():
    scenario = market([RECORDERS[0]], [(20_000,), (30_000,)], (None, (6_000,)))
    texts = {
        0: [text_of(0, "SELL", ((1, 24_000),), 2)],
        1: [text_of(1, "BUY", ((1, 5_000),))],
        2: [text_of(2, "BUY", ((1, 6_000),)), text_of(2, "DEAL", ((1, 24_000),))],
    }
    player = Fixed(texts)
    (episode,) = play([scenario], player, {"iter-60": player})
    text = to_text(episode, boards=True)
    for line in (
        "Episode 0: cameras_1 - Lorin 8-channel recorder",
        "First offers: regulated (fixed by the market) for Buyer 2; free for all others",
        "Buyer 2 (rank 1, hidden budget $300.00) - turn 2",
        "  Target (private):  Buyer 2",
        "  Action:            [DEAL] $240.00 (1x Item_1)",
        "    Sold: Item_1 to Buyer 2 at $240.00",
        "Deal at $240.00 with Buyer 2 (rank 1, hidden budget $300.00): the buyer accepted the seller's ask.",
        "reward = ($240.00 - $100.13) / ($249.99 - $100.13) = 0.933",
    ):
        assert line in text.split("\n"), line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no tags",
        "Thought: a\nTalk: b\nAction: [QUIT]",
        "<Thought>a</Thought><Talk>b</Talk>",
        "<Talk>b</Talk><Thought>a</Thought><Action>[QUIT]</Action>",
        "x <Thought>a</Thought><Talk>b</Talk><Action>[QUIT]</Action>",
        "<Thought>a</Thought><Talk>b</Talk><Action>[QUIT]</Action> x",
        "<Thought>a</Thought><Talk>b<Talk></Talk></Talk><Action>[QUIT]</Action>",
        "<Thought>a</Talk><Talk>b</Thought><Action>[QUIT]</Action>",
        "</Thought>a<Thought><Talk>b</Talk><Action>[QUIT]</Action>",
        "<Thought>a</Thought><Talk>b</Talk><Action>[QUIT]",
    ],
)
def test_what_has_not_the_form_is_shown_raw(text):
    assert split_tags(text) is None


def test_parts_may_span_lines_be_empty_and_hold_other_tags():
    text = "\n<Thought>a < b\n<Talks>\n</Thought>\n<Target>\nBuyer 1 </Target><Talk></Talk>\n<Action>[QUIT]</Action>\n"
    assert split_tags(text) == (
        ("Thought", "a < b\n<Talks>"),
        ("Target", "Buyer 1"),
        ("Talk", ""),
        ("Action", "[QUIT]"),
    )


def test_nothing_that_anybody_wrote_becomes_markup_or_moves_the_terminal():
    harm = HARM + "\x1b[2J\u202e"
    items = [Product(Listing(f"x_{j}", harm, harm, "x", 20_000), 10_000) for j in range(1, 4)]
    texts = {seat: [text_of(seat, "BUY", ((1, 100),), None, harm, harm)] for seat in (1, 2, 3)}
    texts[0] = [text_of(0, "SELL", ((1, 10),), 1, harm, harm)]
    player = Fixed(texts, harm)
    scenario = market(items, VALUES, None)._replace(unit=harm, buyer_types=(harm,) * 3)
    (episode,) = play([scenario], player, {harm: player})
    source = to_html([episode, episode], source=harm, kinds={harm: harm})
    page = Page(source)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1 and "img" not in tags
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert HARM in page.words
    for out in (source, to_text(episode)):
        assert "\x1b" not in out and "\u202e" not in out and "\\x1b[2J" in out
    painted = to_text(episode, colour=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == to_text(episode)


def test_a_table_that_is_too_wide_is_shown_in_blocks_and_words_are_cut():
    wide = Table("T", "", ("a", *(f"c{i}" for i in range(9))), [("1", *["x" * 12] * 9)], numbers=frozenset({1}))
    lines = table_lines(wide, 50)
    assert max(len(line) for _, line in lines) <= 50
    assert sum(line.count("x" * 12) for _, line in lines) == 9
    assert [line for _, line in lines].count("  T, continued:") == 2
    words = Table("T", "", ("a", "b"), [("1", "word " * 100)], free=1)
    lines = table_lines(words, 60)
    assert len(lines) == 4 and lines[-1][1].endswith("...") and max(len(line) for _, line in lines) <= 60
    assert [row for row, _ in lines] == [0, 1, 1, 1]


def test_show_of_a_stored_run(tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--regime", "multi_product", "--seller", "random", "--products", "2", "--per-product", "3"]
    assert main(["evaluate", *options, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["show", str(run), "--board"]) == 0
    out = capsys.readouterr().out
    assert "BEST MATCHING AND REALISED ONE" in out and "Unsold: Item_1 (list $" in out
    assert max(map(len, out.split("\n"))) <= 100
    assert main(["show", str(run), "--episode", "0", "1", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record in records:
        assert len(record["products"]) == 3 and all(text["title"] for text in record["products"])
        values = record["scenario"]["valuations"]
        for buyer, row in enumerate(record["ranks"]):
            for item, rank in enumerate(row):
                assert rank == 1 + sum(other[item] > values[buyer][item] for other in values)
    assert main(["show", str(run), "--pick", "best", "--pick", "worst", "--html", str(tmp_path / "t.html")]) == 0
    assert "Best matching and realised one" in (tmp_path / "t.html").read_text(encoding="utf-8")
