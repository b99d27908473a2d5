"""What the prompts of all games are made with: templates, and the pieces that look the same everywhere."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from negolab.catalog import Listing
from negolab.environment.base import SELLER, Said
from negolab.errors import NegolabError
from negolab.money import dollars
from negolab.prompts.untrusted import neutralise, one_line

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""

MARKET_TEMPLATES = ("seller_system.j2", "buyer_system.j2", "buyer_context.j2")
"""2607.05863, section 11; the buyer's two are the bilateral game's as well."""
BILATERAL_TEMPLATES = (
    "bilateral_seller_system.j2",
    "bilateral_seller_context.j2",
    "persona_begging.j2",
    "persona_insulting.j2",
    "persona_unyielding.j2",
)
"""2604.09855: the seller, and the paragraph that makes it a persona."""
ITEM_TEMPLATES = ("item_seller_system.j2", "item_buyer_system.j2", "item_buyer_context.j2")
"""2609.33289, appendix F: the market of several items, in the tag format."""
TRADE_TEMPLATES = ("trade_system.j2", "trade_item.j2")
"""2604.16472, figure 2: bilateral trade by tool calls, either side."""
_FOLDERS = ("multi_buyer_templates", "bilateral_templates", "multi_item_templates", "trade_templates")


def sha256_of(messages: Sequence[Message]) -> str:
    """Hash of a conversation as it is put to a model, the same for every model, template and server."""
    return hashlib.sha256(json.dumps(messages, ensure_ascii=False, sort_keys=True).encode("utf-8")).hexdigest()


def load_templates(folder: str | Path | None) -> dict[str, Any]:
    """Every template by name: the user's own from ``folder``, and for those it lacks the package's.

    Raises ``NegolabError`` for a folder or template that cannot be used.
    """
    from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, TemplateError

    names = (*MARKET_TEMPLATES, *BILATERAL_TEMPLATES, *ITEM_TEMPLATES, *TRADE_TEMPLATES)
    here = Path(__file__).parent
    loaders = [FileSystemLoader(here / name) for name in _FOLDERS]
    if folder is not None:
        if not Path(folder).is_dir():
            raise NegolabError(f"prompt folder {folder} is not a folder; it may hold {', '.join(names)}")
        loaders.insert(0, FileSystemLoader(Path(folder)))
    # Plain text, so nothing is escaped; product text is passed as a value and never read as a template.
    env = Environment(loader=ChoiceLoader(loaders), undefined=StrictUndefined, autoescape=False)
    try:
        return {name: env.get_template(name) for name in names}
    except TemplateError as error:
        raise NegolabError(f"prompt template: {error}") from None


def spoken(said: Said, codename: str) -> str:
    """What the other end of a channel reads of a message."""
    item = "" if said.price is None else f" {dollars(said.price)} (1x {codename})"
    return f"Talk: {one_line(said.talk)}\nAction: [{said.verb}]{item}"


def item(listing: Listing) -> dict[str, str]:
    """A listing as the templates show it."""
    return {
        "codename": listing.codename,
        "title": one_line(listing.title),
        "description": neutralise(listing.description),
        "list_price": dollars(listing.list_cents),
    }


def buyer_messages(
    templates: dict[str, Any],
    listing: Listing,
    *,
    budget: int,
    turns: int,
    heard: Sequence[Said],
    own: Sequence[str],
    opening: int | None = None,
    reject: bool = False,
    market: bool,
) -> list[Message]:
    """A buyer's whole conversation, the same in both games: who learns to buy in one can play the other.

    ``turns``: K, or the bilateral game's number of turns. Money in cents.
    """
    code = listing.codename
    fixed = None if opening is None else f"[BUY] {dollars(opening)} (1x {code})"
    shown = {**item(listing), "budget": dollars(budget), "k": turns, "opening": fixed, "market": market}
    messages = [
        {"role": "system", "content": templates["buyer_system.j2"].render(reject=reject)},
        {"role": "user", "content": templates["buyer_context.j2"].render(**shown)},
    ]
    replies = iter(own)
    for said in heard:
        if said.seat == SELLER:
            messages.append({"role": "user", "content": spoken(said, code)})
        else:
            messages.append({"role": "assistant", "content": next(replies)})
    return messages
