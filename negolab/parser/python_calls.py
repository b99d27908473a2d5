"""Python source to the expressions it consists of, for text that nobody vouches for: nothing in it is ever executed.

``ast.parse`` makes a tree and runs nothing, but alone it is not fit for strangers' text: it is slow or fails in C on
deep nesting, prints warnings about escapes, and reads some sources otherwise in another version of Python, so that a
recorded game would replay differently. So the source is cut into tokens first, in linear time:

* Outside strings and comments all is ASCII; a statement has ``MAX_TOKENS`` tokens at most, which bounds all nesting; a
  number has ``MAX_NUMBER`` characters at most. What begins a statement that is no expression (``import``, ``def``, ...)
  is refused here.
* Texts with code in them (``f"..."``, ``t"..."``) and bytes become a name that stands for no value: the call that
  they are arguments of is wrong, whatever is in them, and is lost.
* A backslash that begins no escape of Python's stands for itself, as in ``"\\$5"``.
"""

import ast
import re

MAX_CODE = 20_000
"""Characters; no turn needs more."""
MAX_TOKENS = 200
MAX_NUMBER = 40

_NO_CODE = "the block is not a list of calls"
"""One detail for all of them: what Python itself says differs from version to version, and details are recorded."""
_PREFIX = "(?:[rR][bBfFtT]?|[bBfFtT][rR]?|[uU])?"
_QUOTED = (
    r"""(?:"{3}(?:[^"\\]|\\.|"(?!""))*+"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*+'{3}"""
    r"""|"(?!"")(?:[^"\\\n\r]|\\.)*+"|'(?!'')(?:[^'\\\n\r]|\\.)*+')"""
)
_TOKEN = re.compile(
    f"(?P<strings>{_PREFIX}{_QUOTED}(?:[ \\t\\f]*+{_PREFIX}{_QUOTED})*+)"
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    |(?P<number>(?:0[xX][0-9a-fA-F_]++|0[oO][0-7_]++|0[bB][01_]++
        |(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?|\.[0-9][0-9_]*+)(?:[eE][+-]?[0-9][0-9_]*+)?[jJ]?)(?![0-9A-Za-z_]))
    |(?P<comment>\#[^\n\r]*+)
    |(?P<space>[ \t\f]++|\\\n)
    |(?P<end>[\n;])
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<other>[!$%&*+,\-./:<=>?@^`|~])
    |(?P<bad>.)""",
    re.DOTALL | re.VERBOSE,
)
_STATEMENTS = re.compile(
    "assert|async|break|class|continue|def|del|elif|except|finally|from|global|import|nonlocal|pass|raise|return|try"
    "|while|with"
).fullmatch
_CODED = frozenset("bBfFtT")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_KNOWN = frozenset("\n'\"\\abfnrtvxNuU")
_EACH = re.compile(f"({_PREFIX})({_QUOTED})", re.DOTALL)


def expressions(code: str) -> list[ast.expr] | str:
    """The block's statements as expressions, or why it is no list of expressions. Never raises."""
    if len(code) > MAX_CODE:
        return f"a block of {len(code)} characters; {MAX_CODE} at most"
    sources = _statements(code)
    if isinstance(sources, str):
        return sources
    try:
        # As a whole module a wrong source would make Python look for a file of the source's name, to quote from it.
        return [ast.parse(source, mode="eval").body for source in sources] or "the block is empty"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _NO_CODE


def _statements(code: str) -> list[str] | str:
    """The statements without comments and what Python's versions read differently; or why they must not be parsed."""
    if "\0" in code:
        return _NO_CODE
    done: list[str] = []
    parts: list[str] = []
    tokens = depth = 0
    chained = False
    for found in _TOKEN.finditer(code):
        kind, text = found.lastgroup, found[0]
        if kind == "space":
            if parts or not chained:  # at the beginning of a line it is an indentation, which Python then refuses
                parts.append(text)
            continue
        if kind == "comment":
            continue
        if kind == "end" and depth <= 0:
            if tokens:
                done.append("".join(parts))
            elif text == ";":
                return _NO_CODE
            parts, tokens, chained = [], 0, text == ";"
            continue
        tokens += 1
        if kind == "bad" or (kind == "name" and _STATEMENTS(text)):
            return _NO_CODE
        if tokens > MAX_TOKENS:
            return f"a statement of more than {MAX_TOKENS} words and signs"
        if kind == "number" and len(text) > MAX_NUMBER:
            return f"a number of {len(text)} characters"
        if kind == "strings":
            text = _text(text)
        elif kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        parts.append(text)
    if tokens:
        done.append("".join(parts))
    return done


def _text(strings: str) -> str:
    """One or more string literals side by side, in a form that all versions of Python read alike."""
    texts = []
    for prefix, quoted in _EACH.findall(strings):
        if not _CODED.isdisjoint(prefix):
            return " _ "
        texts.append(prefix + (quoted if "r" in prefix.lower() else _ESCAPE.sub(_escape, quoted)))
    return " ".join(texts)


def _escape(found: re.Match[str]) -> str:
    what = found[1]
    known = int(what, 8) <= 0o377 if what[0] in "01234567" else what in _KNOWN
    return found[0] if known else "\\" + found[0]
