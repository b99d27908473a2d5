"""Legal words of both sides of a market of several items, made of the messages that a model gets and of nothing else:
whatever they say, a model that reads its prompts could have said."""

import re
from collections.abc import Sequence
from typing import Any

from negolab.money import dollars
from negolab.parser import render_item_buyer, render_item_seller
from negolab.prompts import sha256_of

_OFFER = re.compile(r"(Item_\d+) (\$[0-9,]+\.[0-9]{2})")
_LEFT = re.compile(r"(Item_\d+) \(list (\$[0-9,]+\.[0-9]{2}), cost (\$[0-9,]+\.[0-9]{2})\)")
_NAMED = re.compile(r"(\$[0-9,]+\.[0-9]{2}) \(1x (Item_\d+)\)")
Messages = Sequence[dict[str, str]]


def cents(text: str) -> int:
    return int(re.sub("[^0-9]", "", text))


def number(item: str) -> int:
    return int(item.removeprefix("Item_"))


def draw_of(messages: Messages, salt: Any = 0) -> int:
    """The same for the same conversation, whoever asks and when, and whatever the system prompt's wording."""
    return int(sha256_of([*messages[1:], {"role": "salt", "content": str(salt)}])[:8], 16)


def speak(messages: Messages, salt: Any = 0) -> str:
    """A legal reply of the seat whose conversation it is."""
    seller = messages[0]["content"].startswith("You are a seller")
    return seller_words(messages, salt) if seller else buyer_words(messages, salt)


def seller_words(messages: Messages, salt: Any = 0) -> str:
    """Takes every bid that pays enough, one buyer after the other; else shows a menu between cost and list price."""
    board, draw = messages[-1]["content"].split("=== Standing offers ===")[1], draw_of(messages, salt)
    left = {number(item): (cents(listed), cents(cost)) for item, listed, cost in _LEFT.findall(board)}
    active = {int(line.split()[2][:-1]): line for line in board.splitlines() if ": active, " in line}
    for buyer, line in active.items():
        bids = _OFFER.findall(re.search(r"Best bids: (.*?)\. Your latest", line)[1])
        for item, price in ((number(item), cents(price)) for item, price in bids):
            listed, cost = left[item]
            if price >= cost + (listed - cost) * (10 + draw % 30) // 100:
                return render_item_seller("DEAL", ((item, price),), buyer, "It is yours.", f"draw {draw}")
    buyer = sorted(active)[draw % len(active)]
    menu = [(item, cost + (listed - cost) * (40 + (draw >> item) % 60) // 100) for item, (listed, cost) in left.items()]
    return render_item_seller("SELL", tuple(menu[: 1 + draw % len(menu)]), buyer, "My prices.", f"draw {draw}")


def buyer_words(messages: Messages, salt: Any = 0) -> str:
    """Takes the first item of a menu that it can pay for by far; else bids on all items, a little more each time."""
    context, draw = messages[1]["content"], draw_of(messages, salt)
    worth = {number(item): cents(price) for item, price in re.findall(r"(Item_\d+): worth (\$\S+) to you", context)}
    own = sum(message["role"] == "assistant" for message in messages)
    fixed = {number(item): cents(price) for price, item in _NAMED.findall(context)}
    if own == 0 and fixed:
        return render_item_buyer("BUY", tuple(sorted(fixed.items())[: 1 + draw % len(fixed)]), "Hello.", f"draw {draw}")
    if own:
        for price, item in _NAMED.findall(messages[-1]["content"].split("<Action>")[1]):
            if cents(price) <= worth[number(item)] * (80 + draw % 15) // 100:
                return render_item_buyer("DEAL", ((number(item), cents(price)),), "I take it.", f"draw {draw}")
    bids = tuple((item, value * min(95, 40 + 15 * own + draw % 10) // 100) for item, value in worth.items())
    return render_item_buyer("BUY", bids, f"I can pay {dollars(bids[0][1])}.", f"draw {draw}")
