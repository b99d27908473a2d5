"""Prompts of 2607.05863, section 11, in the line format.

Labels, tags, constants and the standing-offers board are the paper's; the sentences around them are ours and state
every rule that the paper's prompt states. Two rules are stated that the paper's prompt leaves to its environment: that
a ``[DEAL]`` at a price never bid, and a Talk that announces another deal than the Action, are violations.

Where the paper shows no text: a quit or capped buyer's board line keeps its histories and drops the "can send" clause;
the count is always written "n more messages", the only form the paper shows.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from negolab.catalog import Listing
from negolab.environment.base import SELLER, BuyerView, Request, Said, SellerView, turn_labels
from negolab.errors import NegolabError
from negolab.money import dollars
from negolab.prompts.untrusted import neutralise, one_line

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""


def sha256_of(messages: Sequence[Message]) -> str:
    """Hash of a conversation as it is put to a model, the same for every model, template and server."""
    return hashlib.sha256(json.dumps(messages, ensure_ascii=False, sort_keys=True).encode("utf-8")).hexdigest()


_TEMPLATES = ("seller_system.j2", "buyer_system.j2", "buyer_context.j2")


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
    """Renders a request as chat messages. ``folder`` may hold templates of the user's own under the same three names;
    those it lacks are the package's. Raises ``NegolabError`` for a folder or template that cannot be used."""

    def __init__(self, folder: str | Path | None = None) -> None:
        from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, TemplateError

        loaders = [FileSystemLoader(Path(__file__).parent / "multi_buyer_templates")]
        if folder is not None:
            if not Path(folder).is_dir():
                raise NegolabError(f"prompt folder {folder} is not a folder; it may hold {', '.join(_TEMPLATES)}")
            loaders.insert(0, FileSystemLoader(Path(folder)))
        # Plain text, so nothing is escaped; product text is passed as a value and never read as a template.
        env = Environment(loader=ChoiceLoader(loaders), undefined=StrictUndefined, autoescape=False)
        try:
            self._seller_system, self._buyer_system, self._buyer_context = map(env.get_template, _TEMPLATES)
        except TemplateError as error:
            raise NegolabError(f"prompt template: {error}") from None

    def messages(self, request: Request) -> list[Message]:
        """The whole conversation of the requested seat so far, ending with the message to answer."""
        view = request.view
        return self._seller(view) if isinstance(view, SellerView) else self._buyer(view)

    def _seller(self, view: SellerView) -> list[Message]:
        listing, n = view.product.listing, len(view.channels)
        system = self._seller_system.render(
            **_item(listing),
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
            news.append(f"Buyer {said.buyer}:\n{_spoken(said, listing.codename)}")
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
        listing = view.listing
        opening = None if view.opening is None else f"[BUY] {dollars(view.opening)} (1x {listing.codename})"
        context = self._buyer_context.render(
            **_item(listing), budget=dollars(view.budget), k=view.per_buyer_cap, opening=opening
        )
        messages = [
            {"role": "system", "content": self._buyer_system.render()},
            {"role": "user", "content": context},
        ]
        own = iter(view.own)
        for said in view.heard:
            if said.seat == SELLER:
                messages.append({"role": "user", "content": _spoken(said, listing.codename)})
            else:
                messages.append({"role": "assistant", "content": next(own)})
        return messages


def _spoken(said: Said, codename: str) -> str:
    item = "" if said.price is None else f" {dollars(said.price)} (1x {codename})"
    return f"Talk: {one_line(said.talk)}\nAction: [{said.verb}]{item}"


def _item(listing: Listing) -> dict[str, str]:
    return {
        "codename": listing.codename,
        "title": one_line(listing.title),
        "description": neutralise(listing.description),
        "list_price": dollars(listing.list_cents),
    }
