"""The command line. Every ``--help`` is answered without loading anything heavy.

Exit codes: 0 done; 1 the data say no (a run that does not verify, damaged files); 2 a mistake in the call, or a place
that cannot be read or written, told in one line; 130 interrupted, 143 told to terminate. Nothing prints a traceback for
its user's mistake, nor when whoever reads the output has gone.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn, TextIO

import negolab
from negolab.errors import DamagedRun, NegolabError

_COMMANDS = (
    "data",
    "parse",
    "evaluate",
    "tournament",
    "compare",
    "verify",
    "show",
    "play",
    "pocket",
    "sft",
    "train",
    "notebooks",
)
_KEPT = "what was finished is kept, run the same command again to go on"


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: object, **options: object) -> None:
        # An abbreviation would change its meaning with the next option that starts alike.
        super().__init__(*args, **{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """One line instead of a usage block."""
        raise NegolabError(f"{message} (see `{self.prog} --help`)")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="negolab", description="Reproducible experiments on how language models bargain.")
    parser.add_argument("--version", action="version", version=f"negolab {negolab.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:  # imported here and not above: an interrupt while modules load is one, too
        import_module(f"negolab.commands.{name}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _mend_streams()
    with _terminate_as_interrupt():
        code = _command(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away (`| head`): nothing is wrong with the work
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        _say(f"cannot write to standard output: {error.strerror or error}")
        code = code or 2
    try:
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)
    return code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the work just as Ctrl-C does."""


def _command(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
        return int(args.run(args))
    except SystemExit as stop:  # --help and --version
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        _say(str(stop.code))
        return 1
    except NegolabError as error:
        _say(str(error))
        return 1 if isinstance(error, DamagedRun) else 2
    except _Terminated:
        _say(f"terminated; {_KEPT}")
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        _say(f"interrupted; {_KEPT}")
        return 130
    except BrokenPipeError:
        return 0
    except MemoryError:
        _say("out of memory")
        return 2
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _say(f"{error.strerror or error}{where}")
        return 2


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"negolab: {' '.join(text.split())}", file=sys.stderr, flush=True)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """While a command runs, SIGTERM unwinds it as an interrupt does; a caller's own handler is left alone."""

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _mend_streams() -> None:
    """Give closed standard streams a place to go, and let every character be printed in every locale.

    With descriptor 1 or 2 closed the next file opened, a run's episodes for instance, would take its number and get
    whatever a library prints.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            try:
                os.fstat(descriptor)
            except OSError:
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != descriptor:
                    os.dup2(opened, descriptor)
                    os.close(opened)
            if name != "stdin":  # its None says to `parse` that there is nothing to read
                setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence(stream: TextIO) -> None:
    """Send what a broken stream still holds to nowhere, so that the interpreter's last flush cannot fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
