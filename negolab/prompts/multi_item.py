"""Prompts of the market of several items (2609.33289, section 3.1 and appendices F.1 and F.2), in the tag format.

What is known of the paper's prompts is what they contain, not how they say it: four XML tags for the seller; targets
and actions; the reward with its clipped prices and its -1; for the buyers at most one purchase, list prices without
costs, and bids bounded by private valuations. The wording, the catalogue's layout and the board are ours.

* A catalogue has M entries in every prompt, so each is kept short: a title of at most ``TITLE`` characters and a
  description of at most ``DESCRIPTION``, each on one line, cut at the end of a word. The single-item prompts show the
  whole description.
* The board states where the market stands, not how it came there: items left and sold, and for each active buyer its
  best bid for each unsold item and the latest menu sent to it. It grows with items, buyers and standing offers, not
  with the number of messages.
* No earlier message ever changes, so a board is repeated in each user message: the conversation is append-only.
* A deal that the seller closes gets no answer. The user message that follows tells of it, so that roles alternate.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from negolab.catalog import Listing, Product
from negolab.environment.base import SELLER, BuyerView, Offers, Said, SellerView, item_name
from negolab.money import dollars
from negolab.prompts.shared import Message
from negolab.prompts.untrusted import tag_line

TITLE = 200
"""The most characters of a title; the catalogue's longest are about that long."""
DESCRIPTION = 400
"""The most characters of a description; the catalogue's median is 766."""


def item_seller_messages(templates: Mapping[str, Any], view: SellerView) -> list[Message]:
    """The seller's whole conversation so far, ending with the message to answer.

    User messages hold what buyers have said since the seller spoke last (Talk and Action), the deal that was closed
    meanwhile if there was one, and the board. ``templates``: as ``load_templates`` gives them.
    """
    items, n = view.items, len(view.channels)
    shown = [
        {**_entry(product.listing), "name": item_name(number), "cost": dollars(product.cost_cents)}
        for number, product in enumerate(items, 1)
    ]
    system = templates["item_seller_system.j2"].render(
        items=shown,
        m=len(items),
        n=n,
        k=view.per_buyer_cap,
        t=view.message_budget,
        margin=dollars(sum(product.listing.list_cents - product.cost_cents for product in items)),
    )
    messages = [{"role": "system", "content": system}]
    state = _Board(items, n, view.per_buyer_cap, view.message_budget)
    news: list[str] = []
    own = iter(view.own)
    for position, said in enumerate(view.heard, 1):
        state.add(said)
        if said.seat == SELLER:
            messages.append({"role": "assistant", "content": next(own)})
        else:
            news.append(f"Buyer {said.buyer}:\n{tagged(said)}")
        if said.verb == "DEAL":
            item, price = said.offers[0]
            news.append(f"Deal: Buyer {said.buyer} bought {item_name(item)} at {dollars(price)}.")
        if news and (position == len(view.heard) or view.heard[position].seat == SELLER):
            messages.append({"role": "user", "content": "\n\n".join([*news, state.text()])})
            news = []
    return messages


def item_buyer_messages(templates: Mapping[str, Any], view: BuyerView) -> list[Message]:
    """A buyer's whole conversation so far: its own channel, and no word of any other."""
    openings = view.openings or (None,) * len(view.listings)
    shown = [
        {
            **_entry(listing),
            "name": item_name(number),
            "worth": dollars(worth),
            "opening": None if opening is None else dollars(opening),
        }
        for number, (listing, worth, opening) in enumerate(zip(view.listings, view.budgets, openings, strict=True), 1)
    ]
    system = templates["item_buyer_system.j2"].render(m=len(shown))
    context = templates["item_buyer_context.j2"].render(items=shown, k=view.per_buyer_cap)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": context}]
    own = iter(view.own)
    for said in view.heard:
        if said.seat == SELLER:
            messages.append({"role": "user", "content": tagged(said)})
        else:
            messages.append({"role": "assistant", "content": next(own)})
    return messages


