"""The tool format of 2604.16472 (figure 2, table 9): a private Thought, then one block of Python with tool calls.

    Thought: free text, may span lines or be empty
    Code:
    ```python
    send_message(content="I can do better than that.")
    make_offer(price=1050)
    ```

* ``Thought:`` and ``Code:`` each once, at the start of a line, in this order; nothing before, nothing after the block
  but white space. The fence is three backticks, with ``python``, ``py`` or nothing behind the first, on the line of
  ``Code:`` or the next. The first line that begins with three backticks or with ``<end_code>`` closes the block; one
  may follow the other. Either within a line is part of what is said. With thinking on, one leading think block is cut
  first; any other think tag makes a reply unreadable.
* The block is read with ``ast`` and never executed (``parser.python_calls``). It is a list of calls of the tools by
  their bare names with literal arguments, by position or by name; comments and empty lines are nothing. ``agent`` may
  be given by name and must be one's own role.
* Texts are taken as they are, escapes as Python reads them; half of a surrogate pair, which nothing could store or
  send, becomes U+FFFD. A text with code in it (``f"..."``) is no literal.
* ``make_offer(price, side_offer="")``: a number above zero with two decimals at most, at most ``money.MAX_CENTS``.
  ``respond_to_offer(response)``: True or False. ``send_message(content)``: a text that is not empty.
  ``search_price()``, ``quit_negotiation()``, ``wait_for_response()``. ``wait_for_time_period(duration)``: seconds above
  zero, a day at most. A number is what Python makes of it: ``1e3`` is 1000.
* At most ``MAX_CALLS`` calls, wrong ones counted: those after are dropped (``too_many_calls``). Nothing follows a
  terminal call, an accepting answer among them (``after_terminal``).
* What is wrong with a call is named (``unknown_tool``, ``bad_argument``) and lost, and the rest takes effect; only a
  reply that is no block of calls at all (``unparseable``; a statement such as ``x = search_price()`` makes it so), or
  was cut at the token limit (``truncated``), has no effect whatever. ``Violation`` is returned only where there was no
  reply (``environment.base.ABORTS``).
"""

import ast
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from negolab.environment.base import MAX_CALLS, Call, Calls, Violation
from negolab.environment.tools import MAX_WAIT, TOOL_SET, role_of
from negolab.money import MAX_CENTS
from negolab.parser.python_calls import MAX_CODE, expressions
from negolab.parser.shared import body_of, cut_reply, quote

_FENCE = re.compile(r"[ \t]*\n?[ \t]*```(?:python|py)?[ \t]*\n")
_CLOSE = re.compile(r"^[ \t]*+(```|<end_code>)", re.MULTILINE)
_TERMINAL = frozenset(tool.name for tool in TOOL_SET if tool.terminal)
# Calls as most are written, and as ``render_tools`` writes them. A reply of nothing else takes the short way; a test
# holds it to the verdicts of the long one. What Python would read as something else than it is written is left out.
_TEXT = r"""("[^"\\\0-\x1f\ud800-\udfff]*+"|'[^'\\\0-\x1f\ud800-\udfff]*+')"""
_PLAIN_CALL = re.compile(
    rf"(?:make_offer\((?:price=)?(0|[1-9][0-9]{{0,6}})(?:\.([0-9]{{1,2}}))?(?:, side_offer={_TEXT})?"
    rf"|send_message\((?:content=)?{_TEXT}|respond_to_offer\((?:response=)?(True|False)"
    r"|(search_price|quit_negotiation|wait_for_response)\()\)"
).fullmatch
_BARE = {tool: Call(tool) for tool in ("search_price", "quit_negotiation", "wait_for_response")}
_ANSWERS = {word: Call("respond_to_offer", answer=word == "True") for word in ("True", "False")}


class _Bad(Exception):
    """What is wrong with one call: kind and detail."""


def parse_tools(
    text: str | None, subject: object = None, finish_reason: str = "stop", /, *, seat: int, thinking: bool = False
) -> Calls | Violation:
    """Read a reply of ``seat``. Never raises, runs nothing, and is quick about whatever it is given."""
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return Calls((), ((cut.kind, cut.detail),), cut.text) if cut.kind == "truncated" else cut
    plain = _plain(text) if isinstance(text, str) else None
    return _parse(text, seat, thinking) if plain is None else plain


