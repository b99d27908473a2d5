"""What the pocket model says: few, fixed phrases, each one token.

A Thought copies the two amounts that matter, says how they compare, and names a plan; the plan is one token, so that
what is explored and rewarded in training is a decision and not a spelling. ``InWords`` puts any scripted player's moves
into these phrases: that is how the model's first examples are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from negolab.environment.base import SELLER, BilateralView, BuyerView, Move, Request, SellerView, TradeView
from negolab.money import dollars
from negolab.parser.lines import parse_bilateral_seller, parse_buyer, parse_seller
from negolab.policies.base import Policy, Reply
from negolab.policies.bilateral_talk import BUYER_REASONS, PLAIN_OFFERS

_COST = ", my cost is $"
_FOR = {"covers": ": it covers.", "short": ": it falls short."}
_PLANS = {
    "close": " Close now.",
    "careless": " Close enough, close now.",
    "list": " Ask the list price.",
    "between": " Ask in between.",
    "near": " Ask a little over cost.",
    "quit": " Give up.",
}
_SELLER_TALK = {"SELL": "This is my price.", "DEAL": "Agreed, it is yours.", "QUIT": "No deal, goodbye."}
_LIST, _ASK, _BUDGET = "Thought: The list price is $", "Thought: The ask is $", ", my budget is $"
_REACH = {True: ": within reach.", False: ": too much."}
_STEPS = {
    "anchor": " Open very low.",
    "low": " Open low.",
    "near": " Open near my limit.",
    "take": " Take it.",
    "stay": " Stay.",
    "small": " A small step.",
    "big": " A big step.",
    "leave": " Leave.",
    "refuse": " Refuse.",
}
_BUYER_TALK = {"BUY": PLAIN_OFFERS[1], "DEAL": "I take it.", "QUIT": "No deal, goodbye.", "REJECT": "No, thank you."}
_REASONS = {said: lines[0] for lines in BUYER_REASONS.values() for said in lines}
"""A reason is worth more than what else a buyer says: each kind keeps one wording."""
_BID = "Thought: The bid is $"

SPOKEN: tuple[str, ...] = (
    *(_COST, _LIST, _ASK, _BUDGET, *_FOR.values(), *_PLANS.values(), *_REACH.values(), *_STEPS.values()),
    *_SELLER_TALK.values(),
    *_BUYER_TALK.values(),
    *_REASONS.values(),
    _BID,
)
"""All phrases, for the tokenizer."""

COMPARISONS = (*_FOR.values(), *_REACH.values(), *(f"Thought: Best bid: Buyer {buyer} at $" for buyer in range(1, 10)))
"""Phrases whose choice takes a comparison of amounts."""


def thought(buyer: int, bid: int, cost: int) -> str:
    """What a seller's Thought says of a bid (cents) before it names a plan."""
    judged = _FOR["covers" if bid >= cost else "short"]
    return f"Thought: Best bid: Buyer {buyer} at {dollars(bid)}{_COST}{dollars(cost)[1:]}{judged}"


def seller_words(view: SellerView, move: Move, codename: str) -> str:
    """A seller's move as the pocket model would say it."""
    cost, listing = view.product.cost_cents, view.product.listing.list_cents
    bids = [(max(c.bids)[1], -at) for at, c in enumerate(view.channels, 1) if c.status == "active" and c.bids]
    if not bids:  # nobody left to sell to
        return f"Thought: \nTarget: [QUIT]\nTalk: {_SELLER_TALK['QUIT']}\nAction: [QUIT]"
    bid, buyer = max(bids)[0], -max(bids)[1]
    price, room = move.price or 0, max(1, listing - cost)
    if move.verb == "DEAL":
        plan = "close" if price >= cost else "careless"
    elif move.verb == "QUIT":
        plan = "quit"
    else:
        share = (price - cost) / room
        plan = "list" if share > 0.97 else "between" if share > 0.3 else "near"
    target = "[QUIT]" if move.target is None else f"Buyer {move.target}"
    item = "" if move.price is None else f" {dollars(move.price)} (1x {codename})"
    said = f"{thought(buyer, bid, cost)}{_PLANS[plan]}"
    return f"{said}\nTarget: {target}\nTalk: {_SELLER_TALK[move.verb]}\nAction: [{move.verb}]{item}"


