"""The tag format: a table of replies with their verdicts, the rules of the module's docstring, then any text at all."""

import json
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negolab.environment import Move, Violation
from negolab.money import MAX_CENTS
from negolab.parser import (
    item_name,
    parse_item_buyer,
    parse_item_seller,
    parse_seller,
    render_item_buyer,
    render_item_seller,
    tags,
)

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases/tag_replies.jsonl").read_text(encoding="utf-8").splitlines()
]
MENU = ((1, 12000), (2, 24000))
GOOD = render_item_seller("SELL", MENU, 2, "Two to choose from.", "Probe.")
BID = render_item_buyer("BUY", MENU, "Either.", "Low.")


def read(text, items=3, role="seller", **options):
    """Kind of a violation, else target, verb and offers."""
    move = (parse_item_seller if role == "seller" else parse_item_buyer)(text, items, **options)
    return move.kind if isinstance(move, Violation) else (move.target, move.verb, move.offers)


def detail(text, role="seller", items=3):
    move = (parse_item_seller if role == "seller" else parse_item_buyer)(text, items)
    assert isinstance(move, Violation), text
    return move.detail


def with_action(action, text=GOOD):
    return re.sub(r"<Action>.*", lambda _: f"<Action>{action}</Action>", text, flags=re.DOTALL)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case):
    parse = {"seller": parse_item_seller, "buyer": parse_item_buyer}[case["role"]]
    got = parse(case["text"], case["items"], case["finish_reason"], thinking=case["thinking"])
    expected = case["expect"]
    if expected["ok"]:
        assert isinstance(got, Move), got
        offers = tuple((item, cents) for item, cents in expected["offers"])
        assert (got.target, got.verb, got.offers) == (expected["target"], expected["action"], offers)
    else:
        assert isinstance(got, Violation), got
        assert got.kind == expected["kind"] and got.detail
        assert got.detail.isascii() and got.detail.isprintable() and len(got.detail) < 200


def test_the_table_has_every_kind_of_verdict_and_every_hazard():
    assert len(CASES) >= 60 and len({case["id"] for case in CASES}) == len(CASES)
    assert {f"X{n}" for n in range(1, 8)} <= {case["id"] for case in CASES}
    kinds = {case["expect"].get("kind", case["expect"].get("action")) for case in CASES}
    assert kinds == set("SELL BUY DEAL QUIT format target item truncated timeout context_limit".split())


@pytest.mark.parametrize(
    ("amount", "cents"),
    [
        ("$32", 3200),
        ("$32.5", 3250),
        ("$0.01", 1),
        ("$0032.00", 3200),
        ("$1,299.99", 129999),
        ("$9999999.99", 999_999_999),
        ("$10,000,000.00", MAX_CENTS),
    ],
)
def test_amounts_that_are_prices(amount, cents):
    assert read(with_action(f"[SELL] {amount} (1x Item_1)")) == (2, "SELL", ((1, cents),))
    assert read(with_action(f"[DEAL] {amount} (1x Item_1)", BID), role="buyer") == (None, "DEAL", ((1, cents),))


@pytest.mark.parametrize(
    "amount",
    (
        "$0|$0.00|$10,000,000.01|$1,29.99|$12,99|$,100|$1,,000|$1,0000|$32.|$.5|$32.505|$ 32|$-32|-$32|$3e2|$٣٢|$３２|"
        "32|$32€|$1_000|$32,000,00|$+32|$32.0.0|$0x20|$inf|$nan|"
    ).split("|"),
)
def test_amounts_that_are_not_wherever_they_stand_in_a_menu(amount):
    for action in (f"[SELL] {amount} (1x Item_1)", f"[SELL] $3.00 (1x Item_2); {amount} (1x Item_1)"):
        assert read(with_action(action)) == "format"
        assert read(with_action(action.replace("SELL", "BUY"), BID), role="buyer") == "format"


WHITE = ["", "\n", " ", "\t", "\r\n", "\n\n", "\r\n \t\r\n"]
NOT_WHITE = ["\r ", "\x0b", "\x0c", "\x1c", "\u00a0", "\u2028", "\u200b", "\ufeff", "\0", ".", "-->", "\n;\n"]


