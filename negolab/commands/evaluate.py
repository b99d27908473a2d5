"""``negolab evaluate``: the main experiment for one seller."""

import argparse
from typing import Any

from negolab.commands.arguments import add_data, add_market, add_players, market_knobs, players, whole
from negolab.scenario import MAX_SEED


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "evaluate",
        help="play a seller on a split and write episodes, metrics and manifest",
        description="Plays one seller on the markets of a split. Run the same command again to resume or to reprint.",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="run folder: new, or this run's own to resume it")
    parser.add_argument(
        "--split", default="test", help="train, test, all, or a JSON file with codenames (default: test)"
    )
    parser.add_argument("--per-product", type=whole(1, 1_000_000), default=2, metavar="N", help="episodes per product")
    parser.add_argument("--products", type=whole(1), metavar="N", help="only the split's first N products")
    parser.add_argument("--seed", type=whole(0, MAX_SEED), default=0, help="seed of all markets (default: 0)")
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
    parser.add_argument("--list-options", action=_ListOptions, help="print the options of language models and leave")
    add_players(parser)
    add_data(parser)
    add_market(parser)
    parser.set_defaults(run=run)


class _ListOptions(argparse.Action):
    """``--list-options``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from negolab.policies.spec import options_help

        print(options_help())
        parser.exit()


def run(args: argparse.Namespace) -> int:
    """Plan, say what is unusual, play, print the metrics."""
    from negolab.evaluate import Settings, evaluate, plan
    from negolab.report import metrics_table, note

    seller, buyers = players(args)
    settings = Settings(
        seller=seller,
        buyers=buyers,
        regime=args.regime,
        knobs=market_knobs(args),
        split=args.split,
        per_product=args.per_product,
        products=args.products,
        seed=args.seed,
    )
    made = plan(settings, args.data)
    for warning in made.warnings:
        note(f"note: {warning}")
    found = evaluate(
        settings,
        args.out,
        made.catalog,
        workers=args.workers or (None if args.ray else 1),
        ray=args.ray,
        say=lambda line: note(f"note: {line}"),
    )
    print(f"{made.who} on {made.catalog.name}, split {args.split}, {made.schedule.regime.name}, seed {args.seed}")
    print(metrics_table(found))
    print(f"written to {args.out}: manifest.json, products.jsonl, episodes.jsonl, metrics.csv")
    return 0
