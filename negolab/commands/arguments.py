"""Argument types that several commands share; each says what is allowed."""

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from negolab.catalog import SAMPLE
from negolab.errors import NegolabError
from negolab.money import MAX_CENTS, cents_from_text, dollars
from negolab.scenario import GAINS, GAMES, PERSONAS, PROTOCOLS, REGIMES, TRADE_DRAWS, Interval

if TYPE_CHECKING:
    from negolab.policies.spec import ModelSpec


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
        cents = cents_from_text(text) if len(text) <= 40 else MAX_CENTS + 1
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if cents > MAX_CENTS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is above the largest amount, {dollars(MAX_CENTS)}")
    return cents


# Plain ASCII decimals: no sign, exponent, inf, nan, underscore or other script's digits.
_INTERVAL = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:-([0-9]+(?:\.[0-9]*)?|\.[0-9]+))?")


def interval(text: str) -> Interval:
    """``0.25-0.30``, or ``0.28`` for a single ratio."""
    found = _INTERVAL.fullmatch(text.strip())
    if found is None or len(text) > 60:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not an interval such as 0.25-0.30")
    low, high = float(found[1]), float(found[2] or found[1])
    if not 0 < low <= high <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: 0 < low <= high <= 100, as fractions of the list price"
        )
    return low, high


def share(text: str) -> float:
    """A number from 0 to 1, in plain ASCII decimals."""
    found = _INTERVAL.fullmatch(text.strip())
    if found is None or found[2] or len(text) > 60 or float(found[1]) > 1:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not allowed: give a number from 0 to 1, such as 0.5")
    return float(found[1])


