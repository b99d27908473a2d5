"""``negolab verify``: replay every stored episode and recompute every stored number."""

import argparse
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help="replay a run's episodes and recompute its numbers",
        description="Exits 0 only when every owed episode is there, replays to its stored turns, outcome and reward, "
        "and the stored metrics follow from the episodes.",
    )
    parser.add_argument("run_folder", metavar="DIR", help="run folder written by `negolab evaluate`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was checked and every problem found."""
    from negolab.verify import verify

    report = verify(args.run_folder)
    for problem in report.problems[:20]:
        print(f"problem: {problem}", file=sys.stderr)
    if len(report.problems) > 20:
        print(f"... and {len(report.problems) - 20} more", file=sys.stderr)
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{report.verified} of {report.owed} episodes replay to their stored numbers; problems: {len(report.problems)}"
    )
    return 0 if report.ok else 1
