"""Terminal rewards: one pure function per paper, from an outcome and the money of the scenario."""

from negolab.environment.base import SELLER, Outcome


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
