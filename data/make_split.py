"""Make a fixed train/test split of a catalogue, by group of near duplicates, and write it as codenames.

    python data/make_split.py data/AmazonHistoryPrice     # data/splits/amazon_history_price.json, 802 train / 128 test
    python data/make_split.py sample                      # data/splits/sample.json, 96 train / 24 test

The papers hold out 128 of the 930 products but do not publish which. Here two products belong together when they share
the listing text, the first 40 characters of the title (as written, or letters and digits only), or are close by one of
the fuzzy measures below; groups are closed under "belongs with". A group lies wholly on one side, so no text that a
seller was trained on is tested. Among many seeded random fillings of the test side, the one is kept whose categories,
list prices, lowest/list ratios and conflicting products come closest to the whole catalogue's.

Needs rapidfuzz (the ``dev`` extra); reading a split does not.
"""

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from negolab.catalog import RULE, SAMPLE, Product, load_catalog

HERE = Path(__file__).resolve().parent
SEED = 26070586
TITLE_PREFIX = 40
TITLE_CLOSE = 75
"""Titles this similar (0-100, in order or with words sorted) belong together."""
TITLE_WORDS_CLOSE, FEWEST_WORDS = 90, 4
"""So do titles whose common words reach this, if both have at least so many words."""
TEXT_CLOSE, TEXT_WORDS_CLOSE = 65, 85
"""Texts this similar in order, or by common words, belong together..."""
TEXT_FROM, TEXT_TO = 60, 2000
"""...if both have at least so many characters; only the first 2,000 are compared."""
TRIES = 3000
PLANS: dict[str, tuple[int, tuple[str, ...]]] = {
    "amazon_history_price": (128, ("baby-products_17",)),
    SAMPLE: (24, ()),
}
"""Size of the test side, and codenames that must be in it: the papers show this one as a held-out product."""


def title_letters(title: str) -> str:
    return re.sub("[^a-z0-9]", "", title.lower())[:TITLE_PREFIX]