def spaced(text, blank):
    """With ``blank`` around the whole, between elements, and inside the elements that are no free text: one each."""
    yield blank + text
    yield text + blank
    for mark in ("</Thought>", "</Target>", "</Talk>", "<Target>", "<Action>"):
        yield text.replace(mark, mark + blank)
    for mark in ("</Target>", "</Action>"):
        yield text.replace(mark, blank + mark)


@pytest.mark.parametrize("blank", WHITE, ids=ascii)
def test_white_space_does_not_matter_between_and_around(blank):
    for text in spaced(GOOD, blank):
        assert read(text) == (2, "SELL", MENU), ascii(text)


@pytest.mark.parametrize("blank", NOT_WHITE, ids=ascii)
def test_anything_else_does(blank):
    for text in spaced(GOOD, blank):
        assert read(text) in ("format", "target"), ascii(text)


TAGS = ["Thought", "Target", "Talk", "Action"]


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_of_the_protocol_in_free_text_breaks_the_format_in_any_spelling(name):
    low, up = name.lower(), name.upper()
    spellings = [
        f"<{name}>",
        f"</{name}>",
        f"<{low}>",
        f"</{up}>",
        f"<{name}/>",
        f"<{name}/x>",
        f"<{low} />",
        f"< {name} >",
    ]
    spellings += [f"</ {name} >", f"< / {name}>", f"< /{low}>", f'<{name} type="x">', f"<{name}\n>", f"<{low}\tx=1/>"]
    for spelling in spellings:
        for talk in (spelling, f"a {spelling} b", f"<<{spelling}", f"\n{spelling}{spelling}"):
            assert read(GOOD.replace("Two to choose from.", talk)) == "format", talk
            assert read(GOOD.replace("Probe.", talk)) == "format", talk
            assert read(BID.replace("Either.", talk), role="buyer") == "format", talk


@pytest.mark.parametrize("name", TAGS)
def test_what_only_looks_a_little_like_a_tag_is_text(name):
    for words in (f"<{name}", f"{name}>", f"<{name}s>", f"<my{name}>", f"< {name} on >", f"a < {name.lower()}, b > c"):
        assert read(GOOD.replace("Two to choose from.", words + ".")) == (2, "SELL", MENU), words
    for words in ("<", ">", "&", "&lt;" + name + "&gt;", "<>", "</>", "<<<", "a<b>c</b>", "<!--", "]]>", "<?x?>"):
        assert read(BID.replace("Low.", words), role="buyer") == (None, "BUY", MENU), words


def test_every_element_is_there_once_and_in_order():
    parts = GOOD.split("\n")
    for k in range(4):
        assert read("\n".join(parts[:k] + parts[k + 1 :])) == "format"
        assert read("\n".join([*parts[: k + 1], *parts[k:]])) == "format"
        for j in range(k):
            swapped = parts.copy()
            swapped[k], swapped[j] = swapped[j], swapped[k]
            assert read("\n".join(swapped)) == "format"
    for mark in re.findall("<[^>]*>", GOOD):
        for instead in ("", mark * 2, mark.lower(), mark.upper(), mark[:-1], mark[1:], mark.replace(">", " x>")):
            assert read(GOOD.replace(mark, instead)) == "format", instead


def test_each_fault_is_named_with_its_place():
    assert detail("") == "the reply is empty"
    assert detail("No.") == "the reply ends without '<Thought>'"
    assert detail("Well:\n" + GOOD) == "text outside the elements, before '<Thought>': 'Well:'"
    assert detail(GOOD + " Bye.") == "text outside the elements, after '</Action>': 'Bye.'"
    assert detail(GOOD.removesuffix("</Action>")) == "the reply ends without '</Action>'"
    at = GOOD.index("<Target>") + 1
    assert detail(GOOD.replace("Target>", "target>")) == f"'<target>' at character {at}, where '<Target>' must stand"
    at = GOOD.index("</Talk>") + 1
    wrong = f"'</Thought>' at character {at}, where only '</Talk>' may end the element"
    assert detail(GOOD.replace("</Talk>", "</Thought>")) == wrong
    at = len(GOOD) + 1
    assert detail(GOOD + "<Action>") == f"'<Action>' at character {at}, after '</Action>'"
    assert detail(GOOD, "buyer").endswith(": a buyer's reply has no Target")
    assert detail(with_action("[SELL] $1 (1x Item_1);")) == "offer 2 of [SELL] must be '$M (1x Item_j)', not ''"
    wrong = "offer 2 of [SELL] must be '$M (1x Item_j)', not ' $2 (1x Item_2)'"
    assert detail(with_action("[SELL] $1 (1x Item_1);  $2 (1x Item_2)")) == wrong
    assert detail(with_action("[SELL] $1 (1x Item_1); $0 (1x Item_2)")) == "offer 2 of [SELL]: not a price: '$0'"
    assert detail(with_action("[SELL] $1 (1x Item_9)")) == "there is no 'Item_9' here: Item_1 to Item_3"
    assert detail(with_action("[SELL] $1 (1x Item_2)"), items=1) == "there is no 'Item_2' here: Item_1 only"
    assert detail(with_action("[BUY] $1 (1x Item_1)")) == "[BUY] is the other side's action"


