"""Chat completions as they go over the wire: requests written, replies and errors read.

The dialect is OpenAI's, which vLLM, SGLang, llama.cpp, Ollama and most hosted services speak with small differences.
Nothing a server sends is trusted to have the documented shape: what cannot be read is ``Unreadable``, never a crash.

What a request leaves out is the server's choice. vLLM and SGLang fill in ``top_k``, ``min_p`` and penalties from the
model's ``generation_config.json``; where that matters, name them in ``body``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from negolab.parser.native import NativeCall, native_messages, native_text, tools_for
from negolab.parser.shared import finish_of
from negolab.policies.engine import Completion, Prompt, split_reasoning
from negolab.prompts.multi_buyer import Message

OURS = ("model", "messages", "stream", "n")
"""Fields of a request that ``body`` may not set."""
LIMITS = ("max_completion_tokens", "max_tokens")
"""The two names of the field that limits a reply."""
_SEED_BITS = (1 << 31) - 1  # what every server takes: some keep the seed in a signed 32-bit number


class Unreadable(Exception):
    """A body that is no chat completion, and what is wrong with it."""


class ServerError(NamedTuple):
    """What a server says instead of a reply."""

    status: int
    message: str
    """One line, shortened."""
    code: str
    """The provider's name for it, if any."""

    def __str__(self) -> str:
        return f"HTTP {self.status}" + (f": {self.message}" if self.message else "")


class Answer(NamedTuple):
    """A reply and what else is told with it."""

    completion: Completion
    model: str
    """Which model the server says it was; empty where it does not say."""
    cut: bool
    """A thinking block was cut out of the content."""


