"""Whom the pocket model first imitates: the untrained behaviour of the papers, with everything tried sometimes.

The seller of the market (2607.05863) is the scripted ``satisficer`` (calibrated to the paper's untrained model: locks
on to a bid, asks a little above cost, takes the first bid that covers cost or nearly does) which now and then, message
by message and without a plan, asks for much more or waits. So the base behaves as the untrained model does, and what
training should find has a probability above zero. Nothing in it knows which buyer is rich. It never quits: a seller
that may quit learns to, as nothing is better than a violation (measured).

The buyer of the bilateral game (2604.09855) is mostly the scripted ``naive`` one, in some episodes another style, and
now and then gives a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from negolab.environment.base import Channel, Move, Request, SellerView
from negolab.parser.lines import parse_buyer, render_buyer, render_seller
from negolab.policies.base import Reply
from negolab.policies.bilateral_talk import BUYER_REASONS
from negolab.policies.scripted_bilateral import BUYER_STYLES, BilateralBuyer
from negolab.seeds import uniform

VERSION = 3


@dataclass(frozen=True, slots=True)
class TeacherRules:
    """Parameters of ``Teacher``."""

    markups: tuple[float, ...] = (0.2, 0.05, 0.03)
    """A modest ask above cost after zero, one, ... messages to that buyer, as fractions of list price minus cost."""
    markup_noise: float = 0.4
    """Half-width of the uniform noise on the markup, as a fraction of it."""
    list_rate: float = 0.05
    """Probability, per ask, of asking the list price instead."""
    between_rate: float = 0.05
    """Probability, per ask, of asking anything between a modest ask and the list price instead."""
    take_rate: float = 0.85
    """Probability, per message, of taking a bid that covers the cost."""
    stray_rate: float = 0.7
    """Probability that the first message goes to some buyer, whoever that is, and not to the highest bid."""
    roam_rate: float = 0.7
    """Probability of turning to another buyer after a message."""
    slip_reach: float = 0.90
    """A bid below cost may be taken for enough when it is at least this fraction of the cost."""
    slip_rate: float = 0.28
    """Probability that it is, per message, once that buyer has had a message."""


class Teacher:
    """See the module. Keeps no state; all that varies comes from the request's seeds."""

    name = "pocket-teacher"

    def __init__(self, rules: TeacherRules = TeacherRules()) -> None:
        self.rules = rules

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        return {"name": self.name, "kind": "scripted", "version": VERSION, "parameters": asdict(self.rules)}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        return [Reply(self._move(request)) for request in requests]

    def _move(self, request: Request) -> str:
        view, rules = request.view, self.rules
        assert isinstance(view, SellerView)
        product, channels = view.product, view.channels
        cost, listing, codename = product.cost_cents, product.listing.list_cents, product.listing.codename
        draws = [uniform(request.seed, at) for at in range(6)]
        active = [at for at, channel in enumerate(channels, 1) if channel.status == "active"]
        bid, buyer = max((max(channels[at - 1].bids)[1], at) for at in active)
        worn = bid >= rules.slip_reach * cost and channels[buyer - 1].sent > 0 and draws[0] < rules.slip_rate
        if (bid >= cost and draws[0] < rules.take_rate) or (bid < cost and worn):
            return render_seller("DEAL", bid, buyer, "", "", codename)
        target = self._target(view, channels, active, buyer, draws)
        ask = self._ask(cost, listing, channels[target - 1].sent, draws)
        if ask <= max(channels[target - 1].bids)[1]:
            ask = listing
        return render_seller("SELL", ask, target, "", "", codename)

    def _target(
        self, view: SellerView, channels: Sequence[Channel], active: Sequence[int], best: int, draws: Sequence[float]
    ) -> int:
        if view.turn == 1:
            return (
                active[int(draws[1] / self.rules.stray_rate * len(active))]
                if draws[1] < self.rules.stray_rate
                else best
            )
        last = view.heard[-1].buyer
        if last in active and draws[1] >= self.rules.roam_rate:
            return last
        others = [at for at in active if at != last] or list(active)
        least = min(channels[at - 1].sent for at in others)
        fewest = [at for at in others if channels[at - 1].sent == least]
        return fewest[int(draws[4] * len(fewest))]

    def _ask(self, cost: int, listing: int, sent: int, draws: Sequence[float]) -> int:
        rules, room = self.rules, listing - cost
        markup = rules.markups[min(sent, len(rules.markups) - 1)] * (1.0 + rules.markup_noise * (2.0 * draws[3] - 1.0))
        if draws[2] < rules.list_rate:
            return listing
        if draws[2] < rules.list_rate + rules.between_rate:
            markup += (1.0 - markup) * draws[3]
        return min(listing, _rounded_up(cost + int(markup * room)))


_STYLES = (("naive", 0.7), ("conceder", 0.1), ("lowballer", 0.1), ("patient", 0.1))
"""Scripted buyers and how often an episode is theirs."""
_REASON_RATE = 0.2
"""Probability that a bid comes with a reason, whatever the style."""


class BilateralTeacher:
    """See the module. Keeps no state."""

    name = "pocket-bilateral-teacher"

    def __init__(self) -> None:
        self._buyers = {style: BilateralBuyer(BUYER_STYLES[style]) for style, _ in _STYLES}

    def describe(self) -> dict[str, Any]:
        """Name, version and every parameter."""
        styles = {style: {"rate": rate, **self._buyers[style].describe()} for style, rate in _STYLES}
        return {"name": self.name, "kind": "scripted", "version": VERSION, "reasons": _REASON_RATE, "styles": styles}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in order."""
        return [Reply(self._said(request)) for request in requests]

    def _said(self, request: Request) -> str:
        place = uniform(request.seat_seed, 11)
        style = _STYLES[-1][0]
        for name, rate in _STYLES:
            place -= rate
            if place < 0:
                style = name
                break
        view = request.view
        text = self._buyers[style].reply([request])[0].text or ""
        codename = view.listing.codename  # type: ignore[union-attr]
        move = parse_buyer(text, codename, reject=True)
        if not isinstance(move, Move) or move.verb != "BUY":
            return text
        kinds = list(BUYER_REASONS.values())
        talk = move.talk
        if uniform(request.seed, 12) < _REASON_RATE:
            talk = kinds[int(uniform(request.seed, 13) * len(kinds))][0]
        elif style != "patient":
            talk = ""
        return render_buyer("BUY", move.price, talk, "", codename)


def _rounded_up(cents: int) -> int:
    """An amount that people would name, never less: steps of $50 from $1,000 on, of $10 from $200, $5 from $50, $1 from
    $20, then 50 and 5 cents. Amounts to the dollar at every height would be hundreds of tokens, each hardly ever right,
    and a small model that is that unsure says anything (measured)."""
    for least, step in ((100_000, 5_000), (20_000, 1_000), (5_000, 500), (2_000, 100), (500, 50)):
        if cents >= least:
            return -(-cents // step) * step
    return -(-cents // 5) * 5
