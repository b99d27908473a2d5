"""The tag format of 2609.33289, section F.1: the four parts of ``lines`` as XML tags, and actions on several items.

The paper names the parts and what an action holds; the spelling of a menu is ours. The grammar, in full:

* A seller's reply is ``<Thought>..</Thought> <Target>..</Target> <Talk>..</Talk> <Action>..</Action>``: each element
  once, in this order, its tags in exactly this spelling. A buyer's is the same without Target.
* White space is blanks, tabs and newlines, where ``\\r\\n`` is a newline (a lone ``\\r`` is none). It may stand between
  elements, around them all, and around the values of Target and Action; nothing else stands outside.
* Thought and Talk are free text: they may span lines, be empty, and hold any ``<``, ``>`` or ``&``. This is no XML:
  nothing is an entity, a comment or a CDATA section. Only a tag of the protocol must not stand inside an element, not
  even a buyer's ``<Target>``, and in no spelling: ``<action>``, ``<Action type="sell">``, ``<Action/>``,
  ``< / Talk >``. Words that only look a little like one are text: ``bid < target``, ``<Talks>``, ``< talk on >``.
* Target: ``Buyer k`` (ASCII digits, no leading zero) or ``[QUIT]``; the latter only with Action ``[QUIT]``.
* Action: ``[SELL]`` and a menu, ``[DEAL]`` and one offer, or ``[QUIT]`` alone; buyers ``[BUY]`` for ``[SELL]``. A menu
  is one or more offers on different items with ``;`` between them, and at most one blank after the ``;``. The blank
  after the verb may be missing.
* Offer: ``$M (1x Item_j)``, j in ASCII digits without a leading zero; a buyer may also write ``(1 Item_j)``. M is
  read as in ``lines``.
* An item beyond the episode's is an ``item`` violation, reported only where nothing else is wrong.
* Replies that did not end by themselves, and thinking, are as in ``lines``.
* A Talk that announces ``Deal at $X``, as in ``lines``, while the Action is a ``[SELL]`` that offers nothing at that
  price is contradictory, a format violation.

Whether that buyer is active, that bid was made, that item is sold or offered below its cost is the environment's to
judge, not the parser's. Positions in details count characters from 1, in the reply without its think block.
"""

import re

from negolab.environment.base import Move, Offers, Violation, item_name
from negolab.money import dollars
from negolab.parser.shared import body_of, cents_of, claimed_deal, cut_reply, quote

__all__ = ["item_name", "parse_item_buyer", "parse_item_seller", "render_item_buyer", "render_item_seller"]

_SELLER_PARTS = ("Thought", "Target", "Talk", "Action")
_BUYER_PARTS = ("Thought", "Talk", "Action")
_WHITE = " \t\n"
_MAX_DIGITS = 6  # of a buyer's or an item's number; also because int() of a long digit string is quadratic
# Whatever could be meant as one of the eight tags. Attributes only where nothing stands before the name: "a < target
# and b > c" is prose. Each try ends at the next "<" or ">", and no two runs of blanks are neighbours, so it is linear.
_NAMES = "(?:thought|target|talk|action)"
_TAG = re.compile(rf"<(?:/?{_NAMES}[\s/][^<>]*|(?:\s*/)?\s*{_NAMES}[\s/]*)>", re.ASCII | re.IGNORECASE)
_VERB = re.compile(r"\[(SELL|BUY|DEAL|QUIT)\]")
_OFFER = re.compile(r"\$([0-9][0-9,]*)(?:\.([0-9]{1,2}))? \((1x?) Item_([1-9][0-9]*)\)")
_TARGET = re.compile(r"Buyer ([1-9][0-9]{0,5})")
# Replies as the renderers write them, without a "<" in the free text: nearly all of them. The others take the long way,
# which gives the same verdicts (a test holds the two together).
_PLAIN = r"\$[1-9][0-9]{0,6}\.[0-9][0-9] \(1x Item_[1-9][0-9]{0,5}\)"
_PLAIN_SELLER = re.compile(
    r"<Thought>[^<]*</Thought>\n<Target>Buyer ([1-9][0-9]{0,5})</Target>\n<Talk>([^<]*)</Talk>\n"
    rf"<Action>\[(SELL|DEAL)\] ({_PLAIN}(?:; {_PLAIN})*)</Action>"
).fullmatch
_PLAIN_BUYER = re.compile(
    r"<Thought>[^<]*</Thought>\n<Talk>([^<]*)</Talk>\n"
    rf"<Action>\[(BUY|DEAL)\] ({_PLAIN}(?:; {_PLAIN})*)</Action>"
).fullmatch
_PLAIN_OFFERS = re.compile(r"\$([0-9]+)\.([0-9][0-9]) \(1x Item_([0-9]+)").findall
_NUMBERS = {str(number): number for number in range(1, 10)}  # a look-up costs a third of int()
_new = tuple.__new__


