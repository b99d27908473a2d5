"""The trade game's tools as native tool calling (JSON schema), for chat models that were trained on that.

A reply of native calls is written down as the block of code that says the same (``native_text``), so that records,
views and the one parser stay as they are; what is wrong with a call is wrong with its line in the same way and gets the
same name. The other way, a stored reply becomes the calls that a chat model is shown as its own (``native_calls``).
"""

import ast
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from negolab.environment.base import Calls, Violation
from negolab.environment.tools import TOOL_SET, Argument, role_of
from negolab.parser.python_calls import expressions
from negolab.parser.tools import block_of, literally, parse_tools, whole_reply

MOST_CALLS = 32
"""Calls of one reply that are written down; a turn has room for far fewer."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class NativeCall(NamedTuple):
    """One native call as a server gives it."""

    name: str
    arguments: str
    """A JSON object."""


def tools_for(seat: int) -> list[dict[str, Any]]:
    """The tools of ``seat`` in the form of OpenAI's chat completions."""
    other = role_of(1 - seat)
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.effect.format(other=other)
                + (" It has to be the last call of a turn." if tool.terminal else ""),
                "parameters": {
                    "type": "object",
                    "properties": {argument.name: _schema(argument, other) for argument in tool.arguments},
                    "required": [argument.name for argument in tool.arguments if argument.required],
                    "additionalProperties": False,
                },
            },
        }
        for tool in TOOL_SET
    ]


def _schema(argument: Argument, other: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": argument.type, "description": argument.help.format(other=other)}
    if argument.most is not None:
        schema |= {"exclusiveMinimum": 0, "maximum": argument.most}
    if argument.type == "string" and argument.required:
        schema["minLength"] = 1
    return schema


def parse_native(
    calls: Sequence[NativeCall], thought: str = "", finish_reason: str = "stop", /, *, seat: int
) -> Calls | Violation:
    """Read a reply of native calls, as ``parse_tools`` reads one in code."""
    return parse_tools(native_text(calls, thought), None, finish_reason, seat=seat)


def native_text(calls: Sequence[NativeCall], thought: str = "") -> str:
    """The reply in code that makes the same calls, the wrong ones included. Never raises."""
    return whole_reply([_line(call) for call in calls[:MOST_CALLS]], thought)


def _line(call: NativeCall) -> str:
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        arguments = "..."  # no literal: a bad argument
    else:
        arguments = ", ".join(_argument(name, value) for name, value in given.items())
    return f"{call.name if _plain(call.name) else literally(call.name[:40])}({arguments})"


def _argument(name: str, value: Any) -> str:
    if isinstance(value, str):
        literal = literally(value)
    elif isinstance(value, bool | None) or (isinstance(value, int | float) and abs(value) < 1e15):
        literal = repr(value)
    else:
        literal = "..."  # a list, an object, an endless number: no tool takes any
    return f"{name}={literal}" if _plain(name) else "**{}"  # names that no argument can have


def _plain(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def native_calls(reply: str) -> tuple[str, tuple[NativeCall, ...]] | None:
    """The Thought and the calls of a stored reply; None for one that is no block of calls by name with literals."""
    found = block_of(reply)
    if found is None:
        return None
    thought, code = found
    nodes = expressions(code)
    if isinstance(nodes, str):
        return None
    calls = []
    for node in nodes:
        read = _read(node)
        if read is None:
            return None
        calls.append(read)
    return thought, tuple(calls)


def _read(node: ast.expr) -> NativeCall | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    tool = next((tool for tool in TOOL_SET if tool.name == node.func.id), None)
    if tool is None or len(node.args) > len(tool.arguments):
        return None
    given: list[tuple[str | None, ast.expr]] = [(a.name, v) for a, v in zip(tool.arguments, node.args, strict=False)]
    given += [(word.arg, word.value) for word in node.keywords]
    arguments: dict[str, Any] = {}
    for name, value in given:
        if name is None or not isinstance(value, ast.Constant) or not isinstance(value.value, str | int | float | None):
            return None
        if isinstance(value.value, float) and not isfinite(value.value):
            return None
        arguments[name] = value.value
    return NativeCall(tool.name, json.dumps(arguments))


NOTE = (
    "# Your tools are native here\n"
    "In this conversation the seven tools are given to you as native functions. Do not write a block of code: call the "
    "functions instead, several in one reply where you mean several, in the order in which they are to take effect. "
    "Write your Thought as the text of the reply. Whatever else is said of the tools above holds."
)
"""Put behind the system prompt of a model that calls natively."""


def native_messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """A conversation in which the earlier replies of code are native calls, each answered by a word of its own.

    What the calls led to stands in the user message that follows. Replies that are no such block stay as they are.
    """
    made: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        read = native_calls(message["content"]) if message["role"] == "assistant" else None
        if read is None:
            made.append(dict(message))
            continue
        thought, calls = read
        named = [(f"call_{at}_{number}", call) for number, call in enumerate(calls)]
        functions = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for name, call in named
        ]
        made.append({"role": "assistant", "content": thought, "tool_calls": functions})
        made += [{"role": "tool", "tool_call_id": name, "content": "See the next message."} for name, _ in named]
    if made and made[0]["role"] == "system":
        made[0] = {"role": "system", "content": f"{made[0]['content']}\n\n{NOTE}"}
    return made
