"""Run folders for tests: made in process, in a process of their own, compared, and spoiled on purpose."""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from negolab.cli import main
from negolab.store import EPISODES, MANIFEST, METRICS_CSV, PRODUCTS

ROOT = Path(__file__).resolve().parent.parent
FILES = (EPISODES, METRICS_CSV, MANIFEST, PRODUCTS)


def evaluate_args(out: str | Path, *more: str, seller: str = "prober") -> list[str]:
    """Arguments of ``negolab evaluate`` on the bundled sample."""
    return ["evaluate", "--seller", seller, "--out", str(out), *more]


SMALL = ("--products", "2")
"""Options of a run of four episodes."""


def call(capsys: pytest.CaptureFixture, *args: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command run in this process."""
    capsys.readouterr()
    code = main(list(args))
    return code, *capsys.readouterr()


def make_run(out: str | Path, *more: str, seller: str = "prober") -> Path:
    """A finished run, made in this process."""
    assert main(evaluate_args(out, *more, seller=seller)) == 0
    return Path(out)


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment, the package importable from any folder; None removes a variable."""
    given: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {name: value for name, value in given.items() if value is not None}


def command(args: Sequence[str]) -> list[str]:
    """``negolab ARGS`` as a process of its own."""
    return [sys.executable, "-m", "negolab.cli", *args]


def run_command(args: Sequence[str], env: dict[str, str] | None = None, **options: Any) -> Any:
    """Run ``negolab ARGS`` in a process; returns a ``CompletedProcess`` with text output."""
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(command(args), env=env or environment(), check=False, **options)


def default_interrupt() -> None:
    """For ``preexec_fn`` of a process that is to be interrupted: a shell's background job ignores SIGINT, and so would
    all that it starts, these tests and their processes among them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def contents(folder: Path) -> dict[str, bytes]:
    """The files that a run is, by name."""
    return {name: (folder / name).read_bytes() for name in FILES}


def reseal(line: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A stored line (with its newline) changed, with a checksum that fits the change."""
    data = orjson.loads(line)
    del data["crc"]
    change(data)
    body = orjson.dumps(data)
    return b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body))


def one_line(text: str) -> str:
    """The text, which must be a single line and no traceback."""
    assert text.endswith("\n") and text.count("\n") == 1 and "Traceback" not in text, text
    return text
