"""Transcripts: the layout of section 14, whose secret is what, and text that must do no harm."""

import html.parser
import re

import pytest

from markets import CODE, TRAINED, TRAINED_MARKET, UNTRAINED, UNTRAINED_MARKET, market, text_of
from negolab.catalog import Listing, Product
from negolab.policies.base import Reply
from negolab.rollout import play
from negolab.transcripts import printable, reward_text, split_reply, steps, to_html, to_text


class Fixed:
    """Speaks given texts by seat, in order, the last one again and again."""

    def __init__(self, texts, name):
        self.texts, self.name = texts, name

    def reply(self, requests):
        said = []
        for request in requests:
            script = self.texts[request.seat]
            text = script[min(len(request.view.own), len(script) - 1)]
            text = text[min(request.attempt, len(text) - 1)] if isinstance(text, list) else text
            said.append(text if isinstance(text, Reply) else Reply(text))
        return said


def played(scenario, texts):
    kinds = set(scenario.buyer_types)
    (episode,) = play([scenario], Fixed(texts, "trained"), {kind: Fixed(texts, kind) for kind in kinds})
    return episode


def golden(script, scenario):
    texts = {}
    for seat, verb, cents, target in script:
        texts.setdefault(seat, []).append(text_of(seat, verb, cents, target))
    return played(scenario, texts)


@pytest.fixture(scope="module")
def trained():
    return golden(TRAINED, TRAINED_MARKET)


