"""Chat completions as servers of many makes write them: replies, errors, waits."""

import json
from email.utils import formatdate

import pytest

from negolab.policies import chat_completions as wire
from negolab.policies.retry import Backoff, retry_after


@pytest.mark.parametrize(
    ("thinking", "message", "text", "reasoning"),
    [
        (None, {"content": None}, None, None),
        (None, {"content": None, "reasoning_content": "Thought: x"}, None, "Thought: x"),
        (None, {"content": "", "reasoning": "hm"}, None, "hm"),
        (None, {"content": "a", "reasoning": "hm"}, "a", "hm"),
        (None, {"content": "<think>hm</think>\n\na"}, "a", "hm"),
        (None, {"content": "hm</think>a"}, "a", "hm"),
        (None, {"content": "hm</think>a", "reasoning": "r"}, "hm</think>a", "r"),
        (True, {"content": "<think>never closed"}, None, "never closed"),
        (False, {"content": "<think>hm</think>a"}, "<think>hm</think>a", None),
        (
            None,
            {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
            "ab",
            None,
        ),
        (None, {"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"text": "a"}]}, "a", "hm"),
        (None, {"content": []}, None, None),
        (None, {"content": None, "tool_calls": [{"id": "1"}]}, None, None),
        (None, {"content": None, "refusal": "no"}, "no", None),
    ],
)
def test_where_the_words_are(thinking, message, text, reasoning):
    content = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    found = wire.read_reply(content, thinking)
    assert (found.completion.text, found.completion.reasoning) == (text, reasoning)
    assert found.completion[2:5] == (None, None, None)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\xff", b"[" * 100_000, b'{"choices":null}', b'{"choices":[1]}'),
        *(b'{"choices":[{}]}', b'{"choices":[{"message":{"content":5}}]}', b'{"choices":[{"message":[]}]}'),
    ],
)
def test_what_is_no_reply_is_no_crash(content):
    with pytest.raises(wire.Unreadable):
        wire.read_reply(content, None)


def test_how_replies_end_and_what_they_used():
    def end(reason, **usage):
        whole = {"choices": [{"message": {"content": "a"}, "finish_reason": reason}], "usage": usage}
        return wire.read_reply(json.dumps(whole).encode(), None).completion

    assert [
        end(r).finish_reason for r in ("stop", None, "tool_calls", 5, "length", "max_tokens", "content_filter")
    ] == [
        *["stop"] * 4,
        "length",
        "length",
        "content_filter",
    ]
    used = end("stop", prompt_tokens=7, completion_tokens=10**30, prompt_tokens_details={"cached_tokens": 3})
    assert used[2:5] == (7, None, 3)
    assert end("stop", prompt_tokens="7", completion_tokens=-1, prompt_cache_hit_tokens=2)[2:5] == (None, None, 2)
    assert end("stop", prompt_tokens=True, prompt_tokens_details=[1])[2:5] == (None, None, None)


@pytest.mark.parametrize(
    ("message", "asked", "fits"),
    [
        ("maximum context length is 4097 tokens. However, you requested 4203 tokens (3703 in the messages, 500 in the "
         "completion).", 500, 394),
        ("maximum context length is 2048 tokens. However, your messages resulted in 3000 tokens.", 500, None),
        ("'max_tokens' is too large: 1024. The maximum context length is 2048 tokens and your request has 1500 "
         "input tokens (1024 > 2048 - 1500).", 1024, 548),
        ("This model's maximum context length is 512 tokens. However, you requested 400 output tokens and your prompt "
         "contains 200 input tokens, for a total of 600 tokens.", 400, 312),
        ("This model's maximum context length is 512 tokens. However, you requested 400 output tokens and your prompt "
         "contains at least 113 input tokens, for a total of at least 513 tokens.", 400, 200),
        ("This model's maximum context length is 512 tokens. However, you requested 1 output tokens and your prompt "
         "contains at least 512 input tokens, for a total of at least 513 tokens.", 1, None),
        ("You passed 1021 input tokens and requested 40 output tokens. However, the model's context length is only "
         "1024 tokens, resulting in a maximum input length of 984 tokens.", 40, 3),
        ("Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
         "5000 tokens: 4000 tokens from the input messages and 1000 tokens for the completion.", 1000, 96),
        ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", 100, None),
        ("The decoder prompt (length 3000) is longer than the maximum model length of 2048.", 100, None),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
         1000, 96),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 100, None),
        ("prompt is too long: 210000 tokens > 200000 maximum", 100, None),
    ],
)  # fmt: skip
def test_how_much_fits_in_servers_own_words(message, asked, fits):
    error = wire.read_error(400, json.dumps({"error": {"message": message}}).encode())
    assert wire.too_long(error) and wire.shorter(error, asked) == fits


def test_other_errors_are_not_about_the_context():
    for message in ("max_tokens is too large: 20000. This model supports at most 16384 completion tokens", "bad", ""):
        assert not wire.too_long(wire.ServerError(400, message, ""))
    assert wire.too_long(wire.ServerError(400, "", "context_length_exceeded"))
    assert not wire.too_long(wire.ServerError(429, "maximum context length is 5", ""))


def test_a_model_by_another_name():
    for asked, served, same in [
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4", "gpt-4.1", False),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", True),
        ("llama3", "llama3:latest", True),
        ("openai/gpt-4o", "gpt-4o-2024-08-06", True),
        ("a", "", True),
        ("a", "b", False),
    ]:
        assert wire.same_model(asked, served) is same


def test_how_long_is_waited():
    now = 1_800_000_000.0
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({"retry-after": "3", "retry-after-ms": "250"}) == 0.25
    assert retry_after({"retry-after": formatdate(now + 20, usegmt=True)}, now) == 20
    assert retry_after({"retry-after": formatdate(now - 20, usegmt=True)}, now) == 0
    for odd in ("", "soon", "-1", "inf", "nan", "Mon, 99 Foo 2020 99:99:99 GMT", "1e999"):
        assert retry_after({"retry-after": odd}) is None
    waits = [Backoff().seconds(n, False, 1.0) for n in range(1, 12)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert Backoff().seconds(1, False, 0.0) == 0.25 and Backoff().seconds(10**6, True, 1.0) == 60
    assert sum(Backoff().seconds(n, True, 0.5) for n in range(1, 6)) > 45  # five tries sit out most of a minute's limit
