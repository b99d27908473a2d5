"""``negolab notebooks``: list the notebooks, or run them."""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from negolab.notebook.profiles import Notebook

DEFAULT_TIMEOUT = 1800
"""Seconds for one notebook."""


def add_parser(commands: Any) -> None:
    """Register ``negolab notebooks`` with its sub-commands; each sets ``args.run``."""
    notebooks = commands.add_parser("notebooks", help="list the notebooks, or run them")
    actions = notebooks.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print the notebooks with their parameters")
    listing.set_defaults(run=run_list)
    runner = actions.add_parser(
        "run",
        help="run notebooks with a profile and keep executed copies, tables and figures",
        description="Runs the notebooks one after the other. Exit code 1: a notebook failed; the others have run, and "
        "what it had finished is kept. Run the same command again to go on.",
    )
    runner.add_argument(
        "--profile", default="smoke", metavar="NAME|FILE.yaml", help="smoke, laptop, or a YAML file (default: smoke)"
    )
    runner.add_argument("--only", default="", metavar="A,B", help="only these notebooks, such as 03_benchmark")
    runner.add_argument("--out", metavar="DIR", help="run folder (default: a new one below runs/ or $NEGOLAB_RUNS)")
    runner.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="extra", help="set one parameter"
    )
    runner.add_argument(
        "--timeout", type=_seconds, default=DEFAULT_TIMEOUT, metavar="S", help="seconds per notebook (default: 1800)"
    )
    runner.set_defaults(run=run_notebooks)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give seconds above 0")
    return value


def run_list(args: argparse.Namespace) -> int:
    """Print every notebook's title and parameters cell."""
    from negolab.notebook.profiles import shipped

    for notebook in shipped():
        print(f"{notebook.name}: {notebook.title}")
        print("".join(f"    {line}\n" for line in notebook.source.splitlines()))
    return 0


def run_notebooks(args: argparse.Namespace) -> int:
    """Check everything, run, and say where the results lie; 1 when a notebook failed."""
    from negolab.notebook import profiles
    from negolab.notebook.study import runs_dir
    from negolab.notebooks_runner import run
    from negolab.report import note

    notebooks = profiles.shipped()
    selected = profiles.chosen(notebooks, args.only)
    given = profiles.assign(profiles.load_profile(args.profile), dict(args.extra), notebooks, selected)
    profiles.settle_paths(given)
    selected, left_out = _able(selected, given, named=bool(args.only))
    given = {notebook.name: given[notebook.name] for notebook in selected}
    named = args.out or next((mine["out"] for mine in given.values() if mine.get("out")), "")
    default = f"notebooks-{Path(args.profile).stem}-{profiles.identity(given)}"
    out = Path(named).expanduser() if named else runs_dir() / default
    for code in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(code, _stop)
    for line in sorted({_data_line(mine["data"]) for mine in given.values() if "data" in mine}):
        print(line, flush=True)
    place = {notebook.name: f"[{k}/{len(selected)}]" for k, notebook in enumerate(selected, 1)}
    show = sys.stderr.isatty()

    def progress(name: str, seconds: float) -> None:
        if show:
            print(f"\r{place[name]} {name}: {seconds:.0f} s ", end="", file=sys.stderr, flush=True)

    results = run(selected, given, out, args.timeout, progress)
    if show:
        print("\r\033[K", end="", file=sys.stderr)
    for result in results:
        if result.ok:
            print(f"{result.name}: ran in {result.seconds:.1f} s")
        else:
            print(f"negolab: {result.name} failed: {result.error}; partial copy: {result.copy}", file=sys.stderr)
    for what in left_out:
        note(f"note: left out: {what}")
    print(f"{sum(r.ok for r in results)} of {len(results)} notebooks ran; copies, tables and figures: {out}")
    return 0 if all(result.ok for result in results) else 1


def _able(
    selected: list["Notebook"], given: dict[str, dict[str, Any]], named: bool
) -> tuple[list["Notebook"], list[str]]:
    """The notebooks that can run here, and why others cannot. One asked for by name that cannot is an error."""
    from negolab.errors import NegolabError

    lacks = {book.name: book.lacks(given[book.name]) for book in selected}
    lacking = [f"{b.name} needs {lacks[b.name]}: pip install 'negolab[{b.extra}]'" for b in selected if lacks[b.name]]
    if lacking and named:
        raise NegolabError(lacking[0])
    return [book for book in selected if not lacks[book.name]], lacking


def _data_line(data: str) -> str:
    """Which products are played: a run on invented ones must not look like one on the real ones."""
    from negolab.catalog import AUTO, SAMPLE, find_data

    found = find_data(data)
    if found != SAMPLE:
        return f"products: {found}"
    why = "; the real ones were not found (`negolab data fetch`, or set NEGOLAB_DATA)" if data == AUTO else ""
    return f"products: the bundled, invented sample{why}"


def _stop(code: int, frame: object) -> NoReturn:
    """End as on Ctrl-C, so that no kernel is left, with the shell's exit code for this signal."""
    raise SystemExit(128 + code)
