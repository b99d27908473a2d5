"""A person as a player: shown what the seat may see and no more, asked until the entry is a move.

The person sees what a model in that seat sees (sections 3.1 and 11): a seller the product, its cost, the new messages
and the standing-offers board; a buyer its own channel, its budget and, where openings are regulated, its fixed first
offer, which is filled in. Entries are turned into the same text that models write and go through the same parser. A
mistyped entry is explained and asked again. A seller's entry that breaks a rule is played only after a warning, because
it ends the episode; a buyer's is never played, because the market would refuse it.

Nothing is printed or read here: the console that is handed in does both.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from negolab.catalog import Listing
from negolab.environment.base import SELLER, BuyerView, Move, Request, Said, SellerView, Violation
from negolab.environment.market import check_seller
from negolab.errors import NegolabError
from negolab.money import MAX_CENTS, dollars
from negolab.parser.lines import parse_buyer, parse_seller, render_buyer, render_seller
from negolab.policies.base import Reply
from negolab.prompts.multi_buyer import board

_PRICE = re.compile(r"\$?([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,9})(?:\.([0-9]{1,2}))?")
_SHOWN_DESCRIPTION = 400

SELLER_HELP = """\
  K sell PRICE [message]   ask buyer K for PRICE:              2 sell 32 Can do thirty-two
  K deal PRICE [message]   accept one of buyer K's own bids:   2 deal 27.50 Fine
  quit [message]           end the episode without a deal
  board                    the standing offers
  item                     the product's whole description
  help                     these lines and the rules
Ctrl-C leaves; nothing is written then."""
SELLER_RULES = """\
Only the buyer you write to sees the message and the price. Each answers at once; its bids stay open while it is active.
A buyer is out once it quits or has had K messages; the episode ends after T messages in all.
Deal at P: reward (P - cost) / (list price - cost), at most 1. No deal: 0.
A price below cost, a deal at a price that was never bid, or a buyer that is out: -1, and the episode ends."""
BUYER_HELP = """\
  buy PRICE [message]      bid:                                buy 18 That is what I have
  deal [PRICE] [message]   accept the seller's latest ask:     deal 34.99
  quit [message]           leave without buying
  board                    your channel so far
  item                     the product's whole description
  help                     these lines and the rules
