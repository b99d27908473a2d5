"""``negolab evaluate``: the main experiment, for one seller or for a panel of them."""

import argparse
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from negolab.commands.arguments import (
    add_data,
    add_games,
    add_market,
    add_players,
    check_game,
    game_knobs,
    market_knobs,
    players,
    sides,
    whole,
)
from negolab.errors import NegolabError
from negolab.scenario import MAX_SEED

if TYPE_CHECKING:
    from negolab.panel import Panel
    from negolab.plan import Settings


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "evaluate",
        help="play a seller, or a panel of sellers, on a split and write episodes, metrics and tables",
        description="Plays one seller (--seller), or every seller of a panel file (--panel) on the same markets. Run "
        "the same command again to resume or to reprint.",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="run folder: new, or this run's own to resume it")
    parser.add_argument(
        "--split", help="train, test, all, of clusters also held_out, or a JSON file with names (default: test)"
    )
    parser.add_argument(
        "--per-product",
        type=whole(1, 1_000_000),
        metavar="N",
        help="episodes per product, or cluster of products (default: 2)",
    )
    parser.add_argument("--products", type=whole(1), metavar="N", help="only the split's first N products, or clusters")
    parser.add_argument("--seed", type=whole(0, MAX_SEED), help="seed of all markets (default: 0)")
    parser.add_argument(
        "--workers", type=whole(1, 256), metavar="N", help="processes; same results for any N (default: 1)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="play on a Ray cluster: of this machine, or the one at HOST:PORT, or auto for the one it belongs to; then "
        "--workers is by default its processors, or what its GPUs hold of a model",
    )
    parser.add_argument(
        "--max-cost",
        type=amount,
        metavar="DOLLARS",
        help="begin no further episode once the models have used so much (needs their prices)",
    )
    parser.add_argument("--list-options", action=_ListOptions, help="print the options of language models and leave")
    add_players(parser, required=False)
    group = parser.add_argument_group("panel", "in place of --seller; the other options go over the file's")
    group.add_argument(
        "--panel",
        metavar="FILE",
        help="a YAML file, or a packaged panel by name: table4, multi_product, example, example_items, ...",
    )
    group.add_argument("--only", action="append", default=[], metavar="NAME,...", help="only these entries")
    add_data(parser)
    add_market(parser)
    add_games(parser)
    # None says that the command line is silent: a panel's file then decides.
    parser.set_defaults(run=run, data=None, regime=None)


class _ListOptions(argparse.Action):
    """``--list-options``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from negolab.policies.spec import options_help

        print(options_help())
        parser.exit()


def amount(text: str) -> float:
    """Dollars above 0."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not allowed: give dollars above 0, such as 2.50")
    return float(text)


def run(args: argparse.Namespace) -> int:
    """Plan, say what is unusual, play, print the metrics or the table."""
    if args.panel is not None and args.seller is not None:
        raise NegolabError("give --seller or --panel, not both")
    check_game(args)
    if args.panel is not None:
        if args.game != "market":
            raise NegolabError(
                f"a panel compares sellers of the market; --game {args.game} goes with --seller and --buyer"
            )
        return _run_panel(args)
    if args.seller is None:
        raise NegolabError("one of --seller and --panel is required (see `negolab evaluate --help`)")
    if args.only:
        raise NegolabError("--only goes with --panel")
    return _run_seller(args)


def _settings(args: argparse.Namespace) -> "Settings":
    from negolab.plan import Settings

    given = {name: getattr(args, name) for name in ("regime", "split", "per_product", "products", "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    if args.game != "market":
        seller, buyer = sides(args)
        knobs = game_knobs(args)
        if args.game == "bilateral" and isinstance(seller, str):
            from negolab.policies.scripted_bilateral import with_persona

            seller, knobs["personas"] = with_persona(seller, args.personas)
        return Settings(seller=seller, buyers={"*": buyer}, knobs=knobs, **{**given, "regime": args.game})
    seller, buyers = players(args)
    return Settings(seller=seller, buyers=buyers, knobs=market_knobs(args), **given)


def _noted_once() -> Callable[[str], None]:
    """Notes for the user; what was said is not said again."""
    from negolab.report import note

    said: set[str] = set()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            note(f"note: {line}")

    return say


def _workers(args: argparse.Namespace) -> int | None:
    """None: the cluster decides."""
    return args.workers or (1 if args.ray is None else None)


def _run_seller(args: argparse.Namespace) -> int:
    from negolab import costs
    from negolab.catalog import SAMPLE
    from negolab.evaluate import evaluate, plan
    from negolab.live import Board
    from negolab.report import metrics_table

    settings = _settings(args)
    made, say = plan(settings, SAMPLE if args.data is None else args.data), _noted_once()
    for warning in made.warnings:
        say(warning)
    models, name = made.models, made.cast().seller.name
    with Board([name] if models else []) as board:
        watch = board.rows[name] if board.shown else None
        found = evaluate(
            made, args.out, workers=_workers(args), ray=args.ray, say=say, watch=watch, max_cost=args.max_cost
        )
    where = f"split {settings.split}, {made.schedule.regime.name}, seed {settings.seed}"
    print(f"{made.who} on {made.catalog.name}, {where}")
    print(metrics_table(found))
    for line in costs.summary_lines(costs.account_of(args.out, models), len(made.schedule)):
        print(line)
    print(f"written to {args.out}: manifest.json, products.jsonl, episodes.jsonl, metrics.csv")
    return 0


def _panel(args: argparse.Namespace) -> "Panel":
    """The panel with what the command line says over its file."""
    from negolab.panel import load_panel

    if args.seller_option:
        raise NegolabError("--seller-option goes with --seller; a panel's options stand in its file")
    panel = load_panel(args.panel)
    _, buyers = players(argparse.Namespace(**{**vars(args), "seller": "random"}))
    return panel.changed(
        data=args.data,
        knobs=market_knobs(args),
        buyers=buyers or None,
        regime=args.regime,
        split=args.split,
        per_product=args.per_product,
        products=args.products,
        seed=args.seed,
    )


def _run_panel(args: argparse.Namespace) -> int:
    from negolab import panel_table
    from negolab.live import Board
    from negolab.panel_run import PanelRun
    from negolab.ray_start import connected

    panel, say = _panel(args), _noted_once()
    only = [name.strip() for text in args.only for name in text.split(",") if name.strip()]
    # One cluster for all entries: starting one takes seconds.
    cluster = nullcontext() if args.ray is None else connected(args.ray, args.workers)
    with cluster, PanelRun(panel, args.out, only=only, max_cost=args.max_cost) as going:
        going.prepare(say)
        for warning in going.warnings:
            say(warning)
        with Board([entry.name for entry in going.entries]) as board:
            for name in going.reasons:
                board.rows[name].status = panel_table.NOT_PLAYED
            going.play(dict(board.rows), workers=_workers(args), ray=args.ray, say=say)
        rows = going.finish()
        print(panel_table.plain(panel, rows))
        for line in panel_table.caption(panel, rows, "marked ¹", "marked ²"):
            print(line)
        print(f"written to {args.out}: {', '.join(panel_table.FILES)}, and one run folder per entry")
        return 2 if going.reasons else 0
