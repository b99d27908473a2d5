"""Legal words of both sides of the trade game, made of the messages that a model gets and of nothing else: whatever
they say, a model that reads its prompts could have said."""

import re
from collections.abc import Sequence
from typing import Any

from negolab.environment.base import Call
from negolab.money import cents_from_text
from negolab.parser import render_tools
from negolab.prompts import sha256_of

Messages = Sequence[dict[str, str]]
_MONEY = r"(\$[0-9]+\.[0-9]{2})"


def found(pattern: str, text: str) -> int | None:
    """Cents of the first amount that the pattern names."""
    seen = re.search(pattern, text)
    return None if seen is None else cents_from_text(seen[1])


def draw_of(messages: Messages, salt: Any = 0) -> int:
    """The same for the same conversation, whoever asks and when, and whatever the system prompt's wording."""
    return int(sha256_of([*messages[1:], {"role": "salt", "content": str(salt)}])[:8], 16)


def calls_of(messages: Messages, salt: Any = 0) -> tuple[Call, ...]:
    """What the side whose conversation it is does now."""
    system, last = messages[0]["content"], messages[-1]["content"]
    sign = 1 if "You negotiate for the seller" in system else -1
    limit = found(rf"bottom line is {_MONEY}", system)
    assert limit is not None
    number, rounds = map(int, re.search(r"Round (\d+) of (\d+) is yours", last).groups())
    offered = found(rf"offer of {_MONEY} waits for your answer", last)
    history = next((m["content"] for m in messages if "Price history" in m["content"]), None)
    draw = draw_of(messages, salt)
    if history is None and len(messages) == 2 and draw % 2:
        return (Call("search_price"),)
    left = rounds - number
    aim = limit + sign * limit * (4 + 8 * left + draw % 10) // 100
    if history is not None and sign > 0:
        aim = max(aim, min(found(rf"highest {_MONEY}", history), 2 * limit))
    if offered is not None and sign * (offered - limit) >= 0 and (left < 2 or sign * (offered - aim) >= 0):
        return Call("send_message", text='Agreed, "friend".'), Call("respond_to_offer", answer=True)
    if left < 2 and draw % 3 == 0:
        return (Call("quit_negotiation"),)
    if left > 4 and draw % 7 == 0:
        return (Call("wait_for_time_period", seconds=30.0),)
    if offered is not None and draw % 5 == 0:
        return Call("respond_to_offer", answer=False), Call("wait_for_response")
    price = max(1, aim)
    side = "free delivery" if draw % 4 == 0 else ""
    return Call("send_message", text=f"I can do {price / 100:.2f}."), Call("make_offer", price=price, text=side)


def speak(messages: Messages, salt: Any = 0) -> str:
    """A legal reply of the side whose conversation it is."""
    return render_tools(calls_of(messages, salt), f"draw {draw_of(messages, salt)}")
