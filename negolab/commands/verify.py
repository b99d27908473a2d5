"""``negolab verify``: replay every stored episode and recompute every stored number."""

import argparse
from contextlib import suppress
from typing import Any

_SHOWN = 20
"""Problems that are printed; all are counted."""
_LONGEST = 500
"""Characters printed of one problem: a damaged record can hold megabytes."""


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
    from negolab.report import note
    from negolab.verify import verify

    report = verify(args.run_folder)
    for problem in report.problems[:_SHOWN]:
        note(f"problem: {problem if len(problem) <= _LONGEST else problem[:_LONGEST] + ' ...'}")
    if len(report.problems) > _SHOWN:
        note(f"... and {len(report.problems) - _SHOWN} more")
    for line in report.notes:
        note(f"note: {line}")
    with suppress(BrokenPipeError):  # the verdict is the exit code, also when nobody reads the line
        print(
            f"{report.verified} of {report.owed} episodes replay to their stored numbers; "
            f"problems: {len(report.problems)}"
        )
    return 0 if report.ok else 1