def _plain(text: str) -> Calls | None:
    """The short way: None where a reply is not written plainly."""
    thought, code, block = text.partition("\nCode:\n```python\n")
    if not code or not thought.startswith("Thought:") or not block.endswith("\n```") or len(block) > MAX_CODE:
        return None
    if ">" in text or "\r" in text or "\nThought:" in thought or "\nCode:" in thought:
        return None
    lines = block[:-4].split("\n")
    if len(lines) > MAX_CALLS:
        return None
    calls: list[Call] = []
    last = len(lines) - 1
    for at, line in enumerate(lines):
        found = _PLAIN_CALL(line)
        if found is None:
            return None
        dollars, part, side, content, answer, bare = found.groups()
        if dollars is not None:
            cents = int(dollars) * 100 + (int(part.ljust(2, "0")) if part else 0)
            if cents == 0:
                return None
            calls.append(Call("make_offer", cents, None, side[1:-1] if side else ""))
        elif content is not None:
            message = content[1:-1]
            if not message or message.isspace():
                return None
            calls.append(Call("send_message", None, None, message))
        else:
            call = _BARE[bare] if bare is not None else _ANSWERS[answer]
            if at < last and (call.tool in _TERMINAL or call.answer is True):
                return None
            calls.append(call)
    return Calls(tuple(calls), (), text)


def _parse(text: str | None, seat: int, thinking: bool) -> Calls:
    """The long way."""
    body = body_of(text, thinking)
    if isinstance(body, Violation):
        return Calls((), (("unparseable", body.detail),), body.text)
    block = _block(body)
    if isinstance(block, Calls):
        return block
    found = expressions(block)
    if isinstance(found, str):
        return Calls((), (("unparseable", found),), body)
    calls: list[Call] = []
    problems: list[tuple[str, str]] = []
    ended = False
    for number, statement in enumerate(found, 1):
        if number > MAX_CALLS:
            problems.append(("too_many_calls", f"{len(found)} calls; a turn has {MAX_CALLS} at most"))
            break
        if ended:
            problems.append(("after_terminal", f"call {number} comes after the turn's end"))
            break
        try:
            call = _call(statement, seat)
        except _Bad as bad:
            problems.append((bad.args[0], f"call {number}: {bad.args[1]}"))
            continue
        calls.append(call)
        ended = call.tool in _TERMINAL or call.answer is True
    return Calls(tuple(calls), tuple(problems), body)


def render_tools(calls: tuple[Call, ...], thought: str = "") -> str:
    """Write a reply that ``parse_tools`` reads back to the same calls; whether they are legal is its to judge."""
    lines = []
    for call in calls:
        if call.tool == "make_offer":
            cents = call.price or 0
            price = f"{cents // 100}" if cents % 100 == 0 else f"{cents // 100}.{cents % 100:02d}"
            lines.append(f"make_offer(price={price}{f', side_offer={literally(call.text)}' if call.text else ''})")
        elif call.tool == "respond_to_offer":
            lines.append(f"respond_to_offer(response={call.answer})")
        elif call.tool == "send_message":
            lines.append(f"send_message(content={literally(call.text)})")
        elif call.tool == "wait_for_time_period":
            lines.append(f"wait_for_time_period(duration={call.seconds!r})")
        else:
            lines.append(f"{call.tool}()")
    return whole_reply(lines, thought)


def whole_reply(lines: Sequence[str], thought: str) -> str:
    """A reply with these lines of code. Labels and think tags in the thought are broken up."""
    block = "\n".join(lines)
    for mark in ("\nThought:", "\nCode:", "<think>", "</think>"):
        thought = thought.replace(mark, f"{mark[0]} {mark[1:]}")
    return f"Thought: {thought}\nCode:\n```python\n{block}\n```"


def literally(text: str) -> str:
    """A text as a Python literal, without a think tag."""
    return repr(text).replace("<think>", "\\x3cthink>").replace("</think>", "\\x3c/think>")


def block_of(reply: str) -> tuple[str, str] | None:
    """Thought and code of a reply without thinking; None for one that is not written in the form."""
    code = _block(reply)
    return None if isinstance(code, Calls) else (reply[len("Thought:") : reply.index("\nCode:")].strip(), code)


