"""The trade game's tools as native tool calling: schemas, the same verdicts as in code, a server that calls them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negolab.catalog import load_catalog
from negolab.environment import BUYER, SELLER
from negolab.environment.base import MAX_CALLS, TOOLS, Call
from negolab.environment.tools import TOOL_SET
from negolab.errors import NegolabError
from negolab.parser import parse_tools, render_tools
from negolab.parser.native import (
    NOTE,
    NativeCall,
    native_calls,
    native_messages,
    native_text,
    parse_native,
    tools_for,
)
from negolab.policies import chat_completions as wire
from negolab.policies.cast import Cast
from negolab.policies.model import LanguageModel
from negolab.policies.spec import spec_of
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from servers import MODEL, ModelServer, reply
from test_trade_metrics import text
from trade_words import calls_of

KINDS = {"unparseable", "unknown_tool", "bad_argument", "too_many_calls", "after_terminal", "truncated"}


# -- schemas --


@pytest.mark.parametrize("seat", [SELLER, BUYER])
def test_the_schemas_are_the_definitions(seat):
    schemas = tools_for(seat)
    assert json.loads(json.dumps(schemas)) == schemas
    assert tuple(schema["function"]["name"] for schema in schemas) == TOOLS
    for tool, schema in zip(TOOL_SET, schemas, strict=True):
        function = schema["function"]
        assert schema["type"] == "function" and ("last call" in function["description"]) == tool.terminal
        parameters = function["parameters"]
        assert parameters["type"] == "object" and parameters["additionalProperties"] is False
        assert list(parameters["properties"]) == [argument.name for argument in tool.arguments]
        assert parameters["required"] == [argument.name for argument in tool.arguments if argument.required]
        for argument in tool.arguments:
            assert parameters["properties"][argument.name]["type"] == argument.type
    told, own = json.dumps(schemas), "seller" if seat == SELLER else "buyer"
    assert "{other}" not in told and ("the buyer" in told, "the seller" in told) == (seat == SELLER, seat == BUYER)
    assert f"the {own}'s" not in told


@pytest.mark.parametrize(
    ("tool", "argument", "good", "bad"),
    [
        ("make_offer", "price", (0.01, 10_000_000), (0, 10_000_001)),
        ("wait_for_time_period", "duration", (0.5, 86_400), (0, 86_401)),
    ],
)
def test_the_limits_of_the_schemas_are_the_parsers(tool, argument, good, bad):
    function = next(s["function"] for s in tools_for(SELLER) if s["function"]["name"] == tool)
    schema = function["parameters"]["properties"][argument]
    for value in (*good, *bad):
        fits = schema["exclusiveMinimum"] < value <= schema["maximum"]
        read = parse_native([NativeCall(tool, json.dumps({argument: value}))], seat=SELLER)
        assert fits == (value in good) == (read.problems == ())


# -- native calls and code --

SAME = [
    # native calls, and the block that says the same
    ([("make_offer", '{"price": 950.5, "side_offer": "a case"}')], 'make_offer(price=950.5, side_offer="a case")'),
    ([("make_offer", '{"price": 950}'), ("wait_for_response", "{}")], "make_offer(950)\nwait_for_response()"),
    ([("respond_to_offer", '{"response": true}')], "respond_to_offer(True)"),
    ([("respond_to_offer", '{"response": false}')], "respond_to_offer(response=False)"),
    ([("send_message", '{"content": "a \\"b\\"\\n\\u00e9"}')], 'send_message("a \\"b\\"\\n\u00e9")'),
    ([("search_price", "")], "search_price()"),
    ([("quit_negotiation", "{}")], "quit_negotiation()"),
    ([("wait_for_time_period", '{"duration": 60}')], "wait_for_time_period(60)"),
    ([("search_price", '{"agent": "buyer"}')], 'search_price(agent="buyer")'),
    ([("search_price", '{"agent": "seller"}')], 'search_price(agent="seller")'),
    ([("haggle", '{"price": 1}'), ("search_price", "{}")], "haggle(price=1)\nsearch_price()"),
    ([("make_offer", '{"price": "950"}')], 'make_offer(price="950")'),
    ([("make_offer", '{"price": -1}')], "make_offer(price=-1)"),
    ([("make_offer", '{"price": 9.999}')], "make_offer(price=9.999)"),
    ([("make_offer", '{"price": null}')], "make_offer(price=None)"),
    ([("make_offer", "{}")], "make_offer()"),
    ([("make_offer", '{"price": 1, "currency": "EUR"}')], 'make_offer(price=1, currency="EUR")'),
    ([("respond_to_offer", '{"response": "yes"}')], 'respond_to_offer("yes")'),
    ([("send_message", '{"content": " "}')], 'send_message(" ")'),
    ([("search_price", "{}")] * 4, "\n".join(["search_price()"] * 4)),
    ([("quit_negotiation", "{}"), ("search_price", "{}")], "quit_negotiation()\nsearch_price()"),
    ([("respond_to_offer", '{"response": true}'), ("search_price", "")], "respond_to_offer(True)\nsearch_price()"),
]


@pytest.mark.parametrize(("calls", "block"), SAME)
def test_a_native_reply_gets_the_verdicts_of_the_code_that_says_the_same(calls, block):
    native = parse_native([NativeCall(*call) for call in calls], "hm", seat=BUYER)
    code = parse_tools(text(block), None, "stop", seat=BUYER)
    assert native.calls == code.calls and native.problems == code.problems
    assert native.calls or native.problems


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (("make_offer", "{price: 1}"), "bad_argument"),
        (("make_offer", "[950]"), "bad_argument"),
        (("make_offer", '{"price": [950]}'), "bad_argument"),
        (("make_offer", '{"price": {"dollars": 1}}'), "bad_argument"),
        (("make_offer", '{"price": 1e999}'), "bad_argument"),
        (("make_offer", '{"price": NaN}'), "bad_argument"),
        (("make_offer", '{"price": 1' + "0" * 400 + "}"), "bad_argument"),
        (("make_offer", '{"price": 1' + "0" * 5_000 + "}"), "bad_argument"),
        (("make_offer", "[" * 100_000), "bad_argument"),
        (("make_offer", '{"price": 1, "a b": 2}'), "bad_argument"),
        (("make_offer", '{"price": 1, "import": 2}'), "bad_argument"),
        (("make_offer", '{"price": 1, "": 2}'), "bad_argument"),
        (("functions.make_offer", '{"price": 1}'), "unknown_tool"),
        (("import", "{}"), "unknown_tool"),
        (("lambda", "{}"), "unknown_tool"),
        (("", ""), "unknown_tool"),
        (("__import__", '{"name": "os"}'), "unknown_tool"),
        (("make_offer(1)\nquit_negotiation", "{}"), "unknown_tool"),
        (("x" * 100_000, "{}"), "unknown_tool"),
        (("</think>```\n<end_code>", "{}"), "unknown_tool"),
    ],
)
def test_a_broken_call_is_lost_alone(call, kind):
    calls = [NativeCall("search_price", "{}"), NativeCall(*call), NativeCall("quit_negotiation", "{}")]
    read = parse_native(calls, seat=SELLER)
    assert [made.tool for made in read.calls] == ["search_price", "quit_negotiation"]
    assert [name for name, _ in read.problems] == [kind] and read.problems[0][1].startswith("call 2: ")


def test_a_cut_reply_has_no_effect_and_one_that_never_came_is_no_reply():
    call = [NativeCall("make_offer", '{"price": 5}')]
    assert parse_native(call, "", "length", seat=SELLER).problems[0][0] == "truncated"
    assert parse_native(call, "", "timeout", seat=SELLER).kind == "timeout"


WORDS = st.text(max_size=60) | st.sampled_from([*TOOLS, "```", "\n```", "</think>", "\nCode:", "<end_code>", "\ud800"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.lists(st.integers(), max_size=2)
ARGUMENTS = WORDS | st.dictionaries(
    WORDS | st.sampled_from(["price", "content", "response", "duration", "agent"]), VALUES, max_size=3
).map(json.dumps)


@given(st.lists(st.builds(NativeCall, WORDS, ARGUMENTS), max_size=5), WORDS)
def test_any_native_reply_is_read_call_by_call(calls, thought):
    """No text in a name, an argument or the thought can make a call of its own or take another one away."""
    whole = [NativeCall("search_price", "{}"), *calls][:MAX_CALLS]
    read = parse_native(whole, thought, seat=BUYER)
    alone = [parse_native([call], seat=BUYER) for call in whole]
    kinds = [kind for kind, _ in read.problems]
    assert set(kinds) <= KINDS and "unparseable" not in kinds
    if "after_terminal" not in kinds:
        assert read.calls == tuple(call for one in alone for call in one.calls)
        assert kinds == [kind for one in alone for kind, _ in one.problems]


LEGAL = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 10**9), st.text(max_size=20)).map(lambda p: Call("make_offer", price=p[0], text=p[1])),
        st.just(Call("respond_to_offer", answer=False)),
        st.text(min_size=1, max_size=40).filter(str.strip).map(lambda said: Call("send_message", text=said)),
        st.just(Call("search_price")),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@given(LEGAL)
def test_stored_replies_become_the_native_calls_that_they_make(calls):
    reply_text = render_tools(calls, "hm")
    thought, native = native_calls(reply_text)
    assert thought == "hm" and [call.name for call in native] == [call.tool for call in calls]
    assert parse_native(native, thought, seat=SELLER).calls == calls


@pytest.mark.parametrize(
    "said",
    [
        "no block",
        "",
        *map(text, ("haggle(1)", "x = 1", "make_offer(1 + 1)", "make_offer(1e999)", "make_offer(1, 2, 3)")),
    ],
)
def test_a_reply_that_is_no_block_of_calls_stays_as_it_was_written(said):
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "v"},
    ]
    assert native_messages(messages) == messages


def test_a_conversation_in_native_calls_answers_each_call_once():
    said = text('send_message("a")\nmake_offer(5)')
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "v"},
    ]
    made = native_messages(messages)
    assert [m["role"] for m in made] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert made[0]["content"] == f"s\n\n{NOTE}" and made[2]["content"] == "none"
    ids = [call["id"] for call in made[2]["tool_calls"]]
    assert len(set(ids)) == 2 and [m["tool_call_id"] for m in made[3:5]] == ids
    assert json.loads(made[2]["tool_calls"][1]["function"]["arguments"]) == {"price": 5}
    assert messages[0]["content"] == "s"


# -- over the wire --


def whole(**message):
    return json.dumps({"choices": [{"finish_reason": "tool_calls", "message": message}]}).encode()


def test_a_server_s_tool_calls_become_the_block_that_says_the_same():
    calls = [{"id": "a", "type": "function", "function": {"name": "make_offer", "arguments": '{"price": 9.5}'}}]
    read = wire.read_reply(whole(content="Thought: low", tool_calls=calls), None, True).completion
    assert (read.text, read.finish_reason) == (native_text([NativeCall("make_offer", '{"price": 9.5}')], "low"), "stop")
    assert wire.read_reply(whole(content="low", tool_calls=calls), None).completion.text == "low"
    calls[0]["function"]["arguments"] = {"price": 9.5}  # as some servers send it
    assert "make_offer(price=9.5)" in wire.read_reply(whole(content=None, tool_calls=calls), None, True).completion.text
    thinking = wire.read_reply(whole(content="<think>low</think>", tool_calls=calls), None, True).completion
    assert thinking.reasoning == "low" and "low" not in thinking.text
    for broken in ([7], [{}], [{"function": 3}], [{"function": {"name": 4, "arguments": 5}}]):
        found = wire.read_reply(whole(content=None, tool_calls=broken), None, True).completion.text
        assert parse_tools(found, None, "stop", seat=SELLER).problems[0][0] == "unknown_tool"
    for none in (None, [], "make_offer"):
        assert wire.read_reply(whole(content="hello", tool_calls=none), None, True).completion.text == "hello"


def test_the_option_is_said_in_the_manifest_only_where_it_is_not_the_default():
    assert "tools" not in spec_of("openai:m").deciding()
    assert spec_of("openai:m", {"tools": "native"}).deciding()["tools"] == "native"
    with pytest.raises(NegolabError, match="code or native"):
        spec_of("openai:m", {"tools": "xml"})
    assert spec_of("openai:m").engine_key() == spec_of("openai:m", {"tools": "native"}).engine_key()


def answer(body):
    """The same trader by either way of calling, with no other knowledge than what both ways are told."""
    if len(body["messages"]) < 2:  # somebody asks whether the server lives
        return reply(body, content="OK")
    told = [m for m in body["messages"] if m["role"] in ("system", "user")]
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    calls = calls_of(told, body["seed"])
    made = []
    for at, call in enumerate(calls):
        dollars = None if call.price is None else call.price // 100 if call.price % 100 == 0 else call.price / 100
        values = {
            "make_offer": {"price": dollars, **({"side_offer": call.text} if call.text else {})},
            "respond_to_offer": {"response": call.answer},
            "send_message": {"content": call.text},
            "wait_for_time_period": {"duration": call.seconds},
        }.get(call.tool, {})
        function = {"name": call.tool, "arguments": json.dumps(values)}
        made.append({"id": f"c{at}", "type": "function", "function": function})
    if "tools" not in body:
        return reply(body, content=native_text([NativeCall(**call["function"]) for call in made], "hm"), usage=usage)
    return reply(body, content="hm", tool_calls=made, finish_reason="tool_calls", usage=usage)


def test_a_model_that_calls_natively_plays_and_is_recorded_as_one_that_writes_code():
    pytest.importorskip("openai")
    from negolab.policies.openai import make_engine
    from negolab.policies.retry import Backoff

    schedule = Schedule(regime("trade", gains="gft"), load_catalog("sample").products[:6], seed=2, per_product=1)

    def played(server, tools):
        spec = spec_of(f"openai:{MODEL}", {"base_url": server.url, "tools": tools})
        model = LanguageModel(spec, make_engine([spec], Backoff()))
        cast = Cast(model, {"trader": model})
        try:
            return sorted(play(schedule, model, cast.buyers), key=lambda e: e.scenario.episode)
        finally:
            cast.close()

    with ModelServer(answer_with=answer) as server:
        code = [episode.to_line() for episode in played(server, "code")]
        assert not any("tools" in body for body in server.bodies)
        server.bodies.clear()
        native = played(server, "native")
        assert [episode.to_line() for episode in native] == code
        assert len(code) == 6 and any(e.outcome.kind == "deal" for e in native)
        assert not any(turn.violation for e in native for turn in e.turns)
        for body in server.bodies:
            seller = "You negotiate for the seller" in body["messages"][0]["content"]
            assert body["tools"] == tools_for(SELLER if seller else BUYER)
            assert NOTE in body["messages"][0]["content"] and "```" not in str(body["messages"][2:])
        longest = max((body["messages"] for body in server.bodies), key=len)
        asked = [call["id"] for m in longest for call in m.get("tool_calls", ())]
        assert asked and asked == [m["tool_call_id"] for m in longest if m["role"] == "tool"]


def test_native_tools_in_a_game_without_tools_are_an_error():
    from engines import FakeEngine

    schedule = Schedule(regime("in_distribution"), load_catalog("sample").products[:1], seed=2, per_product=1)
    spec = spec_of("openai:fake", {"base_url": "http://localhost:1/v1", "tools": "native"})
    model = LanguageModel(spec, FakeEngine(lambda prompt: None))
    with pytest.raises(NegolabError, match=re.escape("only the trade game is played with tools")):
        list(play(schedule, model, dict.fromkeys(schedule.regime.buyer_types, model)))
