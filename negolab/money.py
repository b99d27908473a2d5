"""Money: integer cents inside, dollars only as text at the edge.

Comparing two prices is comparing two integers, so "equal" means equal and a deal that is one cent off is off.
"""

MAX_CENTS = 1_000_000_000
"""Largest amount the protocol accepts: $10,000,000.00, far above any list price of the catalogue ($4,299.98)."""


def dollars(cents: int) -> str:
    """Render cents as protocol text: ``3499 -> "$34.99"``, ``123456 -> "$1234.56"`` (no thousands commas)."""
    if cents < 0:
        return "-" + dollars(-cents)
    return f"${cents // 100}.{cents % 100:02d}"


def round_cents(value: float) -> int:
    """Round an amount of cents, never negative, half up (``3498.5 -> 3499``); budgets and openings are made so."""
    return int(value + 0.5)  # truncates towards zero, which is down for what is never negative


def cents_from_text(text: str) -> int:
    """Read a catalogue or command-line price such as ``"$1,299.99"`` or ``"22.00"`` as cents.

    One leading ``$`` and all commas are dropped (the upstream loader's rule). Raises ``ValueError`` when the rest is
    not a plain decimal with at most two places, or is negative.
    """
    bare = text.strip().removeprefix("$").replace(",", "")
    whole, point, part = bare.partition(".")
    if not (whole.isascii() and whole.isdigit()) or (
        point and not (part.isascii() and part.isdigit() and len(part) <= 2)
    ):
        raise ValueError(f"not a price: {text!r} (expected dollars such as 34.99 or $1,299.99)")
    return int(whole) * 100 + (int(part.ljust(2, "0")) if point else 0)
