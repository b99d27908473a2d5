"""``negolab parse``: verdicts on seller replies, one JSON object per line."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from negolab.commands.arguments import price, whole
from negolab.environment.base import Channel, Move, Offer, Violation
from negolab.environment.market import check_seller
from negolab.errors import NegolabError
from negolab.parser.lines import parse_seller


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "parse",
        help="judge seller replies by the strict grammar and the market's rules",
        description="Reads JSON lines with `text` (may be null) and `finish_reason`; writes a verdict per line, "
        "in order.",
    )
    parser.add_argument(
        "--jsonl", required=True, metavar="FILE", help="replies, one JSON object per line; - reads stdin"
    )
    parser.add_argument("--codename", required=True, help="codename of the item on sale")
    parser.add_argument("--list-price", required=True, type=price, metavar="$", help="public list price in dollars")
    parser.add_argument("--cost", required=True, type=price, metavar="$", help="the seller's cost in dollars")
    parser.add_argument("--buyers", required=True, type=whole(1, 1000), metavar="N", help="number of buyers")
    parser.add_argument("--bids", default="", metavar="K:$,...", help='standing bids, such as "1:22.00,2:27.50"')
    parser.add_argument("--inactive", default="", metavar="K,...", help="buyers that have quit or are capped")
    parser.add_argument("--thinking", action="store_true", help="thinking is on: cut one leading think block")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge every line."""
    if args.cost >= args.list_price:
        raise NegolabError("--cost must be below --list-price")
    if re.fullmatch(r"[^()\s]+", args.codename) is None:
        raise NegolabError(f"--codename {args.codename!r}: a codename has no blanks and no brackets")
    channels = _channels(args.buyers, args.bids, args.inactive)
    if args.jsonl == "-":
        stdin: Any = sys.stdin
        if stdin is None:
            raise NegolabError("--jsonl -: standard input is closed")
        return _judge(stdin.buffer, "standard input", channels, args)
    try:
        file = open(args.jsonl, "rb")  # noqa: SIM115 - an error while judging is another error
    except (OSError, ValueError) as error:
        raise NegolabError(f"--jsonl {args.jsonl}: {getattr(error, 'strerror', error)}") from None
    with file:
        return _judge(file, args.jsonl, channels, args)


def _judge(file: Iterable[bytes], name: str, channels: list[Channel], args: argparse.Namespace) -> int:
    for text, finish_reason in _replies(file, name):
        read = parse_seller(text, args.codename, finish_reason, thinking=args.thinking)
        if isinstance(read, Move):
            read = check_seller(read, channels, (args.cost,)) or read
        print(json.dumps(verdict(read)))
    return 0


def verdict(read: Move | Violation) -> dict[str, Any]:
    """A move or violation as plain data."""
    if isinstance(read, Violation):
        return {"ok": False, "kind": read.kind, "detail": read.detail}
    return {"ok": True, "target": read.target, "action": read.verb, "price_cents": read.price}


def _replies(file: Iterable[bytes], name: str) -> Iterator[tuple[str | None, str]]:
    """Text and finish reason of every line; UTF-8 whatever the machine's locale."""
    lines = enumerate(file, 1)
    while True:
        try:
            number, raw = next(lines)
        except StopIteration:
            return
        except OSError as error:  # a folder, a broken disk
            raise NegolabError(f"{name} cannot be read: {error.strerror or error}") from None
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if not line.strip():
                continue
            data = json.loads(line)
        except UnicodeDecodeError as error:
            raise NegolabError(f"{name}, line {number}: not UTF-8 at byte {error.start} of the line") from None
        except (ValueError, RecursionError) as error:
            raise NegolabError(f"{name}, line {number}: not JSON ({error})") from None
        if not isinstance(data, dict) or not isinstance(data.get("text", 0), str | None):
            raise NegolabError(f'{name}, line {number}: expected an object with "text" (a string or null)')
        reason = data.get("finish_reason")
        if not isinstance(reason, str | None):
            raise NegolabError(f'{name}, line {number}: "finish_reason" must be a string, such as "stop" or "length"')
        yield data["text"], reason or "stop"


def _channels(n: int, bids: str, inactive: str) -> list[Channel]:
    made: list[list[Offer]] = [[] for _ in range(n)]
    closed = set()
    for part in filter(None, (p.strip() for p in bids.split(","))):
        buyer, colon, amount = part.partition(":")
        try:
            if not colon:
                raise ValueError(part)
            made[_buyer(buyer, n) - 1].append((1, price(amount)))
        except (ValueError, argparse.ArgumentTypeError):
            raise NegolabError(
                f"--bids: {part[:40]!r} is not BUYER:PRICE with BUYER from 1 to {n}, such as 2:27.50"
            ) from None
    for part in filter(None, (p.strip() for p in inactive.split(","))):
        try:
            closed.add(_buyer(part, n))
        except ValueError:
            raise NegolabError(f"--inactive: {part[:40]!r} is not a buyer from 1 to {n}") from None
    return [Channel("quit" if i in closed else "active", 0, tuple(made[i - 1]), ()) for i in range(1, n + 1)]


def _buyer(text: str, n: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= n):
        raise ValueError(text)
    return int(text)
