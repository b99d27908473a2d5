"""The tool format: a table of replies with their verdicts, that nothing of a reply ever runs, then any text at all."""

import ast
import builtins
import json
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from negolab.environment import BUYER, SELLER, Call, Calls, Violation
from negolab.environment.base import MAX_CALLS, TOOLS
from negolab.money import MAX_CENTS
from negolab.parser import parse_tools, render_tools, tools
from negolab.parser.python_calls import MAX_CODE, MAX_TOKENS, expressions
from trade_games import text_of, wild_text

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases/tool_replies.jsonl").read_text(encoding="utf-8").splitlines()
]
KINDS = {"unparseable", "truncated", "unknown_tool", "bad_argument", "too_many_calls", "after_terminal"}


def parse(text, seat=SELLER) -> Calls:
    got = parse_tools(text, None, seat=seat)
    assert isinstance(got, Calls)
    return got


def kinds(text) -> list[str]:
    return [kind for kind, _ in parse(text).problems]


# -- the table --------------------------------------------------------------------------------------------------------


def check(case):
    """One row of the table."""
    got = parse_tools(case["text"], None, case["finish_reason"], seat=case["seat"], thinking=case["thinking"])
    expected = case["expect"]
    if "abort" in expected:
        assert isinstance(got, Violation) and got.kind == expected["abort"]
        return
    assert isinstance(got, Calls)
    assert [list(call) for call in got.calls] == expected["calls"]
    assert [kind for kind, _ in got.problems] == expected["problems"]
    for _, detail in got.problems:
        assert detail and detail.isascii() and detail.isprintable() and len(detail) < 200


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case):
    check(case)


def test_the_table_has_every_tool_and_every_kind_of_problem():
    assert len(CASES) >= 200 and len({case["id"] for case in CASES}) == len(CASES)
    called = {call[0] for case in CASES for call in case["expect"].get("calls", ())}
    assert called == set(TOOLS)
    assert {kind for case in CASES for kind in case["expect"].get("problems", ())} == KINDS
    assert {case["seat"] for case in CASES} == {SELLER, BUYER}


def test_verdicts_do_not_depend_on_how_warnings_are_treated():
    for treatment in ("error", "always", "ignore"):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(treatment)
            for case in CASES:
                check(case)
        assert shown == [], treatment


def test_what_is_unparseable_is_lost_as_a_whole_and_what_is_wrong_with_a_call_only_with_the_call():
    for case in CASES:
        problems = case["expect"].get("problems", ())
        if "unparseable" in problems or "truncated" in problems:
            assert len(problems) == 1 and case["expect"]["calls"] == []
    got = parse(text_of('foo()\nsend_message("a")\nmake_offer(price=2)'))
    assert [call.tool for call in got.calls] == ["send_message", "make_offer"]
    assert got.problems == (("unknown_tool", "call 1: there is no tool 'foo'"),)


def test_the_text_is_kept_as_written_without_its_think_block():
    reply = text_of("search_price()")
    assert parse(reply).text == reply
    thought = parse_tools(f"<think>a</think>{reply}", None, seat=SELLER, thinking=True)
    assert isinstance(thought, Calls) and thought.text == reply
    assert parse("nonsense").text == "nonsense" and parse(None).text == ""


# -- nothing runs -----------------------------------------------------------------------------------------------------

_HEARD: list[str] = []
_HOSTILE = [
    "import os\nos.system('touch {0}')",
    "__import__('os').system('touch {0}')",
    "open('{0}', 'w')",
    "exec(\"open('{0}', 'w')\")",
    "eval(\"open('{0}', 'w')\")",
    "compile('1', '', 'exec')",
    "make_offer(price=open('{0}', 'w').write('1'))",
    "send_message(content=(lambda: open('{0}', 'w'))())",
    "send_message(f\"{{open('{0}', 'w')}}\")",
    "[open('{0}', 'w') for _ in range(9)]",
    "while True: pass",
    "for i in range(10**12): make_offer(i)",
    "9**9**9**9",
    "'a' * 10**12",
    "send_message('%999999999d' % 1)",
    "().__class__.__base__.__subclasses__()[40]('{0}', 'w')",
    "@open('{0}', 'w')\ndef f(): pass",
    "class A(open('{0}', 'w')): pass",
    "def f(a=open('{0}', 'w')): pass",
    "make_offer.__globals__['os']",
    "search_price.__class__ = 5",
    "quit_negotiation(agent=input())",
    "breakpoint()",
    "globals().clear()",
    "exit()",
]


