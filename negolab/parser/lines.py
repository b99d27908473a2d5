"""The line format of 2607.05863, section 11: ``Thought:`` / ``Target:`` / ``Talk:`` / ``Action:`` (buyers: no Target).

The grammar, in full:

* Each label once, exact case, ASCII colon, at the start of a line, in this order. Nothing before the first label;
  nothing but white space after the Action line. ``\\r\\n`` is a newline. Thought and Talk are free text and may span
  lines or be empty; Target and Action are one line, their value on the label's own line.
* Target: ``Buyer k`` (ASCII digits, no leading zero) or ``[QUIT]``; the latter only with ``Action: [QUIT]``.
* Action, the whole line: ``[SELL] $M (1x CODE)``, ``[DEAL] $M (1x CODE)`` or ``[QUIT]``; buyers ``[BUY]`` for
  ``[SELL]`` and also ``(1 CODE)``. The space after the tag may be missing.
* The bilateral game (2604.09855): both sides write the buyers' three parts, the seller ``[SELL]`` for ``[BUY]``; where
  it is switched on also ``[REJECT]``, which like ``[QUIT]`` takes no price.
* M: ASCII digits, correctly grouped thousands commas or none, at most two decimals, above zero and at most
  ``money.MAX_CENTS``.
* A reply cut at the token limit is ``truncated`` whatever it says; where there was no reply at all
  (``environment.base.ABORTS``) that is what is reported. What a provider's content filter left of a reply is judged as
  it stands: without its Action line it is a format violation.
* With thinking on, one leading complete think block is cut first; any other think tag is a format violation.
* A Talk in which a sentence begins ``Deal at $X`` and ends or pauses there (``.``, ``!``, ``,``) while the Action is a
  ``[SELL]`` at another price is contradictory, a format violation: the Action is the meaning of the Talk. Nothing else
  is ever read out of the free text, and nothing in it ever makes a move.

What a move means in the episode at hand (is that buyer active, was that bid made, is it below cost) is the
environment's to judge, not the parser's.
"""

import re

from negolab.environment.base import Move, Violation
from negolab.money import dollars
from negolab.parser.shared import body_of, cents_of, claimed_deal, cut_reply, quote

_SELLER_LABELS = ("Thought:", "Target:", "Talk:", "Action:")
_BUYER_LABELS = ("Thought:", "Talk:", "Action:")
_ACTION = re.compile(r"\[(SELL|BUY|DEAL|QUIT|REJECT)\](?: ?\$([0-9][0-9,]*)(?:\.([0-9]{1,2}))? \((1x?) ([^()\s]+)\))?")
# Replies whose parts are one line each, written plainly: nearly all of them. The others take the long way, which
# gives the same verdicts (a test holds the two together). A dot matches faster than a class that also leaves out "\r",
# so texts with a "\r", or with the ">" of a think tag, are sent the long way before they are matched.
_PLAIN_SELLER = re.compile(
    r"Thought:.*\nTarget: Buyer ([1-9][0-9]{0,5})\nTalk: (.*)\n"
    r"Action: \[(SELL|DEAL)\] \$([1-9][0-9]{0,6})\.([0-9][0-9]) \(1x ([^()\s]+)\)"
).fullmatch
_PLAIN_BUYER, _PLAIN_OTHER = (
    re.compile(
        r"Thought:.*\nTalk: (.*)\nAction: \[(" + offer + r"|DEAL)\] \$([1-9][0-9]{0,6})\.([0-9][0-9]) \(1x ([^()\s]+)\)"
    ).fullmatch
    for offer in ("BUY", "SELL")
)
_SEATS = {str(seat): seat for seat in range(1, 10)}  # a look-up costs a third of int(); most markets are this small
_new = tuple.__new__
_TARGET = re.compile(r"Buyer ([1-9][0-9]{0,5})")