def test_the_reply_s_text_is_kept_without_its_think_block_and_carriage_returns():
    got = parse_item_seller("<think>a</think>\r\n" + GOOD.replace("\n", "\r\n"), 3, thinking=True)
    assert isinstance(got, Move) and got.text == GOOD
    assert parse_item_seller(GOOD.replace("<Talk>", "<Talk>\n "), 3).talk == "Two to choose from."


def test_how_many_items_there_are_decides_which_exist():
    one = with_action("[SELL] $5.00 (1x Item_20)")
    assert read(one, items=20) == (2, "SELL", ((20, 500),)) and read(one, items=19) == "item"
    assert read(with_action("[DEAL] $5.00 (1x Item_2)"), items=1) == "item"
    whole = tuple((item, 100 * item) for item in range(1, 31))
    full = render_item_seller("SELL", whole, 50, "All of it.", "")
    assert read(full, items=30) == (50, "SELL", whole) and read(full, items=29) == "item"


def test_a_talk_that_announces_a_deal_must_fit_one_offer_of_the_menu():
    def talk(words):
        return read(GOOD.replace("Two to choose from.", words))

    for words in ("Deal at 120, take it.", "Good. Deal at $240.00!", "No deal at 50.", "Deal at 50? Never."):
        assert talk(words) == (2, "SELL", MENU), words
    for words in ("Deal at 119, take it.", "Good. Deal at $360.00!"):
        assert talk(words) == "format", words
    deal = with_action("[DEAL] $120.00 (1x Item_1)", GOOD.replace("Two to choose from.", "Deal at 50."))
    assert read(deal) == (2, "DEAL", ((1, 12000),))


def test_the_two_formats_are_never_mistaken_for_each_other():
    lines = "Thought: a\nTarget: Buyer 2\nTalk: b\nAction: [SELL] $120.00 (1x Item_1)"
    assert isinstance(parse_seller(lines, "Item_1"), Move) and read(lines) == "format"
    assert isinstance(parse_seller(GOOD, "Item_1"), Violation)


PIECES = [f"{start}{name}>" for name in TAGS for start in ("<", "</")]
PIECES += ["<action>", "<Talk x>", "< /Talk >", "<", ">", "&", "/", "\n", "\r\n", "\r", " ", "\t", "Buyer ", "; ", ";"]
PIECES += ["[SELL]", "[DEAL]", "[QUIT]", "[BUY]", "$", "1", "32", ".", ",", "00", "0", "(1x ", "(1 ", ")", "Item_"]
PIECES += [" $5.00 (1x Item_3)", "<think>", "</think>", "Deal at ", "Deal at $120.", "\u200b", "\u0660", "\ud83d", "x"]


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.none(), st.text(max_size=400), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from(["stop", "length", "content_filter", "timeout", "?"]),
)
def test_the_parser_is_total(text, items, thinking, reason):
    for parse, verbs in ((parse_item_seller, "SELL DEAL QUIT"), (parse_item_buyer, "BUY DEAL QUIT")):
        legal(parse(text, items, reason, thinking=thinking), items, verbs)


def legal(got, items, verbs):
    """A violation with its reason, or a move within what the grammar can say."""
    if isinstance(got, Violation):
        assert got.kind in ("format", "target", "item", "truncated", "timeout")
        assert got.detail.isascii() and got.detail.isprintable() and isinstance(got.text, str)
        return
    assert got.verb in verbs.split() and (got.target is None or got.target > 0)
    named = [item for item, _ in got.offers]
    assert len(set(named)) == len(named) and all(1 <= item <= items for item in named)
    assert all(0 < cents <= MAX_CENTS for _, cents in got.offers)
    assert len(named) == 0 if got.verb == "QUIT" else len(named) == 1 if got.verb == "DEAL" else len(named) >= 1