def request_of(prompt: Prompt, model: str, seeded: bool, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the request for one reply. ``extra`` goes over everything but ``OURS``; a null drops a field."""
    sampling = prompt.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": native_messages(prompt.messages) if prompt.native else list(prompt.messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    if prompt.native:
        body["tools"] = tools_for(prompt.conversation[1])
    if sampling.top_k > 0:  # no field of OpenAI's own: sent only where it is wanted
        body["top_k"] = sampling.top_k
    if seeded:
        body["seed"] = prompt.seed & _SEED_BITS
    if sampling.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": sampling.thinking}
    for name, value in extra.items():
        if name == "chat_template_kwargs" and isinstance(value, dict):
            body[name] = {**body.get(name, {}), **value}
        else:
            body[name] = value
    if extra.get("max_completion_tokens") is not None and "max_tokens" not in extra:
        del body["max_tokens"]
    return {name: value for name, value in body.items() if value is not None}


def limit_of(body: Mapping[str, Any]) -> tuple[str, int] | None:
    """The field that limits the reply, and its value; None where the server decides."""
    found = [(name, body[name]) for name in LIMITS if type(body.get(name)) is int]
    return found[0] if found else None


# -- replies ------------------------------------------------------------------------------------------------------


def loads(content: bytes) -> Any:
    """JSON as servers write it. Raises ``Unreadable``."""
    try:
        return json.loads(content.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise Unreadable("the body is no JSON" if content.strip() else "the body is empty") from None


def read_reply(content: bytes, thinking: bool | None, native: bool = False) -> Answer:
    """The reply in a body that came with status 200; where tools are ``native``, its calls are written as the block of
    code that makes them. Raises ``Unreadable``."""
    data = loads(content)
    if not isinstance(data, dict):
        raise Unreadable("the body is no JSON object")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        told = error_in(data)[0]
        raise Unreadable(f"an error instead of a reply: {told}" if told else "the reply has no choices")
    choice = choices[0]
    message, reason = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict):
        raise Unreadable("the reply has no message")
    if reason in ("abort", "error", "cancelled"):  # the server gave it up half way
        raise Unreadable(f"the reply ended with {reason!r}")
    text, reasoning = _content(message.get("content"))
    for name in ("reasoning_content", "reasoning"):
        if reasoning is None and isinstance(message.get(name), str) and message[name]:
            reasoning = message[name]
    if text is None and isinstance(message.get("refusal"), str):
        text = message["refusal"]
    cut = False
    if text is not None and thinking is not False:
        # A chat template that opens the block itself leaves only its end in the content.
        opened = thinking is True or (thinking is None and reasoning is None)
        closes = "</think>" in text and "<think>" not in text
        thought, rest = split_reasoning(text, opened and closes)
        if thought is not None:
            cut, text = True, rest
            reasoning = thought if reasoning is None else f"{reasoning}\n{thought}"
    if native and isinstance(calls := message.get("tool_calls"), list) and calls:
        text = native_text([_native(call) for call in calls], (text or "").strip().removeprefix("Thought:").strip())
    if not text and reasoning is not None:
        text = None
    usage = data.get("usage")
    used = usage if isinstance(usage, dict) else {}
    finish = finish_of(reason if isinstance(reason, str) else None)
    completion = Completion(
        text, finish, _count(used, "prompt_tokens"), _count(used, "completion_tokens"), _cached(used), reasoning
    )
    model = data.get("model")
    return Answer(completion, model if isinstance(model, str) else "", cut)


def _native(call: Any) -> NativeCall:
    """A native call, whatever a server made of it."""
    function = call.get("function") if isinstance(call, dict) else None
    found = function if isinstance(function, dict) else {}
    name, arguments = found.get("name"), found.get("arguments")
    if isinstance(arguments, dict):  # some servers send the object itself
        arguments = json.dumps(arguments)
    return NativeCall(name if isinstance(name, str) else "", arguments if isinstance(arguments, str) else "")


def _content(content: Any) -> tuple[str | None, str | None]:
    """Text and thinking of a message's content: null, a text, or a list of parts."""
    if content is None or isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise Unreadable(f"the content is a {type(content).__name__}")
    texts, thoughts = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and part.get("type") == "thinking":
            inner = part.get("thinking")
            for piece in inner if isinstance(inner, list) else [inner]:
                found = piece.get("text") if isinstance(piece, dict) else piece
                thoughts += [found] if isinstance(found, str) else []
    return "".join(texts) if texts else None, "".join(thoughts) or None


def _count(used: Mapping[str, Any], name: str) -> int | None:
    value = used.get(name)
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _cached(used: Mapping[str, Any]) -> int | None:
    details = used.get("prompt_tokens_details")
    found = _count(details, "cached_tokens") if isinstance(details, dict) else None
    return _count(used, "prompt_cache_hit_tokens") if found is None else found


def same_model(asked: str, served: str) -> bool:
    """Whether a server's name for the model may be the one asked for: with a date, a tag or without its owner."""
    a, s = asked.lower(), served.lower()
    short = a.rsplit("/", 1)[-1]
    dated = re.match(rf"{re.escape(short)}(?:[-@]\d|:)", s.rsplit("/", 1)[-1])
    return not s or s == a or s.rsplit("/", 1)[-1] == short or dated is not None


# -- errors -------------------------------------------------------------------------------------------------------


def one_line(text: str, most: int = 300) -> str:
    """A server's words on one line: no markup, no control characters, shortened."""
    plain = re.sub(r"(?is)<(script|style).*?</\1>|<[^<>]*>", " ", text[:20_000]) if "<" in text else text[:20_000]
    line = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def error_in(data: Any) -> tuple[str, str]:
    """Message and code of an error as servers put it into JSON; empty where there is none."""
    found = data
    for name in ("error", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    if isinstance(found, list):  # one entry per field that is wrong
        return "; ".join(filter(None, (error_in(entry)[0] for entry in found[:3]))), ""
    if isinstance(found, str):
        return found, ""
    if not isinstance(found, dict):
        return "", ""
    message = next((found[name] for name in ("message", "msg", "error") if isinstance(found.get(name), str)), "")
    codes = [found[name] for name in ("code", "type") if isinstance(found.get(name), str)]
    return message, " ".join(codes)


def read_error(status: int, content: bytes) -> ServerError:
    """What an answer that is no success says."""
    try:
        message, code = error_in(loads(content))
    except Unreadable:
        message, code = content[:20_000].decode("utf-8", "replace"), ""
    return ServerError(status, one_line(message), code)


# Servers say in their own words that prompt and reply together are too long; most name both numbers.
_NUMBER = r"(\d[\d,]*)"
_ROOM = re.compile(
    rf"(?:context (?:length|size|window)|model length)(?: \(| is | of )?(?:only )?{_NUMBER}|must be <= {_NUMBER}",
)
_PROMPT = re.compile(
    rf"\(?{_NUMBER} (?:in the messages|of text input|in your prompt|tokens from the input messages)"
    rf"|(?:contains|has|passed|resulted in) (?:at least )?{_NUMBER} (?:input )?tokens"
    rf"|(?:input|request|prompt) \((?:length )?{_NUMBER}"
    rf"|Given: {_NUMBER} `inputs`"
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|maximum model length|context length exceeded"
    r"|exceeds? (?:the )?(?:available |maximum |model's )*context|longer than the model's context|prompt is too long"
    r"|model's context length is|\+ .max_new_tokens. must be <="
)


def too_long(error: ServerError) -> bool:
    """Whether the server refused because prompt and reply do not fit into the context."""
    return error.status in (400, 413, 422, 500) and _TOO_LONG.search(f"{error.code} {error.message}") is not None


def shorter(error: ServerError, asked: int) -> int | None:
    """The longest reply that fits instead of ``asked`` tokens; None where none does or the server does not say.

    A server that stops counting where the prompt is too long says "at least"; the longest reply cannot be told then,
    and half of what was asked is tried.
    """
    limit, prompt = _ROOM.search(error.message), _PROMPT.search(error.message)
    if limit is None or prompt is None:
        return None
    room = _first(limit) - _first(prompt)
    if " at least " in prompt[0]:
        return asked // 2 or None
    return room if 0 < room < asked else None


def _first(found: re.Match[str]) -> int:
    digits = next(group for group in found.groups() if group is not None).replace(",", "")
    return int(digits[:15])


def model_names(content: bytes) -> list[str]:
    """The models that a server lists, empty where it lists none that can be read."""
    try:
        data = loads(content)
    except Unreadable:
        return []
    listed = data.get("data") if isinstance(data, dict) else data
    entries: Sequence[Any] = listed if isinstance(listed, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def context_lengths(content: bytes, model: str) -> list[int]:
    """Context lengths that a server's list of models gives for ``model`` (vLLM and SGLang do)."""
    try:
        data = loads(content)
    except Unreadable:
        return []
    listed = data.get("data") if isinstance(data, dict) else None
    entries: Sequence[Any] = listed if isinstance(listed, list) else []
    found = [e.get("max_model_len") for e in entries if isinstance(e, dict) and e.get("id") == model]
    return [value for value in found if type(value) is int and value > 0]


def characters(messages: Sequence[Message]) -> int:
    """Characters of a conversation."""
    return sum(len(message["content"]) for message in messages)
