"""The tool format of 2604.16472 (figure 2, table 9): a private Thought, then one block of Python with tool calls.

    Thought: free text, may span lines or be empty
    Code:
    ```python
    send_message(content="I can do better than that.")
    make_offer(price=1050)
    ```

* ``Thought:`` and ``Code:`` each once, at the start of a line, in this order; nothing before, nothing after the block
  but white space. The fence is three backticks, with ``python``, ``py`` or nothing behind the first; instead of the
  second the block may end in ``<end_code>``. With thinking on, one leading think block is cut first.
* The block is read with ``ast`` and never executed. Every line is one call of a tool by its bare name with literal
  arguments, by position or by name; comments and empty lines are nothing. ``agent`` may be given and must be one's own
  role. Strings are taken as they are.
* ``make_offer(price, side_offer="")``: a number above zero with two decimals at most, at most ``money.MAX_CENTS``.
  ``respond_to_offer(response)``: True or False. ``send_message(content)``: a text that is not empty.
  ``search_price()``, ``quit_negotiation()``, ``wait_for_response()``. ``wait_for_time_period(duration)``: seconds above
  zero, a day at most.
* At most ``MAX_CALLS`` calls: those after are dropped (``too_many_calls``). Nothing follows a terminal call, an
  accepting answer among them (``after_terminal``).
* What is wrong is named and lost, and the rest takes effect; only a reply that is no block of calls at all
  (``unparseable``), or was cut at the token limit (``truncated``), has no effect whatever. ``Violation`` is returned
  only where there was no reply (``environment.base.ABORTS``).
"""

import ast
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from negolab.environment.base import MAX_CALLS, SELLER, Call, Calls, Violation
from negolab.money import MAX_CENTS
from negolab.parser.shared import body_of, cut_reply, quote

MAX_BLOCK = 20_000
"""Characters of a block that is read at all: ``ast`` is not linear in nesting, and no turn needs more."""
MAX_WAIT = 86_400.0
_ROLES = ("seller", "buyer")
_FENCE = re.compile(r"[ \t]*\n?[ \t]*```(?:python|py)?[ \t]*\n")
_TERMINAL = ("quit_negotiation", "wait_for_response", "wait_for_time_period")


class _Bad(Exception):
    """What is wrong with one call: kind and detail."""


def parse_tools(
    text: str | None, subject: object = None, finish_reason: str = "stop", /, *, seat: int, thinking: bool = False
) -> Calls | Violation:
    """Read a reply of ``seat``. Never raises, runs nothing, and is quick about whatever it is given."""
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return Calls((), ((cut.kind, cut.detail),), cut.text) if cut.kind == "truncated" else cut
    body = body_of(text, thinking)
    if isinstance(body, Violation):
        return Calls((), (("unparseable", body.detail),), body.text)
    block = _block(body)
    if isinstance(block, Calls):
        return block
    found = _statements(block)
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
    """Write a reply that ``parse_tools`` reads back to the same calls."""
    lines = []
    for call in calls:
        if call.tool == "make_offer":
            cents = call.price or 0
            price = f"{cents // 100}" if cents % 100 == 0 else f"{cents // 100}.{cents % 100:02d}"
            lines.append(f"make_offer(price={price}{f', side_offer={call.text!r}' if call.text else ''})")
        elif call.tool == "respond_to_offer":
            lines.append(f"respond_to_offer(response={call.answer})")
        elif call.tool == "send_message":
            lines.append(f"send_message(content={call.text!r})")
        elif call.tool == "wait_for_time_period":
            lines.append(f"wait_for_time_period(duration={call.seconds:g})")
        else:
            lines.append(f"{call.tool}()")
    block = "\n".join(lines)
    return f"Thought: {thought}\nCode:\n```python\n{block}\n```"


def _block(body: str) -> str | Calls:
    """The Python between the fences."""

    def wrong(detail: str) -> Calls:
        return Calls((), (("unparseable", detail),), body)

    lines = "\n" + body
    if not body.startswith("Thought:"):
        return wrong("the reply must begin with 'Thought:'")
    if lines.count("\nThought:") != 1 or lines.count("\nCode:") != 1:
        return wrong("'Thought:' and 'Code:' each begin one line")
    rest = body[body.index("\nCode:") + len("\nCode:") :]
    opened = _FENCE.match(rest)
    if opened is None:
        return wrong("'Code:' is followed by a block that begins with ```python")
    code = rest[opened.end() :]
    ends = [at for mark in ("```", "<end_code>") if (at := code.find(mark)) >= 0]
    if not ends:
        return wrong("the block is never closed")
    end = min(ends)
    mark = "```" if code.startswith("```", end) else "<end_code>"
    after = code[end + len(mark) :].strip()
    if after not in ("", "<end_code>" if mark == "```" else "```"):
        return wrong("text after the block")
    if end > MAX_BLOCK:
        return wrong(f"a block of {end} characters; {MAX_BLOCK} at most")
    return code[:end]


def _statements(code: str) -> list[ast.expr] | str:
    """The block's statements as expressions, or why it is no block of calls."""
    # The parser of Python itself fails on deep nesting, and slowly: no call has any.
    if code.count("(") + code.count("[") + code.count("{") > 200 or "\0" in code:
        return "more brackets than calls have"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"not Python: {quote(str(error))}"
    found = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            return f"only calls of tools are allowed, not {type(statement).__name__.lower()}"
        found.append(statement.value)
    return found or "the block is empty"


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
    if agent is not None and agent != _ROLES[0 if seat == SELLER else 1]:
        raise _Bad("bad_argument", f"{name}: agent is {quote(str(agent))}, not one's own role")
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


def _offer(given: dict[str, Any]) -> Call:
    price, side = given["price"], given.get("side_offer")
    if type(price) not in (int, float) or not 0 < price <= MAX_CENTS / 100:
        raise _Bad("bad_argument", "make_offer: price is a number of dollars above zero")
    cents = Decimal(repr(price)) * 100
    if cents != int(cents):
        raise _Bad("bad_argument", "make_offer: price has two decimals at most")
    if side is not None and not isinstance(side, str):
        raise _Bad("bad_argument", "make_offer: side_offer is a text")
    return Call("make_offer", price=int(cents), text=side or "")


def _answer(given: dict[str, Any]) -> Call:
    if type(given["response"]) is not bool:
        raise _Bad("bad_argument", "respond_to_offer: response is True or False")
    return Call("respond_to_offer", answer=given["response"])


def _message(given: dict[str, Any]) -> Call:
    content = given["content"]
    if not isinstance(content, str) or not content.strip():
        raise _Bad("bad_argument", "send_message: content is a text")
    return Call("send_message", text=content)


def _wait(given: dict[str, Any]) -> Call:
    duration = given["duration"]
    if type(duration) not in (int, float) or not 0 < duration <= MAX_WAIT:
        raise _Bad("bad_argument", f"wait_for_time_period: duration is a number of seconds, {MAX_WAIT:.0f} at most")
    return Call("wait_for_time_period", seconds=float(duration))


_ARGUMENTS: dict[str, tuple[tuple[str, ...], bool]] = {
    "make_offer": (("price", "side_offer"), True),
    "respond_to_offer": (("response",), True),
    "send_message": (("content",), True),
    "search_price": ((), False),
    "quit_negotiation": ((), False),
    "wait_for_response": ((), False),
    "wait_for_time_period": (("duration",), True),
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
