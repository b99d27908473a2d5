"""``negolab compare``: runs side by side, in pairs on the markets they share."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from negolab.statistics import Estimate
    from negolab.store import Run


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
    from negolab.metrics import FOUR_PHASES, SIX, TRADE_MAIN, metrics_of, paired
    from negolab.report import columns, note
    from negolab.store import Run

    if len(args.runs) < 2:
        raise NegolabError("compare needs at least two run folders: the baseline first")
    runs = [Run(folder) for folder in args.runs]
    base = runs[0]
    games = {run.game for run in runs}
    if len(games) > 1:
        shown = ", ".join(sorted(f"{game} in {protocol}" for game, protocol in games))
        raise NegolabError(f"runs of different games cannot be compared: {shown}")
    known = metrics_of(*base.game)
    short = {
        ("market", "lines"): PAPER_METRICS,
        ("market", "tags"): (*SIX, "distinct_buyers"),
        ("bilateral", "lines"): (*FOUR_PHASES, "violation_rate"),
        ("trade", "tools"): TRADE_MAIN,
    }[base.game]
    chosen = {name: known[name] for name in (known if args.all_metrics else short)}
    for other in runs[1:]:
        # Complete runs only: what an unfinished one lacks are its longest episodes, not a random part.
        found, common = paired(base.episodes(complete=True), other.episodes(complete=True), chosen)
        if common == 0:
            raise NegolabError(f"{base.folder} and {other.folder} share no market: other products, seed or regime")
        for line in _caveats(base, other, common):
            note(f"note: {line}")
        print(f"{_name(other)} ({other.folder}) minus {_name(base)} ({base.folder}): {common} common markets")
        print(columns([_HEAD, *(_row(name, estimate) for name, estimate in found.items())]))
        print(f"{_PAIRS[base.game[1]]}; interval: 1.96 times the larger error\n")
    return 0


_PAIRS = {
    "lines": "pairs of a deal-only metric: markets in which both closed",
    # In metrics.csv these are pooled over items, pairs or sales, so their difference there is another number.
    "tags": "pairs: markets in which both have the metric, and of its items, pairs or sales each has the mean",
    "tools": "pairs: games in which both have the metric",
}
_HEAD = ["metric", "difference", "se", "se_clustered", "95% interval", "pairs"]


def _row(name: str, found: "Estimate") -> list[str]:
    from negolab.report import number

    error = None if found.se is None else max(found.se, found.se_clustered or 0.0)
    span = "n/a"
    if found.mean is not None and error is not None:
        span = f"{found.mean - 1.96 * error:+.3f} to {found.mean + 1.96 * error:+.3f}"
    return [name, number(found.mean), number(found.se), number(found.se_clustered), span, str(found.n)]


def _caveats(base: "Run", other: "Run", common: int) -> list[str]:
    """What a reader of the differences should know."""
    found = []
    if not common == base.n == other.n:
        found.append(f"compared on {common} of {other.n} and {base.n} markets: the others are in one run only")
    if base.manifest.get("code_sha256") != other.manifest.get("code_sha256"):
        found.append(f"{other.folder} and {base.folder} were made by different versions of the code")
    sides = [side for side in ("seller", "buyers") if base.manifest["players"][side] != other.manifest["players"][side]]
    if base.game[0] == "trade":
        if len(sides) == 2:
            found.append(f"{other.folder} and {base.folder} differ in both sides: no difference is one side's alone")
        return found
    side, word = ("buyers", "buyers") if base.game[0] == "market" else ("seller", "sellers")
    if side in sides:
        found.append(f"{other.folder} and {base.folder} were played against different {word}")
    return found


def _name(run: "Run") -> str:
    """Who is evaluated in the run; in the trade game both sides are."""
    players = run.manifest["players"]
    if run.game[0] == "trade":
        (buyer,) = players["buyers"].values()
        return f"{players['seller']['name']} selling to {buyer['name']}"
    (learner,) = players["buyers"].values() if run.game[0] == "bilateral" else (players["seller"],)
    return str(learner["name"])
