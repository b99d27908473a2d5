"""Frames of markets of several items (arXiv 2609.33289): the six metrics, who buys what, the six suites.

As in ``frames`` each is computed from stored episodes. An *error* here is the larger of the
papers' standard error and the one clustered by cluster of products; both are in the CSV files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from negolab.catalog import Product
from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.metrics import ITEM_METRICS, SIX
from negolab.notebook import frames
from negolab.notebook.frames import Panel, numeric
from negolab.papers import multi_buyer, tables
from negolab.papers import multi_item as paper
from negolab.statistics import Accumulator, Estimate

if TYPE_CHECKING:
    from negolab.notebook.study import Study

UPPER, FLOOR = "oracle", "random"
"""The scripted sellers that resemble no model: one is told the valuations, one plays at random."""
SCREENER, CLOSER = "screener", "early-closer"
"""The stand-ins for the paper's trained seller, and for general models that close many deals for little."""

# -- the benchmark --------------------------------------------------------------------------------------------------


def larger_error(frame: pd.DataFrame) -> pd.Series:
    """The larger of ``se`` and ``se_clustered``, row by row; NaN where neither exists."""
    return frame[["se", "se_clustered"]].max(axis=1)


def table1(found: pd.DataFrame, sources: Mapping[str, str]) -> pd.DataFrame:
    """What is known of the paper's table 1 among our rows (``frames.metrics``), best reward first: ``seller, source``
    and per metric the mean, ``_error``, ``_se``, ``_se_clustered``, ``_n`` and ``_trust``."""
    side = paper.side_by_side(found.assign(se=larger_error(found)), sources)
    side = side.rename(columns={f"{metric}_se": f"{metric}_error" for metric in SIX})
    wide = found.set_index(["seller", "metric"])
    ours = side["source"] != multi_buyer.PAPER
    for metric in SIX:
        for part in ("se_clustered", "se"):
            values = [
                wide.loc[(seller, metric), part] if mine else math.nan
                for seller, mine in zip(side["seller"], ours, strict=True)
            ]
            side.insert(list(side.columns).index(f"{metric}_error") + 1, f"{metric}_{part}", values)
    return side


def table1_text(side: pd.DataFrame) -> str:
    """``table1`` as Markdown: ``mean ± error (n)``, bold for the best of ours and underlined for the second; of the
    paper's rows the mean where it is published, marked where it is derived, and nothing elsewhere."""
    rows = [{**row, **{f"{m}_se": row[f"{m}_error"] for m in SIX}} for row in side.to_dict("records")]
    found = tables.grid(rows, SIX, {"seller": "Seller", "source": "Source"})
    body = []
    for row, line in zip(rows, found.body, strict=True):
        if row["source"] == multi_buyer.PAPER:
            cells = zip(SIX, line[2:], strict=True)
            line = [*line[:2], *(tables.Cell(_published(row, metric, cell.text)) for metric, cell in cells)]
        body.append(line)
    return tables.markdown(found._replace(body=body, rules=frozenset()))


def _published(row: Mapping[Any, Any], metric: str, text: str) -> str:
    if tables.missing(row[metric]):
        return ""
    return text.split(" ±")[0] + (f" {tables.DERIVED_MARK}" if row[f"{metric}_trust"] == paper.DERIVED else "")


def bound(found: pd.DataFrame) -> pd.DataFrame:
    """Each seller's reward beside what nobody can exceed on its markets: ``reward``, ``reward_bound``, their errors,
    the share of the bound that was reached (NaN below nothing), and the number of ``episodes``."""
    kept = found.assign(error=larger_error(found))
    parts = {name: kept[kept["metric"] == name].set_index("seller") for name in ("reward", "reward_bound")}
    frame = pd.DataFrame({f"{name}{part}": of[what] for name, of in parts.items() for part, what in _MEANS})
    frame["share of the bound"] = (frame["reward"] / frame["reward_bound"]).where(frame["reward"] >= 0)
    return frame.assign(episodes=parts["reward"]["n"]).reset_index()


_MEANS = (("", "mean"), ("_error", "error"))


CLAIMS: Sequence[tuple[str, str, int]] = (
    ("{} earns a higher reward than {}", "reward", 1),
    ("{} extracts more surplus than {}", "surplus_ratio", 1),
    ("{} offers more of the best pairs than {}", "optimal_pair_coverage", 1),
    ("{} closes no more deals than {}", "item_deal_rate", -1),
)
"""What the paper finds of its trained seller beside GPT-5.4-high (sections 7.2 and 7.3): words, metric, direction."""