def mutated(text, seed):
    """Up to two random edits of a good reply: where the short way and the long way could part."""
    rng = random.Random(seed)
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice([*PIECES, ""]) + text[at + rng.choice([0, 0, 1, 3]) :]
    return text


ITEMS = st.integers(1, 12)
PRICES = st.one_of(st.integers(1, 120), st.integers(1, MAX_CENTS))
OFFERS = st.dictionaries(ITEMS, PRICES, min_size=1, max_size=12).map(lambda named: tuple(named.items()))
PLAIN_OFFERS = st.lists(st.tuples(ITEMS, st.integers(95, 99_999)), min_size=1, max_size=4).map(
    tuple
)  # items may repeat


@settings(max_examples=1000, deadline=None)
@given(
    PLAIN_OFFERS,
    st.integers(0, 10**9),
    st.sampled_from([12, 12, 12, 5, 1]),
    st.sampled_from(["offer", "DEAL", "QUIT"]),
    st.booleans(),
)
def test_the_short_way_gives_the_verdicts_of_the_long_way(offers, seed, items, verb, thinking):
    for role in ("SELL", "BUY"):
        said = role if verb == "offer" else verb
        if role == "SELL":
            text = mutated(render_item_seller(said, offers, seed % 12 + 1, f"Talk {seed}", "Hm"), seed)
            got = parse_item_seller(text, items, thinking=thinking)
            assert got == tags._parse_seller(text, items, thinking)
        else:
            text = mutated(render_item_buyer(said, offers, f"Talk {seed}", "Hm"), seed)
            got = parse_item_buyer(text, items, thinking=thinking)
            assert got == tags._parse_buyer(text, items, thinking)
        legal(got, items, f"{role} DEAL QUIT")


def test_plain_replies_take_the_short_way(monkeypatch):
    """Else the market's speed is gone without any test failing."""

    def never(*_):
        raise AssertionError("the long way")

    monkeypatch.setattr(tags, "_parse_seller", never)
    monkeypatch.setattr(tags, "_parse_buyer", never)
    for menu in (MENU[:1], MENU, tuple((item, 99999 - item) for item in range(1, 21))):
        assert read(render_item_seller("SELL", menu, 7, "So?\nWell?", "A & B > C"), 20) == (7, "SELL", menu)
        assert read(render_item_buyer("BUY", menu, "So?", ""), 20, "buyer") == (None, "BUY", menu)
    with pytest.raises(AssertionError, match="long way"):
        read(GOOD + "\n")


FREE = st.text(st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("<>&/ \n")), max_size=80).filter(
    lambda text: (
        not re.search("<[^>]*(?:thought|target|talk|action)", text, re.IGNORECASE)
        and "think>" not in text
        and "Deal " not in text
        and "\r\n" not in text
    )
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["SELL", "DEAL", "QUIT"]), OFFERS, st.integers(1, 999_999), FREE, FREE)
def test_a_rendered_seller_move_reads_back_to_itself(verb, offers, target, talk, thought):
    offers = {"SELL": offers, "DEAL": offers[:1], "QUIT": ()}[verb]
    text = render_item_seller(verb, offers, target, talk, thought)
    assert parse_item_seller(text, 12) == Move(verb, offers, target, talk.strip(), text)
    assert all(item_name(item) in text for item, _ in offers)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["BUY", "DEAL", "QUIT"]), OFFERS, FREE, FREE)
def test_a_rendered_buyer_move_reads_back_to_itself(verb, offers, talk, thought):
    offers = {"BUY": offers, "DEAL": offers[:1], "QUIT": ()}[verb]
    text = render_item_buyer(verb, offers, talk, thought)
    assert parse_item_buyer(text, 12) == Move(verb, offers, None, talk.strip(), text)


def test_a_rendered_quit_may_have_no_target():
    text = render_item_seller("QUIT", (), None, "Bye.", "No gain left.")
    assert parse_item_seller(text, 2) == Move("QUIT", (), None, "Bye.", text)


