"""Write the bundled sample of clusters: 104 clusters of five invented substitutes in 13 categories.

Run ``python data/make_cluster_sample.py`` from anywhere; ``data/clusters/sample.json`` has the same bytes every time,
on every machine, in the format that anybody may write (``negolab.cluster_files``). Nothing in it is real. What is taken
from the paper (2609.33289, section 4) is the shape: 13 categories, one of them held out, the musical instruments, at
$165.49 median list price against $44.10; five products a cluster; dearest over cheapest list price 1.85 at the median;
4.4 brands a cluster, all five different in 59 %; split by cluster, a fifth of the other categories' tested.

cost/list follows the published AmazonHistoryPrice products: 0.511 +- 0.183 over all 930, and, in the clusters made
of them, 0.15 between clusters and 0.10 within one.

The kinds, sizes and features lie in ``data/cluster_sample_kinds.txt``.
"""

import argparse
import json
import math
import random
import statistics
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple, TypeVar

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
SEED = 26093328
HELD_OUT = "musical-instruments"
MIDDLE, HELD_OUT_MIDDLE = (44.10, 0.75), (165.49, 0.45)
"""Clusters' middle list prices: log-normal; median in dollars, and standard deviation of the logarithm."""
SPREAD, SPREAD_LOG_SD = 1.85, 0.42
"""Dearest over cheapest list price: the logarithm is log-normal with the logarithm of this as its median, ..."""
SPREAD_FROM, SPREAD_TO = 1.15, 4.0
"""... cut to the band of the clusters of published products."""
BRANDS_OF_104 = {5: 61, 4: 25, 3: 16, 2: 2}
"""So many clusters have so many brands: 59 % have five, the mean is 4.4."""
RATIO, RATIO_BETWEEN, RATIO_WITHIN = 0.511, 0.15, 0.10
"""cost/list: mean, spread between clusters, spread within one; cut to [LOWEST, HIGHEST]."""
LOWEST, HIGHEST = 0.09, 0.97
TESTED = 0.2

BRANDS = (
    "Torvane", "Quillmark", "Brackenholt", "Osterwick", "Lumeqa", "Kestrane", "Vidrosa", "Nordalune", "Pellamor",
    "Hexmoor", "Ondelleau", "Fernsgate", "Marlowick", "Tavrikon", "Zephandra", "Corvalune", "Dunmarrow", "Stenholt",
    "Rookmere", "Palisandre", "Umbrake", "Halvorine", "Ostrevik", "Quenlow", "Marrowby", "Tindrasel", "Velloway",
    "Sorrelink", "Brindlecote", "Ombrelin", "Fjelmark", "Gorsewick", "Hollowray", "Isenfold", "Jorvane", "Kettlemoor",
    "Lanternay", "Mossquill", "Nettleford", "Orrisbane", "Pinderay", "Rushmerle", "Saltarrow", "Thistlane", "Umberlow",
    "Wexcombe",
)  # fmt: skip
"""Invented."""
BRANDS_OF_CATEGORY = 9
COLOURS = ("graphite", "moss green", "ivory", "slate blue", "copper", "matte black", "sand", "brick red", "white")
WARRANTIES = ("one year", "two years", "three years", "five years", "ten years")


class Block(NamedTuple):
    """A category's lines of the table."""

    category: str
    materials: list[str]
    features: list[str]
    kinds: list[tuple[str, float, list[str]]]
    """Noun, price idea in dollars, sizes."""


def read_blocks() -> list[Block]:
    """The table by category."""
    blocks: list[Block] = []
    for line in (HERE / "cluster_sample_kinds.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            category, _, materials = line[1:].partition("] ")
            blocks.append(Block(category, materials.split(", "), [], []))
        elif line.startswith("+ "):
            blocks[-1].features.append(line[2:])
        elif line and not line.startswith("#"):
            noun, idea, sizes = (part.strip() for part in line.split("|"))
            blocks[-1].kinds.append((noun, float(idea), sizes.split("/")))
    return blocks


def shop_price(value: float) -> int:
    """A price in cents as shops write it: whole dollars less one cent (below $20: also halves)."""
    step = 50 if value < 20 else 100 if value < 200 else 500
    return max(step, round(value * 100 / step) * step) - 1


def shuffled(values: list[T], draw: random.Random) -> list[T]:
    """The values in random order; ``random.shuffle`` is not promised to stay the same over Python's versions."""
    return [values[index] for _, index in sorted((draw.random(), index) for index in range(len(values)))]


def quantiles(count: int) -> list[float]:
    """The middles of ``count`` equal parts of (0, 1)."""
    return [(rank + 0.5) / count for rank in range(count)]


def spreads(count: int, draw: random.Random) -> list[float]:
    """Dearest over cheapest list price of each cluster."""
    normal = NormalDist(math.log(math.log(SPREAD)), SPREAD_LOG_SD)
    drawn = [math.exp(math.exp(normal.inv_cdf(place))) for place in quantiles(count)]
    return shuffled([min(max(value, SPREAD_FROM), SPREAD_TO) for value in drawn], draw)