def buyer_words(view: BuyerView | BilateralView, move: Move, codename: str) -> str:
    """A buyer's move, in either game, as the pocket model would say it."""
    asks = [said.price for said in view.heard if said.seat == SELLER and said.price is not None]
    mine = [said.price for said in view.heard if said.seat != SELLER and said.price is not None]
    budget = view.budget if isinstance(view, BuyerView) else view.limit
    seen = asks[-1] if asks else view.listing.list_cents
    price = move.price or 0
    if move.verb in ("DEAL", "QUIT", "REJECT"):
        step = {"DEAL": "take", "QUIT": "leave", "REJECT": "refuse"}[move.verb]
    elif not mine:
        share = price / budget
        step = "anchor" if share < 0.4 else "low" if share < 0.7 else "near"
    else:
        up = (price - mine[-1]) / budget
        step = "stay" if up <= 0 else "small" if up < 0.1 else "big"
    first = _ASK if asks else _LIST
    said = f"{first}{dollars(seen)[1:]}{_BUDGET}{dollars(budget)[1:]}{_REACH[seen <= budget]}{_STEPS[step]}"
    item = "" if move.price is None else f" {dollars(move.price)} (1x {codename})"
    talk = _REASONS.get(move.talk, _BUYER_TALK[move.verb])
    return f"{said}\nTalk: {talk}\nAction: [{move.verb}]{item}"


def lone_seller_words(view: BilateralView, move: Move, codename: str) -> str:
    """A move of the bilateral game's seller as the pocket model would say it."""
    bids = [said.price for said in view.heard if said.seat != SELLER and said.price is not None]
    cost, bid, room = view.limit, bids[-1] if bids else 0, max(1, view.listing.list_cents - view.limit)
    if move.verb == "SELL":
        share = ((move.price or 0) - cost) / room
        plan = _PLANS["list" if share > 0.97 else "between" if share > 0.3 else "near"]
    else:
        plan = _PLANS["close"] if move.verb == "DEAL" else _STEPS["leave" if move.verb == "QUIT" else "refuse"]
    judged = _FOR["covers" if bid >= cost else "short"]
    item = "" if move.price is None else f" {dollars(move.price)} (1x {codename})"
    talk = _SELLER_TALK.get(move.verb, _BUYER_TALK["REJECT"])
    return (
        f"{_BID}{dollars(bid)[1:]}{_COST}{dollars(cost)[1:]}{judged}{plan}\nTalk: {talk}\nAction: [{move.verb}]{item}"
    )


class InWords:
    """A scripted player whose moves are put into the pocket model's words; what does not parse stays as it is."""

    def __init__(self, player: Policy) -> None:
        self.name = player.name
        self._player = player

    def describe(self) -> dict[str, Any]:
        """The player's own description, marked."""
        return {**self._player.describe(), "words": "pocket"}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        return [Reply(self._said(r, reply)) for r, reply in zip(requests, self._player.reply(requests), strict=True)]

    def _said(self, request: Request, reply: Reply) -> str | None:
        view = request.view
        if isinstance(view, SellerView):
            codename = view.product.listing.codename
            move = parse_seller(reply.text, codename)
            return seller_words(view, move, codename) if isinstance(move, Move) else reply.text
        if isinstance(view, TradeView):  # written in tools, for which the pocket model has no words
            return reply.text
        codename = view.listing.codename
        if isinstance(view, BilateralView) and view.seat == SELLER:
            move = parse_bilateral_seller(reply.text, codename, reject=view.reject)
            return lone_seller_words(view, move, codename) if isinstance(move, Move) else reply.text
        reject = isinstance(view, BilateralView) and view.reject
        move = parse_buyer(reply.text, codename, reject=reject)
        return buyer_words(view, move, codename) if isinstance(move, Move) else reply.text