def _block(body: str) -> str | Calls:
    """The Python between the fences."""

    def wrong(detail: str) -> Calls:
        return Calls((), (("unparseable", detail),), body)

    if not body.startswith("Thought:"):
        return wrong("the reply must begin with 'Thought:'")
    if body.count("\nThought:") or body.count("\nCode:") != 1:
        return wrong("'Thought:' and 'Code:' each begin one line")
    start = body.index("\nCode:") + len("\nCode:")
    opened = _FENCE.match(body, start)
    if opened is None:
        return wrong("'Code:' is followed by a block that begins with ```python")
    code = body[opened.end() :]
    closed = _CLOSE.search(code)
    if closed is None:
        return wrong("no line closes the block")
    if code[closed.end() :].strip() not in ("", "<end_code>" if closed[1] == "```" else "```"):
        return wrong("text after the block")
    return code[: closed.start()]


def _call(node: ast.expr, seat: int) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _Bad("unknown_tool", "not a call of a tool by its name")
    name = node.func.id
    if name not in _ARGUMENTS:
        raise _Bad("unknown_tool", f"there is no tool {quote(name)}")
    names, required = _ARGUMENTS[name]
    given: dict[str, Any] = {}
    for position, value in enumerate(node.args):
        if position >= len(names):
            raise _Bad("bad_argument", f"{name} takes {len(names)} arguments at most")
        given[names[position]] = _literal(value, name)
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in (*names, "agent") or keyword.arg in given:
            raise _Bad("bad_argument", f"{name} takes {', '.join(names) or 'no arguments'}")
        given[keyword.arg] = _literal(keyword.value, name)
    agent = given.pop("agent", None)
    if agent is not None and agent != (role := role_of(seat)):
        raise _Bad("bad_argument", f"{name}: agent is not {role}, one's own role")
    if required and names[0] not in given:
        raise _Bad("bad_argument", f"{name} needs {names[0]}")
    return _MAKERS[name](given)


def _literal(node: ast.expr, name: str) -> Any:
    """A constant, or a number with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    raise _Bad("bad_argument", f"{name}: arguments are literals: a number, a text, True or False")


def _storable(text: str) -> str:
    """A text that UTF-8 can say: what ``"\\ud83d\\ude00"`` escapes in two halves is put together."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _offer(given: dict[str, Any]) -> Call:
    price, side = given["price"], given.get("side_offer")
    if type(price) not in (int, float) or not 0 < price <= MAX_CENTS / 100:
        raise _Bad("bad_argument", "make_offer: price is a number of dollars above zero")
    cents = Decimal(repr(price)) * 100
    if cents != int(cents):
        raise _Bad("bad_argument", "make_offer: price has two decimals at most")
    if side is not None and not isinstance(side, str):
        raise _Bad("bad_argument", "make_offer: side_offer is a text")
    return Call("make_offer", price=int(cents), text=_storable(side or ""))


def _answer(given: dict[str, Any]) -> Call:
    if type(given["response"]) is not bool:
        raise _Bad("bad_argument", "respond_to_offer: response is True or False")
    return Call("respond_to_offer", answer=given["response"])


def _message(given: dict[str, Any]) -> Call:
    content = given["content"]
    if not isinstance(content, str) or not content.strip():
        raise _Bad("bad_argument", "send_message: content is a text")
    return Call("send_message", text=_storable(content))


def _wait(given: dict[str, Any]) -> Call:
    duration = given["duration"]
    if type(duration) not in (int, float) or not 0 < duration <= MAX_WAIT:
        raise _Bad("bad_argument", f"wait_for_time_period: duration is a number of seconds, {MAX_WAIT} at most")
    return Call("wait_for_time_period", seconds=float(duration))


_ARGUMENTS: dict[str, tuple[tuple[str, ...], bool]] = {
    tool.name: (tuple(argument.name for argument in tool.arguments), any(a.required for a in tool.arguments))
    for tool in TOOL_SET
}
"""By tool: its arguments in order, and whether the first is required."""
_MAKERS: dict[str, Callable[[dict[str, Any]], Call]] = {
    "make_offer": _offer,
    "respond_to_offer": _answer,
    "send_message": _message,
    "search_price": lambda given: Call("search_price"),
    "quit_negotiation": lambda given: Call("quit_negotiation"),
    "wait_for_response": lambda given: Call("wait_for_response"),
    "wait_for_time_period": _wait,
}