def parse_seller(
    text: str | None, codename: str, finish_reason: str = "stop", *, thinking: bool = False
) -> Move | Violation:
    """Read a seller's reply about the item ``codename``. Violation kinds: ``truncated``, ``format``, ``target``."""
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return cut
    if isinstance(text, str) and "\r" not in text and ">" not in text:
        plain = _PLAIN_SELLER(text)
        if plain is not None:
            seat, talk, verb, whole, cents, code = plain.groups()
            if code == codename and "Deal " not in talk:
                target = _SEATS.get(seat) or int(seat)
                return _new(Move, (verb, ((1, int(whole + cents)),), target, talk.strip(), text, False))
    return _parse_seller(text, codename, thinking)


def _parse_seller(text: str | None, codename: str, thinking: bool) -> Move | Violation:
    parts = _split(text, _SELLER_LABELS, thinking)
    if isinstance(parts, Violation):
        return parts
    body, (_, target_part, talk, action_part) = parts
    target_text = _one_line(target_part)
    if target_text is None:
        return Violation("format", "Target is one line, its value on the label's line", body)
    if target_text == "[QUIT]":
        target = None
    else:
        found = _TARGET.fullmatch(target_text)
        if found is None:
            return Violation("target", f"Target must be 'Buyer k' or '[QUIT]', not {quote(target_text)}", body)
        target = int(found[1])
    action = _action(action_part, codename, "SELL", body, strict=True)
    if isinstance(action, Violation):
        return action
    verb, price = action
    if target is None and verb != "QUIT":
        return Violation("target", f"Target [QUIT] goes only with Action [QUIT], not [{verb}]", body)
    talk = talk.strip()
    if verb == "SELL" and "Deal " in talk:
        claimed = claimed_deal(talk)
        if claimed is not None and claimed != price:
            return Violation(
                "format", f"Talk announces a deal at {dollars(claimed)}, Action is [SELL] {dollars(price or 0)}", body
            )
    return Move(verb, () if price is None else ((1, price),), target, talk, body)


def parse_buyer(
    text: str | None, codename: str, finish_reason: str = "stop", *, thinking: bool = False, reject: bool = False
) -> Move | Violation:
    """Read a buyer's reply about the item ``codename``. Violation kinds: ``truncated``, ``format``.

    ``reject``: whether ``[REJECT]`` is an action.
    """
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return cut
    if isinstance(text, str) and "\r" not in text and ">" not in text:
        plain = _PLAIN_BUYER(text)
        if plain is not None:
            talk, verb, whole, cents, code = plain.groups()
            if code == codename:
                return _new(Move, (verb, ((1, int(whole + cents)),), None, talk.strip(), text, False))
    return _parse_buyer(text, codename, thinking, reject=reject)


def parse_bilateral_seller(
    text: str | None, codename: str, finish_reason: str = "stop", *, thinking: bool = False, reject: bool = False
) -> Move | Violation:
    """Read a reply of the bilateral game's seller: ``parse_buyer`` with ``[SELL]`` in place of ``[BUY]``."""
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return cut
    if isinstance(text, str) and "\r" not in text and ">" not in text:
        plain = _PLAIN_OTHER(text)
        if plain is not None:
            talk, verb, whole, cents, code = plain.groups()
            if code == codename:
                return _new(Move, (verb, ((1, int(whole + cents)),), None, talk.strip(), text, False))
    return _parse_buyer(text, codename, thinking, "SELL", reject)


def _parse_buyer(
    text: str | None, codename: str, thinking: bool, offer: str = "BUY", reject: bool = False
) -> Move | Violation:
    parts = _split(text, _BUYER_LABELS, thinking)
    if isinstance(parts, Violation):
        return parts
    body, (_, talk, action_part) = parts
    action = _action(action_part, codename, offer, body, reject=reject)
    if isinstance(action, Violation):
        return action
    verb, price = action
    return Move(verb, () if price is None else ((1, price),), None, talk.strip(), body)


