"""Prompts of bilateral trade by tool calls (2604.16472, figures 2 and 3), for either side.

The order of the system prompt's parts, what each has to say and the forms in which events are told follow the paper;
the sentences are ours. They state every rule that decides something, in the environment and in the parser.

* What the other side writes, and what the listing holds, stands in double quotes on one line (``untrusted.quoted``): it
  can forge no event and write no token, no fence and no end of a block.
* No price of the listing is told. The price history is told where it was asked for.
* Each user message tells what has happened since the side spoke last and where things stand, and no message ever
  changes: the conversation is append-only. Where one side speaks twice in a row a user message stands between.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from negolab.environment.base import MAX_CALLS, SELLER, Event, Taken, TradeView
from negolab.environment.tools import MAX_CODE, TOOL_SET, Argument, role_of
from negolab.money import dollars
from negolab.prompts.shared import Message
from negolab.prompts.untrusted import one_line, quoted

NO_REPLY = "(no reply)"
"""Stands for an own reply without text: not every server takes an empty message."""
_TYPES = {"number": "float", "boolean": "bool", "string": "str"}
_DONE = {
    "accept": "has accepted your offer.",
    "reject": "has rejected your offer.",
    "quit": "has quitted negotiation.",
    "wait": "has let some time pass.",
}


def trade_messages(templates: Mapping[str, Any], view: TradeView) -> list[Message]:
    """The whole conversation of one side so far, ending with the message to answer.

    ``templates``: as ``load_templates`` gives them.
    """
    role, other = role_of(view.seat), role_of(1 - view.seat)
    limit = dollars(view.limit)
    system = templates["trade_system.j2"].render(
        role=role,
        other=other,
        rounds=view.max_rounds,
        limit=limit,
        tools=_tools(other),
        calls=MAX_CALLS,
        characters=f"{MAX_CODE:,}",
    )
    listing = view.listing
    item = templates["trade_item.j2"].render(
        role=role,
        title=quoted(listing.title),
        description=quoted(listing.description),
        category=quoted(listing.category),
    )
    bound = "below" if view.seat == SELLER else "above"
    reminder = (
        "Act so that your utility becomes as large as it can. "
        f"Propose and accept nothing {bound} {limit}: your utility would be negative."
    )
    messages = [{"role": "system", "content": system}]
    table = _Table(view)
    now = Taken(view.round, view.now, (), False, 0.0)
    before: Taken | None = None
    for at, turn in enumerate((*view.taken, now)):
        parts = [table.told(turn, before), table.standing(turn), reminder]
        messages.append({"role": "user", "content": "\n\n".join([item, *parts] if at == 0 else parts)})
        if turn is not now:
            messages.append({"role": "assistant", "content": view.own[at] or NO_REPLY})
        before = turn
    return messages


class _Table:
    """Where a negotiation stands for one side, followed turn by turn."""

    def __init__(self, view: TradeView) -> None:
        self._view, self._other = view, role_of(1 - view.seat)
        self._turns = list(zip(view.speakers, view.heard, strict=True))
        self._at = 0  # turns that have been told
        self._pending: tuple[int, int] | None = None  # seat and cents of the offer that waits

    def told(self, turn: Taken, before: Taken | None) -> str:
        """What has happened since the side's turn ``before``, as it is told at its turn ``turn``."""
        view = self._view
        lines = [f"Time elapsed since negotiation start: {turn.time:.1f} seconds."]
        if before is not None:
            own = self._turns[self._at][1]
            self._at += 1
            self._follow(own)
            if before.problems:
                lines.append("Something was wrong with your last reply, and that part of it had no effect:")
                lines += [f"- {kind}: {one_line(detail)}" for kind, detail in before.problems]
            if before.searched and view.history is not None:
                low, high = view.history
                lines.append(f"Price history of the item: lowest {dollars(low)}, highest {dollars(high)}.")
            if before.waited:
                lines.append(f"You have waited for {before.waited:g} seconds.")
        spoke = False
        events: list[Event] = []
        while self._at < len(self._turns) and self._turns[self._at][0] != view.seat:
            spoke = True
            events += self._turns[self._at][1]
            self._at += 1
        self._follow(events)
        for event in events:
            lines += self._event(event)
        if spoke and not events:
            lines.append(f"The {self._other} has done nothing that you are told of; it is your turn.")
        return "\n".join(lines)

    def standing(self, turn: Taken) -> str:
        """Which offer waits, and how many rounds are left."""
        rounds = self._view.max_rounds
        if self._pending is None:
            offer = "No offer waits for an answer."
        elif self._pending[0] == self._view.seat:
            offer = f"Your offer of {dollars(self._pending[1])} waits for the {self._other}'s answer."
        else:
            offer = f"The {self._other}'s offer of {dollars(self._pending[1])} waits for your answer."
        left = rounds - turn.round
        after = f"{left} more follow{'s' if left == 1 else ''} it" if left else "it is the last: no offer can follow"
        return f"{offer}\nRound {turn.round} of {rounds} is yours; {after}."

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "offer":
                self._pending = event.seat, event.price or 0
            elif event.kind in ("accept", "reject"):
                self._pending = None

    def _event(self, event: Event) -> list[str]:
        who = f"The {self._other}"
        if event.kind == "offer":
            cents = event.price or 0
            side = f', "side_offer": {quoted(event.text)}' if event.text else ""
            return [f"{who} has proposed a new offer:", f'{{"price": {cents // 100}.{cents % 100:02d}{side}}}']
        if event.kind == "message":
            return [f"{who} has sent a new message:", quoted(event.text)]
        return [f"{who} {_DONE[event.kind]}"]


@lru_cache(maxsize=2)
def _tools(other: str) -> list[dict[str, Any]]:
    """The tools as the system prompt lists them, for whom ``other`` is the other side."""
    return [
        {
            "signature": f"{tool.name}({', '.join(map(_argument, tool.arguments))})",
            "terminal": tool.terminal,
            "effect": tool.effect.format(other=other),
            "lines": [f"{argument.name}: {described(argument, other)}" for argument in tool.arguments],
        }
        for tool in TOOL_SET
    ]


def _argument(argument: Argument) -> str:
    kind = f"{argument.name}: {_TYPES[argument.type]}"
    return kind if argument.required else f'{kind} = ""'


def described(argument: Argument, other: str) -> str:
    """What an argument may be."""
    limits = "" if argument.most is None else f"; above zero, {argument.most:,} at most"
    return argument.help.format(other=other) + limits