def _audit(event: str, _args: object) -> None:
    if _HEARD and event not in ("object.__getattr__", "object.__setattr__"):
        _HEARD.append(event)


def test_no_reply_runs_opens_or_imports_anything(tmp_path, monkeypatch):
    file = tmp_path / "made"
    replies = [text_of(code.format(file)) for code in _HOSTILE] + [case["text"] for case in CASES]
    for reply in replies:  # once before, so that what Python itself loads late is loaded
        parse_tools(reply, None, seat=SELLER)
    compiled = []
    real = builtins.compile

    def watched(source, filename, mode, flags=0, *rest, **named):
        compiled.append((mode, flags))
        return real(source, filename, mode, flags, *rest, **named)

    def never(*_args, **_named):
        raise AssertionError("a reply was run")

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "compile", watched)
        for name in ("exec", "eval", "open", "input", "breakpoint", "print"):
            patch.setattr(builtins, name, never)
        sys.addaudithook(_audit)  # there is no way to take it off: it is deaf while the list is empty
        _HEARD.append("on")
        try:
            for reply in replies:
                parse_tools(reply, None, seat=SELLER)
                parse_tools(reply, None, seat=BUYER, thinking=True)
            heard = _HEARD[1:]
        finally:
            _HEARD.clear()
    assert not file.exists()
    # All that happened in the interpreter: sources were made into trees.
    assert set(heard) == {"compile"} and len(heard) == len(compiled) > 100
    assert {mode for mode, _ in compiled} == {"eval"} and all(flags & ast.PyCF_ONLY_AST for _, flags in compiled)


@pytest.mark.parametrize("code", _HOSTILE, ids=range(len(_HOSTILE)))
def test_hostile_code_is_a_problem_with_a_name(code):
    got = parse(text_of(code.format("made")))
    assert got.calls == () and got.problems and {kind for kind, _ in got.problems} <= KINDS


# What is meant to make a parser slow, deep or loud.
_FLOODS = {
    "brackets": lambda n: "(" * n,
    "closed brackets": lambda n: "(" * n + ")" * n,
    "lists": lambda n: "[" * n,
    "braces in an f-string": lambda n: 'f"' + "{" * n + '"',
    "minus signs": lambda n: "-" * n + "1",
    "not": lambda n: "not " * n + "1",
    "lambdas": lambda n: "lambda:" * n + "1",
    "a sum": lambda n: "1+" * n + "1",
    "powers": lambda n: "1**" * n + "1",
    "comparisons": lambda n: "1<" * n + "1",
    "attributes": lambda n: "a" + ".a" * n,
    "subscripts": lambda n: "a" + "[0]" * n,
    "calls of calls": lambda n: "a" + "()" * n,
    "conditionals": lambda n: "1 if 1 else " * n + "1",
    "arguments": lambda n: "make_offer(" + "1," * n + ")",
    "names of arguments": lambda n: "make_offer(" + ",".join(f"a{k}=1" for k in range(n)) + ")",
    "digits": lambda n: "make_offer(" + "9" * n + ")",
    "hexadecimal digits": lambda n: "search_price(agent=0x" + "f" * n + ")",
    "a long name": lambda n: "a" * n + "()",
    "a long message": lambda n: f'send_message("{"a" * n}")',
    "backslashes": lambda n: 'send_message("' + "\\" * n + '")',
    "escapes": lambda n: 'send_message("' + "\\d" * n + '")',
    "open quotes": lambda n: "'\"" * n,
    "triple quotes": lambda n: "'''\\" * n,
    "quotes and escapes": lambda n: '"""\\' * n,
    "texts side by side": lambda n: "send_message(" + '"a" ' * n + ")",
    "spaces": lambda n: "make_offer(" + " " * n + "1",
    "empty lines": lambda n: "\n" * n + "search_price()",
    "comments": lambda n: "#\n" * n + "search_price()",
    "calls": lambda n: "search_price()\n" * n,
    "semicolons": lambda n: "search_price();" * n,
    "elif": lambda n: "if 1: 1\n" + "elif 1: 1\n" * n,
    "nested blocks": lambda n: "".join(" " * k + "if 1:\n" for k in range(min(n, 150))) + " " * 150 + "1",
    "labels": lambda n: "\nCode:" * n,
    "think tags": lambda n: "<think>" * n,
    "fences": lambda n: "``` " * n,
    "spaced fences": lambda n: " \n" * n + "``",
    "carriage returns": lambda n: "\r" * n,
    "zero bytes": lambda n: "\0" * n,
    "surrogates": lambda n: "\ud800" * n,
}


