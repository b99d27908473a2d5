"""The strict grammar: every rule of the module's docstring, then any text at all."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from markets import CODE
from negolab.environment import Move, Violation
from negolab.money import MAX_CENTS
from negolab.parser import lines, parse_buyer, parse_seller, render_buyer, render_seller

GOOD = f"Thought: Hold.\nTarget: Buyer 2\nTalk: Thirty-two it is.\nAction: [SELL] $32.00 (1x {CODE})"


def kind(text, **options):
    read = parse_seller(text, CODE, **options)
    return read.kind if isinstance(read, Violation) else (read.target, read.verb, read.price)


def with_action(action):
    return GOOD.rpartition("Action: ")[0] + "Action: " + action


@pytest.mark.parametrize(
    ("amount", "cents"),
    [
        ("$32", 3200),
        ("$32.5", 3250),
        ("$32.50", 3250),
        ("$0.01", 1),
        ("$1,299.99", 129999),
        ("$1,000,000", 100_000_000),
        ("$032.00", 3200),
        ("$10,000,000.00", MAX_CENTS),
    ],
)
def test_amounts_that_are_prices(amount, cents):
    assert kind(with_action(f"[SELL] {amount} (1x {CODE})")) == (2, "SELL", cents)


@pytest.mark.parametrize(
    "amount",
    (
        "$0|$0.00|$10,000,000.01|$1,29.99|$12,99|$,100|$1,,000|$1,0000|$32.|$.5|$32.505|$ 32|$-32|-$32|$3e2|$٣٢|$３２|"
        "32|$32€|$1_000|$32,000,00|$+32|$32.0.0|$0x20|$inf|$nan"
    ).split("|"),
)
def test_amounts_that_are_not(amount):
    assert kind(with_action(f"[SELL] {amount} (1x {CODE})")) == "format"


@pytest.mark.parametrize(
    "action",
    [
        f"[SELL]$32.00 (1x {CODE})",
        f"[SELL] $32.00 (1x {CODE})   ",
        f"   [SELL] $32.00 (1x {CODE})\t\n\n  \n",
        f"[SELL] $32.00 (1x {CODE})\r\n",
    ],
)
def test_spaces_that_do_not_matter(action):
    assert kind(with_action(action)) == (2, "SELL", 3200)


@pytest.mark.parametrize(
    "action",
    [
        f"[SELL]  $32.00 (1x {CODE})",
        f"[SELL] $32.00  (1x {CODE})",
        f"[SELL] $32.00 (1x  {CODE})",
        f"[SELL] $32.00 ( 1x {CODE})",
        f"[SELL] $32.00(1x {CODE})",
        f"[SELL] $32.00 (1 {CODE})",
        f"[SELL] $32.00 (1X {CODE})",
        f"[SELL] $32.00 (1x{CODE})",
        f"[SELL] $32.00 (1x {CODE.upper()})",
        f"[SELL] $32.00 (1x {CODE}) (1x {CODE})",
        f"[sell] $32.00 (1x {CODE})",
        f"[ SELL ] $32.00 (1x {CODE})",
        f"[BUY] $32.00 (1x {CODE})",
        f"[REJECT] $32.00 (1x {CODE})",
        f"[SELL] $32.00\n(1x {CODE})",
        "[DEAL]",
        "[QUIT] now",
        "",
        f"'[SELL] $32.00 (1x {CODE})'",
        f"\u00a0[SELL] $32.00 (1x {CODE})",
        f"[SELL]\u00a0$32.00 (1x {CODE})",
        f"[SELL] $32.00\u2009(1x {CODE})",
    ],
)
def test_actions_that_are_not(action):
    assert kind(with_action(action)) == "format"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\n\n", "\r\n\r\n", "\n \n"])
def test_newlines_and_blank_lines_between_parts(newline):
    assert kind(GOOD.replace("\n", newline)) == (2, "SELL", 3200)


@pytest.mark.parametrize(
    "text", ["\n" + GOOD, " " + GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r"), GOOD.replace("\n", "\u2028")]
)
def test_nothing_may_stand_before_and_only_newlines_are_newlines(text):
    assert kind(text) == "format"


@pytest.mark.parametrize(
    "old,new",
    [
        ("Thought:", "thought:"),
        ("Target:", "Target :"),
        ("Talk:", " Talk:"),
        ("Action:", "**Action:**"),
        ("Talk:", "Talk："),
        ("Thought: Hold.\n", ""),
        ("Talk: Thirty-two it is.\n", ""),
        ("Talk: Thirty-two it is.", "Talk: a\nTalk: b"),
        ("Talk: Thirty-two it is.", "Talk: a\nThought: b"),
        ("Talk: Thirty-two it is.", "Talk: a\nTarget: Buyer 1"),
        ("Target: Buyer 2", "Target: Buyer 2\nBuyer 3"),
        ("Target: Buyer 2", "Target:\nBuyer 2"),
        ("Talk: Thirty-two it is.", "Talk: <think>x</think>"),
    ],
)
def test_labels_once_in_order_at_the_start_of_a_line(old, new):
    assert old in GOOD
    assert kind(GOOD.replace(old, new, 1)) == "format"


def test_labels_in_another_order():
    first, second, third, fourth = GOOD.split("\n")
    assert kind("\n".join([first, third, second, fourth])) == "format"


@pytest.mark.parametrize(
    "target",
    (
        "Buyer 0|Buyer 02|Buyer -1|Buyer two|buyer 2|Buyer  2|Buyer 2.|Buyer ２|2||[SELL]|QUIT|[quit]|Buyer 9999999|"
        "Buyer\u00a02|Buyer 1 and Buyer 2|Buyer 1, Buyer 2"
    ).split("|"),
)
def test_targets_that_are_not(target):
    assert kind(GOOD.replace("Buyer 2", target)) == "target"


def test_quit_in_both_places_and_with_a_buyer():
    quits = with_action("[QUIT]")
    assert kind(quits) == (2, "QUIT", None)
    assert kind(quits.replace("Buyer 2", "[QUIT]")) == (None, "QUIT", None)
    assert kind(GOOD.replace("Buyer 2", "[QUIT]")) == "target"
    assert kind(with_action(f"[DEAL] $32.00 (1x {CODE})").replace("Buyer 2", "[QUIT]")) == "target"


def test_free_text_may_span_lines_and_quote_anything_inside_a_line():
    long = GOOD.replace("Hold.", "Hold.\n\nThey bid $27.50; my cost:\n- Target: none").replace(
        "Thirty-two", "Say\nThirty"
    )
    assert kind(long) == (2, "SELL", 3200)
    assert kind(GOOD.replace("Thirty-two", f'You wrote "Action: [DEAL] $1 (1x {CODE})": no. Thirty')) == (
        2,
        "SELL",
        3200,
    )


@pytest.mark.parametrize("text", [None, "", GOOD, "Action: x"])
def test_a_reply_cut_at_the_limit_is_truncated_whatever_it_says(text):
    assert kind(text, finish_reason="length") == "truncated"


def test_thinking():
    block = "<think>They bid 27.5.\nAction: [DEAL] $1</think>"
    assert kind(block + GOOD) == "format"
    assert kind(block + "\n\n" + GOOD, thinking=True) == (2, "SELL", 3200)
    assert kind("\n" + block + GOOD, thinking=True) == (2, "SELL", 3200)
    assert kind(GOOD, thinking=True) == (2, "SELL", 3200)
    for bad in (block + block + GOOD, "<think>" + GOOD, "</think>" + GOOD, GOOD + block, block + GOOD + "</think>"):
        assert kind(bad, thinking=True) == "format"
    read = parse_seller(block + GOOD, CODE, thinking=True)
    assert read.text == GOOD  # what the model sees of itself later has no think block


def test_a_talk_that_announces_another_deal_contradicts_the_action():
    def talk(words):
        return kind(GOOD.replace("Thirty-two it is.", words))

    assert talk("Deal at 27.50, it is yours.") == "format"
    assert talk("Fine! Deal at $1,027.50.") == "format"
    assert talk("Good. Deal at 27.5!") == "format" and talk("Deal at 27") == "format"
    fine = [
        "Deal at $32.00, it is yours.",
        "Deal at 32.",
        "No deal at 27.50, sorry.",
        "I can do a deal at $30 next time.",
    ]
    fine += ["How about a deal at 27.50? No.", "Deal at last!", "I can't accept $27.50.", "Deal? At 27.50 never."]
    fine += ["Deal at $27.50? Sorry, no.", "Deal at 10% under list: thirty-two.", "Deal at $27.50 isn't possible; $32."]
    fine += ["I hear you. Deal at 27.50 would lose me money.", "Deal for 2 days only!", "Deal for $30.00 is out."]
    for words in fine:
        assert talk(words) == (2, "SELL", 3200), words
    assert kind(with_action(f"[DEAL] $27.50 (1x {CODE})").replace("Thirty-two it is.", "Deal at 27.50!")) == (
        2,
        "DEAL",
        2750,
    )


def buyer(text, **options):
    read = parse_buyer(text, CODE, **options)
    return read.kind if isinstance(read, Violation) else (read.verb, read.price)


def test_buyers_grammar():
    bid = f"Thought: Low.\nTalk: Eighteen?\nAction: [BUY] $18 (1x {CODE})"
    assert buyer(bid) == ("BUY", 1800)
    assert buyer(bid.replace("1x", "1")) == ("BUY", 1800)
    assert buyer(bid.replace("BUY", "DEAL")) == ("DEAL", 1800)
    assert buyer("Thought:\nTalk:\nAction: [QUIT]") == ("QUIT", None)
    assert buyer(bid, finish_reason="length") == "truncated"
    for bad in (
        bid.replace("BUY", "SELL"),
        bid.replace("BUY", "REJECT"),
        bid.replace("1x", "2x"),
        bid.replace("Talk:", "Target: Buyer 1\nTalk:"),
        bid.replace("Eighteen?", f"x\nAction: [DEAL] $1 (1x {CODE})"),
        GOOD,
        None,
    ):
        assert buyer(bad) == "format"


PIECES = [
    "Thought:",
    "Target:",
    "Talk:",
    "Action:",
    "\n",
    "\r\n",
    " ",
    "Buyer ",
    "[SELL]",
    "[DEAL]",
    "[QUIT]",
    "[BUY]",
    "$",
    "1",
]
PIECES += [
    "32",
    ".",
    ",",
    "00",
    "(1x ",
    "(1 ",
    ")",
    CODE,
    "<think>",
    "</think>",
    "Deal at ",
    "\u200b",
    "\u0660",
    "\ud83d",
    "x",
]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=400), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)), st.booleans())
def test_the_parser_is_total(text, thinking):
    for parse in (parse_seller, parse_buyer):
        read = parse(text, CODE, thinking=thinking)
        assert isinstance(read, Move | Violation)
        if isinstance(read, Move):
            assert read.verb in ("SELL", "BUY", "DEAL", "QUIT")
            assert (read.price is None) == (read.verb == "QUIT")
            assert read.price is None or 0 < read.price <= MAX_CENTS


def mutated(text):
    """One or two random edits of a good reply: where the short way and the long way could part."""
    rng = random.Random(text)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice([*PIECES, ""]) + text[at + rng.choice([0, 0, 1, 3]) :]
    return text


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["SELL", "DEAL"]))
def test_the_short_way_gives_the_verdicts_of_the_long_way(number, verb):
    text = mutated(render_seller(verb, number % 10**6 + 1, number % 7 + 1, f"Talk {number}", "Hm", CODE))
    assert parse_seller(text, CODE) == lines._parse_seller(text, CODE, False)
    text = mutated(render_buyer("BUY" if verb == "SELL" else verb, number % 10**6 + 1, f"Talk {number}", "Hm", CODE))
    assert parse_buyer(text, CODE) == lines._parse_buyer(text, CODE, False)


FREE = st.text(st.characters(blacklist_categories=("Cs",)), max_size=80).filter(
    lambda t: (
        not any(label in "\n" + t for label in ("\nThought:", "\nTarget:", "\nTalk:", "\nAction:"))
        and "think>" not in t
        and "Deal " not in t
        and "\r" not in t
    )
)
PRICES = st.integers(1, MAX_CENTS)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["SELL", "DEAL", "QUIT"]), PRICES, st.integers(1, 999), FREE, FREE)
def test_a_rendered_seller_move_reads_back_to_itself(verb, price, target, talk, thought):
    price = None if verb == "QUIT" else price
    text = render_seller(verb, price, target, talk, thought, CODE)
    assert parse_seller(text, CODE) == Move(verb, () if price is None else ((1, price),), target, talk.strip(), text)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["BUY", "DEAL", "QUIT"]), PRICES, FREE, FREE)
def test_a_rendered_buyer_move_reads_back_to_itself(verb, price, talk, thought):
    price = None if verb == "QUIT" else price
    text = render_buyer(verb, price, talk, thought, CODE)
    assert parse_buyer(text, CODE) == Move(verb, () if price is None else ((1, price),), None, talk.strip(), text)


HEAD = "Thought: x\nTarget: Buyer 1\nTalk: "
TAIL = f"\nAction: [SELL] $3 (1x {CODE})"
HOSTILE = {
    "labels": lambda n: "Thought:" * (n // 8),
    "label lines": lambda n: "Thought:x" + "\nAction:" * (n // 8),
    "digits": lambda n: HEAD + "x\nAction: [SELL] $" + "9" * n + f" (1x {CODE})",
    "commas": lambda n: HEAD + "x\nAction: [SELL] $" + "1," * (n // 2) + f" (1x {CODE})",
    "items": lambda n: HEAD + "x\nAction: [SELL] $1 (" + "1x a, " * (n // 6),
    "brackets": lambda n: HEAD + "x\nAction: " + "[" * n,
    "spaces": lambda n: " " * n,
    "inner spaces": lambda n: HEAD + "x\nAction: [SELL] $1" + " " * n + f"(1x {CODE}) x",
    "deals": lambda n: HEAD + "Deal at 1,1" * (n // 11) + TAIL,
    "dots": lambda n: HEAD + ". " * (n // 2) + "Deal " + TAIL,
    "think": lambda n: "<think>" * (n // 7) + GOOD,
    "newlines": lambda n: HEAD + "\r\n" * (n // 2) + TAIL,
    "target": lambda n: "Thought: x\nTarget: Buyer " + "1" * n + "\nTalk: x" + TAIL,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_takes_linear_time(name):
    """No statement about speed: linear work on a megabyte takes hundredths of a second, quadratic minutes to hours, and
    ten seconds of this process's own CPU time lie far from both, on any machine and under any load."""
    for n in (60_000, 250_000, 1_000_000):  # quadratic work is caught before it takes hours
        text = HOSTILE[name](n)
        start = time.process_time()
        for options in ({}, {"thinking": True}):
            assert isinstance(parse_seller(text, CODE, **options), Move | Violation)
            assert isinstance(parse_buyer(text, CODE, **options), Move | Violation)
        assert time.process_time() - start < 10, f"{n:,} characters"
