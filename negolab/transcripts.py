"""Transcripts of finished episodes, laid out as in section 14 of 2607.05863: for the terminal and as one HTML page.

Both show what no player saw as a whole (budgets, ranks, everybody's Thought) and say whose secret each thing is. Text
that a player or a catalogue wrote is only ever shown: control and direction-changing characters are spelled out, the
page is escaped by its template engine, and its one script is allowed by hash, so that no other could run.

Where this departs from section 14: rank and budget stand beside a buyer's name at every turn, not only at the first.
"""

import base64
import hashlib
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from negolab.environment.base import ABORTS, SELLER, Said, Turn
from negolab.episodes import Episode
from negolab.money import dollars
from negolab.prompts.multi_buyer import board

WIDTH = 100
"""Columns of the terminal transcript, whatever the terminal: the same text in a pipe."""
_SHOWN_ABOUT, _SHOWN_TEXT, _SHOWN_HTML, _SHOWN_BOARDS = 200, 4_000, 20_000, 300

_LABEL = re.compile(r"^(Thought|Target|Talk|Action):", re.MULTILINE)
_ORDERS = (["Thought", "Target", "Talk", "Action"], ["Thought", "Talk", "Action"])
_PRIVATE = ("Thought", "Target")
# Terminal escapes, bidirectional overrides, line separators, lone surrogates: nothing that a reader can see as such.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ANSI_BUYERS = ("34", "33", "36", "35", "32")
_ANSI_BAD, _ANSI_DIM, _ANSI_BOLD = "1;31", "2", "1"


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
            heard.append(Said(turn.seat, turn.buyer, turn.verb, turn.price, ""))
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


def buyer_name(episode: Episode, buyer: int) -> str:
    """``Buyer 2 (rank 1, hidden budget $38.37)``."""
    scenario = episode.scenario
    return f"Buyer {buyer} (rank {scenario.rank(buyer)}, hidden budget {dollars(scenario.budgets[buyer - 1])})"


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


# -- what is said about the whole episode -----------------------------------------------------------------------


def buyer_colour(buyer: int) -> str:
    """The terminal's colour code for a buyer; no red, which is for violations."""
    return _ANSI_BUYERS[(buyer - 1) % len(_ANSI_BUYERS)]


def title_of(episode: Episode) -> str:
    """``Episode 12: baby-products_17``."""
    return f"Episode {episode.scenario.episode}: {episode.scenario.product.listing.codename}"


