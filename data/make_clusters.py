"""Group the published products into clusters of five substitutes (2609.33289, section 4) and write their codenames.

    python data/make_clusters.py --data data/AmazonHistoryPrice      # data/clusters/amazon_history_price.json

The paper's own 1,300 clusters are not published. Here a cluster is five products of one category and one product type
(``data/cluster_types.txt``, read off their titles) whose titles and first words of text are close by TF-IDF. Each pair
in a cluster is at least ``CLOSEST`` alike; the dearest list price is ``SPREAD`` times the cheapest; a brand stands at
most twice, or three times where no more such groups are found. Groups are taken greedily: of all that can still be
grown, the one whose least alike pair is most alike comes first, so no product is in two clusters. Near duplicates (the
same text, or the same first 40 letters and digits of the title) give one product in all: neither a cluster nor the two
sides of the split hold the same thing twice.

The category with the highest median list price of those with enough clusters is held out, by the paper's idea (its
held-out category costs 3.75 times the others); of the rest a fifth is tested, drawn by category.

Only facts are written: codenames, types, brands, settings. Needs scikit-learn (the ``dev`` extra); using the clusters
does not.
"""

import argparse
import hashlib
import json
import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

from negolab.catalog import RULE, Product, load_catalog
from negolab.clusters import Cluster
from negolab.commands.data import cluster_lines

HERE = Path(__file__).resolve().parent
SEED = 26093328
SIZE = 5
SPREAD = (1.15, 4.0)
"""Dearest over cheapest list price of a cluster: at least, at most."""
SAME_BRAND = (2, 3)
"""At most so many of a cluster are of one brand: first the lower number, then, among what is left, the higher."""
CLOSEST = 0.05
"""The least cosine of any two in a cluster, with the type's own words counted like all others."""
TEXT_WORDS = 30
"""So many words of the listing text are compared, beside the title's, which count three times."""
TITLE_LETTERS = 40
ENOUGH = 5
"""The held-out category has at least so many clusters."""
TESTED = 0.2

OTHER_NAMES = {
    "airpods": "Apple", "chromecast": "Google", "echo": "Amazon", "kindle": "Amazon", "playstation": "Sony",
    "powerbeats": "Beats", "skilsaw": "SKIL", "wd": "Western Digital", "wd_black": "Western Digital",
    "everydrop": "Whirlpool", "ecobee3": "ecobee", "amazonbasics": "Amazon Basics",
}  # fmt: skip
"""Leading words that are a product line, by whose it is."""
TWO_WORDS = (
    "Amazon Basics", "Bio Bidet", "Echo Show", "Estee Lauder", "Instant Pot", "Little Tikes", "Melissa & Doug",
    "Mr. Heater", "Polk Audio", "Tommy Hilfiger", "Ultimate Ears", "Western Digital",
)  # fmt: skip
"""Brands of more than one word."""
NO_BRAND = ("all-new", "new", "the")
"""Leading words that say nothing."""


class Kind(NamedTuple):
    """A product type."""

    name: str
    title: re.Pattern[str]
    branded: bool
    substitutes: bool


