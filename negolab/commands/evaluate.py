"""``negolab evaluate``: the main experiment for one seller."""

import argparse
from typing import Any

from negolab.commands.arguments import add_data, add_market, market_knobs, whole
from negolab.scenario import MAX_SEED


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "evaluate",
        help="play a seller on a split and write episodes, metrics and manifest",
        description="Plays one seller on the markets of a split. Run the same command again to resume or to reprint.",
    )
    parser.add_argument(
        "--seller",
        required=True,
        metavar="NAME",
        help="random, satisficer, greedy, prober, oracle, or module:factory",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="run folder: new, or this run's own to resume it")
    parser.add_argument(
        "--split", default="test", help="train, test, all, or a JSON file with codenames (default: test)"
    )
    parser.add_argument("--per-product", type=whole(1, 1_000_000), default=2, metavar="N", help="episodes per product")
    parser.add_argument("--products", type=whole(1), metavar="N", help="only the split's first N products")
    parser.add_argument("--seed", type=whole(0, MAX_SEED), default=0, help="seed of all markets (default: 0)")
    parser.add_argument(
        "--workers", type=whole(1, 256), default=1, metavar="N", help="processes (same results for any N)"
    )
    add_data(parser)
    add_market(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, say what is unusual, play, print the metrics."""
    from negolab.evaluate import Settings, evaluate, plan
    from negolab.policies.registry import SELLERS
    from negolab.report import metrics_table, note

    settings = Settings(
        seller=args.seller,
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
    found = evaluate(settings, args.out, made.catalog, workers=args.workers, say=lambda line: note(f"note: {line}"))
    kind = "scripted" if args.seller in SELLERS else "your own"
    print(
        f"{args.seller} ({kind}) against scripted buyers on {made.catalog.name}, split {args.split}, "
        f"{made.schedule.regime.name}, seed {args.seed}"
    )
    print(metrics_table(found))
    print(f"written to {args.out}: manifest.json, products.jsonl, episodes.jsonl, metrics.csv")
    return 0
