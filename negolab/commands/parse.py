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
from negolab.parser.tags import parse_item_seller
from negolab.scenario import PROTOCOLS


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
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, default="lines", help="how replies are written (default: lines)"
    )
    parser.add_argument("--codename", help="lines: codename of the item on sale")
    parser.add_argument("--list-price", type=price, metavar="$", help="lines: public list price in dollars")
    parser.add_argument(
        "--cost",
        required=True,
        type=prices,
        metavar="$[,$...]",
        help="the seller's cost in dollars; tags: of each item",
    )
    parser.add_argument("--buyers", required=True, type=whole(1, 1000), metavar="N", help="number of buyers")
    parser.add_argument(
        "--bids",
        default="",
        metavar="K:[ITEM:]$,...",
        help='standing bids, such as "1:22.00,2:27.50"; tags: with the item, such as "1:3:22.00"',
    )
    parser.add_argument("--inactive", default="", metavar="K,...", help="buyers that have quit, bought or are capped")
    parser.add_argument("--sold", default="", metavar="ITEM,...", help="tags: items that are sold")
    parser.add_argument("--thinking", action="store_true", help="thinking is on: cut one leading think block")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge every line."""
    _check_options(args)
    channels = _channels(args)
    args.sold = {_number(part, len(args.cost), "--sold", "an item") for part in _parts(args.sold)}
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
        read: Move | Violation
        if args.protocol == "tags":
            read = parse_item_seller(text, len(args.cost), finish_reason, thinking=args.thinking)
        else:
            read = parse_seller(text, args.codename, finish_reason, thinking=args.thinking)
        if isinstance(read, Move):
            read = check_seller(read, channels, args.cost, args.sold) or read
        print(json.dumps(verdict(read, args.protocol)))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise ``NegolabError`` where the options do not go with the protocol, or with each other."""
    if args.protocol == "tags":
        if args.codename is not None or args.list_price is not None:
            raise NegolabError("--codename and --list-price go with --protocol lines: with tags items are Item_1, ...")
        return
    if args.codename is None or args.list_price is None:
        raise NegolabError("--protocol lines needs --codename and --list-price")
    if len(args.cost) > 1 or args.sold:
        raise NegolabError("several items go with --protocol tags; lines sell one, at one --cost and without --sold")
    if args.cost[0] >= args.list_price:
        raise NegolabError("--cost must be below --list-price")
    if re.fullmatch(r"[^()\s]+", args.codename) is None:
        raise NegolabError(f"--codename {args.codename!r}: a codename has no blanks and no brackets")


def prices(text: str) -> tuple[int, ...]:
    """Dollars, one or several, as cents."""
    return tuple(price(part.strip()) for part in text.split(","))


def verdict(read: Move | Violation, protocol: str = "lines") -> dict[str, Any]:
    """A move or violation as plain data: with tags every offer with its item."""
    if isinstance(read, Violation):
        return {"ok": False, "kind": read.kind, "detail": read.detail}
    made = {"ok": True, "target": read.target, "action": read.verb}
    if protocol == "tags":
        return {**made, "offers": [{"item": item, "price_cents": cents} for item, cents in read.offers]}
    return {**made, "price_cents": read.price}


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


def _parts(text: str) -> list[str]:
    return [part for part in (p.strip() for p in text.split(",")) if part]


def _channels(args: argparse.Namespace) -> list[Channel]:
    n, tags = args.buyers, args.protocol == "tags"
    made: list[list[Offer]] = [[] for _ in range(n)]
    for part in _parts(args.bids):
        buyer, *item, amount = part.split(":") if part.count(":") == 1 + tags else ("", "")
        try:
            which = _whole(item[0], len(args.cost)) if item else 1
            made[_whole(buyer, n) - 1].append((which, price(amount)))
        except (ValueError, argparse.ArgumentTypeError):
            form = "BUYER:ITEM:PRICE" if tags else "BUYER:PRICE"
            shown = "2:1:27.50" if tags else "2:27.50"
            raise NegolabError(
                f"--bids: {part[:40]!r} is not {form} with BUYER from 1 to {n}, such as {shown}"
            ) from None
    closed = {_number(part, n, "--inactive", "a buyer") for part in _parts(args.inactive)}
    return [Channel("quit" if i in closed else "active", 0, tuple(made[i - 1]), ()) for i in range(1, n + 1)]


def _number(text: str, n: int, option: str, what: str) -> int:
    try:
        return _whole(text, n)
    except ValueError:
        raise NegolabError(f"{option}: {text[:40]!r} is not {what} from 1 to {n}") from None


def _whole(text: str, n: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= n):
        raise ValueError(text)
    return int(text)
