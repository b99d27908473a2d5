"""Single episodes of several items: the worked example of arXiv 2609.33289, appendix H, replayed, and ours.

Of the example the sales, the costs (recovered), the catalogue's whole margin and two valuations are known
(``papers.multi_item``). The rest of its market and of its two runs is ours: list prices of items 1 and 3 (only their
sum is known), the other valuations, openings, and the messages that lead to no sale. They keep what is said in words:
Buyer 2 values both dear items most, Buyer 3 cannot pay the 150 that it is asked, the trained run's assignment is the
one with most surplus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from negolab.catalog import Listing, Product
from negolab.environment.base import SELLER, Request
from negolab.episodes import Episode
from negolab.metrics import ITEM_METRICS, SIX
from negolab.notebook import frames
from negolab.notebook.frames import Panel, numeric
from negolab.oracle import best_matching
from negolab.papers import multi_item as paper
from negolab.parser.tags import render_item_buyer, render_item_seller
from negolab.policies.base import Reply
from negolab.rollout import play
from negolab.scenario import MULTI_PRODUCT, Scenario

TITLES = ("A recorder with four cameras", "A Lorex recorder with eight cameras", "A single camera")
LISTS = (17_599, 24_999, 4_999)
"""In cents. Item 2's follows from its price, 96 % of it; of the others the sum is known."""
VALUATIONS = ((15_020, 17_135, 4_710), (18_245, 25_212, 3_820), (9_640, 12_875, 4_399))
"""By buyer, then item, in cents; ``paper.EXAMPLE_VALUATIONS`` says which two are stated."""


class Spoken(NamedTuple):
    """A message of a run: who says what to whom, with our words."""

    seat: int
    verb: str
    offers: tuple[tuple[int, int], ...]
    talk: str
    target: int | None = None


_OPEN = "I look for a good recorder."
RUNS: Mapping[str, Sequence[Spoken]] = {
    paper.EXAMPLE_UNTRAINED.name: (
        Spoken(1, "BUY", ((3, 3_900),), "The small one, please."),
        Spoken(2, "BUY", ((1, 8_000), (2, 11_000)), _OPEN),
        Spoken(3, "BUY", ((3, 2_500),), "A small budget here."),
        Spoken(0, "SELL", ((3, 4_566),), "A little more and it is yours.", 1),
        Spoken(1, "DEAL", ((3, 4_566),), "Agreed."),
        Spoken(0, "SELL", ((1, 15_000),), "The small one is gone; this one is better.", 3),
        Spoken(3, "BUY", ((1, 7_000),), "Far too much for me."),
        Spoken(0, "SELL", ((1, 13_000),), "The first, for 130?", 2),
        Spoken(2, "BUY", ((1, 10_000),), "I would give 100."),
        Spoken(0, "DEAL", ((1, 10_000),), "Sold.", 2),
        Spoken(0, "SELL", ((2, 23_000),), "Then perhaps the best one?", 3),
        Spoken(3, "QUIT", (), "No, thank you."),
    ),
    paper.EXAMPLE_TRAINED.name: (
        Spoken(1, "BUY", ((1, 7_500), (3, 2_500)), "Item 1 would do for me, or the small one."),
        Spoken(2, "BUY", ((1, 8_000), (2, 12_000)), _OPEN),
        Spoken(3, "BUY", ((3, 2_100),), "A small budget here."),
        Spoken(0, "SELL", ((1, 17_599), (2, 24_999)), "Both are in stock; the second is the better one.", 2),
        Spoken(2, "BUY", ((2, 21_000),), "The second, if the price comes down."),
        Spoken(0, "SELL", ((1, 15_099), (3, 4_900)), "I can do something for you on the first.", 1),
        Spoken(1, "BUY", ((1, 13_000),), "Closer, but no."),
        Spoken(0, "SELL", ((3, 4_600),), "The small one is a bargain at that.", 3),
        Spoken(3, "BUY", ((3, 4_399),), "That is all I have."),
        Spoken(0, "SELL", ((1, 14_000),), "My last word: 140.", 1),
        Spoken(1, "DEAL", ((1, 14_000),), "Agreed."),
        Spoken(0, "SELL", ((2, 24_000),), "A little off the list price, for you.", 2),
        Spoken(2, "DEAL", ((2, 24_000),), "Done."),
        Spoken(0, "DEAL", ((3, 4_399),), "It is yours.", 3),
    ),
}
"""The two runs of appendix H, before and after training: openings, then in order of play."""
_THOUGHT = "Appendix H's move where it sells; else ours."