def list_prices(blocks: list[Block], draw: random.Random) -> dict[tuple[str, str], list[int]]:
    """Five list prices in cents of each kind, in rising order.

    The table's ideas fix only the order of the kinds. Two prices lie on either side of the middle one; all are scaled
    so that their median is the stated one, before they are written as shops do.
    """
    prices = {}
    spread = iter(spreads(sum(len(block.kinds) for block in blocks), draw))
    for held, (median, log_sd) in ((True, HELD_OUT_MIDDLE), (False, MIDDLE)):
        chosen = [block for block in blocks if (block.category == HELD_OUT) == held]
        kinds = sorted((idea, block.category, noun) for block in chosen for noun, idea, _ in block.kinds)
        normal = NormalDist(math.log(median), log_sd)
        raw = []
        for place in quantiles(len(kinds)):
            low, middling, high = (draw.random() for _ in range(3))
            places, ratio = (-0.5, -0.5 * low, 0.1 * (middling - 0.5), 0.5 * high, 0.5), next(spread)
            raw.append(sorted(math.exp(normal.inv_cdf(place)) * ratio**step for step in places))
        scale = median / statistics.median(value for five in raw for value in five)
        for (_, category, noun), five in zip(kinds, raw, strict=True):
            prices[category, noun] = [shop_price(scale * value) for value in five]
    return prices


def with_costs(lists: list[int], draw: random.Random) -> list[tuple[int, int]]:
    """(list, cost) in cents of five products, in random order."""
    about = NormalDist(RATIO, RATIO_BETWEEN).inv_cdf(draw.random() or 0.5)
    out = []
    for price in shuffled(lists, draw):
        ratio = NormalDist(about, RATIO_WITHIN).inv_cdf(draw.random() or 0.5)
        out.append((price, round(price * min(max(ratio, LOWEST), HIGHEST))))
    return out


def products_of(
    block: Block, noun: str, sizes: list[str], brands: list[str], prices: list[tuple[int, int]], draw: random.Random
) -> list[dict]:
    """Five products of one kind; no two share the size, the first feature or the title."""
    features, colours = shuffled(block.features, draw), shuffled(list(COLOURS), draw)
    materials = shuffled(block.materials, draw)
    out = []
    for index, (price, cost) in enumerate(prices):
        brand, size, colour, material = brands[index], sizes[index], colours[index], materials[index]
        model = f"{'ABCDEFGHKLMNPRSTVX'[int(draw.random() * 18)]}{10 + int(draw.random() * 89)}"
        second = features[5 + int(draw.random() * (len(features) - 5))]
        warranty = WARRANTIES[int(draw.random() * len(WARRANTIES))]
        out.append(
            {
                "title": f"{brand} {model} {noun[0].upper() + noun[1:]}, {size}, {colour}",
                "brand": brand,
                "description": f"{features[index]}. {second}. Made of {material}, {size}, in {colour}; "
                f"the warranty lasts {warranty}.",
                "list_price": f"{price // 100}.{price % 100:02d}",
                "cost": f"{cost // 100}.{cost % 100:02d}",
            }
        )
    return out


def splits(blocks: list[Block], draw: random.Random) -> dict[tuple[str, str], str]:
    """Each kind's split: a fifth of the categories that are not held out, spread over them as evenly as whole clusters
    allow."""
    parts = {}
    seen = [block for block in blocks if block.category != HELD_OUT]
    places, more = divmod(round(TESTED * sum(len(block.kinds) for block in seen)), len(seen))
    for rank, block in enumerate(shuffled(seen, draw)):
        for index, (noun, _, _) in enumerate(shuffled(block.kinds, draw)):
            parts[block.category, noun] = "test" if index < places + (rank < more) else "train"
    return parts


def make(target: Path) -> None:
    """Write the sample to ``target``."""
    draw = random.Random(SEED)
    blocks = read_blocks()
    lists, parts = list_prices(blocks, draw), splits(blocks, draw)
    distinct = iter(shuffled([brands for brands, times in BRANDS_OF_104.items() for _ in range(times)], draw))
    clusters = []
    for block in blocks:
        pool = shuffled(list(BRANDS), draw)[:BRANDS_OF_CATEGORY]
        for noun, _, sizes in block.kinds:
            few = shuffled(pool, draw)[: next(distinct)]
            brands = shuffled([*few, *(few[int(draw.random() * len(few))] for _ in range(5 - len(few)))], draw)
            prices = with_costs(lists[block.category, noun], draw)
            clusters.append(
                {
                    "name": f"{block.category}-{noun.replace(' ', '-')}",
                    "category": block.category,
                    "kind": noun,
                    "split": parts.get((block.category, noun), "held_out"),
                    "products": products_of(block, noun, shuffled(sizes, draw), brands, prices, draw),
                }
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((json.dumps(clusters, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=HERE / "clusters" / "sample.json", help="file to write")
    make(parser.parse_args().to)