def facts(episode: Episode, kinds: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The market's constants as (name, value). ``kinds`` says of a player's name what it is."""
    s, listing, cost = episode.scenario, episode.scenario.product.listing, episode.scenario.product.cost_cents
    tight = "T < N x K" if s.message_budget < s.n_buyers * s.per_buyer_cap else "T >= N x K"
    limits = f"N = {s.n_buyers} buyers, K = {s.per_buyer_cap} per buyer, T = {s.message_budget} in all ({tight})"
    buyers = sorted(set(episode.players[1:]))
    money = [
        ("List price", f"{dollars(listing.list_cents)} (public)"),
        ("Cost", f"{dollars(cost)} (private to the seller)"),
    ]
    if s.game == "bilateral":
        room = s.budgets[0] - cost
        why = "gains from trade" if room > 0 else "no gains from trade: no deal is rational"
        return [
            *money,
            ("Room", f"{dollars(room)} (budget - cost: {why})"),
            ("Limits", f"{s.message_budget} turns, [REJECT] {'allowed' if s.reject else 'not allowed'}"),
            ("Game", f"{s.regime}, repetition {s.rep}"),
            ("Buyer", _player(episode.players[1], kinds)),
            ("Seller", f"{_player(episode.players[SELLER], kinds)}, persona {s.persona}"),
        ]
    return [
        *money,
        ("Room", f"{dollars(listing.list_cents - cost)} (list price - cost)"),
        ("Limits", limits),
        ("Market", f"{s.regime}, repetition {s.rep}"),
        ("First offers", "free" if s.openings is None else "regulated (fixed by the market)"),
        ("Seller", _player(episode.players[SELLER], kinds)),
        ("Buyers", ", ".join(_player(name, kinds) for name in buyers)),
    ]


def _player(name: str, kinds: Mapping[str, str] | None) -> str:
    kind = (kinds or {}).get(name, "")
    return f"{name} ({kind})" if kind else name


def hidden_rows(episode: Episode) -> list[tuple[str, str, str, str, str, str]]:
    """Per buyer: name, type, hidden budget, budget over list price, rank, first offer."""
    s, list_cents = episode.scenario, episode.scenario.product.listing.list_cents
    firsts: dict[int, str] = {}
    for turn in episode.turns:
        if turn.seat != SELLER and turn.violation is None:
            firsts.setdefault(turn.seat, f"[{turn.verb}]" if turn.price is None else dollars(turn.price))
    return [
        (f"Buyer {k}", kind, dollars(budget), f"{budget / list_cents:.2f}", str(s.rank(k)), firsts.get(k, "-"))
        for k, (kind, budget) in enumerate(zip(s.buyer_types, s.budgets, strict=True), 1)
    ]


HIDDEN_COLUMNS = ("buyer", "type", "hidden budget", "of list price", "rank", "first offer")


_NO_DEAL = {
    "seller_quit": ("the seller quit", "the seller quits"),
    "all_inactive": ("every buyer has quit or is capped", "nobody is left"),
    "messages_exhausted": ("the seller's {} messages are used up", "no messages left"),
    "buyer_quit": ("the buyer quit", "the buyer quits"),
    "turns_exhausted": ("the {} turns are over", "no turns left"),
}
"""How an episode ends without a deal: in the outcome's sentence, and in the last turn's title."""
_ABORTED = {"context_limit": "the conversation does not fit into its context", "timeout": "no reply came in time"}


def outcome_text(episode: Episode) -> str:
    """How it ended, in one sentence."""
    o, s = episode.outcome, episode.scenario
    if o.kind == "deal" and o.price is not None and o.buyer is not None:
        how = "the seller accepted its bid" if o.seat == SELLER else "the buyer accepted the seller's ask"
        return f"Deal at {dollars(o.price)} with {buyer_name(episode, o.buyer)}: {how}."
    who = "the seller" if o.seat == SELLER else f"Buyer {o.seat}"
    if o.kind == "aborted":
        return f"Aborted: {who} could not speak: {_ABORTED.get(o.reason, o.reason)}. No rule was broken."
    if o.kind == "violation":
        detail = f": {episode.turns[-1].detail}" if episode.turns and episode.turns[-1].detail else ""
        return f"Violation by {who} ({o.reason}){detail}."
    why = _NO_DEAL[o.reason][0].format(s.message_budget) if o.reason in _NO_DEAL else o.reason
    return f"No deal: {why}."


def engaged_text(episode: Episode) -> str:
    """Whom the seller spoke to, and where the richest buyer was; in the bilateral game, how the buyer began."""
    s = episode.scenario
    if s.game == "bilateral":
        first = episode.turns[0].price
        share = "no price" if first is None else f"{dollars(first)}, {first / s.budgets[0]:.2f} of its budget"
        return f"The buyer began with {share}."
    reached = {t.buyer for t in episode.turns if t.seat == SELLER and t.violation is None and t.verb != "QUIT"}
    missed = [k for k in range(1, s.n_buyers + 1) if k not in reached]
    richest = max(range(1, s.n_buyers + 1), key=lambda k: s.budgets[k - 1])
    never = f"; never engaged: {', '.join(f'Buyer {k}' for k in missed)}" if missed else ""
    budget = dollars(s.budgets[richest - 1])
    return f"The seller engaged {len(reached)} of {s.n_buyers} buyers{never}. Rank 1: Buyer {richest} ({budget})."


def reward_text(episode: Episode) -> str:
    """The reward's formula with this episode's numbers: equation (1), or the bilateral buyer's."""
    if episode.scenario.game == "bilateral":
        return _checked(*_buyer_reward(episode), episode)
    o, list_cents = episode.outcome, episode.scenario.product.listing.list_cents
    cost = episode.scenario.product.cost_cents
    if o.kind == "violation" and o.seat == SELLER:
        value, text = -1.0, "reward = -1 (the seller broke a rule)"
    elif o.kind == "violation":
        value, text = 0.0, "reward = 0 (a buyer broke a rule; the seller did not)"
    elif o.kind == "deal" and o.price is not None:
        ratio = (o.price - cost) / (list_cents - cost)
        value = min(1.0, ratio)
        share = f"({dollars(o.price)} - {dollars(cost)}) / ({dollars(list_cents)} - {dollars(cost)})"
        text = f"reward = {share} = {ratio:.3f}"
        if ratio > 1.0:
            text = f"reward = min(1, {share}) = min(1, {ratio:.3f}) = 1"
    else:
        value, text = 0.0, f"reward = 0 ({'aborted, counts as no deal' if o.kind == 'aborted' else 'no deal'})"
    return _checked(value, text, episode)


def _buyer_reward(episode: Episode) -> tuple[float, str]:
    o, budget, cost = episode.outcome, episode.scenario.budgets[0], episode.scenario.product.cost_cents
    if o.kind == "violation":
        return (-1.0, "reward = -1 (the buyer broke a rule)") if o.seat else (0.0, "reward = 0 (the seller's fault)")
    if o.kind != "deal" or o.price is None:
        return 0.0, f"reward = 0 ({'aborted, counts as no deal' if o.kind == 'aborted' else 'no deal'})"
    share = f"({dollars(budget)} - {dollars(o.price)}) / |{dollars(budget)} - {dollars(cost)}|"
    if budget == cost:
        return 0.0, f"reward = {share}, read as 0"
    ratio = (budget - o.price) / abs(budget - cost)
    value = max(-1.0, min(1.0, ratio))
    return value, f"reward = {share} = {ratio:.3f}" + ("" if value == ratio else f", at most {value:.0f}")


def _checked(value: float, text: str, episode: Episode) -> str:
    if value != episode.reward:
        text += f"; but the record says {episode.reward!r}: run `negolab verify`"
    return text


def _sections(episode: Episode) -> list[tuple[str, list[Step]]]:
    """The steps by turn number, each turn with a title as in section 14."""
    grouped: dict[int, list[Step]] = {}
    for step in steps(episode):
        grouped.setdefault(step.turn.turn, []).append(step)
    o = episode.outcome
    closed = {"deal": f"the deal closes at {dollars(o.price or 0)}", "aborted": "no reply"}.get(
        o.kind, "a rule is broken"
    )
    ending = _NO_DEAL[o.reason][1] if o.reason in _NO_DEAL else closed
    titled = []
    for number, group in grouped.items():
        said = ["concurrent buyer openings" if episode.scenario.n_buyers > 1 else "opening"] if number == 1 else []
        said += [ending] if number == max(grouped) else []
        titled.append((f"Turn {number}{': ' if said else ''}{', '.join(said)}", group))
    return titled


# -- the terminal -----------------------------------------------------------------------------------------------


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

    listing = episode.scenario.product.listing
    lines = [paint(wrap(f"{title_of(episode)} - {listing.title}", width), _ANSI_BOLD)]
    about = " ".join(listing.description[:_SHOWN_ABOUT].split())
    if about:
        dots = "..." if len(listing.description) > _SHOWN_ABOUT else ""
        lines.append(wrap(f"{'Description:':<13} {about}{dots}", width, hang=14))
    lines += [wrap(f"{name + ':':<13} {value}", width, hang=14) for name, value in facts(episode, kinds)]
    lines += ["", paint("HIDDEN FROM THE SELLER (a buyer knows only its own budget)", _ANSI_DIM)]
    rows = [HIDDEN_COLUMNS, *hidden_rows(episode)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HIDDEN_COLUMNS))]
    for k, row in enumerate(rows):
        code = buyer_colour(k) if k else _ANSI_DIM
        lines.append(paint("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip(), code))
    for title, group in _sections(episode):
        lines += ["", paint(f"--- {title} ---", _ANSI_BOLD)]
        for step in group:
            lines += ["", *_step_lines(step, width, paint, thoughts)]
            if boards and step.board is not None:
                lines += ["", wrap(f"  {step.board_title}:", width), wrap(step.board, width, indent=4, hang=10)]
    bad = episode.outcome.kind == "violation"
    lines += ["", paint("--- Outcome ---", _ANSI_BOLD), ""]
    lines.append(paint(wrap(outcome_text(episode), width), _ANSI_BAD if bad else _ANSI_BOLD))
    lines += [wrap(reward_text(episode), width), wrap(engaged_text(episode), width)]
    return "\n".join(lines) + "\n"


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
        name = f"{label} (private):" if label in _PRIVATE else f"{label}:"
        shown = wrap(f"  {name:<18} {_cut(text, _SHOWN_TEXT)}", width, hang=21)
        lines.append(paint(shown, _ANSI_DIM) if label in _PRIVATE else shown)
    if step.usage:
        lines.append(paint(wrap(f"  ({step.usage})", width), _ANSI_DIM))
    return lines


def wrap(text: str, width: int, indent: int = 0, hang: int = 0) -> str:
    """Printable text in lines of at most ``width``; what runs on is indented by ``hang``."""
    text = printable(_cut(text, 2 * _SHOWN_TEXT))
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
    shown = _cut(text or "(empty reply)", _SHOWN_TEXT).replace("\n", "\n| ")
    return wrap(f"| {shown}", width, indent=2, hang=4)


def _cut(text: str, most: int) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} [... {left:,} more characters, see --json]"


# -- the page ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode()
    env.filters["shown"] = lambda text: printable(_cut(text, _SHOWN_HTML))
    return env.get_template("transcript.html.j2")


def to_html(
    episodes: Episode | Iterable[Episode],
    *,
    boards: bool = False,
    thoughts: bool = True,
    kinds: Mapping[str, str] | None = None,
    source: str = "",
) -> str:
    """One self-contained page. ``boards``: boards are open at first; ``source`` says where the episodes come from."""
    chosen = [episodes] if isinstance(episodes, Episode) else list(episodes)
    made = [
        {
            "number": episode.scenario.episode,
            "title": title_of(episode),
            "listing": episode.scenario.product.listing,
            "facts": facts(episode, kinds),
            "columns": HIDDEN_COLUMNS,
            "hidden": hidden_rows(episode),
            "sections": _sections(episode),
            "kind": episode.outcome.kind,
            "outcome": outcome_text(episode),
            "reward": reward_text(episode),
            "reward_number": f"{episode.reward:.3f}",
            "engaged": engaged_text(episode),
            "seller": episode.players[SELLER],
        }
        for episode in chosen
    ]
    return str(_template().render(episodes=made, boards=boards, thoughts=thoughts, source=source, private=_PRIVATE))
