"""The transcript for a terminal: lines of a fixed width, with escape codes only where they are wanted."""

import textwrap
from collections.abc import Callable, Mapping

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.transcripts.characters import cut, printable
from negolab.transcripts.tables import Table, table_lines
from negolab.transcripts.turns import PRIVATE, Step, sections
from negolab.transcripts.words import title_of, words_of

WIDTH = 100
"""Columns of the terminal transcript, whatever the terminal: the same text in a pipe."""
_SHOWN_ABOUT, _SHOWN_TEXT = 200, 4_000
_ANSI_BUYERS = ("34", "33", "36", "35", "32")
_ANSI_BAD, _ANSI_DIM, _ANSI_BOLD = "1;31", "2", "1"


def buyer_colour(buyer: int) -> str:
    """The terminal's colour code for a buyer; no red, which is for violations."""
    return _ANSI_BUYERS[(buyer - 1) % len(_ANSI_BUYERS)]


def to_text(
    episode: Episode,
    width: int = WIDTH,
    colour: bool = False,
    *,
    boards: bool = False,
    thoughts: bool = True,
    kinds: Mapping[str, str] | None = None,
) -> str:
    """The transcript as lines of at most ``width`` columns; escape codes only with ``colour``."""

    def paint(text: str, code: str) -> str:
        return "\n".join(f"\x1b[{code}m{line}\x1b[0m" for line in text.split("\n")) if colour and text else text

    words = words_of(episode)
    lines = [paint(wrap(f"{title_of(episode)} - {words.headline(episode)}", width), _ANSI_BOLD)]
    listings = words.listings(episode)
    about = " ".join(listings[0][1][:_SHOWN_ABOUT].split()) if len(listings) == 1 else ""
    if about:
        dots = "..." if len(listings[0][1]) > _SHOWN_ABOUT else ""
        lines.append(wrap(f"{'Description:':<13} {about}{dots}", width, hang=14))
    lines += [wrap(f"{name + ':':<13} {value}", width, hang=14) for name, value in words.facts(episode, kinds)]
    for table in words.tables(episode):
        lines += ["", *_table(table, width, paint)]
    for title, group in sections(episode):
        lines += ["", paint(f"--- {title} ---", _ANSI_BOLD)]
        for step in group:
            lines += ["", *_step_lines(step, width, paint, thoughts)]
            if boards and step.board is not None:
                lines += ["", wrap(f"  {step.board_title}:", width), wrap(step.board, width, indent=4, hang=10)]
    bad = episode.outcome.kind == "violation"
    lines += ["", paint("--- Outcome ---", _ANSI_BOLD), ""]
    lines.append(paint(wrap(words.outcome(episode), width), _ANSI_BAD if bad else _ANSI_BOLD))
    lines += [wrap(words.reward(episode), width), wrap(words.engaged(episode), width)]
    return "\n".join(lines) + "\n"


def _table(table: Table, width: int, paint: Callable[[str, str], str]) -> list[str]:
    aside = f" ({table.aside})" if table.aside else ""
    lines = [paint(wrap(f"{table.title.upper()}{aside}", width), _ANSI_DIM)]
    for row, line in table_lines(table, width):
        code = _ANSI_DIM if row == 0 else buyer_colour(row) if table.by_buyer else ""
        lines.append(paint(line, code) if code else line)
    return [*lines, wrap(f"  {table.legend}", width, hang=2)] if table.legend else lines


def _step_lines(step: Step, width: int, paint: Callable[[str, str], str], thoughts: bool) -> list[str]:
    seat = step.turn.seat
    code = _ANSI_BOLD if seat == SELLER else f"1;{buyer_colour(seat)}"
    lines = []
    for refused in step.refused:
        text = f"{step.who}: reply refused by the guard ({refused['kind']}: {refused['detail']}):"
        lines.append(paint(wrap(text, width), _ANSI_BAD))
        lines.append(paint(_quoted(refused["text"], width), _ANSI_DIM))
    lines.append(paint(wrap(step.heading, width), code))
    if step.turn.fallback:
        lines.append(wrap("  fallback: played by the guard, not by the player", width))
    if step.fault:
        lines.append(
            paint(wrap(f"  {step.fault.upper()} ({step.turn.violation}): {step.turn.detail}", width, hang=4), _ANSI_BAD)
        )
    if step.raw is not None:
        lines.append(_quoted(step.raw, width))
    for label, text in step.parts:
        if label == "Thought" and not (thoughts and text):
            continue
        name = f"{label} (private):" if label in PRIVATE else f"{label}:"
        shown = wrap(f"  {name:<18} {cut(text, _SHOWN_TEXT)}", width, hang=21)
        lines.append(paint(shown, _ANSI_DIM) if label in PRIVATE else shown)
    if step.values:
        lines.append(paint(wrap(f"  {'Values (hidden):':<18} {step.values}", width, hang=21), _ANSI_DIM))
    if step.sale:
        lines.append(paint(wrap(f"  {step.sale}", width, hang=4), _ANSI_BOLD))
    if step.usage:
        lines.append(paint(wrap(f"  ({step.usage})", width), _ANSI_DIM))
    return lines


def wrap(text: str, width: int, indent: int = 0, hang: int = 0) -> str:
    """Printable text in lines of at most ``width``; what runs on is indented by ``hang``."""
    text = printable(cut(text, 2 * _SHOWN_TEXT))
    lines: list[str] = []
    for number, line in enumerate(text.split("\n")):
        first = " " * (indent if indent or number == 0 else hang)
        lines += textwrap.wrap(
            line,
            max(width, hang + 20),
            initial_indent=first,
            subsequent_indent=" " * hang,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
    return "\n".join(lines)


def _quoted(text: str, width: int) -> str:
    """A reply raw, as a quotation."""
    shown = cut(text or "(empty reply)", _SHOWN_TEXT).replace("\n", "\n| ")
    return wrap(f"| {shown}", width, indent=2, hang=4)