def render_seller(verb: str, price: int | None, target: int | None, talk: str, thought: str, codename: str) -> str:
    """Write a seller's reply that ``parse_seller`` reads back to the same move (free text is taken as it is)."""
    item = "" if price is None else f" {dollars(price)} (1x {codename})"
    seat = "[QUIT]" if target is None else f"Buyer {target}"
    return f"Thought: {thought}\nTarget: {seat}\nTalk: {talk}\nAction: [{verb}]{item}"


def render_buyer(verb: str, price: int | None, talk: str, thought: str, codename: str) -> str:
    """Write a buyer's reply that ``parse_buyer`` reads back to the same move."""
    item = "" if price is None else f" {dollars(price)} (1x {codename})"
    return f"Thought: {thought}\nTalk: {talk}\nAction: [{verb}]{item}"


def _split(reply: str | None, labels: tuple[str, ...], thinking: bool) -> tuple[str, list[str]] | Violation:
    """The reply without its think block, and the text behind each label."""
    text = body_of(reply, thinking)
    if isinstance(text, Violation):
        return text
    starts = [0]
    if not text.startswith(labels[0]):
        return Violation("format", _explain(text, labels), text)
    at = 0
    for label in labels[1:]:
        at = text.find("\n" + label, at)
        if at < 0:
            return Violation("format", _explain(text, labels), text)
        starts.append(at + 1)
    # Each label once. All four are counted for both roles: a buyer's Talk must not hold a Target line.
    extra = text.count("\nThought:") + text.count("\nTarget:") + text.count("\nTalk:") + text.count("\nAction:")
    if extra != len(labels) - 1:
        return Violation("format", _explain(text, labels), text)
    ends = [*[start - 1 for start in starts[1:]], len(text)]
    return text, [text[s + len(label) : e] for s, label, e in zip(starts, labels, ends, strict=True)]


def _explain(text: str, labels: tuple[str, ...]) -> str:
    """Which label is missing, doubled or misplaced; only called for a reply already known to be wrong."""
    lines = "\n" + text
    for label in labels:
        count = lines.count("\n" + label)
        if count == 0:
            return f"no line starts with '{label}'"
        if count > 1:
            return f"{count} lines start with '{label}'"
    if "Target:" not in labels and "\nTarget:" in lines:
        return "a buyer's reply has no 'Target:'"
    if not text.startswith(labels[0]):
        return f"text before '{labels[0]}'"
    return f"labels must come in the order {' '.join(labels)}"


def _one_line(part: str) -> str | None:
    """The value of a one-line part; None if it runs on or starts on a later line."""
    value, _, rest = part.partition("\n")
    value = value.lstrip(" \t").rstrip()
    return None if (rest.strip() if value else part.strip()) else value


def _action(
    part: str, codename: str, offer: str, body: str, *, strict: bool = False, reject: bool = False
) -> tuple[str, int | None] | Violation:
    """Verb and price of an Action line; ``offer`` is the role's own offering verb; ``strict``: only ``1x``."""
    value, _, rest = part.partition("\n")
    value = value.lstrip(" \t").rstrip()
    if rest and rest.strip():
        detail = "text after the Action line" if value else "Action's value must stand on the label's line"
        return Violation("format", detail, body)
    found = _ACTION.fullmatch(value)
    if found is None or (found[1] == "REJECT" and not reject):
        return Violation("format", f"Action must be one tag with '$M (1x {codename})', not {quote(value)}", body)
    verb, whole, cents, quantity, code = found.groups()
    if verb == "QUIT" or verb == "REJECT":
        if whole is not None:
            return Violation("format", f"[{verb}] takes no price", body)
        return verb, None
    if verb != offer and verb != "DEAL":
        return Violation("format", f"[{verb}] is the other side's action", body)
    if whole is None:
        return Violation("format", f"[{verb}] needs '$M (1x {codename})'", body)
    if code != codename:
        return Violation("format", f"the item is {codename}, not {quote(code)}", body)
    if quantity != "1x" and strict:
        return Violation("format", "the quantity is written '1x'", body)
    price = cents_of(whole, cents)
    if price is None:
        return Violation("format", f"not a price: {quote('$' + whole)}", body)
    return verb, price
