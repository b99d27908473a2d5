"""Text that others wrote, as it can be shown: nothing that acts instead of being seen, and not without end."""

import re

# Terminal escapes, bidirectional overrides, line separators, lone surrogates: nothing that a reader can see as such.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with every character spelled out that would act on a terminal or page instead of being seen."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def cut(text: str, most: int) -> str:
    """``text``, and where it is longer than ``most`` characters how many more there are."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} [... {left:,} more characters, see --json]"