def ordering(panel: Panel, first: str = SCREENER, second: str = CLOSER) -> pd.DataFrame:
    """Whether ``CLAIMS`` hold of ``first`` beside ``second``, in pairs on the same markets: the mean difference, its
    error, and ``held`` or ``not held``, by the sign alone. No rows where one of them was not played."""
    columns = ["claim", "metric", "difference", "error", "pairs", "verdict"]
    if first not in panel or second not in panel:
        return numeric([], columns)
    metrics = [metric for _, metric, _ in CLAIMS]
    found = frames.differences({second: panel[second], first: panel[first]}, second, metrics, ITEM_METRICS)
    held = [mean > 0 if sign > 0 else mean <= 0 for mean, (_, _, sign) in zip(found["difference"], CLAIMS, strict=True)]
    found["claim"] = [words.format(first, second) for words, _, _ in CLAIMS]
    found["verdict"] = ["held" if true else "not held" for true in held]
    return found.assign(error=larger_error(found))[columns]


def ranks(panel: Panel) -> pd.DataFrame:
    """Shares of sold items by their buyer's rank among the item's valuations, 1 the highest, one row per seller; ``n``:
    items sold."""
    source, rows = frames.sources(panel), []
    for seller, runs in panel.items():
        most, found = 0, []
        for episode in frames.episodes(runs):
            scenario = episode.scenario
            most = max(most, scenario.n_buyers)
            found += [scenario.rank(sale.buyer, sale.item) for sale in episode.outcome.sales]
        shares = {f"rank{rank}": found.count(rank) / len(found) if found else None for rank in range(1, most + 1)}
        rows.append({"seller": seller, "source": source[seller], "n": len(found), **shares})
    return numeric(rows)


# -- the six suites -------------------------------------------------------------------------------------------------

Suites = Mapping[str, Panel]
"""Panels by the suite's name."""


def markets(suites: Iterable[paper.Suite]) -> list[tuple[str, str]]:
    """The regimes of suites, each with the split that it is played on ("": that of the study)."""
    return [(suite.regime_name, _split(suite)) for suite in suites]


def _split(suite: paper.Suite) -> str:
    return "" if suite.split == paper.REFERENCE.split else suite.split


def play(study: Study, suites: Iterable[paper.Suite]) -> dict[str, Panel]:
    """Play the study's sellers on each suite, by its name."""
    return {suite.name: study.play(suite.regime_name, split=_split(suite)) for suite in suites}


_LETTERS = {"n_buyers": "N", "n_items": "M", "message_budget": "T", "per_buyer_cap": "K"}


def suite_sizes(suites: Iterable[paper.Suite], split: str) -> pd.DataFrame:
    """The suites as they are played here; ``ours``: what no source gives, letters and knobs of the regime. ``split`` is
    that of suites whose categories are those of training."""
    rows = []
    for suite in suites:
        regime = suite.regime
        row = {"suite": suite.name, "regime": suite.regime_name, "N": regime.n_buyers, "M": regime.n_items}
        row |= {"T": regime.message_budget, "K": regime.per_buyer_cap, "split": _split(suite) or split}
        rows.append(
            row | {"what shifts": suite.shift, "ours": ", ".join(_LETTERS.get(knob, knob) for knob in suite.ours)}
        )
    return pd.DataFrame(rows)


def suite_metrics(suites: Suites) -> pd.DataFrame:
    """Every metric of every seller on every suite: ``suite, seller, source, metric, mean, error, se, se_clustered``,
    ``n``."""
    parts = []
    for name, panel in suites.items():
        found, source = frames.metrics(panel, ITEM_METRICS), frames.sources(panel)
        parts.append(found.assign(suite=name, source=found["seller"].map(source), error=larger_error(found)))
    columns = ["suite", "seller", "source", "metric", "mean", "error", "se", "se_clustered", "n"]
    return pd.concat(parts, ignore_index=True)[columns]


def suite_text(found: pd.DataFrame) -> str:
    """``suite_metrics`` as Markdown: one line for each suite and seller, the six metrics as ``mean ± error (n)``; best
    and second best are judged within a suite."""
    rows = []
    for (suite, seller), part in found.groupby(["suite", "seller"], sort=False):
        row: dict[Any, Any] = {"suite": suite, "seller": seller, "source": part["source"].iloc[0]}
        for one in part[part["metric"].isin(SIX)].to_dict("records"):
            row |= {one["metric"]: one["mean"], f"{one['metric']}_se": one["error"], f"{one['metric']}_n": one["n"]}
        rows.append(row)
    leading = {"suite": "Suite", "seller": "Seller", "source": "Source"}
    return tables.markdown(tables.grid(rows, SIX, leading, group="suite")._replace(rules=frozenset()))


