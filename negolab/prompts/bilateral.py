"""Prompts of the bilateral game (2604.09855), in the line format.

The buyer's are the market's (2607.05863, section 11.1, calls them identical), with ``[REJECT]`` where the game has it
and the number of turns in place of K. The seller's mirror them: the same three parts, ``[SELL]`` for ``[BUY]``, the
private cost in the place of the budget. Labels, tags and the order of the parts are the sources'; the sentences around
them, and those of the personas, are ours and state every rule that theirs state.

Where this departs from the benchmark under the paper: the seller's context and the buyer's first message are one user
message, so that roles alternate; no assistant message that says yes to the format is put before the first one.
"""

from typing import Any

from negolab.environment.base import BUYER, SELLER, BilateralView
from negolab.money import dollars
from negolab.prompts.shared import Message, buyer_messages, item, spoken


def bilateral_messages(templates: dict[str, Any], view: BilateralView) -> list[Message]:
    """The whole conversation of one side so far, ending with the message to answer."""
    if view.seat == BUYER:
        return buyer_messages(
            templates,
            view.listing,
            budget=view.limit,
            turns=view.max_turns,
            heard=view.heard,
            own=view.own,
            reject=view.reject,
            market=False,
        )
    listing, heard = view.listing, view.heard
    persona = templates.get(f"persona_{view.persona}.j2")  # "neutral" has none
    system = templates["bilateral_seller_system.j2"].render(
        reject=view.reject, persona=None if persona is None else persona.render()
    )
    context = templates["bilateral_seller_context.j2"].render(
        **item(listing), cost=dollars(view.limit), turns=view.max_turns, first=spoken(heard[0], listing.codename)
    )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": context}]
    own = iter(view.own)
    for said in heard[1:]:
        if said.seat == SELLER:
            messages.append({"role": "assistant", "content": next(own)})
        else:
            messages.append({"role": "user", "content": spoken(said, listing.codename)})
    return messages
