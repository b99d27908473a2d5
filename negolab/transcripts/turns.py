"""What stands at each turn of an episode: who spoke, in which parts, what was refused, and the board beside it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from negolab.environment.base import ABORTS, SELLER, Said, Turn
from negolab.episodes import Episode
from negolab.prompts.multi_buyer import board
from negolab.prompts.multi_item import item_board
from negolab.scenario import Scenario
from negolab.transcripts.words import Words, words_of

PRIVATE = ("Thought", "Target")
"""Parts of a reply that only its speaker knows."""
_SHOWN_BOARDS = 300

_LABEL = re.compile(r"^(Thought|Target|Talk|Action):", re.MULTILINE)
_ORDERS = (["Thought", "Target", "Talk", "Action"], ["Thought", "Talk", "Action"])
_TOOLS = re.compile(
    r"Thought:(.*?)\nCode:\s*```(?:python|py)?[ \t]*\n(.*?)\n?(?:```|<end_code>)(?:\s|<end_code>|```)*", re.DOTALL
)
_LOST = ("unparseable", "unknown_tool", "bad_argument", "too_many_calls", "after_terminal", "no_pending_offer")
"""What is wrong in the trade game, where nothing ends by it."""
_TAG = re.compile(r"</?(Thought|Target|Talk|Action)>")


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
    values: str = ""
    """What the items that are named are worth to the channel's buyer; empty where the heading says it."""
    sale: str = ""
    """What the turn sells; empty where the outcome says it."""
    event: str = ""
    """The same for the title of the turn."""

    @property
    def heading(self) -> str:
        """Who spoke, and when."""
        return f"{self.who} - turn {self.turn.turn}"

    @property
    def fault(self) -> str:
        """What was wrong with a turn that ended the episode: a broken rule, or no reply; or with one of the trade game,
        what was lost of it. Empty for any other turn."""
        kind = self.turn.violation
        return "" if kind is None else "No reply" if kind in ABORTS else "Lost" if kind in _LOST else "Violation"


def split_reply(text: str) -> tuple[tuple[str, str], ...] | None:
    """A stored legal reply in lines as (label, text) pairs, for display only; None where it has not that form."""
    found = list(_LABEL.finditer(text))
    if [match[1] for match in found] not in _ORDERS or text[: found[0].start()].strip():
        return None
    ends = [*[match.start() for match in found[1:]], len(text)]
    return tuple((match[1], text[match.end() : end].strip()) for match, end in zip(found, ends, strict=True))


def split_tags(text: str) -> tuple[tuple[str, str], ...] | None:
    """The same for a reply in tags."""
    found = list(_TAG.finditer(text))
    names = [match[1] for match in found[::2]]
    if names not in _ORDERS or [match[0] for match in found] != [
        f"<{end}{name}>" for name in names for end in ("", "/")
    ]:
        return None
    ends = [0, *[match.end() for match in found[1::2]]]
    starts = [*[match.start() for match in found[::2]], len(text)]
    if any(text[end:start].strip() for end, start in zip(ends, starts, strict=True)):
        return None
    inside = zip(names, found[::2], found[1::2], strict=True)
    return tuple((name, text[first.end() : last.start()].strip()) for name, first, last in inside)


def split_tools(text: str) -> tuple[tuple[str, str], ...] | None:
    """The same for a reply in tools: the Thought, and the block's lines."""
    found = re.fullmatch(
        r"Thought:(.*?)\nCode:\s*```(?:python|py)?[ \t]*\n(.*?)\n?(?:```|<end_code>)\s*", text, re.DOTALL
    )
    return None if found is None else (("Thought", found[1].strip()), ("Code", found[2].strip()))


class _Protocol(NamedTuple):
    """How the replies of a protocol are shown, and the board that goes with it."""

    split: Callable[[str], tuple[tuple[str, str], ...] | None]
    board: Callable[[Scenario, Sequence[Said]], str]
    news: tuple[str, ...]
    """What the seller may do itself that it then sees a new board, without a word of a buyer."""


def _board(s: Scenario, heard: Sequence[Said]) -> str:
    return board(
        heard,
        n_buyers=s.n_buyers,
        per_buyer_cap=s.per_buyer_cap,
        message_budget=s.message_budget,
        list_cents=s.product.listing.list_cents,
        cost_cents=s.product.cost_cents,
    )


def _item_board(s: Scenario, heard: Sequence[Said]) -> str:
    return item_board(
        heard,
        items=s.products,
        n_buyers=s.n_buyers,
        per_buyer_cap=s.per_buyer_cap,
        message_budget=s.message_budget,
    )


_PROTOCOLS = {"lines": _Protocol(split_reply, _board, ()), "tags": _Protocol(split_tags, _item_board, ("DEAL",))}
_PROTOCOLS["tools"] = _Protocol(split_tools, _board, ())


def steps(episode: Episode) -> list[Step]:
    """Every turn of an episode with what belongs beside it."""
    words, protocol = words_of(episode), _PROTOCOLS[episode.scenario.protocol]
    heard: list[Said] = []
    made = []
    for position, turn in enumerate(episode.turns):
        if turn.violation is None and turn.verb is not None and turn.buyer is not None:
            heard.append(Said(turn.seat, turn.buyer, turn.verb, turn.offers, ""))
        note = episode.notes.get(position, {})
        broken = turn.violation is not None and episode.scenario.game != "trade"  # there nothing ends by a mistake
        parts = None if broken else protocol.split(turn.text)
        shown, title = _board_after(episode, position, heard, protocol)
        made.append(
            Step(
                turn=turn,
                who=_who(episode, turn.seat, words),
                parts=parts or (),
                raw=None if parts else turn.text,
                refused=tuple(note.get("refused", ())),
                usage=_usage(note),
                board=shown,
                board_title=title,
                values=words.values(episode, turn),
                sale=words.sale(episode, turn),
                event=words.event(turn),
            )
        )
    return made


def _who(episode: Episode, seat: int, words: Words) -> str:
    return f"Seller ({episode.players[SELLER]})" if seat == SELLER else words.buyer(episode, seat)


def _board_after(episode: Episode, position: int, heard: Sequence[Said], protocol: _Protocol) -> tuple[str | None, str]:
    """The board after the buyers' last words before the seller's turn, or before the end."""
    turn, turns, scenario = episode.turns[position], episode.turns, episode.scenario
    if scenario.game != "market":  # no board: two who speak in turn see all there is
        return None, ""
    last = position + 1 == len(turns)
    quiet = turn.seat == SELLER and turn.verb not in protocol.news
    middle = quiet or turn.violation or not (last or turns[position + 1].seat == SELLER)
    if middle or turn.turn > _SHOWN_BOARDS:  # every board holds the whole history: many of them grow with its square
        return None, ""
    title = "at the end" if last else f"as the seller sees them before its turn {turns[position + 1].turn}"
    return protocol.board(scenario, heard), f"Standing offers {title}"


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
        said += [step.event for step in group if step.event]
        said += [words_of(episode).closing(episode)] if number == max(grouped) else []
        titled.append((f"Turn {number}{': ' if said else ''}{', '.join(said)}", group))
    return titled
