"""Frames of the clusters that markets of several items are drawn from (arXiv 2609.33289, section 4 and appendix E),
and of what correlated valuations look like (section 9.1)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from negolab.cluster_files import SPLITS
from negolab.clusters import Cluster, ClusterCatalog
from negolab.notebook.frames import numeric
from negolab.papers import multi_item as paper
from negolab.scenario import MULTI_PRODUCT, draw


def products(catalog: ClusterCatalog) -> pd.DataFrame:
    """One row per product: ``cluster, category, kind, split, codename, title, brand`` ("" where unknown), and
    ``list_cents, cost_cents``."""
    return pd.DataFrame(
        {
            "cluster": cluster.name,
            "category": cluster.category,
            "kind": cluster.kind,
            "split": split,
            "codename": p.listing.codename,
            "title": p.listing.title,
            "brand": catalog.brands.get(p.listing.codename, ""),
            "list_cents": p.listing.list_cents,
            "cost_cents": p.cost_cents,
        }
        for cluster, split in _with_splits(catalog)
        for p in cluster.products
    )


def _with_splits(catalog: ClusterCatalog) -> Iterator[tuple[Cluster, str]]:
    part = {name: split for split, names in catalog.splits.items() for name in names}
    return ((cluster, part.get(cluster.name, "none")) for cluster in catalog.clusters)


def clusters(catalog: ClusterCatalog) -> pd.DataFrame:
    """One row per cluster: ``cluster, category, kind, split, products``, ``brands`` (distinct ones; NaN where a product
    has none), ``spread`` (dearest over cheapest list price), ``median list price ($)``, ``cost / list price``."""
    rows = []
    for cluster, split in _with_splits(catalog):
        listed = [p.listing.list_cents for p in cluster.products]
        brands = [catalog.brands.get(p.listing.codename, "") for p in cluster.products]
        row: dict[str, Any] = {"cluster": cluster.name, "category": cluster.category}
        row |= {"kind": cluster.kind, "split": split}
        row |= {"products": len(listed), "brands": len(set(brands)) if all(brands) else None}
        row |= {"spread": max(listed) / min(listed), "median list price ($)": statistics.median(listed) / 100}
        share = statistics.fmean(p.cost_cents / p.listing.list_cents for p in cluster.products)
        rows.append(row | {"cost / list price": share})
    return numeric(rows)


def by_split(catalog: ClusterCatalog) -> pd.DataFrame:
    """One row per split that there is: ``split``, clusters, products, categories, median spread."""
    per = clusters(catalog)
    rows = per.groupby("split").agg(
        clusters=("cluster", "size"),
        products=("products", "sum"),
        categories=("category", "nunique"),
        spread=("spread", "median"),
    )
    known = [split for split in (*SPLITS, "none") if split in rows.index]
    return rows.loc[known].rename(columns={"spread": "median spread"}).reset_index()


def dataset(catalog: ClusterCatalog) -> pd.DataFrame:
    """The dataset's statistics, the paper's beside ours (section 4, appendix E), as text: ``statistic``,
    ``paper``, ``ours``."""
    rows = paper.table("settings").to_dict("records")
    known = {str(row["setting"]): str(row["value"]) for row in rows if row["group"] == "dataset"}
    per, each = clusters(catalog), products(catalog)
    counts = {split: f"{(per['split'] == split).sum()}" for split in SPLITS}
    held, branded = each["split"] == "held_out", per["brands"].dropna()
    sizes, categories = sorted(set(per["products"])), per["category"].value_counts()
    of_brands = f"{branded.mean():.1f}" if len(branded) else "n/a"
    named = "" if len(branded) == len(per) else f" (of {len(branded)} clusters whose brands are all known)"
    five = f"{100 * (branded == 5).mean():.0f} %" if len(branded) else "n/a"
    table = [
        ("clusters", known["clusters"], f"{len(per)}"),
        ("products", known["products"], f"{len(each)}"),
        ("products per cluster", known["products_per_cluster"], _range(sizes)),
        ("categories", known["categories"], f"{len(categories)}"),
        ("clusters per category", known["clusters_per_category"], _range(sorted(set(categories)))),
        ("train clusters", known["train_clusters"], counts["train"]),
        ("test clusters", known["test_clusters"], counts["test"]),
        ("held-out clusters", known["held_out_clusters"], counts["held_out"]),
        ("held-out category", known["held_out_category"], ", ".join(sorted(set(each[held]["category"]))) or "none"),
        ("median list price, held-out category", _dollars(known["held_out_median_list_cents"]), _median(each[held])),
        ("median list price, the others", _dollars(known["other_median_list_cents"]), _median(each[~held])),
        ("dearest / cheapest list price, median", known["median_list_price_spread"], f"{per['spread'].median():.2f}"),
        ("brands per cluster, mean", known["brands_per_cluster"], of_brands + named),
        ("clusters of five brands", f"{100 * float(known['clusters_of_five_brands']):.0f} %", five),
    ]
    return pd.DataFrame(table, columns=["statistic", "paper", "ours"])


def _range(ordered: Sequence[int]) -> str:
    return f"{ordered[0]}" if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _dollars(cents: str) -> str:
    return f"${int(cents) / 100:,.2f}"


def _median(each: pd.DataFrame) -> str:
    return f"${each['list_cents'].median() / 100:,.2f}" if len(each) else "n/a"


def by_category(catalog: ClusterCatalog) -> pd.DataFrame:
    """One row per category, cheapest first: clusters, those held out, median list price and spread, mean brands."""
    per = clusters(catalog)
    listed = products(catalog).groupby("category")["list_cents"].median() / 100
    rows = per.groupby("category", sort=False).agg(
        clusters=("cluster", "size"),
        held_out=("split", lambda splits: int((splits == "held_out").sum())),
        spread=("spread", "median"),
        brands=("brands", "mean"),
        ratio=("cost / list price", "mean"),
    )
    rows.insert(2, "median list price ($)", listed)
    names = {"held_out": "held out", "spread": "median spread", "brands": "mean brands"}
    rows = rows.rename(columns=names | {"ratio": "mean cost / list price"})
    return rows.sort_values("median list price ($)", kind="stable").reset_index()


# -- correlated valuations ------------------------------------------------------------------------------------------

KNOBS: Mapping[str, Mapping[str, float]] = {
    "independent": {},
    "item_correlation = 0.8": {"item_correlation": 0.8},
    "buyer_correlation = 0.8": {"buyer_correlation": 0.8},
}
"""How valuations may be drawn; the second is the suite Item Correlation's."""


