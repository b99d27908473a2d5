"""Terminal rewards: one pure function per paper, from an outcome and the money of the scenario."""

from collections.abc import Sequence

from negolab.environment.base import ABORTS, BUYER, SELLER, Outcome, Turn


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


WEIGHTS = (0.25, 0.25, 0.25, 0.25)
"""Of the four parts of ``trade_reward``: the paper's are not published."""


def trade_parts(
    reserve_cents: int, value_cents: int, outcome: Outcome, turns: Sequence[Turn], seat: int
) -> tuple[float, float, float, float]:
    """The four parts of the composite reward of 2604.16472, equation 8 and table 8, for one side of the trade game.

    Parsing: share of its messages that could be read; execution: share of those in which every call took effect
    (1 and 0 where it sent none, or none could be read); constraints: half for never having proposed worse terms than
    the other side had last rejected, half for not having closed worse than an offer of the other side that it had last
    rejected; utility: its share of the surplus in a deal, clipped to [0, 1], 0 without one and without gains from
    trade. ``reserve_cents``: the seller's reservation price, ``value_cents`` the buyer's.
    """
    mine = [turn for turn in turns if turn.seat == seat and turn.violation not in ABORTS]
    read = [turn for turn in mine if turn.violation not in ("unparseable", "truncated")]
    parsing = len(read) / len(mine) if mine else 1.0
    execution = sum(turn.violation is None for turn in read) / len(read) if read else 0.0
    utility, room = 0.0, value_cents - reserve_cents
    if outcome.price is not None and room > 0:
        gain = outcome.price - reserve_cents if seat == SELLER else value_cents - outcome.price
        utility = min(1.0, max(0.0, gain / room))
    worse_offer, worse_deal = inconsistencies(outcome, turns, seat)
    return parsing, execution, 0.5 * (not worse_offer) + 0.5 * (not worse_deal), utility


def inconsistencies(outcome: Outcome, turns: Sequence[Turn], seat: int) -> tuple[bool, bool]:
    """``proposed_worse_than_rejected`` and ``accepted_worse_offer_later`` of one side, as the authors' code reads them:
    only the last rejected offer of each side counts, and an offer rejects the other side's latest one."""
    latest: list[int | None] = [None, None]  # by seat: its latest offer, while nobody has answered it
    rejected: list[int | None] = [None, None]  # by seat: the last of its offers that the other side rejected
    worse_offer = worse_deal = False
    better = (lambda a, b: a > b) if seat == SELLER else (lambda a, b: a < b)  # for oneself
    for turn in turns:
        done = (turn.verb or "").split("+")
        other = 1 - turn.seat
        if "accept" in done:
            break
        if ("reject" in done or "offer" in done) and latest[other] is not None:
            rejected[other], latest[other] = latest[other], None
        if "offer" in done and turn.price is not None:
            mine = rejected[seat]
            if turn.seat == seat and mine is not None and better(turn.price, mine):
                worse_offer = True
            latest[turn.seat] = turn.price
    theirs = rejected[1 - seat]
    if outcome.price is not None and theirs is not None:
        worse_deal = better(theirs, outcome.price)
    return worse_offer, worse_deal


def trade_reward(
    reserve_cents: int,
    value_cents: int,
    outcome: Outcome,
    turns: Sequence[Turn],
    seat: int,
    weights: tuple[float, float, float, float] = WEIGHTS,
) -> float:
    """The composite reward of 2604.16472, equation 8: the weighted sum of ``trade_parts``. In [0, 1] for weights that
    add up to 1."""
    parts = trade_parts(reserve_cents, value_cents, outcome, turns, seat)
    return sum(weight * part for weight, part in zip(weights, parts, strict=True))
