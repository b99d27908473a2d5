"""``negolab compare``: runs side by side, in pairs on the markets they share."""

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "compare",
        help="compare runs in pairs on the same markets",
        description="The first run is the baseline; every other run is compared with it on the markets both played.",
    )
    parser.add_argument("runs", nargs="+", metavar="DIR", help="two or more run folders")
    parser.add_argument("--all-metrics", action="store_true", help="every metric, not only the paper's")
    parser.set_defaults(run=run)


PAPER_METRICS = (
    "reward",
    "surplus_ratio",
    "deal_rate",
    "distinct_buyers",
    "top_buyer_rate",
    "below_cost_rate",
    "violation_rate",
)


def run(args: argparse.Namespace) -> int:
    """Print one table per compared run."""
    from negolab.errors import NegolabError
    from negolab.metrics import METRICS, paired
    from negolab.report import columns, number
    from negolab.store import Run

    if len(args.runs) < 2:
        raise NegolabError("compare needs at least two run folders: the baseline first")
    runs = [Run(folder) for folder in args.runs]
    chosen = {name: METRICS[name] for name in (METRICS if args.all_metrics else PAPER_METRICS)}
    base = runs[0]
    for other in runs[1:]:
        found, common = paired(base.episodes(), other.episodes(), chosen)
        if common == 0:
            raise NegolabError(f"{base.folder} and {other.folder} share no market: other products, seed or regime")
        print(f"{_name(other)} ({other.folder}) minus {_name(base)} ({base.folder}): {common} common markets")
        rows = [["metric", "difference", "se", "se_clustered", "95% interval", "pairs"]]
        for name, e in found.items():
            error = e.se if e.se_clustered is None else max(e.se or 0.0, e.se_clustered)
            span = (
                "n/a"
                if e.mean is None or error is None
                else f"{e.mean - 1.96 * error:+.3f} to {e.mean + 1.96 * error:+.3f}"
            )
            rows.append([name, number(e.mean), number(e.se), number(e.se_clustered), span, str(e.n)])
        print(columns(rows))
        print("pairs of a deal-only metric: markets in which both closed; interval: 1.96 times the larger error\n")
    return 0


def _name(run: Any) -> str:
    return str(run.manifest.get("players", {}).get("seller", {}).get("name", "?"))
