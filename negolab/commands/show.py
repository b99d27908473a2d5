"""``negolab show``: transcripts of stored episodes, in the terminal or as one HTML page."""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from negolab.episodes import Episode
    from negolab.store import Run

PICKS = ("best", "worst", "median", "violation", "first")
_LISTED = 12


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise argparse.ArgumentTypeError(f"{text!r} is not an episode number; the run folder comes before --episode")
    return int(text)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "show",
        help="show transcripts of a run's episodes",
        description="Prints transcripts with all that was hidden, or writes them as one self-contained HTML page.",
    )
    parser.add_argument("run_folder", metavar="RUN", help="run folder written by `negolab evaluate`")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--episode",
        nargs="+",
        action="extend",
        type=_number,
        metavar="N",
        help="episode numbers (default: the run's first episode)",
    )
    which.add_argument(
        "--pick",
        action="append",
        choices=PICKS,
        help="choose by reward, or the first violation; may be given several times",
    )
    parser.add_argument("--html", metavar="FILE", help="write one HTML page instead of printing")
    parser.add_argument("--board", action="store_true", help="show the standing-offers boards")
    parser.add_argument("--no-thought", action="store_true", help="leave the private Thoughts out")
    parser.add_argument("--json", action="store_true", help="print the stored records, one JSON object per line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Choose the episodes, read only those, show them."""
    from pathlib import Path

    from negolab.errors import NegolabError
    from negolab.store import Run
    from negolab.trainer.records import check_no_training
    from negolab.transcripts import to_html

    if args.json and args.html is not None:
        raise NegolabError("--json prints and --html writes a page; give one of the two")
    if args.html is not None:
        check_page_path(args.html)
    check_no_training(Path(args.run_folder))
    source = Run(args.run_folder)
    chosen = list(dict.fromkeys(args.episode or _picked(source, args.pick or ["first"])))
    kinds = player_kinds(source.manifest)
    if args.html is not None:
        episodes = [episode for episode, _ in _read(source, chosen)]
        page = to_html(
            episodes, boards=args.board, thoughts=not args.no_thought, kinds=kinds, source=describe_run(source)
        )
        target = write_page(args.html, page)
        print(f"written: {target} ({len(episodes)} {'episode' if len(episodes) == 1 else 'episodes'})")
        return 0
    for position, (episode, data) in enumerate(_read(source, chosen)):
        if args.json:
            sys.stdout.write(_record(episode, data))
        else:
            sys.stdout.write(("\n" + "=" * 100 + "\n\n" if position else "") + _text(episode, args, kinds))
    return 0


def _text(episode: "Episode", args: argparse.Namespace, kinds: dict[str, str]) -> str:
    from negolab.transcripts import to_text

    return to_text(episode, colour=wants_colour(), boards=args.board, thoughts=not args.no_thought, kinds=kinds)


def wants_colour() -> bool:
    """Colour only for a terminal that has not said no (NO_COLOR, TERM=dumb)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def player_kinds(manifest: dict[str, Any]) -> dict[str, str]:
    """What each player is, by its name, as far as the manifest says (``prober``: ``scripted stand-in``)."""
    players = manifest.get("players")
    players = players if isinstance(players, dict) else {}
    buyers = players.get("buyers")
    described = [players.get("seller"), *(buyers.values() if isinstance(buyers, dict) else ())]
    return {str(d["name"]): str(d["kind"]) for d in described if isinstance(d, dict) and "name" in d and "kind" in d}


def describe_run(run: "Run") -> str:
    """One line that says where the episodes come from."""
    settings, data = run.manifest.get("settings"), run.manifest.get("data")
    settings, data = (found if isinstance(found, dict) else {} for found in (settings, data))
    said = [f"run {run.folder.resolve().name}"]
    said += [f"{name} {settings[name]}" for name in ("split", "seed") if name in settings]
    if "name" in data:
        said.append(f"catalogue {data['name']}")
    return ", ".join(said)


def check_page_path(path: str) -> "Path":
    """Where a page may be written. Raises ``NegolabError`` for a run's own file, and for a file that is no page."""
    from pathlib import Path

    from negolab.errors import NegolabError
    from negolab.store import DAMAGED, EPISODES, LOCK, MANIFEST, METRICS_CSV, PID, PRODUCTS

    target = Path(path)
    if target.is_dir():
        raise NegolabError(f"{target} is a folder; give a file such as {target / 'transcript.html'}")
    if not target.parent.is_dir():
        raise NegolabError(f"{target.parent} is not a folder; make it first")
    own = (MANIFEST, PRODUCTS, EPISODES, DAMAGED, METRICS_CSV, LOCK, PID)
    if (target.parent / MANIFEST).exists() and target.name.casefold() in own:
        raise NegolabError(f"{target} is one of the run's own files; give another name, such as transcript.html")
    if target.exists() and target.suffix.casefold() not in (".html", ".htm"):
        raise NegolabError(f"{target} exists and is not an .html file; give another name")
    return target


def write_page(path: str, html: str) -> "Path":
    """Write a page whole or not at all. Raises ``NegolabError`` where that cannot be done."""
    from negolab.errors import NegolabError

    target = check_page_path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(html.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise NegolabError(f"cannot write {target}: {error.strerror or error}") from None
    return target


# -- reading only what is asked for -----------------------------------------------------------------------------


def _numbered(run: "Run") -> Iterator[tuple[int, bytes]]:
    """Episode number and raw line of every line that starts like a record, one line in memory at a time."""
    import re

    from negolab.store import EPISODES

    start = re.compile(rb'\{"episode":([0-9]{1,12}),')
    path = run.folder / EPISODES
    if not path.exists():
        return
    with path.open("rb") as file:
        for raw in file:
            found = start.match(raw)
            if found is not None:
                yield int(found[1]), raw


def _picked(run: "Run", kinds: list[str]) -> list[int]:
    """The episodes that ``kinds`` name. One of several that no episode fits is left out with a note."""
    from negolab.errors import DamagedRun, NegolabError

    found = []
    for kind in kinds:
        try:
            found.append(_pick(run, kind))
        except DamagedRun:
            raise
        except NegolabError as error:
            if kind is kinds[-1] and not found:
                raise
            print(f"note: --pick {kind} left out: {error}", file=sys.stderr)
    return found


def _pick(run: "Run", kind: str) -> int:
    """The number of the episode that ``kind`` names."""
    from negolab.episodes import parse_line
    from negolab.errors import NegolabError

    if kind == "first":
        first = min((number for number, _ in _numbered(run)), default=None)
        if first is None:
            raise NegolabError(f"{run.folder} holds no episode yet")
        return first
    found: list[tuple[float, int]] = []
    for number, raw in _numbered(run):
        try:
            data = parse_line(raw.rstrip(b"\n"))
            reward, violated = float(data["reward"]), data["outcome"]["kind"] == "violation"
        except (ValueError, KeyError, TypeError):
            continue  # a damaged record is nobody's best or worst; `negolab verify` reports it
        if kind != "violation" or violated:
            found.append((reward, number))
    if not found:
        what = "no episode that ended in a violation" if kind == "violation" else "no readable episode"
        raise NegolabError(f"{run.folder} holds {what}")
    if kind == "violation":
        return min(number for _, number in found)
    if kind == "best":
        return min(found, key=lambda pair: (-pair[0], pair[1]))[1]
    found.sort()
    return found[0 if kind == "worst" else (len(found) - 1) // 2][1]


def _read(run: "Run", chosen: list[int]) -> Iterator[tuple["Episode", dict[str, Any]]]:
    """The chosen episodes in the order given, and their stored records; all are checked before the first is shown."""
    from negolab.errors import NegolabError

    wanted, lines = set(chosen), dict[int, bytes]()
    for number, raw in _numbered(run):
        if number in wanted and number not in lines:
            lines[number] = raw
            if len(lines) == len(wanted):
                break
    missing = [number for number in chosen if number not in lines]
    if missing:
        there = _ranges(sorted(number for number, _ in _numbered(run)))
        raise NegolabError(f"{run.folder} holds no episode {missing[0]}; it holds {there}")
    read = [_episode(run, number, lines[number]) for number in chosen]
    yield from read


def _episode(run: "Run", number: int, raw: bytes) -> tuple["Episode", dict[str, Any]]:
    from negolab.episodes import parse_line
    from negolab.errors import DamagedRun
    from negolab.transcripts import reward_text, to_text

    try:
        if not raw.endswith(b"\n"):
            raise ValueError("the line is torn: its writer was stopped, or is still writing")
        data = parse_line(raw[:-1])
        episode = run.read(data, number)
        reward_text(episode)
        to_text(episode)  # a record with sound checksum and senseless fields must fail here, in one line
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError, DamagedRun) as error:
        raise DamagedRun(f"episode {number} of {run.folder} cannot be shown: {error}; see `negolab verify`") from None
    return episode, data


def _ranges(numbers: list[int]) -> str:
    """``0 to 255``, ``0 to 3, 7, 9 to 11`` or ``none``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number <= spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    more = f" and {len(said) - _LISTED} more ranges" if len(said) > _LISTED else ""
    return (", ".join(said[:_LISTED]) + more) or "none"


def _record(episode: "Episode", data: dict[str, Any]) -> str:
    """The stored record with what a reader of it alone would have to look up."""
    import json

    s = episode.scenario
    buyers, items = range(1, s.n_buyers + 1), range(1, s.n_items + 1)
    record = {name: value for name, value in data.items() if name != "crc"}
    texts = [
        {"title": p.listing.title, "description": p.listing.description, "category": p.listing.category}
        for p in s.products
    ]
    if s.n_items == 1:
        record["ranks"], record["product"] = [s.rank(buyer) for buyer in buyers], texts[0]
    else:  # as the valuations: by buyer, then by item
        record["ranks"], record["products"] = [[s.rank(buyer, item) for item in items] for buyer in buyers], texts
    return json.dumps(record, ensure_ascii=True) + "\n"