def valuations(catalog: ClusterCatalog, draws: int, seed: int) -> pd.DataFrame:
    """``draws`` markets under each of ``KNOBS``, one row each: ``knob``, and valuations over list prices of Buyer 1 for
    item 1 (``first``), of Buyer 2 for the same item (``other_buyer``), of Buyer 1 for item 2 (``other_item``)."""
    rows = []
    for name, knobs in KNOBS.items():
        regime = MULTI_PRODUCT.override(**knobs)
        for rep in range(draws):
            drawn = draw(regime, catalog.clusters[rep % len(catalog.clusters)], seed=seed, rep=rep)
            one, two = (product.listing.list_cents for product in drawn.products[:2])
            first, second = drawn.valuations[:2]
            ratios = {"first": first[0] / one, "other_buyer": second[0] / one, "other_item": first[1] / two}
            rows.append({"knob": name, **ratios})
    return pd.DataFrame(rows)


def correlations(drawn: pd.DataFrame) -> pd.DataFrame:
    """What the knobs do, measured on ``valuations``: the correlation of normal scores (that is where the knobs work)
    between two buyers of one item, and between two items of one buyer, each with its standard error."""
    low, high = MULTI_PRODUCT.budget_tiers[0]
    rows = []
    for name, knobs in KNOBS.items():
        part = drawn[drawn["knob"] == name]
        scores = part[["first", "other_buyer", "other_item"]].map(lambda ratio: _score((ratio - low) / (high - low)))
        row: dict[str, Any] = {"knob": name, "markets": len(part)}
        for column, knob in (("other_buyer", "item_correlation"), ("other_item", "buyer_correlation")):
            found = float(scores["first"].corr(scores[column]))
            what = "two buyers, one item" if column == "other_buyer" else "one buyer, two items"
            row |= {f"{what}: set": knobs.get(knob, 0.0), f"{what}: measured": found}
            row[f"{what}: standard error"] = (1 - found**2) / math.sqrt(len(part) - 1)
        rows.append(row)
    return numeric(rows)


def _score(share: float) -> float:
    """The normal score of a number in (0, 1); valuations in whole cents may fall on its ends."""
    return statistics.NormalDist().inv_cdf(min(max(share, 1e-4), 1 - 1e-4))