MARGINS = ("reward", "surplus_ratio", "optimal_pair_coverage")
"""Metrics on which the paper's trained seller is above the best baseline in all six suites (section 9.2)."""


def margins(suites: Suites, seller: str = SCREENER, without: Sequence[str] = (UPPER, FLOOR)) -> pd.DataFrame:
    """``seller`` minus the best other baseline, suite by suite, in pairs on the same markets, beside the paper's margin
    where that is published. The best is chosen for each metric by its mean; ``without``: sellers that are no baseline.

    Columns: ``suite, metric, baseline, margin, error, se, se_clustered, pairs, paper``. A suite in which ``seller`` or
    every baseline was not played has no row.
    """
    published, rows = paper.reward_margins(), []
    for suite, panel in suites.items():
        others = [name for name in panel if name not in (seller, *without)]
        if seller not in panel or not others:
            continue
        found = frames.metrics({name: panel[name] for name in others}, {m: ITEM_METRICS[m] for m in MARGINS})
        for metric in MARGINS:
            means = found[found["metric"] == metric].set_index("seller")["mean"]
            best = str(means.idxmax())
            pair = {best: panel[best], seller: panel[seller]}
            row = frames.differences(pair, best, [metric], ITEM_METRICS)
            row = row.assign(suite=suite, baseline=best, error=larger_error(row), margin=row["difference"])
            rows.append(row.assign(paper=published.get(suite) if metric == "reward" else None))
    columns = ["suite", "metric", "baseline", "margin", "error", "se", "se_clustered", "pairs", "paper"]
    whole = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)
    return whole[columns].assign(paper=pd.to_numeric(whole["paper"]))


_TYPE_FACTS = ("first_offer_ratio", "closing_rate", "buyer_surplus")


def type_table(suites: Suites, without: Sequence[str] = (UPPER, FLOOR)) -> pd.DataFrame:
    """Buyers by type in each suite, pooled over the sellers that stand for models: ``first_offer_ratio`` (mean price
    over list price of the items that a free opening names), ``closing_rate`` (how often such a buyer buys), and
    ``buyer_surplus`` (``(list - price) / (list - cost)`` of what it buys), each with both errors and n."""
    rows = []
    for suite, panel in suites.items():
        pooled = [name for name in panel if name not in without]
        totals: dict[str, dict[str, Accumulator]] = {}
        for episode in frames.episodes(run for name in pooled for run in panel[name]):
            for kind, name, value in _buyer_facts(episode):
                of = totals.setdefault(kind, {fact: Accumulator() for fact in _TYPE_FACTS})
                of[name].add(value, episode.scenario.unit)
        for kind in sorted(totals):
            row: dict[str, Any] = {"suite": suite, "sellers": " + ".join(pooled), "buyer_type": kind}
            for fact in _TYPE_FACTS:
                row |= _parts(fact, totals[kind][fact].estimate())
            rows.append(row)
    return numeric(rows)


def _parts(name: str, found: Estimate) -> dict[str, Any]:
    return {name: found.mean, f"{name}_se": found.se, f"{name}_se_clustered": found.se_clustered, f"{name}_n": found.n}


def _buyer_facts(episode: Episode) -> Iterator[tuple[str, str, float]]:
    scenario, types = episode.scenario, episode.scenario.buyer_types
    for turn in episode.turns[: scenario.n_buyers]:
        free = scenario.openings is None or scenario.openings[turn.seat - 1] is None
        if turn.seat != SELLER and turn.offers and free and not turn.fallback:
            ratios = [cents / scenario.products[item - 1].listing.list_cents for item, cents in turn.offers]
            yield types[turn.seat - 1], "first_offer_ratio", statistics.fmean(ratios)
    bought = {sale.buyer: sale for sale in episode.outcome.sales}
    for buyer, kind in enumerate(types, 1):
        yield kind, "closing_rate", float(buyer in bought)
        if buyer in bought:
            sale = bought[buyer]
            yield kind, "buyer_surplus", _kept(scenario.products[sale.item - 1], sale.price)


def _kept(product: Product, price: int) -> float:
    listed = product.listing.list_cents
    return (listed - price) / (listed - product.cost_cents)
