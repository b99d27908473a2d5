"""What both reply formats have in common: how a reply ended, think blocks, amounts of money, an announced deal."""

import re

from negolab.environment.base import ABORTS, Violation
from negolab.money import MAX_CENTS

_ENDS = {
    "length": ("truncated", "the reply was cut at the token limit"),
    "context_limit": ("context_limit", "the conversation no longer fits into the model's context"),
    "timeout": ("timeout", "no reply came in time"),
}
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_DEAL_TALK = re.compile(
    r"(?:^|[.!?]\s)\s?Deal at \$?([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.([0-9]{1,2}))?(?:[,.!](?![0-9])|\s*$)"
)
_MAX_DIGITS = len(str(MAX_CENTS))


def finish_of(reason: str | None) -> str:
    """What a server calls the end of a reply, in our words: ``length``, ``content_filter``, one of ``ABORTS``, and
    ``stop`` for everything else that a complete reply may end with."""
    known = (reason or "").lower()
    if known in ("length", "max_tokens", "max_output_tokens", "model_length", "token_limit"):
        return "length"
    if known in ("content_filter", "safety", "prohibited_content", "blocklist", "recitation"):
        return "content_filter"
    return known if known in ABORTS else "stop"


def cut_reply(text: str | None, finish_reason: str) -> Violation | None:
    """The violation of a reply that did not end by itself; None for one that did."""
    end = _ENDS.get(finish_of(finish_reason))
    return None if end is None else Violation(*end, text or "")


def body_of(text: str | None, thinking: bool) -> str | Violation:
    """The reply with ``\\r\\n`` as newline and, with thinking on, without its one leading complete think block."""
    if not isinstance(text, str) or not text:
        return Violation("format", "the reply is empty", "")
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    if thinking and text.lstrip().startswith("<think>"):
        end = text.find("</think>")
        if end < 0:
            return Violation("format", "the think block is never closed", text)
        text = text[end + len("</think>") :].lstrip()
    if "<think>" in text or "</think>" in text:
        where = "after the leading think block" if thinking else "although thinking is off"
        return Violation("format", f"think tags {where}", text)
    return text


def cents_of(whole: str, cents: str | None) -> int | None:
    """Cents of a matched amount; None for misplaced commas, zero, or more than ``MAX_CENTS``."""
    if "," in whole:
        if len(whole) > 2 * _MAX_DIGITS or not _GROUPED.fullmatch(whole):
            return None
        whole = whole.replace(",", "")
    whole = whole.lstrip("0")
    if len(whole) > _MAX_DIGITS:  # before int(): converting a long digit string is quadratic
        return None
    total = int(whole or "0") * 100
    if cents:
        total += int(cents) if len(cents) == 2 else int(cents) * 10
    return total if 0 < total <= MAX_CENTS else None


def claimed_deal(talk: str) -> int | None:
    """Cents of the deal that a sentence of the Talk announces (``Deal at $X.``); None where none does."""
    found = _DEAL_TALK.search(talk)
    return None if found is None else cents_of(found[1], found[2])


def quote(text: str) -> str:
    """A short, printable quotation for a message."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")