Ctrl-C leaves; nothing is written then."""
BUYER_RULES = """\
Buy as cheaply as you can and never above your budget. Others bid for the same item; you do not see them, nor they you.
The seller may take any of your bids while you are in, or sell to somebody else. Its messages to you are limited."""


class Console(Protocol):
    """Where a person reads and types."""

    def say(self, text: str = "", buyer: int | None = None) -> None:
        """Show text; ``buyer`` is whose words it is, for a colour."""
        ...

    def ask(self, prompt: str) -> str:
        """One entry. Raises ``EOFError`` when there are no more."""
        ...


class Mistyped(Exception):
    """An entry that is no move; the message says why."""


def read_price(text: str) -> int:
    """Dollars as typed, in cents. Raises ``Mistyped``: ``34,99`` is no price, lest it be read as $3,499."""
    found = _PRICE.fullmatch(text)
    cents = 0 if found is None else int(found[1].replace(",", "")) * 100 + int((found[2] or "0").ljust(2, "0"))
    if not 0 < cents <= MAX_CENTS:
        raise Mistyped(f"{text!r} is not a price: write dollars such as 32 or 32.50, at most {dollars(MAX_CENTS)}")
    return cents


def _talk(text: str) -> str:
    """A typed message without the control characters that keys may have left in it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class Human:
    """A person at a console, in any seat."""

    name = "human"

    def __init__(self, console: Console) -> None:
        self._console = console

    def describe(self) -> dict[str, Any]:
        """Name and kind."""
        return {"name": self.name, "kind": "a person"}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order; the person answers one after the other."""
        return [Reply(self._answer(request)) for request in requests]

    def _answer(self, request: Request) -> str:
        if request.complaint:
            self._console.say(f"That was refused: {request.complaint}.")
        view = request.view
        if isinstance(view, SellerView):
            return self._seller(view)
        if not isinstance(view, BuyerView):
            raise NegolabError("the games of two have no seat for a person; play the market")
        return self._buyer(view, request.seat)

    # -- the seller's seat --------------------------------------------------------------------------------------

    def _seller(self, view: SellerView) -> str:
        say, product = self._console.say, view.product
        if not view.own:
            say(f"You sell one item to {len(view.channels)} buyers, each in a private channel.")
            self._introduce(product.listing)
            say(f"Your cost:  {dollars(product.cost_cents)} (yours to know; never sell below it)")
            say(f"Limits:     {view.per_buyer_cap} messages to one buyer, {view.message_budget} in all")
            say(f"\n{SELLER_RULES}\n\nWhat you can type:\n{SELLER_HELP}")
        say()
        for said in _since(view.heard, SELLER):
            self._tell(f"Buyer {said.buyer}", said)
        say("\n" + _board(view))
        plural = "message" if view.messages_left == 1 else "messages"
        prompt = f"\nTurn {view.turn}, {view.messages_left} {plural} left> "
        common = {"board": lambda: say(_board(view)), "help": lambda: say(f"{SELLER_HELP}\n{SELLER_RULES}")}
        return self._until_move(prompt, lambda entry: self._seller_move(view, entry), common, product.listing)

    def _seller_move(self, view: SellerView, entry: str) -> str:
        codename = view.product.listing.codename
        verb, price, target, talk = _seller_entry(entry)
        text = render_seller(verb, price, target, talk, "", codename)
        read = parse_seller(text, codename)
        found = check_seller(read, view.channels, (view.product.cost_cents,)) if isinstance(read, Move) else read
        if found is not None:
            self._console.say(f"That breaks a rule ({found.kind}): {found.detail}.")
            answer = self._console.ask("This ends the episode with -1; really? y/N ").strip()
            if answer.lower() not in ("y", "yes"):
                if answer.lower() in ("", "n", "no"):
                    raise Mistyped("not sent; try another entry")
                return self._seller_move(view, answer)  # an impatient person's next entry means no
        return text

    # -- a buyer's seat -----------------------------------------------------------------------------------------

    def _buyer(self, view: BuyerView, seat: int) -> str:
        say, opening = self._console.say, view.opening
        if not view.own:
            say(f"You are Buyer {seat}. The seller has one item and talks to you and to others, each apart.")
            self._introduce(view.listing)
            say(f"Your budget: {dollars(view.budget)} (yours to know; never pay more)")
            say(f"Limits:      the seller may send you {view.per_buyer_cap} messages at most")
            say(f"\n{BUYER_RULES}\n\nWhat you can type:\n{BUYER_HELP}")
            if opening is not None:
                say(f"\nYour first offer is fixed: [BUY] {dollars(opening)}. Type what you want to say with it,")
                say("or just press Enter. From then on you are free.")
        say()
        for said in _since(view.heard, seat):
            self._tell("Seller", said)
        asked = next((said for said in reversed(view.heard) if said.seat == SELLER), None)
        left = view.per_buyer_cap - sum(said.seat == SELLER for said in view.heard)
        prompt = "\nYour first message> " if asked is None else f"\nThe seller has {left} more for you> "
        common = {
            "board": lambda: self._channel(view, seat),
            "help": lambda: say(f"{BUYER_HELP}\n{BUYER_RULES}"),
        }
        return self._until_move(prompt, lambda entry: _buyer_move(view, entry), common, view.listing)

    def _channel(self, view: BuyerView, seat: int) -> None:
        if not view.heard:
            self._console.say("Nothing has been said yet.")
        for said in view.heard:
            self._tell("Seller" if said.seat == SELLER else f"You (Buyer {seat})", said)

    # -- both ---------------------------------------------------------------------------------------------------

    def _introduce(self, listing: Listing) -> None:
        say, text = self._console.say, " ".join(listing.description.split())
        more = " ... (`item` shows all)" if len(text) > _SHOWN_DESCRIPTION else ""
        say(f"\nItem:       {listing.title} ({listing.codename})")
        if text:
            say(f"            {text[:_SHOWN_DESCRIPTION]}{more}")
        say(f"List price: {dollars(listing.list_cents)}")

    def _tell(self, who: str, said: Said) -> None:
        price = "" if said.price is None else f" {dollars(said.price)}"
        self._console.say(f"{who}: {said.talk}  [{said.verb}]{price}", None if said.seat == SELLER else said.buyer)

    def _until_move(
        self, prompt: str, move: Callable[[str], str], common: dict[str, Callable[[], None]], listing: Listing
    ) -> str:
        """Ask until an entry is a move, and return its text."""
        while True:
            entry = self._console.ask(prompt).strip()
            word = entry.lower()
            if word in common:
                common[word]()
                continue
            if word == "item":
                self._console.say(f"{listing.title}\n{listing.description}")
                continue
            try:
                return move(entry)
            except Mistyped as why:
                self._console.say(str(why))


def _since(heard: Sequence[Said], seat: int) -> Sequence[Said]:
    """What the others said since ``seat`` last spoke."""
    start = len(heard)
    while start and heard[start - 1].seat != seat:
        start -= 1
    return heard[start:]


def _board(view: SellerView) -> str:
    return board(
        view.heard,
        n_buyers=len(view.channels),
        per_buyer_cap=view.per_buyer_cap,
        message_budget=view.message_budget,
        list_cents=view.product.listing.list_cents,
        cost_cents=view.product.cost_cents,
    )


def _seller_entry(entry: str) -> tuple[str, int | None, int | None, str]:
    """Verb, price, target and talk of a seller's entry. Raises ``Mistyped``."""
    first, _, rest = entry.partition(" ")
    if first.lower() == "quit":
        return "QUIT", None, None, _talk(rest)
    if not entry:
        raise Mistyped("nothing typed; `help` shows what you can type")
    if not re.fullmatch("[1-9][0-9]{0,5}", first):
        raise Mistyped(f"{first!r} is no buyer's number; an entry is such as: 2 sell 32 Can do thirty-two")
    verb, _, rest = rest.strip().partition(" ")
    if verb.lower() not in ("sell", "deal"):
        raise Mistyped(f"after the buyer's number comes sell or deal, not {verb!r}: {first} sell 32")
    price, _, talk = rest.strip().partition(" ")
    if not price:
        raise Mistyped(f"the price is missing: {first} {verb.lower()} 32")
    return verb.upper(), read_price(price), int(first), _talk(talk)