def parse_item_seller(
    text: str | None, items: int, finish_reason: str = "stop", /, *, thinking: bool = False
) -> Move | Violation:
    """Read a seller's reply in an episode of ``items`` items, called ``Item_1`` to ``Item_{items}``.

    Violation kinds: ``truncated``, ``format``, ``target``, ``item``, and ``environment.base.ABORTS``. Never raises.
    """
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return cut
    if isinstance(text, str) and "\r" not in text:
        plain = _PLAIN_SELLER(text)
        if plain is not None:
            seat, talk, verb, menu = plain.groups()
            offers = _plain_offers(menu, items)
            if offers is not None and "Deal " not in talk and (verb == "SELL" or len(offers) == 1):
                target = _NUMBERS.get(seat) or int(seat)
                return _new(Move, (verb, offers, target, talk.strip(), text, False))
    return _parse_seller(text, items, thinking)


def parse_item_buyer(
    text: str | None, items: int, finish_reason: str = "stop", /, *, thinking: bool = False
) -> Move | Violation:
    """Read a buyer's reply in an episode of ``items`` items.

    Violation kinds: ``truncated``, ``format``, ``item``, and ``environment.base.ABORTS``. Never raises.
    """
    if finish_reason != "stop" and (cut := cut_reply(text, finish_reason)) is not None:
        return cut
    if isinstance(text, str) and "\r" not in text:
        plain = _PLAIN_BUYER(text)
        if plain is not None:
            talk, verb, menu = plain.groups()
            offers = _plain_offers(menu, items)
            if offers is not None and (verb == "BUY" or len(offers) == 1):
                return _new(Move, (verb, offers, None, talk.strip(), text, False))
    return _parse_buyer(text, items, thinking)


def render_item_seller(verb: str, offers: Offers, target: int | None, talk: str, thought: str) -> str:
    """Write a seller's reply that ``parse_item_seller`` reads back to the same move (free text is taken as it is).

    ``offers``: pairs of an item, counted from 1, and cents; empty for ``QUIT``.
    """
    seat = "[QUIT]" if target is None else f"Buyer {target}"
    return (
        f"<Thought>{thought}</Thought>\n<Target>{seat}</Target>\n<Talk>{talk}</Talk>\n"
        f"<Action>[{verb}]{_menu(offers)}</Action>"
    )


def render_item_buyer(verb: str, offers: Offers, talk: str, thought: str) -> str:
    """Write a buyer's reply that ``parse_item_buyer`` reads back to the same move."""
    return f"<Thought>{thought}</Thought>\n<Talk>{talk}</Talk>\n<Action>[{verb}]{_menu(offers)}</Action>"


def _menu(offers: Offers) -> str:
    """A menu with the blank before it; nothing where there is no offer."""
    return " " + "; ".join([f"{dollars(cents)} (1x Item_{item})" for item, cents in offers]) if offers else ""


def _plain_offers(menu: str, items: int) -> Offers | None:
    """The offers of a plainly written menu; None where one is wrong, which the long way will explain."""
    offers = tuple(
        [(_NUMBERS.get(item) or int(item), int(whole + cents)) for whole, cents, item in _PLAIN_OFFERS(menu)]
    )
    different = dict(offers)
    return offers if len(different) == len(offers) and max(different) <= items else None


def _parse_seller(text: str | None, items: int, thinking: bool) -> Move | Violation:
    body = body_of(text, thinking)
    if isinstance(body, Violation):
        return body
    parts = _elements(body, _SELLER_PARTS)
    if isinstance(parts, Violation):
        return parts
    _, seat, talk, action_part = parts
    seat = seat.strip(_WHITE)
    found = _TARGET.fullmatch(seat)
    if found is None and seat != "[QUIT]":
        return Violation("target", f"Target must be 'Buyer k' or '[QUIT]', not {quote(seat)}", body)
    target = None if found is None else int(found[1])
    action = _action(action_part, "SELL", body, strict=True)
    if isinstance(action, Violation):
        return action
    verb, named = action
    if target is None and verb != "QUIT":
        return Violation("target", f"Target [QUIT] goes only with Action [QUIT], not [{verb}]", body)
    talk = talk.strip()
    if verb == "SELL" and "Deal " in talk:
        claimed = claimed_deal(talk)
        if claimed is not None and all(cents != claimed for _, cents in named):
            return Violation(
                "format", f"Talk announces a deal at {dollars(claimed)}, Action is a [SELL] with no offer at it", body
            )
    offers = _known(named, items, body)
    return offers if isinstance(offers, Violation) else Move(verb, offers, target, talk, body)