@pytest.mark.parametrize("flood", _FLOODS.values(), ids=_FLOODS)
def test_floods_are_problems_in_milliseconds(flood):
    for size in (300, 5000, 1_000_000):
        for reply in (text_of(flood(size)), "Thought: " + flood(size), text_of("search_price()", flood(size))):
            best = 1.0
            for _ in range(3):
                start = time.perf_counter()
                got = parse_tools(reply, None, seat=SELLER)
                best = min(best, time.perf_counter() - start)
            assert isinstance(got, Calls)
            assert best < 0.03 + 2e-8 * len(reply), (size, best)


@pytest.mark.parametrize("flood", _FLOODS.values(), ids=_FLOODS)
def test_time_is_linear_in_the_length_of_a_block(flood):
    def seconds(size):
        block = flood(size)[:size]
        best = 1.0
        for _ in range(5):
            start = time.perf_counter()
            expressions(block)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(MAX_CODE) < 20 * seconds(MAX_CODE // 8) + 0.002  # 8 where it is linear, 64 where it is quadratic


def test_a_megabyte_of_thought_is_no_problem_and_a_megabyte_of_block_is():
    assert kinds(text_of("search_price()", "a" * 1_000_000)) == []
    (problem,) = parse(text_of(f'send_message("{"a" * 1_000_000}")')).problems
    assert problem == ("unparseable", f"a block of 1000017 characters; {MAX_CODE} at most")
    fits = MAX_CODE - len('send_message("")\n')  # the newline before the closing fence belongs to the block
    assert kinds(text_of(f'send_message("{"a" * fits}")')) == []
    assert kinds(text_of(f'send_message("{"a" * (fits + 1)}")')) == ["unparseable"]


def test_the_size_of_a_statement_is_limited_and_not_that_of_a_block():
    many = ", ".join(["1"] * MAX_TOKENS)
    assert kinds(text_of(f"make_offer({many})")) == ["unparseable"]
    assert kinds(text_of("make_offer(1)\n" * MAX_TOKENS)) == ["too_many_calls"]
    assert kinds(text_of("make_offer(1); " * MAX_TOKENS)) == ["too_many_calls"]
    assert kinds(text_of("1 + " * 40 + "1")) == ["unknown_tool"]


def test_nothing_is_printed_and_no_stack_overflows(tmp_path):
    """In a process of its own: a crash in C would take the tests along, and warnings are shown once a process."""
    replies = [text_of(flood(3000)) for flood in _FLOODS.values()] + [case["text"] or "" for case in CASES]
    file = tmp_path / "replies.json"
    file.write_text(json.dumps(replies), encoding="utf-8")
    program = (
        "import json, sys, threading\n"
        "from negolab.parser import parse_tools\n"
        "replies = json.load(open(sys.argv[1], encoding='utf-8'))\n"
        "done = []\n"
        "threading.stack_size(256 * 1024)\n"
        "run = lambda: done.append([parse_tools(reply, None, seat=0) for reply in replies])\n"
        "thread = threading.Thread(target=run)\n"
        "thread.start()\n"
        "thread.join()\n"
        "sys.exit(0 if len(done[0]) == len(replies) else 1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-W", "ignore::ResourceWarning", "-c", program, file], capture_output=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


# -- any text at all --------------------------------------------------------------------------------------------------


def holds_together(got):
    """What is true of every reading."""
    assert isinstance(got, Calls) and len(got.calls) <= MAX_CALLS
    assert {kind for kind, _ in got.problems} <= KINDS and (got.calls or got.problems)
    assert all(detail.isascii() and detail.isprintable() and len(detail) < 200 for _, detail in got.problems)
    for at, call in enumerate(got.calls):
        assert call.tool in TOOLS
        assert (call.price is not None) == (call.tool == "make_offer")
        assert call.price is None or (type(call.price) is int and 0 < call.price <= MAX_CENTS)
        assert (call.answer is not None) == (call.tool == "respond_to_offer")
        assert bool(call.text) <= (call.tool in ("send_message", "make_offer"))
        assert (call.seconds > 0) == (call.tool == "wait_for_time_period")
        call.text.encode("utf-8")
        ends = call.tool in ("quit_negotiation", "wait_for_response", "wait_for_time_period") or call.answer is True
        assert not ends or at == len(got.calls) - 1


_PIECES = st.sampled_from(
    [
        *TOOLS,
        *'( ) price= content= agent= " \' """ f r b \\ \\d \\x41 \\400'.split(),
        *"1 0 1or .5 e5 _ x { } [ ] , ; # : = @ ()".split(),
        *"lambda: if else for * ** - not True None := ... await ``` <end_code> <think> \u00e9 \ufeff".split(),
        *["\n", " ", "\t", "\f", "\nCode:", "\nThought:", "\r", "\0", "\x1a", "\u2028", "\ud800", " not ", "    "],
    ]
)
_BLOCKS = st.lists(_PIECES, max_size=16).map("".join)


@settings(max_examples=600, deadline=None)
@given(_BLOCKS | st.text(max_size=60), st.booleans())
def test_any_block_is_read_without_an_exception_and_as_the_long_way_reads_it(block, message):
    reply = text_of(f'send_message("{block}")' if message else block)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = parse(reply)
        holds_together(got)
        assert got == tools._parse(reply, SELLER, False)


@settings(deadline=None)
@given(st.text() | _BLOCKS, st.sampled_from(["stop", "length", "content_filter", "?"]), st.booleans())
def test_any_text_is_read_without_an_exception(text, finish, thinking):
    got = parse_tools(text, None, finish, seat=BUYER, thinking=thinking)
    if finish == "length":
        assert isinstance(got, Calls) and [kind for kind, _ in got.problems] == ["truncated"]
    holds_together(got)


_STRINGS = st.text(min_size=1, max_size=30).filter(lambda text: text.strip() != "")
_MARKS = (
    st.lists(
        st.sampled_from(
            ["```", "<think>", "</think>", "<end_code>", "\n", "\r\n", "'", '"', "\\", "Code:", "\x00", "a", "\u2028"]
        ),
        min_size=1,
        max_size=8,
    )
    .map("".join)
    .filter(lambda text: text.strip() != "")
)
_TEXTS = _STRINGS | _MARKS
_OPEN = st.one_of(
    st.builds(lambda p, t: Call("make_offer", price=p, text=t), st.integers(1, MAX_CENTS), st.just("") | _TEXTS),
    st.builds(lambda t: Call("send_message", text=t), _TEXTS),
    st.just(Call("respond_to_offer", answer=False)),
    st.just(Call("search_price")),
)
_LAST = st.one_of(
    _OPEN,
    st.sampled_from(
        [Call("respond_to_offer", answer=True), Call("quit_negotiation"), Call("wait_for_response")],
    ),
    st.builds(lambda s: Call("wait_for_time_period", seconds=s), st.floats(1e-9, 86_400.0)),
)
_TURNS = st.builds(lambda first, last: (*first, last), st.lists(_OPEN, max_size=2), _LAST)


@settings(max_examples=400, deadline=None)
@given(_TURNS, st.text(max_size=30) | _MARKS, st.sampled_from([SELLER, BUYER]))
@example((Call("send_message", text="<think>\n```\n'\"\\"),), "a\nCode:\nb\nThought: c</think>", SELLER)
def test_what_is_written_is_read_back(calls, thought, seat):
    reply = render_tools(calls, thought)
    got = parse(reply, seat)
    assert got.calls == calls and got.problems == ()
    assert got == tools._parse(reply, seat, False)


def test_plain_replies_take_the_short_way_and_odd_ones_the_same_verdicts(monkeypatch):
    rng = random.Random(4)
    replies = [wild_text(rng) for _ in range(3000)]
    short = [reply for reply in replies if tools._plain(reply) is not None]
    assert len(short) > 1000
    for reply in replies:
        assert parse(reply) == tools._parse(reply, SELLER, False)
    usual = render_tools((Call("send_message", text="I can do better than that."), Call("make_offer", 105050)), "Near.")
    monkeypatch.setattr(tools, "_parse", None)
    assert kinds(usual) == []


def test_both_ways_are_quick():
    usual = render_tools((Call("send_message", text="I can do better than that."), Call("make_offer", 105050)), "Near.")
    odd = usual.replace("than", r"\$5")

    def microseconds(reply):
        best = 1.0
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(300):
                parse_tools(reply, None, seat=SELLER)
            best = min(best, (time.perf_counter() - start) / 300)
        return best * 1e6

    assert tools._plain(usual) and not tools._plain(odd)
    assert microseconds(usual) < 100 and microseconds(odd) < 1000  # about 9 and 90 on a slow core