def _buyer_entry(view: BuyerView, entry: str) -> tuple[str, int | None, str]:
    """Verb, price and talk of a buyer's entry. Raises ``Mistyped``."""
    first, _, rest = entry.partition(" ")
    verb, rest = first.lower(), rest.strip()
    fixed = None if view.own else view.opening
    if verb == "quit":
        return "QUIT", None, _talk(rest)
    if verb not in ("buy", "deal"):
        if fixed is not None:
            return "BUY", fixed, _talk(entry)
        raise Mistyped("an entry is such as: buy 18 That is what I have; `help` shows the others")
    amount, _, talk = rest.partition(" ")
    if not amount and verb == "deal":
        asks = [said.price for said in view.heard if said.seat == SELLER]
        return "DEAL", asks[-1] if asks else view.listing.list_cents, ""
    if not amount:
        raise Mistyped("the price is missing: buy 18")
    return verb.upper(), read_price(amount), _talk(talk)


def _buyer_move(view: BuyerView, entry: str) -> str:
    verb, price, talk = _buyer_entry(view, entry)
    why = _buyer_mistake(view, verb, price)
    if why:
        raise Mistyped(f"{why}; not sent, try again")
    codename = view.listing.codename
    text = render_buyer(verb, price, talk, "", codename)
    read = parse_buyer(text, codename)
    if isinstance(read, Violation):
        raise Mistyped(f"that is not a valid message ({read.detail}); not sent, try again")
    return text


def _buyer_mistake(view: BuyerView, verb: str, price: int | None) -> str:
    """Which rule of the market a buyer's move would break, as far as its own view tells; empty for none."""
    if not view.own:
        if verb != "BUY":
            return f"your first action must be a bid, not a {verb.lower()} (Ctrl-C leaves the game)"
        if view.opening is not None and price != view.opening:
            return f"your first offer is fixed at {dollars(view.opening)}"
    if price is not None and price > view.budget:
        return f"{dollars(price)} is over your budget of {dollars(view.budget)}"
    if verb == "DEAL":
        asks = [said.price for said in view.heard if said.seat == SELLER]
        if not asks or price != asks[-1]:
            latest = dollars(asks[-1] or 0) if asks else "none yet"
            return f"a deal repeats the seller's latest ask ({latest}) to the cent"
    return ""