def item_board(
    heard: Sequence[Said], *, items: Sequence[Product], n_buyers: int, per_buyer_cap: int, message_budget: int
) -> str:
    """The standing-offers board after the turns in ``heard``, which are all of a market's so far."""
    state = _Board(items, n_buyers, per_buyer_cap, message_budget)
    for said in heard:
        state.add(said)
    return state.text()


def tagged(said: Said) -> str:
    """What the other end of a channel reads of a message: its Talk, made harmless, and its Action."""
    offers = "; ".join(f"{dollars(price)} (1x {item_name(item)})" for item, price in said.offers)
    return f"<Talk>{tag_line(said.talk)}</Talk>\n<Action>[{said.verb}]{' ' + offers if offers else ''}</Action>"


def shown_length(listing: Listing) -> int:
    """About how many characters a catalogue's entry has; for finding the longest ones."""
    return min(len(listing.title), TITLE) + min(len(listing.description), DESCRIPTION)


@lru_cache(maxsize=4096)
def _entry(listing: Listing) -> dict[str, str]:
    """A listing as the catalogue of a prompt shows it; the same listings are shown again at every turn."""
    return {
        "title": tag_line(listing.title, TITLE),
        "description": tag_line(listing.description, DESCRIPTION),
        "list_price": dollars(listing.list_cents),
    }


class _Board:
    """Where a market stands, followed turn by turn from what its seller has heard."""

    def __init__(self, items: Sequence[Product], n_buyers: int, per_buyer_cap: int, message_budget: int) -> None:
        self._items, self._cap, self._budget = items, per_buyer_cap, message_budget
        self._left = dict(enumerate(items, 1))
        self._sold: list[str] = []
        self._ended: dict[int, str] = {}  # buyer: how it left
        self._sent = [0] * n_buyers
        self._bids: list[dict[int, int]] = [{} for _ in range(n_buyers)]  # item: best bid
        self._menus: list[Offers] = [()] * n_buyers

    def add(self, said: Said) -> None:
        buyer = said.buyer
        if said.seat == SELLER and said.verb != "QUIT":
            self._sent[buyer - 1] += 1
        if said.verb == "DEAL":
            item, price = said.offers[0]
            self._left.pop(item, None)
            self._sold.append(f"{item_name(item)} to Buyer {buyer} at {dollars(price)}")
            self._ended[buyer] = f"bought {item_name(item)} at {dollars(price)}"
        elif said.verb == "SELL":
            self._menus[buyer - 1] = said.offers
        elif said.verb == "BUY":
            best = self._bids[buyer - 1]
            for item, price in said.offers:
                best[item] = max(price, best.get(item, 0))
        elif said.seat != SELLER:
            self._ended[buyer] = "quit"

    def text(self) -> str:
        left = [
            f"{item_name(item)} (list {dollars(product.listing.list_cents)}, cost {dollars(product.cost_cents)})"
            for item, product in self._left.items()
        ]
        lines = [
            "=== Standing offers ===",
            f"Unsold: {'; '.join(left) or '(none)'}",
            f"Sold: {'; '.join(self._sold) or '(none)'}",
            *(self._buyer(buyer) for buyer in range(1, len(self._sent) + 1)),
            f"Messages left (T): {self._budget - sum(self._sent)}. "
            "Never offer or sell an item below its cost, nor one that is sold.",
        ]
        return "\n".join(lines)

    def _buyer(self, buyer: int) -> str:
        if buyer in self._ended:
            return f"- Buyer {buyer}: {self._ended[buyer]}."
        more = self._cap - self._sent[buyer - 1]
        if more <= 0:
            return f"- Buyer {buyer}: capped."
        bids = self._standing(sorted(self._bids[buyer - 1].items()))
        menu = self._standing(self._menus[buyer - 1])
        return f"- Buyer {buyer}: active, {more} more to send. Best bids: {bids}. Your latest menu: {menu}."

    def _standing(self, offers: Sequence[tuple[int, int]]) -> str:
        """Those of the offers whose item is still there."""
        return ", ".join(f"{item_name(i)} {dollars(price)}" for i, price in offers if i in self._left) or "(none)"