HEAD = "<Thought>x</Thought>\n<Target>Buyer 1</Target>\n<Talk>"
TAIL = "</Talk>\n<Action>[SELL] $3.00 (1x Item_1)</Action>"
OFFER = HEAD + "x</Talk>\n<Action>[SELL] "
HOSTILE = {
    "less": lambda n: HEAD + "<" * n + TAIL,
    "open": lambda n: "<Thought>" * (n // 9),
    "unclosed": lambda n: HEAD + "x" * n,
    "almost tags": lambda n: HEAD + "<Talk " * (n // 6) + TAIL,
    "attributes": lambda n: HEAD + "<Talk " + "/ " * (n // 2),
    "blanks in a tag": lambda n: HEAD + "<" + " " * n + TAIL,
    "blanks behind a slash": lambda n: HEAD + "< /" + " " * n + TAIL,
    "blanks behind a name": lambda n: HEAD + "< Talk" + " " * n + TAIL,
    "tags with blanks": lambda n: HEAD + ("<" + " " * 50) * (n // 51) + TAIL,
    "slashes": lambda n: HEAD + "</" * (n // 2) + TAIL,
    "white space": lambda n: " \n" * (n // 2),
    "white space between": lambda n: HEAD + "x</Talk>" + "\n" * n + "<Action>[QUIT]</Action>" + " " * n,
    "carriage returns": lambda n: HEAD + "\r\n" * (n // 2) + TAIL,
    "semicolons": lambda n: OFFER + ";" * n + "</Action>",
    "offers": lambda n: OFFER + "$3.00 (1x Item_1); " * (n // 19) + "</Action>",
    "different offers": lambda n: OFFER + "; ".join(f"$3 (1x Item_{j})" for j in range(1, n // 19)) + "</Action>",
    "plain offers": lambda n: OFFER + "; ".join(f"$3.00 (1x Item_{j})" for j in range(1, n // 22)) + "</Action>",
    "brackets": lambda n: OFFER + "$1 (1x " * (n // 7) + "</Action>",
    "verbs": lambda n: HEAD + "x</Talk>\n<Action>" + "[SELL]" * (n // 6) + "</Action>",
    "price digits": lambda n: OFFER + "$" + "9" * n + " (1x Item_1)</Action>",
    "price zeros": lambda n: OFFER + "$" + "0" * n + " (1x Item_1)</Action>",
    "price commas": lambda n: OFFER + "$1" + ",000" * (n // 4) + " (1x Item_1)</Action>",
    "item digits": lambda n: OFFER + "$3.00 (1x Item_" + "9" * n + ")</Action>",
    "buyer digits": lambda n: "<Thought>x</Thought><Target>Buyer " + "1" * n + "</Target><Talk>x" + TAIL,
    "deals": lambda n: HEAD + "Deal at 1,1" * (n // 11) + TAIL,
    "deals and blanks": lambda n: HEAD + ". Deal at 3" + " " * n + "x" + TAIL,
    "think": lambda n: "<think>" * (n // 7) + HEAD + TAIL,
    "surrogates": lambda n: HEAD + "\ud83d" * n + TAIL,
}


def seconds(text):
    """This process's own time for both parsers, thinking off and on: the lesser of two."""
    took = []
    for _ in range(2):
        start = time.process_time()
        for thinking in (False, True):
            for role, parse in (("SELL", parse_item_seller), ("BUY", parse_item_buyer)):
                own = (
                    text
                    if role == "SELL"
                    else text.replace("<Target>Buyer 1</Target>\n", "").replace("[SELL]", "[BUY]")
                )
                legal(parse(own, 3, thinking=thinking), 3, f"{role} DEAL QUIT")
        took.append(time.process_time() - start)
    return min(took)


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_as_the_reply_does(name):
    """Four times the text: four times the work where it is linear, sixteen times where it is quadratic. A tenth of a
    second is granted on top, so that noise decides nothing where the work takes next to no time. The steps are small so
    that quadratic work is caught before it takes hours."""
    before = seconds(HOSTILE[name](4_000))
    for n in (16_000, 64_000, 256_000, 1_024_000):
        took = seconds(HOSTILE[name](n))
        assert took < 10 * before + 0.1, f"{n:,} characters: {took:.3f} s, a quarter of them: {before:.3f} s"
        before = took
