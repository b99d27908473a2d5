"""Terminal rewards: one pure function per paper, from an outcome and the money of the scenario."""

from negolab.environment.base import BUYER, SELLER, Outcome


def seller_reward(outcome: Outcome, *, list_cents: int, cost_cents: int) -> float:
    """The seller's reward of 2607.05863, equation (1).

    ``min(1, (P - C) / (L - C))`` for a deal at P >= C, 0 without a deal (also where a seat could not speak and the
    episode was aborted), -1 when the seller violated an instruction.
    Prices in cents. Raises ``ValueError`` for a deal below cost (the environment makes that a violation) and where
    L <= C, for which the ratio has no meaning.
    """
    if outcome.kind == "violation":
        return -1.0 if outcome.seat == SELLER else 0.0
    if outcome.kind in ("no_deal", "aborted"):
        return 0.0
    if outcome.price is None or outcome.price < cost_cents or list_cents <= cost_cents:
        raise ValueError(f"deal at {outcome.price} with cost {cost_cents} and list price {list_cents} (cents)")
    return min(1.0, (outcome.price - cost_cents) / (list_cents - cost_cents))


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
