"""Findings of a tournament, each computed: who earns most in which role, who keeps it over price tiers, who closes
deals that lose somebody money; and what the paper says it found (``papers.trade.CLAIMS``), held against these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from negolab.papers.trade import CLAIMS
from negolab.tournament_table import ROLES, Tournament

YES, PART, NO, UNKNOWN = "yes", "in part", "no", "n/a"


class Finding(NamedTuple):
    """One sentence, and the numbers in it."""

    name: str
    holds: str
    """Of a claim of the paper: ``yes``, ``in part``, ``no``, or ``n/a`` where the numbers do not say; empty for the
    others."""
    text: str


class _Numbers:
    """Means by trader, role and metric."""

    def __init__(self, roles: Sequence[Mapping[str, Any]], tiers: Sequence[Mapping[str, Any]]) -> None:
        self._rows = {(row["model"], row["role"], row["metric"]): row for row in roles}
        self._spreads = {(row["model"], row["role"]): row["spread"] for row in tiers}

    def means(self, role: str, metric: str) -> dict[str, float]:
        """Trader -> mean, largest first; who has none is left out."""
        found = {
            model: row["mean"]
            for (model, who, name), row in self._rows.items()
            if (who, name) == (role, metric) and row["mean"] is not None
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def error(self, model: str, role: str, metric: str) -> float | None:
        """Its clustered error."""
        error: float | None = self._rows[model, role, metric]["se_clustered"]
        return error

    def spreads(self, role: str) -> dict[str, float]:
        """Trader -> spread of its surplus share over quintiles, smallest first."""
        found = {model: spread for (model, who), spread in self._spreads.items() if who == role and spread is not None}
        return dict(sorted(found.items(), key=lambda item: item[1]))


def findings(
    numbers: Tournament, roles: Sequence[Mapping[str, Any]], tiers: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """All that can be said. ``roles``: ``tournament_table.by_role``; ``tiers``: ``quintiles`` of the surplus share."""
    known = _Numbers(roles, tiers)
    found = [_shares(known, role) for role in reversed(ROLES)]
    found += [_spread(known, role) for role in reversed(ROLES)]
    found += _losing_deals(numbers)
    found += [_held(claim.name, claim.text, known) for claim in CLAIMS if claim.name in _CHECKS]
    return [finding for finding in found if finding.text]


def _percent(value: float, error: float | None = None, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}" + (f" ± {100 * error:.{digits}f}" if error is not None else "") + " %"


def _shares(known: _Numbers, role: str) -> Finding:
    means = known.means(role, "surplus_share")
    each = [f"{m} {_percent(v, known.error(m, role, 'surplus_share'))}" for m, v in means.items()]
    text = f"Surplus share as {role}, highest first: {', '.join(each)}." if each else ""
    return Finding(f"{role}_share", "", text)


def _spread(known: _Numbers, role: str) -> Finding:
    each = [f"{model} {100 * spread:.1f}" for model, spread in known.spreads(role).items()]
    text = f"Spread of the surplus share over price quintiles as {role}, in points, smallest first: {', '.join(each)}."
    return Finding(f"{role}_spread", "", text if each else "")


def _losing_deals(numbers: Tournament) -> list[Finding]:
    """Deals that lost somebody money, counted by who lost it."""
    found = []
    for kind, name in (("ngft", "without"), ("gft", "with")):
        played = deals = 0
        losers: dict[tuple[str, str], int] = {}
        for pair, games in numbers.games.items():
            for one in games:
                if f"deal_rate_{kind}" not in one.values:
                    continue
                played += 1
                deals += one.values[f"deal_rate_{kind}"] == 1
                for role, model in (("seller", pair.seller), ("buyer", pair.buyer)):
                    if one.values[f"{role}_violation_{kind}"]:
                        losers[model, role] = losers.get((model, role), 0) + 1
        if not played:
            continue
        ranked = sorted(losers.items(), key=lambda item: (-item[1], item[0]))
        each = ", ".join(f"{model} as {role} {count}" for (model, role), count in ranked) or "nobody"
        text = f"{deals:,} of {played:,} negotiations {name} gains from trade closed; those that lost by it: {each}."
        found.append(Finding(f"{kind}_deals", "", text))
    return found


# -- the paper's claims -----------------------------------------------------------------------------------------------


def _held(name: str, text: str, known: _Numbers) -> Finding:
    try:
        parts, numbers = _CHECKS[name](known)
    except (IndexError, StopIteration, KeyError):  # fewer traders, or no deals
        return Finding(name, UNKNOWN, f'The paper: "{text}" Here: too little was observed to say.')
    holds = YES if all(parts) else PART if any(parts) else NO
    return Finding(name, holds, f'The paper: "{text}" Here: {holds}; {numbers}.')


def _first(means: Mapping[str, float]) -> str:
    return next(iter(means))


def _last(means: Mapping[str, float]) -> str:
    return list(means)[-1]


def _anchoring(known: _Numbers) -> tuple[list[bool], str]:
    opens = known.means("seller", "initial_aggressiveness")
    share, deals = known.means("seller", "surplus_share"), known.means("seller", "deal_rate_gft")
    who = _first(opens)
    parts = [_first(share) == who, deals[who] == max(deals.values())]
    return parts, (
        f"{who} opens highest, at {opens[who]:.2f} times its reservation price, {_first(share)} takes the largest "
        f"share ({_percent(share[_first(share)])}), and {_first(deals)} closes most ({_percent(deals[_first(deals)])}; "
        f"{who} {_percent(deals[who])})"
    )


def _patience(known: _Numbers) -> tuple[list[bool], str]:
    found = {}
    for role in ROLES:
        share, rounds = known.means(role, "surplus_share"), known.means(role, "patience")
        both = [model for model in share if model in rounds]
        found[role] = rank_correlation([share[m] for m in both], [rounds[m] for m in both])
    known_ones = {role: value for role, value in found.items() if value is not None}
    if len(known_ones) < len(ROLES):
        raise IndexError
    texts = ", ".join(f"as {role} {value:+.2f}" for role, value in known_ones.items())
    return [value > 0 for value in known_ones.values()], f"the rank correlation of share and rounds is {texts}"


def _accommodating(known: _Numbers) -> tuple[list[bool], str]:
    concedes, share = known.means("buyer", "concession_rate"), known.means("buyer", "surplus_share")
    deals = known.means("buyer", "deal_rate_gft")
    who = _first(concedes)
    parts = [_last(share) == who, deals[who] == min(deals.values())]
    return parts, (
        f"{who} concedes fastest, {concedes[who]:.2f} a step, {_last(share)} has the smallest share "
        f"({_percent(share[_last(share)])}), and {_last(deals)} closes least ({_percent(deals[_last(deals)])}; "
        f"{who} {_percent(deals[who])})"
    )


def _price_tiers(known: _Numbers) -> tuple[list[bool], str]:
    share, spreads = known.means("buyer", "surplus_share"), known.spreads("buyer")
    strong, weak = list(share)[:2], _last(share)
    if weak in strong:
        raise IndexError
    holds = max(spreads[model] for model in strong) < spreads[weak]
    each = ", ".join(f"{model} {100 * spreads[model]:.1f}" for model in (*strong, weak))
    return [holds], f"spreads of the two strongest buyers and of the weakest, in points: {each}"


def _induced(known: _Numbers) -> tuple[list[bool], str]:
    """The paper's o3 is the buyer of the largest share: so is whoever stands for it here."""
    who = _first(known.means("buyer", "surplus_share"))
    mine = known.means("buyer", "self_violation_ngft")[who]
    theirs = known.means("buyer", "opponent_violation_ngft")[who]
    return [theirs > mine], (
        f"against {who}, the buyer of the largest share, sellers violate in {_percent(theirs, digits=2)}, it itself in "
        f"{_percent(mine, digits=2)}"
    )


_CHECKS: Mapping[str, Callable[[_Numbers], tuple[list[bool], str]]] = {
    "anchoring": _anchoring,
    "patience": _patience,
    "accommodating": _accommodating,
    "price_tiers": _price_tiers,
    "induced_violations": _induced,
}


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank; None for fewer than three values, or
    where one side is constant."""
    if len(a) != len(b) or len(a) < 3:
        return None
    x, y = _ranks(a), _ranks(b)
    mean = (len(a) + 1) / 2
    over = math.fsum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    under = math.sqrt(math.fsum((p - mean) ** 2 for p in x) * math.fsum((q - mean) ** 2 for q in y))
    return over / under if under > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ends = [at for at, (i, j) in enumerate(pairwise(order), 1) if values[i] != values[j]]
    ranks = [0.0] * len(values)
    for begin, end in pairwise([0, *ends, len(order)]):
        for at in order[begin:end]:
            ranks[at] = (begin + 1 + end) / 2
    return ranks
