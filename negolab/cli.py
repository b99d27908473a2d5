"""The command line. Every ``--help`` is answered without loading anything heavy.

Exit codes: 0 done; 1 the data say no (a run that does not verify, damaged files); 2 a mistake in the call, told in one
line; 130 interrupted. Nothing prints a traceback for its user's mistake.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import negolab
from negolab.commands import compare, data, evaluate, notebooks, parse, play, show, verify
from negolab.errors import DamagedRun, NegolabError

_COMMANDS = (data, parse, evaluate, compare, verify, show, play, notebooks)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of a usage block."""
        raise NegolabError(f"{message} (see `{self.prog} --help`)")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="negolab", description="Reproducible experiments on how language models bargain.")
    parser.add_argument("--version", action="version", version=f"negolab {negolab.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        try:
            args = build_parser().parse_args(argv)
            code = int(args.run(args))
        except SystemExit as stop:  # --help and --version
            code = int(stop.code or 0)
        sys.stdout.flush()
        return code
    except NegolabError as error:
        print(f"negolab: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, DamagedRun) else 2
    except KeyboardInterrupt:
        print("negolab: interrupted; what was finished is kept, run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): nothing more can be said to it, and nothing is wrong with the run.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"negolab: {error.strerror or error}{where}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
