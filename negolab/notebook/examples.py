"""Single episodes: the paper's two example runs replayed (section 14), and the telling episodes of our own runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from negolab.catalog import Catalog, Listing, Product
from negolab.environment.base import ABORTS, SELLER, Move, Request, Said, Turn
from negolab.episodes import Episode
from negolab.notebook.frames import episodes, numeric
from negolab.papers import multi_buyer as paper
from negolab.parser.lines import parse_buyer, parse_seller, render_buyer, render_seller
from negolab.policies.base import Reply
from negolab.prompts.multi_buyer import board
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Scenario
from negolab.store import Run

_WHAT = {"BUY": "bid", "SELL": "ask", "DEAL": "deal", "QUIT": "quit"}


def path(episode: Episode) -> list[tuple[int, int, str, int | None]]:
    """What happened in an episode, in order, as ``plots.episode_path`` draws it: prices, quits, a broken rule."""
    found: list[tuple[int, int, str, int | None]] = []
    for turn in episode.turns:
        if turn.violation is not None:
            found.append((turn.turn, *_broken(turn, episode)))
        elif turn.verb in _WHAT:
            found.append((turn.turn, turn.buyer or 0, _WHAT[turn.verb], turn.price))
    return found


def _broken(turn: Turn, episode: Episode) -> tuple[int, str, int | None]:
    """The channel and price of a reply that broke a rule, as far as its text names them; 0 for no channel."""
    if turn.violation in ABORTS:  # there is no text to read
        return (turn.seat if turn.seat != SELLER else 0), "aborted", None
    codename, n = episode.scenario.product.listing.codename, episode.scenario.n_buyers
    read = parse_seller(turn.text, codename) if turn.seat == SELLER else parse_buyer(turn.text, codename)
    price, target = (read.price, read.target) if isinstance(read, Move) else (None, None)
    buyer = turn.seat if turn.seat != SELLER else target
    return (buyer if buyer is not None and buyer <= n else 0), "violation", price


_TALK = {"BUY": "This is what I offer.", "SELL": "This is my price.", "DEAL": "Agreed."}


class _Script:
    """A player that says what a published example run said: its prices, our words."""

    def __init__(self, run: paper.ExampleRun, name: str) -> None:
        self.name = name
        self._run = run

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """The seat's next move in the script."""
        return [Reply(self._text(request.seat, len(request.view.own))) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return {"name": self.name, "run": self._run.name, "source": f"arXiv {paper.ARXIV}, section {self._run.section}"}

    def _text(self, seat: int, at: int) -> str:
        run = self._run
        if seat == SELLER:
            offer = [o for o in run.offers if o.side != "bid"][at]
            verb = "DEAL" if offer.side == "deal" else "SELL"
            return render_seller(verb, offer.cents, offer.buyer, _TALK[verb], "Section 14's price.", run.codename)
        offer = [o for o in run.offers if o.side == "bid" and o.buyer == seat][at]
        return render_buyer("BUY", offer.cents, _TALK["BUY"], "Section 14's price.", run.codename)


def replay(run: paper.ExampleRun, catalog: Catalog) -> Episode:
    """Play one of the paper's example runs through the real parser and environment.

    The product's text is the catalogue's where it has the item, else a placeholder; prices are always the paper's.
    """
    product = catalog.by_codename.get(run.codename)
    if product is None or (product.listing.list_cents, product.cost_cents) != (run.list_cents, run.cost_cents):
        listing = Listing(run.codename, "(listing text not at hand)", "", "baby-products", run.list_cents)
        product = Product(listing, run.cost_cents, text_source="none")
    regime = IN_DISTRIBUTION
    scenario = Scenario(
        episode=0,
        rep=0,
        regime=regime.name,
        unit=run.codename,
        products=(product,),
        per_buyer_cap=regime.per_buyer_cap,
        message_budget=regime.message_budget,
        valuations=tuple((budget,) for budget in run.budgets),
        openings=tuple((opening,) for opening in run.openings),
        buyer_types=regime.buyer_types * len(run.budgets),
        keys=(0,) * (len(run.budgets) + 1),
    )
    buyers = {kind: _Script(run, "the paper's buyer") for kind in scenario.buyer_types}
    return next(play([scenario], _Script(run, f"the paper's {run.name} seller"), buyers))


def board_before(episode: Episode, turn: int) -> str:
    """The standing-offers board as the seller saw it before its message ``turn`` (section 11.2)."""
    scenario, listing = episode.scenario, episode.scenario.product.listing
    heard = [
        _said(t, listing.codename) for t in episode.turns if t.turn < turn or (t.seat != SELLER and t.turn == turn)
    ]
    return board(
        heard,
        n_buyers=scenario.n_buyers,
        per_buyer_cap=scenario.per_buyer_cap,
        message_budget=scenario.message_budget,
        list_cents=listing.list_cents,
        cost_cents=scenario.product.cost_cents,
    )


def _said(turn: Turn, codename: str) -> Said:
    read = parse_seller(turn.text, codename) if turn.seat == SELLER else parse_buyer(turn.text, codename)
    talk = read.talk if isinstance(read, Move) else ""
    return Said(turn.seat, turn.buyer or 0, turn.verb or "", turn.offers, talk)


def example_table(replayed: Mapping[str, Episode]) -> pd.DataFrame:
    """The example runs as replayed: what each buyer hid and opened with (table 13), and how the run ended."""
    rows = []
    for name, episode in replayed.items():
        scenario, outcome = episode.scenario, episode.outcome
        for buyer, budget in enumerate(scenario.budgets, 1):
            row = {"run": name, "buyer": buyer, "budget ($)": budget / 100, "rank": scenario.rank(buyer)}
            fixed = None if scenario.openings is None else scenario.openings[buyer - 1]
            opening = None if fixed is None else fixed[0] / 100
            sent = sum(t.seat == SELLER and t.buyer == buyer for t in episode.turns)
            deal = outcome.price / 100 if outcome.buyer == buyer and outcome.price is not None else None
            row |= {"first offer ($)": opening, "seller's messages": sent, "deal ($)": deal}
            rows.append(row | {"reward": episode.reward if deal is not None else None})
    return numeric(rows)


def telling(runs: Iterable[Run]) -> dict[str, Episode]:
    """Three episodes worth reading: the ``best`` by gain over list price (a deal at list price says little where that
    is a dollar above cost), the ``median`` by reward, and the first ``violation`` in order of play. A kind that does
    not occur is left out."""
    played = list(episodes(runs))
    if not played:
        return {}
    by_reward = sorted(played, key=lambda e: -e.reward)
    chosen = {"best": max(played, key=_gain), "median": by_reward[len(by_reward) // 2]}
    broken = next((e for e in played if e.outcome.kind == "violation"), None)
    return chosen if broken is None else {**chosen, "violation": broken}


def _gain(episode: Episode) -> float:
    product, price = episode.scenario.product, episode.outcome.price
    return 0.0 if price is None else (price - product.cost_cents) / product.listing.list_cents


def outcome_line(episode: Episode) -> str:
    """One line on how an episode ended."""
    scenario, outcome = episode.scenario, episode.outcome
    if outcome.kind == "deal" and outcome.buyer is not None and outcome.price is not None:
        what = f"deal at ${outcome.price / 100:,.2f} with Buyer {outcome.buyer} (rank {scenario.rank(outcome.buyer)})"
    elif outcome.kind == "violation":
        what = f"the {'seller' if outcome.seat == SELLER else 'buyer'} broke a rule ({outcome.reason})"
    elif outcome.kind == "aborted":
        what = f"aborted ({outcome.reason})"
    else:
        what = f"no deal ({outcome.reason})"
    return f"{scenario.product.listing.codename}: {what}, reward {episode.reward:+.4f}"