class Page(html.parser.HTMLParser):
    """What a browser would find: elements with attributes, and the text outside style and script."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self._inside = [], [], ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("style", "script"):
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def test_the_papers_trained_run_reads_like_section_14(trained):
    text = to_text(trained)
    for line in (
        "Episode 0: baby-products_17 - Stroller caddy",
        "List price:   $34.99 (public)",
        "Cost:         $18.75 (private to the seller)",
        "Room:         $16.24 (list price - cost)",
        "Limits:       N = 3 buyers, K = 3 per buyer, T = 7 in all (T < N x K)",
        "  Buyer 2  iter-60  $38.37         1.10           1     $10.45",
        "--- Turn 1: concurrent buyer openings ---",
        "Buyer 2 (rank 1, hidden budget $38.37) - turn 1",
        "Seller (trained) - turn 1",
        "  Thought (private): a private thought",
        "  Target (private):  Buyer 2",
        "  Action:            [SELL] $34.99 (1x baby-products_17)",
        "--- Turn 5: the deal closes at $32.50 ---",
        "Deal at $32.50 with Buyer 2 (rank 1, hidden budget $38.37): the seller accepted its bid.",
        "reward = ($32.50 - $18.75) / ($34.99 - $18.75) = 0.847",
        "The seller engaged 3 of 3 buyers. Rank 1: Buyer 2 ($38.37).",
    ):
        assert line in text.split("\n"), line
    assert re.findall(r"^\w+.* - turn (\d)$", text, re.M) == list("111122334455")
    assert "Standing offers" not in text and "\x1b" not in text


def test_the_untrained_run_names_who_was_never_engaged():
    episode = golden(UNTRAINED, UNTRAINED_MARKET)
    text = to_text(episode)
    assert "reward = ($19.00 - $18.75) / ($34.99 - $18.75) = 0.015\n" in text
    assert "engaged 1 of 3 buyers; never engaged: Buyer 2, Buyer 3. Rank 1: Buyer 3 ($40.11)." in text


def test_boards_are_those_the_seller_saw(trained):
    shown = [(step.board_title, step.board) for step in steps(trained) if step.board is not None]
    assert [title[-6:] for title, _ in shown] == [f"turn {i}" for i in range(1, 6)]
    assert "Buyer 2's action history: [BUY] $10.45 @ turn 1, [BUY] $18.00 @ turn 2" in shown[2][1]
    assert shown[2][1].endswith("(T): 5. List price: $34.99. Your cost (do not sell below this): $18.75.")
    text = to_text(trained, boards=True)
    assert text.count("=== Standing offers ===") == 5
    assert max(map(len, text.split("\n"))) <= 100


def test_a_board_at_the_end_when_messages_run_out():
    texts = {1: [text_of(1, "BUY", 900, None)], 0: [text_of(0, "SELL", 3000, 1)]}
    episode = played(market(budgets=(2000,), openings=(900,), k=2, t=2), texts)
    assert [step.board_title for step in steps(episode) if step.board][-1] == "Standing offers at the end"
    assert "No deal: every buyer has quit or is capped." in to_text(episode)
    assert reward_text(episode) == "reward = 0 (no deal)"


def test_a_deal_above_list_is_capped_and_says_so():
    texts = {1: [text_of(1, "BUY", 3600, None)], 0: [text_of(0, "DEAL", 3600, 1)]}
    episode = played(market(budgets=(4000,), openings=(3600,)), texts)
    assert reward_text(episode) == "reward = min(1, ($36.00 - $18.75) / ($34.99 - $18.75)) = min(1, 1.062) = 1"


def test_a_wrong_stored_reward_is_pointed_at(trained):
    wrong = type(trained)(*[getattr(trained, name) for name in type(trained).__slots__])
    wrong.reward = 0.5
    assert "0.847; but the record says 0.5: run `negolab verify`" in reward_text(wrong)


HARM = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;</details></main>"


def harmful():
    """An episode in which every free text tries to be HTML: product, Talk, Thought, refused and violating replies."""
    product = Product(Listing(CODE, HARM, HARM + "\n</style>", "baby-products", 3499), 1875)
    bad_buyer = f"Thought: {HARM}\nTalk: {HARM}\nAction: [BUY] $999.00 (1x {CODE})"
    good_buyer = f"Thought: {HARM}\nTalk: {HARM}\nAction: [BUY] $9.00 (1x {CODE})"
    asks = f"Thought: {HARM}\nTarget: Buyer 1\nTalk: {HARM}\nAction: [SELL] $30.00 (1x {CODE})"
    texts = {1: [[bad_buyer, good_buyer]], 0: [asks, f"{HARM} is no reply"]}
    return played(market(budgets=(2000,), openings=(900,), types=(HARM,), product=product), texts)


def test_nothing_that_anybody_wrote_becomes_markup():
    source = to_html([harmful(), harmful()], source=HARM, kinds={HARM: HARM})
    page = Page(source)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1 and "img" not in tags
    assert "alert" not in re.search(r"<script>(.*?)</script>", source, re.S)[1]
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert HARM in page.words  # it is shown as it was written
    assert "999.00" in page.words and "reply refused by the guard" in page.words.lower()
    assert "is no reply" in page.words and "Violation: format." in page.words


def test_the_page_is_self_contained_and_allows_only_its_own_script(trained):
    import base64
    import hashlib

    source = to_html(trained)
    page = Page(source)
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        assert "src" not in attrs and not attrs.get("href", "#").strip("#e0123456789"), attrs
    assert "http://" not in source and "https://" not in source and "url(" not in source and "@import" not in source
    script = re.search(r"<script>(.*?)</script>", source, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_the_page_says_whose_secret_is_what(trained):
    page = Page(to_html(trained, kinds={"trained": "scripted stand-in"}))
    for words in (
        "Hidden from the seller private",
        "Thought private a private thought",
        "Target private Buyer 2",
        "Buyer 2 (rank 1, hidden budget $38.37) - turn 2",
        "reward = ($32.50 - $18.75) / ($34.99 - $18.75) = 0.847",
        "trained (scripted stand-in)",
        "Seller messages remaining (T): 7.",
    ):
        assert words in page.words, words
    boards = [attrs for tag, attrs in page.tags if tag == "details" and attrs.get("class") == "board"]
    assert len(boards) == 5 and not any("open" in attrs for attrs in boards)
    opened = Page(to_html(trained, boards=True, thoughts=False))
    assert all("open" in a for t, a in opened.tags if t == "details" and a.get("class") == "board")
    assert "a private thought" not in opened.words and "a private thought" not in to_text(trained, thoughts=False)


def test_many_episodes_have_an_index_and_one_has_none(trained):
    other = golden(UNTRAINED, UNTRAINED_MARKET)
    page = Page(to_html([trained, other]))
    assert [a["href"] for t, a in page.tags if t == "a"] == ["#e1", "#e1", "#e2", "#e2"]
    assert {"e1", "e2"} <= {a.get("id") for _, a in page.tags}
    assert "2 negotiation transcripts" in page.words
    assert not [a for t, a in Page(to_html(trained)).tags if t == "a"]


def test_buyers_keep_their_colour_and_fifteen_are_told_apart():
    n = 16
    texts = {seat: [text_of(seat, "BUY", 900, None)] for seat in range(1, n + 1)}
    texts[0] = [text_of(0, "SELL", 3000, 16), "[nonsense]"]
    page = Page(to_html(played(market(budgets=(2000,) * n, openings=(900,) * n), texts)))
    classes = [attrs["class"].split() for tag, attrs in page.tags if tag == "article"]
    assert [c[-1] for c in classes[:n]] == [f"c{i % 15}" for i in range(n)]
    assert classes[n] == ["message", "seller", "c0"] and "bad" in classes[-1]


def test_guard_fallback_tokens_and_violations_are_shown_as_such():
    over = f"Thought: t\nTalk: take it\nAction: [BUY] $99.00 (1x {CODE})"
    ask = Reply(text_of(0, "SELL", 3000, 1), "stop", 812, 64)
    texts = {1: [text_of(1, "BUY", 900, None), over], 0: [ask, text_of(0, "SELL", 100, 1)]}
    episode = played(market(budgets=(2000,), openings=(900,)), texts)
    text = to_text(episode)
    assert " ".join(text.split()).count("reply refused by the guard (budget: $99.00 is over the budget)") == 6
    assert "  fallback: played by the guard, not by the player" in text
    assert "  (tokens: 812 in, 64 out)" in text
    assert "  VIOLATION (below_cost): [SELL] $1.00 is below the cost $18.75" in text
    assert "  | Action: [SELL] $1.00 (1x baby-products_17)" in text  # the violating reply, raw
    assert "Violation by the seller (below_cost): [SELL] $1.00 is below the cost $18.75." in text
    assert "reward = -1 (the seller broke a rule)" in text
    page = Page(to_html(episode))
    assert page.words.count("Reply refused by the guard") == 6 and "Fallback: played by the guard" in page.words


@pytest.mark.parametrize(
    ("seat", "finish", "said"),
    [
        (0, "context_limit", "Aborted: the seller could not speak: the conversation does not fit into its context."),
        (1, "timeout", "Aborted: Buyer 1 could not speak: no reply came in time."),
    ],
)
def test_an_aborted_episode_is_no_violation(seat, finish, said):
    texts = {1: [text_of(1, "BUY", 900, None)], 0: [text_of(0, "SELL", 3000, 1)]}
    texts[seat] = [*texts[seat], Reply(None, finish)] if seat else [Reply(None, finish)]
    episode = played(market(budgets=(2000,), openings=(900,)), texts)
    text = " ".join(to_text(episode).split())
    assert episode.outcome.kind == "aborted" and said in text and "No rule was broken." in text
    assert f"NO REPLY ({finish})" in text and "reward = 0 (aborted, counts as no deal)" in text
    page = Page(to_html(episode))
    assert said in page.words and f"No reply: {finish}." in page.words
    for shown in (text, page.words):
        assert not re.search("violation|a rule is broken", shown, re.IGNORECASE)


def test_terminal_escapes_and_direction_marks_are_spelled_out():
    talk = "red \x1b[31m, bell \x07, title \x1b]0;x\x07, back \x08, flip \u202e, lone \ud800, wide \u2028"
    shown = printable(talk)
    assert shown == (r"red \x1b[31m, bell \x07, title \x1b]0;x\x07, back \x08, flip \u202e, lone \ud800, wide \u2028")
    reply = f"Thought: \nTalk: hi \x1b[2J \u202e there\nAction: [BUY] $9.00 (1x {CODE})"
    episode = played(market(budgets=(2000,), openings=(900,)), {1: [reply], 0: ["\x1b[2J\x00"]})
    for out in (to_text(episode), to_html(episode)):
        assert "\x1b" not in out and "\u202e" not in out and "\x00" not in out
        assert "\\x1b[2J" in out
    painted = to_text(episode, colour=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == to_text(episode)


def test_a_huge_reply_is_cut_with_a_word_about_it_and_takes_no_time():
    texts = {1: [text_of(1, "BUY", 900, None)], 0: ["x" * 1_000_000]}
    episode = played(market(budgets=(2000,), openings=(900,)), texts)
    text = to_text(episode)
    assert len(text) < 10_000 and "[... 996,000 more characters, see --json]" in " ".join(text.split())
    assert len(to_html(episode)) < 60_000
    assert max(map(len, text.split("\n"))) <= 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no labels at all",
        "Talk: a\nThought: b\nAction: [QUIT]",
        "Thought: a\nThought: b\nTalk: c\nAction: [QUIT]",
        "before\nThought: a\nTalk: c\nAction: [QUIT]",
    ],
)
def test_what_has_not_the_form_is_shown_raw(text):
    assert split_reply(text) is None


def test_free_text_may_span_lines_and_be_empty():
    assert split_reply("Thought: a\nb\n\nTarget: Buyer 1\nTalk:\nAction: [QUIT]") == (
        ("Thought", "a\nb"),
        ("Target", "Buyer 1"),
        ("Talk", ""),
        ("Action", "[QUIT]"),
    )