def equal_pairs(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs with the same key; empty keys are equal to nothing."""
    first: dict[Hashable, int] = {}
    return [(first.setdefault(key, index), index) for index, key in enumerate(keys) if key]


def close_pairs(
    texts: Sequence[str], measure: Callable[..., float], threshold: float, long_enough: Callable[[str], bool]
) -> list[tuple[int, int]]:
    where = [index for index, text in enumerate(texts) if long_enough(text)]
    chosen = [texts[index] for index in where]
    scores = process.cdist(chosen, chosen, scorer=measure, score_cutoff=threshold, workers=-1)
    rows, columns = (scores >= threshold).nonzero()
    return [(where[i], where[j]) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if i < j]


def near_duplicate_groups(products: Sequence[Product]) -> list[list[int]]:
    """Indices of products, grouped by the rules of the module docstring; singles are groups of one."""
    titles = [default_process(product.listing.title) for product in products]
    texts = [default_process(product.listing.description)[:TEXT_TO] for product in products]
    pairs = [
        *equal_pairs([product.listing.description for product in products]),
        *equal_pairs([product.listing.title[:TITLE_PREFIX] for product in products]),
        *equal_pairs([title_letters(product.listing.title) for product in products]),
        *close_pairs(titles, fuzz.ratio, TITLE_CLOSE, bool),
        *close_pairs(titles, fuzz.token_sort_ratio, TITLE_CLOSE, bool),
        *close_pairs(titles, fuzz.token_set_ratio, TITLE_WORDS_CLOSE, lambda text: len(text.split()) >= FEWEST_WORDS),
        *close_pairs(texts, fuzz.ratio, TEXT_CLOSE, lambda text: len(text) >= TEXT_FROM),
        *close_pairs(texts, fuzz.token_set_ratio, TEXT_WORDS_CLOSE, lambda text: len(text) >= TEXT_FROM),
    ]
    parent = list(range(len(products)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(products)):
        groups[root(index)].append(index)
    return list(groups.values())


def traits(products: Sequence[Product]) -> list[tuple[Hashable, ...]]:
    """What the test side should have in the same share as the whole, per product."""
    lists = [product.listing.list_cents for product in products]
    ratios = [product.cost_cents / product.listing.list_cents for product in products]

    def fifths(values: list[float]) -> list[int]:
        order = sorted(range(len(values)), key=lambda index: (values[index], index))
        place = {index: rank * 5 // len(values) for rank, index in enumerate(order)}
        return [place[index] for index in range(len(values))]

    return [
        (
            ("category", product.listing.category),
            ("price", price),
            ("ratio", ratio),
            ("mutual", 8 * product.listing.list_cents > 10 * product.cost_cents),
        )
        for product, price, ratio in zip(products, fifths([*map(float, lists)]), fifths(ratios), strict=True)
    ]


def quotas(products: Sequence[Product], size: int) -> dict[str, int]:
    """Test places per category, by largest remainder."""
    counts = Counter(product.listing.category for product in products)
    exact = {category: size * count / len(products) for category, count in counts.items()}
    places = {category: int(value) for category, value in exact.items()}
    by_remainder = sorted(exact, key=lambda category: (places[category] - exact[category], category))
    for category in by_remainder[: size - sum(places.values())]:
        places[category] += 1
    return places


def choose_test(products: Sequence[Product], size: int, keep: Sequence[str]) -> set[int]:
    """Indices of the test side: exactly ``size`` products in whole groups, with ``keep`` among them."""
    draw = random.Random(SEED)
    groups = near_duplicate_groups(products)
    forced = [group for group in groups if any(products[index].listing.codename in keep for index in group)]
    free = [group for group in groups if group not in forced]
    features = traits(products)
    share = {trait: count / len(products) for trait, count in Counter(t for row in features for t in row).items()}
    target = quotas(products, size)
    best: tuple[float, set[int]] = (float("inf"), set())
    for _ in range(TRIES):
        left = dict(target)
        chosen: set[int] = set()
        for group in [*forced, *sorted(free, key=lambda _: draw.random())]:
            need = Counter(products[index].listing.category for index in group)
            if group in forced or all(left[category] >= count for category, count in need.items()):
                chosen.update(group)
                for category, count in need.items():
                    left[category] -= count
        if len(chosen) == size:
            seen = Counter(t for index in chosen for t in features[index])
            distance = sum((seen[trait] / size - part) ** 2 for trait, part in share.items())
            best = min(best, (distance, chosen), key=lambda pair: pair[0])
    if not best[1]:
        raise SystemExit(f"no test side of exactly {size} products found in {TRIES} tries")
    return best[1]


def make(source: str, name: str, target: Path) -> None:
    """Write the split of the catalogue in ``source`` to ``target``."""
    catalog = load_catalog(source)
    if catalog.problems:
        raise SystemExit(f"{source}: {len(catalog.problems)} broken records; a split needs the whole catalogue")
    size, keep = PLANS[name]
    test = choose_test(catalog.products, size, keep)
    names = [product.listing.codename for product in catalog.products]
    parts = {
        "train": [codename for index, codename in enumerate(names) if index not in test],
        "test": [codename for index, codename in enumerate(names) if index in test],
    }
    split = {"name": name, "rule": RULE, "fingerprint": catalog.fingerprint, "seed": SEED, **parts}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((json.dumps(split, indent=1) + "\n").encode())
    print(f"{target}: {len(parts['train'])} train / {len(parts['test'])} test")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("catalogue", help="catalogue folder, or: sample")
    parser.add_argument("--to", type=Path, help="file to write")
    arguments = parser.parse_args()
    known = SAMPLE if arguments.catalogue == SAMPLE else "amazon_history_price"
    make(arguments.catalogue, known, arguments.to or HERE / "splits" / f"{known}.json")
