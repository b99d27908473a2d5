"""Prompts of 2607.05863, section 11, in the line format.

Labels, tags, constants and the standing-offers board are the paper's; the sentences around them are ours and state
every rule that the paper's prompt states. Two rules are stated that the paper's prompt leaves to its environment: that
a ``[DEAL]`` at a price never bid, and a Talk that announces another deal than the Action, are violations.

Where the paper shows no text: a quit or capped buyer's board line keeps its histories and drops the "can send" clause;
the count is always written "n more messages", the only form the paper shows.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from negolab.environment.base import SELLER, BilateralView, BuyerView, Request, Said, SellerView, TradeView, turn_labels
from negolab.errors import NegolabError
from negolab.money import dollars
from negolab.prompts.bilateral import bilateral_messages
from negolab.prompts.multi_item import item_buyer_messages, item_seller_messages
from negolab.prompts.shared import Message, buyer_messages, item, load_templates, sha256_of, spoken
from negolab.prompts.trade import trade_messages

__all__ = ["MarketPrompts", "Message", "board", "sha256_of"]


def board(
    heard: Sequence[Said], *, n_buyers: int, per_buyer_cap: int, message_budget: int, list_cents: int, cost_cents: int
) -> str:
    """The standing-offers board after the turns in ``heard`` (section 11.2)."""
    lines = ["=== Standing offers ==="]
    labels = turn_labels(heard)
    total = 0
    for buyer in range(1, n_buyers + 1):
        channel = [(said, label) for said, label in zip(heard, labels, strict=True) if said.buyer == buyer]
        theirs = [pair for pair in channel if pair[0].seat != SELLER]
        mine = [pair for pair in channel if pair[0].seat == SELLER]
        total += len(mine)
        if theirs and theirs[-1][0].verb == "QUIT":
            status = "quit."
        elif len(mine) >= per_buyer_cap:
            status = "capped."
        else:
            status = f"active, you can send {per_buyer_cap - len(mine)} more messages to this buyer."
        lines.append(f"- Buyer {buyer}: {status}")
        lines.append(f"  Buyer {buyer}'s action history: {_history(theirs)}")
        lines.append(f"  Your messages history to Buyer {buyer}: {_history(mine)}")
    lines.append(
        f"Seller messages remaining (T): {message_budget - total}. List price: {dollars(list_cents)}. "
        f"Your cost (do not sell below this): {dollars(cost_cents)}."
    )
    return "\n".join(lines)


def _history(turns: Iterable[tuple[Said, int]]) -> str:
    shown = [f"[{s.verb}]{'' if s.price is None else ' ' + dollars(s.price)} @ turn {label}" for s, label in turns]
    return ", ".join(shown) or "(none yet)"


class MarketPrompts:
    """Renders a request of any game as chat messages. ``folder`` may hold templates of the user's own under the
    package's names (``shared.MARKET_TEMPLATES``, ``BILATERAL_TEMPLATES``, ``ITEM_TEMPLATES``, ``TRADE_TEMPLATES``);
    those it lacks are the package's. Raises ``NegolabError`` for a folder or template that cannot be used."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._templates = load_templates(folder)

    def messages(self, request: Request) -> list[Message]:
        """The whole conversation of the requested seat so far, ending with the message to answer.

        A market's view says how its replies are written. Raises ``NegolabError`` for a protocol that does not exist,
        and for several items in the line format, which can name only one.
        """
        view = request.view
        if isinstance(view, BilateralView):
            return bilateral_messages(self._templates, view)
        if isinstance(view, TradeView):
            return trade_messages(self._templates, view)
        if view.protocol == "tags":
            if isinstance(view, SellerView):
                return item_seller_messages(self._templates, view)
            return item_buyer_messages(self._templates, view)
        if view.protocol != "lines":
            raise NegolabError(f"protocol {view.protocol!r} is neither 'lines' nor 'tags'")
        count = len(view.items if isinstance(view, SellerView) else view.listings)
        if count != 1:
            raise NegolabError(f"the line format names one item, this market has {count}: its protocol must be 'tags'")
        return self._seller(view) if isinstance(view, SellerView) else self._buyer(view)

    def _seller(self, view: SellerView) -> list[Message]:
        listing, n = view.product.listing, len(view.channels)
        system = self._templates["seller_system.j2"].render(
            **item(listing),
            cost=dollars(view.product.cost_cents),
            n=n,
            k=view.per_buyer_cap,
            t=view.message_budget,
        )
        messages = [{"role": "system", "content": system}]
        news: list[str] = []
        own = iter(view.own)
        for position, said in enumerate(view.heard, 1):
            if said.seat == SELLER:
                messages.append({"role": "assistant", "content": next(own)})
                continue
            news.append(f"Buyer {said.buyer}:\n{spoken(said, listing.codename)}")
            if position == len(view.heard) or view.heard[position].seat == SELLER:
                shown = board(
                    view.heard[:position],
                    n_buyers=n,
                    per_buyer_cap=view.per_buyer_cap,
                    message_budget=view.message_budget,
                    list_cents=listing.list_cents,
                    cost_cents=view.product.cost_cents,
                )
                messages.append({"role": "user", "content": "\n\n".join([*news, shown])})
                news = []
        return messages

    def _buyer(self, view: BuyerView) -> list[Message]:
        return buyer_messages(
            self._templates,
            view.listing,
            budget=view.budget,
            turns=view.per_buyer_cap,
            heard=view.heard,
            own=view.own,
            opening=view.opening,
            market=True,
        )