def _parse_buyer(text: str | None, items: int, thinking: bool) -> Move | Violation:
    body = body_of(text, thinking)
    if isinstance(body, Violation):
        return body
    parts = _elements(body, _BUYER_PARTS)
    if isinstance(parts, Violation):
        return parts
    _, talk, action_part = parts
    action = _action(action_part, "BUY", body)
    if isinstance(action, Violation):
        return action
    verb, named = action
    offers = _known(named, items, body)
    return offers if isinstance(offers, Violation) else Move(verb, offers, None, talk.strip(), body)


def _elements(body: str, names: tuple[str, ...]) -> list[str] | Violation:
    """What stands inside each element. The reply's tags, in any spelling, must be the expected ones one by one, so a
    missing, doubled, nested, crossed or misspelt tag is seen at once."""
    expected = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    values = []
    seen = at = 0  # tags, and the end of the last
    for tag in _TAG.finditer(body):
        between = body[at : tag.start()]
        if seen % 2 == 0 and between.strip(_WHITE):
            return _outside(between, expected, seen, body)
        if seen == len(expected) or tag[0] != expected[seen]:
            return Violation("format", _unexpected(tag[0], tag.start(), expected, seen), body)
        if seen % 2 == 1:
            values.append(between)
        at = tag.end()
        seen += 1
    if seen < len(expected):
        return Violation("format", f"the reply ends without '{expected[seen]}'", body)
    if body[at:].strip(_WHITE):
        return _outside(body[at:], expected, seen, body)
    return values


def _unexpected(tag: str, start: int, expected: list[str], seen: int) -> str:
    """What is wrong with a tag that is not the expected one."""
    found = f"{quote(tag)} at character {start + 1}"
    if "<Target>" not in expected and tag.lstrip("</ \t\n").lower().startswith("target"):
        return f"{found}: a buyer's reply has no Target"
    if seen == len(expected):
        return f"{found}, after '{expected[-1]}'"
    if seen % 2 == 1:
        return f"{found}, where only '{expected[seen]}' may end the element"
    return f"{found}, where '{expected[seen]}' must stand"


def _outside(between: str, expected: list[str], seen: int, body: str) -> Violation:
    """Text where only white space may stand."""
    where = f"after '{expected[seen - 1]}'" if seen else f"before '{expected[0]}'"
    return Violation("format", f"text outside the elements, {where}: {quote(between.strip(_WHITE))}", body)


def _action(part: str, offer: str, body: str, *, strict: bool = False) -> tuple[str, list[tuple[str, int]]] | Violation:
    """Verb of an Action, and the number, as written, and the cents of each item that it names; ``offer`` is the role's
    own offering verb; ``strict``: only ``1x``."""
    value = part.strip(_WHITE)
    found = _VERB.match(value)
    if found is None:
        return Violation("format", f"Action must begin with [{offer}], [DEAL] or [QUIT], not {quote(value)}", body)
    verb = found[1]
    menu = value[found.end() :]
    if verb == "QUIT":
        if menu:
            return Violation("format", f"[QUIT] stands alone, without {quote(menu)}", body)
        return verb, []
    if verb != offer and verb != "DEAL":
        return Violation("format", f"[{verb}] is the other side's action", body)
    named: dict[str, int] = {}
    for place, written in enumerate(menu.split(";"), 1):
        read = _OFFER.fullmatch(written.removeprefix(" "))
        if read is None:
            found_here = quote(written.removeprefix(" "))  # not stripped: a blank too many is what may be wrong
            return Violation("format", f"offer {place} of [{verb}] must be '$M (1x Item_j)', not {found_here}", body)
        whole, part_cents, quantity, item = read.groups()
        if quantity != "1x" and strict:
            return Violation("format", f"offer {place} of [{verb}]: the quantity is written '1x'", body)
        cents = cents_of(whole, part_cents)
        if cents is None:
            return Violation("format", f"offer {place} of [{verb}]: not a price: {quote('$' + whole)}", body)
        if item in named:
            return Violation("format", f"offer {place} of [{verb}]: {quote('Item_' + item)} is named twice", body)
        named[item] = cents
    if verb == "DEAL" and len(named) > 1:
        return Violation("format", f"[DEAL] names one item, not {len(named)}", body)
    return verb, list(named.items())


def _known(named: list[tuple[str, int]], items: int, body: str) -> Offers | Violation:
    """The offers, where every item is one of the episode's."""
    for item, _ in named:
        if len(item) > _MAX_DIGITS or int(item) > items:
            allowed = f"Item_1 to Item_{items}" if items > 1 else "Item_1 only"
            return Violation("item", f"there is no {quote('Item_' + item)} here: {allowed}", body)
    return tuple([(int(item), cents) for item, cents in named])
