"""Argument types that several commands share; each says what is allowed."""

import argparse
from collections.abc import Callable
from typing import Any

from negolab.catalog import SAMPLE
from negolab.errors import NegolabError
from negolab.money import cents_from_text
from negolab.scenario import REGIMES, Interval


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number in a range, in plain ASCII digits."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 20 or not low <= int(text) <= (high or 2**63 - 1):
            allowed = f"from {low}" + ("" if high is None else f" to {high}")
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give a whole number {allowed}")
        return int(text)

    return read


def price(text: str) -> int:
    """Dollars as cents."""
    try:
        return cents_from_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def interval(text: str) -> Interval:
    """``0.25-0.30``."""
    low, dash, high = text.partition("-")
    try:
        return float(low), float(high if dash else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.25-0.30") from None


def intervals(text: str) -> tuple[Interval, ...]:
    """``0.40-0.55,0.65-0.80``."""
    return tuple(interval(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """``iter-50,iter-60``."""
    return tuple(part.strip() for part in text.split(","))


def add_data(parser: argparse.ArgumentParser) -> None:
    """``--data``."""
    parser.add_argument(
        "--data",
        default=SAMPLE,
        metavar="DIR",
        help="catalogue folder (see `negolab data fetch`); default: the bundled synthetic sample",
    )


def add_market(parser: argparse.ArgumentParser) -> None:
    """The regime and its knobs."""
    group = parser.add_argument_group("market")
    group.add_argument("--regime", default="in_distribution", metavar="NAME", help=f"one of: {', '.join(REGIMES)}")
    group.add_argument("--buyers", type=whole(1, 1000), metavar="N", help="number of buyers")
    group.add_argument("--cap", type=whole(1, 1000), metavar="K", help="messages that one buyer may get")
    group.add_argument("--messages", type=whole(1, 100_000), metavar="T", help="the seller's messages in all")
    group.add_argument("--budgets", type=intervals, metavar="LO-HI,...", help="budget tiers as fractions of list price")
    group.add_argument("--first-offer", metavar="LO-HI|free", help="regulated first offer, or 'free'")
    group.add_argument("--buyer-types", type=names, metavar="A,B", help="types drawn for each buyer")


def market_knobs(args: argparse.Namespace) -> dict[str, Any]:
    """What ``add_market``'s options override."""
    knobs: dict[str, Any] = {
        "n_buyers": args.buyers,
        "per_buyer_cap": args.cap,
        "message_budget": args.messages,
        "budget_tiers": args.budgets,
        "buyer_types": args.buyer_types,
    }
    if args.first_offer is not None:
        try:
            knobs["first_offer"] = "free" if args.first_offer == "free" else interval(args.first_offer)
        except argparse.ArgumentTypeError as error:
            raise NegolabError(f"--first-offer: {error}, or 'free'") from None
    return {name: value for name, value in knobs.items() if value is not None}
