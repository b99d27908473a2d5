"""Terminal rewards: one pure function per paper, from an outcome and the money of the scenario."""

from collections.abc import Sequence

from negolab.environment.base import BUYER, SELLER, Outcome


def seller_reward(outcome: Outcome, items: Sequence[tuple[int, int]]) -> float:
    """The seller's reward of 2607.05863, equation (1), and of 2609.33289, section 3.2: the same, summed over items.

    Over the sales ``sum(min(P, L) - C)``, over all items of the market ``sum(L - C)``: the one over the other; -1 when
    the seller violated an instruction, whatever was sold before. Without a sale 0, also where a seat could not speak
    and the episode was aborted.
    ``items``: list price and cost of each, in cents. Raises ``ValueError`` for a deal below cost (the environment makes
    that a violation) and where L <= C, for which the ratio has no meaning.
    """
    if outcome.kind == "violation" and outcome.seat == SELLER:
        return -1.0
    if outcome.kind == "deal" and not outcome.sales:
        raise ValueError("a deal without a sale")
    gained = room = 0
    for list_cents, cost_cents in items:
        if list_cents <= cost_cents:
            raise ValueError(f"list price {list_cents} is not above cost {cost_cents} (cents)")
        room += list_cents - cost_cents
    for item, _, price, _ in outcome.sales:
        list_cents, cost_cents = items[item - 1]
        if price < cost_cents:
            raise ValueError(f"item {item}: deal at {price} with cost {cost_cents} (cents)")
        gained += min(price, list_cents) - cost_cents
    return gained / room


def buyer_reward(outcome: Outcome, *, budget_cents: int, cost_cents: int) -> float:
    """The buyer's reward of 2604.09855 (its equation 1, as two replications state it).

    ``clip((B - P) / |B - C|, -1, 1)`` for a deal at P with budget B and the seller's cost C, 0 without a deal, -1 when
    the buyer violated an instruction. Prices in cents. Where B = C a legal deal has P = B as well, and 0 / 0 is read as
    0; the benchmark's widening of gaps below one dollar is left out, since the clip bounds them.
    """
    if outcome.kind == "violation":
        return -1.0 if outcome.seat == BUYER else 0.0
    if outcome.kind in ("no_deal", "aborted"):
        return 0.0
    if outcome.price is None:
        raise ValueError("a deal without a price")
    gain, room = budget_cents - outcome.price, abs(budget_cents - cost_cents)
    if room == 0:
        return float((gain > 0) - (gain < 0))
    return max(-1.0, min(1.0, gain / room))