def read_kinds() -> list[Kind]:
    """The product types in their order."""
    kinds = []
    for line in (HERE / "cluster_types.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, pattern = (part.strip() for part in line.partition("|"))
            title = re.compile(pattern, re.IGNORECASE)
            kinds.append(Kind(name.lstrip("*- "), title, not name.startswith("*"), not name.startswith("-")))
    return kinds


def brands_of(products: Sequence[Product]) -> list[str]:
    """The brand that each title leads with, in the spelling that most titles use.

    A title that says "by" and then a brand which leads another title is that brand's.
    """
    found = [_lead(product.listing.title) for product in products]
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for brand in found:
        spellings[brand.casefold()][brand] += 1
    for index, product in enumerate(products):
        after = re.search(r"\bby (.+)", product.listing.title, re.IGNORECASE)
        maker = _lead(after[1].replace(".", " ")) if after else ""
        if maker.casefold() in spellings or maker in TWO_WORDS:
            found[index] = maker
            spellings[maker.casefold()][maker] += 1
    return [max(spellings[brand.casefold()].items(), key=lambda item: (item[1], item[0]))[0] for brand in found]


def _lead(title: str) -> str:
    words = [word.strip(",:;.®™") for word in title.replace("®", "").split()]
    while len(words) > 1 and words[0].casefold() in NO_BRAND:
        words = words[1:]
    for brand in TWO_WORDS:
        if " ".join(words[: brand.count(" ") + 1]).casefold() == brand.casefold():
            return OTHER_NAMES.get(words[0].casefold(), brand)
    return OTHER_NAMES.get(words[0].casefold(), words[0])


def without_near_duplicates(products: Sequence[Product]) -> list[Product]:
    """The first of those that share the text or the title's beginning."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for product in products:
        letters = re.sub("[^a-z0-9]", "", product.listing.title.lower())[:TITLE_LETTERS]
        keys = {("title", letters), ("text", product.listing.description or product.listing.codename)}
        if not keys & seen:
            kept.append(product)
        seen |= keys
    return kept


def terms(product: Product) -> list[str]:
    """Words and pairs of words to compare by: the title's three times, then the text's first."""

    def of(words: Sequence[str]) -> list[str]:
        plain = [word.removesuffix("s") for word in words if len(word) > 1 and word not in ENGLISH_STOP_WORDS]
        return plain + [f"{one} {other}" for one, other in pairwise(plain)]

    title, text = (
        re.findall(r"\d*[a-z]+", part.lower()) for part in (product.listing.title, product.listing.description)
    )
    return 3 * of(title) + of(text[:TEXT_WORDS])


def closeness(products: Sequence[Product]) -> np.ndarray:
    """Cosine of every two products; rounded, so that the last bits of a machine decide nothing."""
    weights = TfidfVectorizer(analyzer=terms, min_df=2, sublinear_tf=True).fit_transform(products)
    return np.round((weights @ weights.T).toarray(), 6)


class Pool(NamedTuple):
    """What groups are chosen by, one entry per product."""

    close: np.ndarray
    lists: list[int]
    brands: list[str]


def grow(start: int, free: Sequence[int], pool: Pool, same_brand: int) -> list[int]:
    """``start`` and the four of ``free`` that stay closest to all chosen so far; [] where there are no such four."""
    group = [start]
    while len(group) < SIZE:
        least = pool.close[group].min(axis=0)
        for index in sorted(free, key=lambda index: (-least[index], index)):
            prices = [pool.lists[member] for member in [*group, index]]
            same = [member for member in group if pool.brands[member] and pool.brands[member] == pool.brands[index]]
            fits = index not in group and least[index] >= CLOSEST and max(prices) <= SPREAD[1] * min(prices)
            if fits and len(same) < same_brand:
                group.append(index)
                break
        else:
            return []
    prices = [pool.lists[member] for member in group]
    return sorted(group) if max(prices) >= SPREAD[0] * min(prices) else []


def groups_of(members: Sequence[int], pool: Pool) -> list[list[int]]:
    """Disjoint groups among products of one category and type, the closest first."""
    free, found = list(members), []
    for same_brand in SAME_BRAND:
        while grown := [group for start in free if (group := grow(start, free, pool, same_brand))]:
            best = max(grown, key=lambda group: (least_close(group, pool), [-index for index in group]))
            found.append(best)
            free = [index for index in free if index not in best]
    return found


def least_close(group: Sequence[int], pool: Pool) -> float:
    """The cosine of the least alike pair."""
    return min(float(pool.close[one, other]) for one, other in combinations(group, 2))


def build(products: Sequence[Product], brands: Mapping[str, str]) -> tuple[list[Cluster], dict[str, str]]:
    """The clusters by category and type, and the brand of each of their products, "" where it has none."""
    kinds, found = read_kinds(), {}
    pool = Pool(closeness(products), [product.listing.list_cents for product in products], [])
    of_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, product in enumerate(products):
        kind = next((kind for kind in kinds if kind.title.search(product.listing.title)), None)
        pool.brands.append(brands[product.listing.codename] if kind and kind.branded else "")
        if kind and kind.substitutes:
            of_kind[product.listing.category, kind.name].append(index)
    clusters = []
    for (category, name), members in sorted(of_kind.items()):
        slug = re.sub("[^a-z0-9]+", "-", name.lower())
        for number, group in enumerate(groups_of(members, pool), 1):
            chosen = tuple(products[index] for index in group)
            clusters.append(Cluster(f"{category}-{slug}-{number}", category, name, chosen))
            found.update({products[index].listing.codename: pool.brands[index] for index in group})
            print(f"{clusters[-1].name}: least cosine {least_close(group, pool):.3f}")
    return clusters, found


def median_list(clusters: Sequence[Cluster]) -> float:
    """Median list price in cents of all products."""
    return statistics.median(product.listing.list_cents for cluster in clusters for product in cluster.products)


def split(clusters: Sequence[Cluster]) -> dict[str, str]:
    """Each cluster's split by its name."""
    by_category: dict[str, list[Cluster]] = defaultdict(list)
    for cluster in clusters:
        by_category[cluster.category].append(cluster)
    many = [category for category, own in by_category.items() if len(own) >= ENOUGH]
    held = max(many, key=lambda category: (median_list(by_category[category]), category))
    parts = {cluster.name: "held_out" for cluster in by_category.pop(held)}
    exact = {category: TESTED * len(own) for category, own in by_category.items()}
    places = {category: int(share) for category, share in exact.items()}
    more = round(sum(exact.values())) - sum(places.values())
    for category in sorted(places, key=lambda category: (places[category] - exact[category], category))[:more]:
        places[category] += 1
    draw = random.Random(SEED)
    for category, own in sorted(by_category.items()):
        for rank, cluster in enumerate(sorted(own, key=lambda _: draw.random())):
            parts[cluster.name] = "test" if rank < places[category] else "train"
    return parts


def make(data: str | Path, target: Path) -> None:
    """Write the clusters of the catalogue in ``data`` to ``target``, and print what they are like."""
    catalog = load_catalog(data)
    if catalog.problems:
        raise SystemExit(f"{data}: {len(catalog.problems)} broken records; clusters need the whole catalogue")
    leads = dict(zip(catalog.by_codename, brands_of(catalog.products), strict=True))
    clusters, brands = build(without_near_duplicates(catalog.products), leads)
    parts = split(clusters)
    rows = [
        {
            "name": cluster.name,
            "category": cluster.category,
            "kind": cluster.kind,
            "split": parts[cluster.name],
            "products": [product.listing.codename for product in cluster.products],
            "brands": [brands[product.listing.codename] for product in cluster.products],
        }
        for cluster in clusters
    ]
    settings = {
        "size": SIZE,
        "spread": SPREAD,
        "same_brand": SAME_BRAND,
        "least_cosine": CLOSEST,
        "text_words": TEXT_WORDS,
        "title_letters": TITLE_LETTERS,
        "tested": TESTED,
        "seed": SEED,
        "types_sha256": hashlib.sha256((HERE / "cluster_types.txt").read_bytes()).hexdigest(),
    }
    numbering = {"name": catalog.name, "rule": RULE, "fingerprint": catalog.fingerprint}
    text = json.dumps({**numbering, "settings": settings, "clusters": rows}, indent=1, ensure_ascii=False) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode())
    print(f"{target}: {len(clusters)} clusters")
    print("\n".join(cluster_lines(clusters, parts, {name: brand for name, brand in brands.items() if brand})))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of the published catalogue")
    parser.add_argument(
        "--to", type=Path, default=HERE / "clusters" / "amazon_history_price.json", help="file to write"
    )
    arguments = parser.parse_args()
    make(arguments.data, arguments.to)