def intervals(text: str) -> tuple[Interval, ...]:
    """``0.40-0.55,0.65-0.80``."""
    return tuple(interval(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """``iter-50,iter-60``."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty name; give names such as iter-50,iter-60")
    return found


def first_offer(text: str) -> Interval | str:
    """An interval, or ``free``."""
    return "free" if text == "free" else interval(text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """``--data``."""
    parser.add_argument(
        "--data",
        default=SAMPLE,
        metavar="DIR",
        help="catalogue folder (see `negolab data fetch`), sample (the bundled synthetic one, the default), or auto: "
        "$NEGOLAB_DATA or data/AmazonHistoryPrice if there, else the sample; for markets of several items also a CSV "
        "or JSON file of clusters",
    )


def add_players(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The seller, and language models as buyers."""
    group = parser.add_argument_group("players", "`negolab evaluate --list-options` prints the options of models")
    group.add_argument(
        "--seller",
        required=required,
        metavar="NAME",
        help="random, satisficer, greedy, prober, oracle, with several items random, satisficer, early-closer, "
        "screener, oracle; module:factory for one of your own; or a language model as transformers:MODEL, vllm:MODEL "
        "or openai:MODEL; other games have other scripted sellers, see below",
    )
    group.add_argument(
        "--seller-option", action="append", default=[], metavar="KEY=VALUE", help="an option of the selling model"
    )
    group.add_argument(
        "--buyer-model",
        action="append",
        default=[],
        metavar="[TYPE=]ENGINE:MODEL",
        help="a language model in place of the scripted buyers, or of those of one type",
    )
    group.add_argument(
        "--buyer-option",
        action="append",
        default=[],
        metavar="[TYPE.]KEY=VALUE",
        help="an option of the buying models, or of one type's",
    )


def _player(name: str, given: list[str], side: str) -> "str | ModelSpec":
    """A player's name, or the model that it names with its options."""
    from negolab.policies.spec import is_model, key_values, spec_of

    options = key_values(given, f"--{side}-option")
    if is_model(name):
        return spec_of(name, options)
    if options:
        raise NegolabError(f"--{side}-option goes with a language model as --{side}, not with {name!r}")
    return name


def sides(args: argparse.Namespace) -> tuple["str | ModelSpec", "str | ModelSpec"]:
    """The seller and the buyer of a game of two. Raises ``NegolabError`` where the buyer is missing."""
    if args.buyer is None:
        why = "who is the one that is evaluated" if args.game == "bilateral" else "since both sides are evaluated"
        raise NegolabError(f"--game {args.game} needs --buyer, {why}")
    return _player(args.seller, args.seller_option, "seller"), _player(args.buyer, args.buyer_option, "buyer")


def players(args: argparse.Namespace) -> tuple["str | ModelSpec", dict[str, "ModelSpec"]]:
    """The seller, and the models that buy by type (``*`` for all others)."""
    from negolab.policies.spec import is_model, key_values, spec_of

    seller = _player(args.seller, args.seller_option, "seller")
    buyers: dict[str, ModelSpec] = {}
    options = key_values(args.buyer_option, "--buyer-option")
    named: dict[str, str] = {}
    for text in args.buyer_model:
        kind, equals, model = text.partition("=")
        if not equals or is_model(text):
            kind, model = "*", text
        if kind in named:
            raise NegolabError(f"--buyer-model names {'every type' if kind == '*' else kind} twice")
        named[kind] = model
    for key in options:
        kind, dot, _ = key.rpartition(".")
        if not named or (dot and kind not in named):
            raise NegolabError(f"--buyer-option {key} goes with a --buyer-model{f' {kind}=...' if dot else ''}")
    for kind, model in named.items():
        mine = {key: value for key, value in options.items() if "." not in key}
        mine |= {key.rpartition(".")[2]: v for key, v in options.items() if key.rpartition(".")[0] == kind}
        buyers[kind] = spec_of(model, mine)
    return seller, buyers


def add_market(parser: argparse.ArgumentParser) -> None:
    """The regime and its knobs."""
    group = parser.add_argument_group("market")
    group.add_argument("--regime", default="in_distribution", metavar="NAME", help=f"one of: {', '.join(REGIMES)}")
    group.add_argument(
        "--buyers",
        type=whole(1, 1000),
        metavar="N",
        help="number of buyers (more than tiers: these repeat)",
    )
    group.add_argument("--cap", type=whole(1, 1000), metavar="K", help="messages that one buyer may get")
    group.add_argument("--messages", type=whole(1, 100_000), metavar="T", help="the seller's messages in all")
    group.add_argument("--budgets", type=intervals, metavar="LO-HI,...", help="budget tiers as fractions of list price")
    group.add_argument("--first-offer", metavar="LO-HI|free", type=first_offer, help="regulated first offer, or 'free'")
    group.add_argument("--buyer-types", type=names, metavar="A,B", help="types drawn for each buyer")
    group.add_argument(
        "--protocol", choices=PROTOCOLS, help="how replies are written; the regimes multi_* have tags, the others lines"
    )
    group.add_argument("--items", type=whole(1, 100), metavar="M", help="items on sale; several need tags")
    group.add_argument(
        "--first-offer-rate", type=share, metavar="P", help="probability that a buyer's first offer is regulated"
    )
    group.add_argument(
        "--item-correlation", type=share, metavar="R", help="how far buyers agree on what an item is worth, 0 to 1"
    )
    group.add_argument(
        "--buyer-correlation", type=share, metavar="R", help="how far a buyer values all items alike, 0 to 1"
    )


def add_games(parser: argparse.ArgumentParser) -> None:
    """Which game is played, and the options that only the games of two have."""
    parser.add_argument("--game", choices=GAMES, default="market", help="whose rules are played (default: market)")
    parser.add_argument(
        "--buyer",
        metavar="NAME",
        help="the buyer of a game of two: a scripted one (see below), module:factory for one of your own, or a "
        "language model as ENGINE:MODEL, with --buyer-option for its options",
    )
    group = parser.add_argument_group(
        "bilateral game",
        "--game bilateral: the buyer (naive, lowballer, conceder, patient) is evaluated against one regulated seller "
        "(--seller: persona, or one of its personas)",
    )
    group.add_argument("--personas", type=names, metavar="A,B", help=f"drawn for each game: {', '.join(PERSONAS)}")
    group.add_argument("--reject", action="store_true", help="[REJECT] is an action of both sides")
    group.add_argument("--turns", type=whole(1, 1000), metavar="N", help="turns of a game (default: 6)")
    group = parser.add_argument_group(
        "trade game",
        "--game trade: two traders act by tool calls, each knows its own limit only (--seller and --buyer: anchor, "
        "taper, walk-away, hasty, accommodating, irrational)",
    )
    group.add_argument(
        "--gains",
        choices=GAINS,
        help="gft: the buyer values the item above the seller's reservation price; ngft: below; any: as it happens "
        "(default: any)",
    )
    group.add_argument(
        "--trade-draw",
        choices=TRADE_DRAWS,
        help="how a buyer's value of that kind is found: drawn until it fits, or from what fits (default: redraw)",
    )
    group.add_argument(
        "--rounds", type=whole(1, 1000), metavar="N", help="rounds, each one side's turn, seller first (default: 10)"
    )


_OWN = {
    "market": "--cap --messages --buyers --first-offer --buyer-types --regime --buyer-model --protocol --items "
    "--first-offer-rate --item-correlation --buyer-correlation",
    "bilateral": "--personas --reject --turns",
    "trade": "--gains --trade-draw --rounds",
}
"""By game: the options that no other game has. ``--budgets`` is the market's and the bilateral game's, ``--buyer`` goes
with both games of two."""


def check_game(args: argparse.Namespace) -> None:
    """Raise ``NegolabError`` for an option that ``args.game`` does not have: which one, and what goes with it."""

    def given(option: str) -> bool:
        value = getattr(args, option[2:].replace("-", "_"))
        return value is not None and value is not False and value != []

    for game, options in _OWN.items():
        wrong = [option for option in options.split() if game != args.game and given(option)]
        if not wrong:
            continue
        if game != "market":
            raise NegolabError(f"{wrong[0]} goes with --game {game}")
        has = {"bilateral": "--buyer, --turns, --budgets", "trade": "--buyer, --gains, --trade-draw, --rounds"}
        raise NegolabError(f"{wrong[0]} is an option of the market; the {args.game} game has {has[args.game]}")
    if args.game == "market" and given("--buyer"):
        raise NegolabError("--buyer goes with --game bilateral or --game trade")
    if args.game == "trade" and given("--budgets"):
        raise NegolabError("--budgets: in the trade game both limits follow from the item's own price history")


def game_knobs(args: argparse.Namespace) -> dict[str, Any]:
    """What ``add_games``'s options override in a game of two."""
    if args.game == "trade":
        knobs: dict[str, Any] = {
            "per_buyer_cap": args.rounds,
            "message_budget": args.rounds,
            "gains": args.gains,
            "trade_draw": args.trade_draw,
        }
    else:
        knobs = {
            "per_buyer_cap": args.turns,
            "message_budget": args.turns,
            "budget_tiers": args.budgets,
            "personas": args.personas,
            "reject": args.reject or None,
        }
    return {name: value for name, value in knobs.items() if value is not None}


def market_knobs(args: argparse.Namespace) -> dict[str, Any]:
    """What ``add_market``'s options override."""
    knobs: dict[str, Any] = {
        "n_buyers": args.buyers,
        "per_buyer_cap": args.cap,
        "message_budget": args.messages,
        "budget_tiers": args.budgets,
        "first_offer": args.first_offer,
        "buyer_types": args.buyer_types,
        "protocol": args.protocol,
        "n_items": args.items,
        "first_offer_rate": args.first_offer_rate,
        "item_correlation": args.item_correlation,
        "buyer_correlation": args.buyer_correlation,
    }
    return {name: value for name, value in knobs.items() if value is not None}
