"""What stands at each turn of an episode: who spoke, in which parts, what was refused, and the board beside it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from negolab.environment.base import ABORTS, SELLER, Said, Turn
from negolab.episodes import Episode
from negolab.prompts.multi_buyer import board
from negolab.transcripts.whole import buyer_name, closing_title

PRIVATE = ("Thought", "Target")
"""Parts of a reply that only its speaker knows."""
_SHOWN_BOARDS = 300

_LABEL = re.compile(r"^(Thought|Target|Talk|Action):", re.MULTILINE)
_ORDERS = (["Thought", "Target", "Talk", "Action"], ["Thought", "Talk", "Action"])
# Terminal escapes, bidirectional overrides, line separators, lone surrogates: nothing that a reader can see as such.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Step:
    """One turn, ready to be shown."""

    turn: Turn
    who: str
    """``Buyer 2 (rank 1, hidden budget $38.37)`` or ``Seller (prober)``."""
    parts: tuple[tuple[str, str], ...]
    """Label and text of each part; empty where the reply is shown raw."""
    raw: str | None
    refused: tuple[Mapping[str, Any], ...]
    usage: str
    board: str | None
    board_title: str

    @property
    def heading(self) -> str:
        """Who spoke, and when."""
        return f"{self.who} - turn {self.turn.turn}"

    @property
    def fault(self) -> str:
        """What was wrong with a turn that ended the episode: a broken rule, or no reply; empty for any other turn."""
        kind = self.turn.violation
        return "" if kind is None else "No reply" if kind in ABORTS else "Violation"


def printable(text: str) -> str:
    """``text`` with every character spelled out that would act on a terminal or page instead of being seen."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def split_reply(text: str) -> tuple[tuple[str, str], ...] | None:
    """A stored legal reply as (label, text) pairs, for display only; None where it does not have that form."""
    found = list(_LABEL.finditer(text))
    if [match[1] for match in found] not in _ORDERS or text[: found[0].start()].strip():
        return None
    ends = [*[match.start() for match in found[1:]], len(text)]
    return tuple((match[1], text[match.end() : end].strip()) for match, end in zip(found, ends, strict=True))


def steps(episode: Episode) -> list[Step]:
    """Every turn of an episode with what belongs beside it."""
    heard: list[Said] = []
    made = []
    for position, turn in enumerate(episode.turns):
        if turn.violation is None and turn.verb is not None and turn.buyer is not None:
            heard.append(Said(turn.seat, turn.buyer, turn.verb, turn.offers, ""))
        note = episode.notes.get(position, {})
        parts = None if turn.violation is not None else split_reply(turn.text)
        shown, title = _board_after(episode, position, heard)
        made.append(
            Step(
                turn=turn,
                who=_who(episode, turn.seat),
                parts=parts or (),
                raw=None if parts else turn.text,
                refused=tuple(note.get("refused", ())),
                usage=_usage(note),
                board=shown,
                board_title=title,
            )
        )
    return made


def _who(episode: Episode, seat: int) -> str:
    return f"Seller ({episode.players[SELLER]})" if seat == SELLER else buyer_name(episode, seat)


def _board_after(episode: Episode, position: int, heard: Sequence[Said]) -> tuple[str | None, str]:
    """The board after the buyers' last words before the seller's turn, or before the end."""
    turn, turns, scenario = episode.turns[position], episode.turns, episode.scenario
    if scenario.game == "bilateral":  # no board: two who speak in turn see all there is
        return None, ""
    last = position + 1 == len(turns)
    middle = turn.seat == SELLER or turn.violation or not (last or turns[position + 1].seat == SELLER)
    if middle or turn.turn > _SHOWN_BOARDS:  # every board holds the whole history: many of them grow with its square
        return None, ""
    shown = board(
        heard,
        n_buyers=scenario.n_buyers,
        per_buyer_cap=scenario.per_buyer_cap,
        message_budget=scenario.message_budget,
        list_cents=scenario.product.listing.list_cents,
        cost_cents=scenario.product.cost_cents,
    )
    title = "at the end" if last else f"as the seller sees them before its turn {turns[position + 1].turn}"
    return shown, f"Standing offers {title}"


def _usage(note: Mapping[str, Any]) -> str:
    found = [f"tokens: {note['tokens'][0]} in, {note['tokens'][1]} out"] if "tokens" in note else []
    return "; ".join([*found, f"finish reason: {note['finish']}"] if "finish" in note else found)


def sections(episode: Episode) -> list[tuple[str, list[Step]]]:
    """The steps by turn number, each turn with a title as in section 14."""
    grouped: dict[int, list[Step]] = {}
    for step in steps(episode):
        grouped.setdefault(step.turn.turn, []).append(step)
    titled = []
    for number, group in grouped.items():
        said = ["concurrent buyer openings" if episode.scenario.n_buyers > 1 else "opening"] if number == 1 else []
        said += [closing_title(episode)] if number == max(grouped) else []
        titled.append((f"Turn {number}{': ' if said else ''}{', '.join(said)}", group))
    return titled


def cut(text: str, most: int) -> str:
    """``text``, and where it is longer than ``most`` characters how many more there are."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} [... {left:,} more characters, see --json]"