class _Script:
    """A player that says what a run says."""

    def __init__(self, spoken: Sequence[Spoken], name: str) -> None:
        self.name = name
        self._spoken = spoken

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """The seat's next message in the script."""
        return [Reply(self._text(request.seat, len(request.view.own))) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return {"name": self.name, "source": f"arXiv {paper.ARXIV}, appendix H"}

    def _text(self, seat: int, at: int) -> str:
        said = [message for message in self._spoken if message.seat == seat][at]
        if seat == SELLER:
            return render_item_seller(said.verb, said.offers, said.target, said.talk, _THOUGHT)
        return render_item_buyer(said.verb, said.offers, said.talk, _THOUGHT)


def market() -> Scenario:
    """The example's market."""
    rows = enumerate(zip(TITLES, LISTS, paper.EXAMPLE_COSTS, strict=True), 1)
    items = [
        Product(Listing(f"recorders_{j}", title, "", "recorders", listed), cost) for j, (title, listed, cost) in rows
    ]
    regime = MULTI_PRODUCT
    return Scenario(
        episode=0,
        rep=0,
        regime=regime.name,
        unit="recorders",
        products=tuple(items),
        per_buyer_cap=regime.per_buyer_cap,
        message_budget=regime.message_budget,
        valuations=VALUATIONS,
        openings=None,
        buyer_types=regime.buyer_types * len(VALUATIONS),
        keys=(0,) * (len(VALUATIONS) + 1),
        protocol=regime.protocol,
    )


def replay(run: paper.ExampleRun) -> Episode:
    """Play one of the two runs through the real parser and environment."""
    buyer = _Script(RUNS[run.name], "the paper's buyer")
    seller = _Script(RUNS[run.name], f"the paper's {run.name} seller")
    return next(play([market()], seller, dict.fromkeys(MULTI_PRODUCT.buyer_types, buyer)))


def matchings(episodes: Mapping[str, Episode]) -> dict[str, dict[tuple[int, int], int | None]]:
    """What ``plots.matchings`` draws of episodes on one market: the best matching first, then each episode's sales."""
    scenario = next(iter(episodes.values())).scenario
    lists, costs = [p.listing.list_cents for p in scenario.products], [p.cost_cents for p in scenario.products]
    best = best_matching(scenario.valuations, lists, costs)
    shares = best.surplus_cents / (sum(lists) - sum(costs))
    found: dict[str, dict[tuple[int, int], int | None]]
    found = {f"best matching\nat most {shares:.3f}": dict.fromkeys(best.pairs)}
    for name, episode in episodes.items():
        sales = {(sale.buyer, sale.item): sale.price for sale in episode.outcome.sales}
        found[f"{name}\nreward {episode.reward:+.3f}"] = {**sales}
    return found


def example_table(replayed: Mapping[str, Episode]) -> pd.DataFrame:
    """The runs as replayed beside what is published: ``run, reward, published``, what was earned of what there was, and
    the other metrics of section 6 (rates over items, best pairs and sales of the one episode)."""
    published = {run.name: run.published_reward for run in (paper.EXAMPLE_UNTRAINED, paper.EXAMPLE_TRAINED)}
    rows = []
    for name, episode in replayed.items():
        room = sum(p.listing.list_cents - p.cost_cents for p in episode.scenario.products)
        row: dict[str, Any] = {"run": name, "reward": episode.reward, "published": published.get(name)}
        row |= {"earned ($)": round(episode.reward * room) / 100, "margin of all items ($)": room / 100}
        rows.append(row | {metric: _mean(ITEM_METRICS[metric](episode)) for metric in SIX[1:]})
    return numeric(rows)


def _mean(value: float | tuple[float, ...] | None) -> float | None:
    if isinstance(value, tuple):
        return sum(value) / len(value) if value else None
    return value


def sales_table(replayed: Mapping[str, Episode]) -> pd.DataFrame:
    """Who bought what in each episode: ``run, item, buyer, rank`` of the buyer among the item's valuations, ``price``,
    ``valuation``, and the ``margin`` that it brought, in dollars."""
    rows = []
    for name, episode in replayed.items():
        scenario = episode.scenario
        for sale in episode.outcome.sales:
            worth, product = scenario.valuations[sale.buyer - 1][sale.item - 1], scenario.products[sale.item - 1]
            gained = min(sale.price, product.listing.list_cents) - product.cost_cents
            row = {"run": name, "item": sale.item, "buyer": sale.buyer, "rank": scenario.rank(sale.buyer, sale.item)}
            money = {"price ($)": sale.price, "valuation ($)": worth, "margin ($)": gained}
            rows.append(row | {what: cents / 100 for what, cents in money.items()})
    return numeric(rows)


def telling(panel: Panel, weak: str, strong: str) -> dict[str, dict[str, Episode]]:
    """Markets on which both sellers played, worth reading: where ``strong`` gained most on ``weak`` by reward
    (``largest``), and the one in the middle (``median``), which says what is usual. Each with both episodes, by seller.
    """
    mine = {_place(e): e for e in frames.episodes(panel[weak])}
    pairs = [(mine[_place(e)], e) for e in frames.episodes(panel[strong]) if _place(e) in mine]
    if not pairs:
        return {}
    ordered = sorted(pairs, key=lambda pair: pair[1].reward - pair[0].reward)
    chosen = {"largest": ordered[-1], "median": ordered[len(ordered) // 2]}
    return {kind: {weak: pair[0], strong: pair[1]} for kind, pair in chosen.items()}


def _place(episode: Episode) -> tuple[Any, ...]:
    scenario = episode.scenario
    return scenario.unit, scenario.rep, scenario.keys, scenario.valuations
