"""Write the bundled sample catalogue: 120 invented products in 12 files under ``data/sample``.

Run ``python data/make_sample.py`` from anywhere; the same bytes come out every time, on every machine. Nothing in the
sample is real: brands, models, texts and prices are made up, and each record says ``"synthetic": true``. Only the shape
is taken from AmazonHistoryPrice: the fields of a record, a list-price distribution with a median near $180, a ratio of
lowest to list price around 0.51 +- 0.18 that differs by category, and the awkward cases a reader must survive (missing
descriptions, "TBD", inch marks, accents, comma prices, list price below the highest price).

The item table lies in ``data/sample_items.txt``, a block per category:
``[category] mean lowest/list ratio`` and then ``noun | price idea in dollars | sentence``.
"""

import argparse
import json
import math
import random
from pathlib import Path
from statistics import NormalDist

HERE = Path(__file__).resolve().parent
SEED = 20240607
MEDIAN, LOG_SD = 180.0, 1.28
"""List prices: log-normal with this median in dollars, cut to [CHEAPEST, DEAREST]."""
CHEAPEST, DEAREST = 4.99, 3999.99
RATIO_SD = 0.155
"""Spread of lowest/list inside a category; with the categories' own means it makes 0.18 over all."""

BRANDS = (
    "Torvane", "Quillmark", "Brackenholt", "Osterwick", "Lumeqa", "Kestrane", "Vidrosa", "Nordalune", "Pellamor",
    "Hexmoor", "Ondelleau", "Fernsgate", "Marlowick", "Æskild", "Câlnor", "Tavrikon", "Brüsk & Vale", "Zephandra",
    "Corvalune", "Dunmarrow", "Ivelo", "Stenholt", "Rookmere", "Palisandre", "Umbrake",
)  # fmt: skip
FINISHES = ("Graphite", "Moss Green", "Ivory", "Slate Blue", "Copper", "Matte Black", "Sand", "Crème", "Brick Red")
CLOSINGS = (
    "A printed guide and a two-year warranty come in the box.",
    "Ships fully assembled.",
    "Spare parts are sold separately and fitted in minutes.",
    "Designed in a small workshop, tested for a year before release.",
    "It’s packed without plastic.",
    "The finish — chosen to hide fingerprints — wipes clean with a damp cloth.",
    "Made for everyday use at home or on the road.",
    "Each piece is checked by hand and carries its own serial number.",
)
BULLETS = (
    "BUILT TO LAST: reinforced where earlier models wore out first",
    "EASY TO LIVE WITH: no tools needed, set up in under ten minutes",
    "QUIET: measured below 42 dB at one metre",
    "FITS SMALL HOMES: stores flat and takes up little room",
    "WHAT YOU GET: the item, a carry pouch and a quick-start card",
    "REPAIRABLE: screws instead of glue, parts kept for ten years",
    "RANGE OF USE: comfortable from −10 °C to 45 °C",
    "COLOUR: dyed in the mass, so scratches don’t show",
)
MEDIA_CLOSINGS = (
    "Comes with a booklet of notes by people who were there.",
    "First pressing of two thousand.",
    "Region free.",
)
MEDIA_BULLETS = (
    "SOUND: newly transferred, nothing compressed",
    "SLEEVE: heavy card, printed inside and out",
    "EXTRAS: an essay and eight photographs",
    "RUNNING ORDER: as first released",
)
PLAIN = ("board-games", "craft-paper", "pet-corner")
"""Categories whose goods have neither a model number nor a finish."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def read_items() -> list[dict]:
    """The item table as dictionaries with category, ratio (mean lowest/list), noun, idea (dollars) and sentence."""
    items: list[dict] = []
    category, ratio = "", 0.0
    for line in (HERE / "sample_items.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            category, _, number = line[1:].partition("] ")
            ratio = float(number)
        elif line.strip() and not line.startswith("#"):
            noun, idea, sentence = (part.strip() for part in line.split("|"))
            items.append({"category": category, "ratio": ratio, "noun": noun, "idea": float(idea), "text": sentence})
    return items


def shop_price(value: float) -> int:
    """A price in cents as shops write it: whole dollars less one cent (below $20: also halves)."""
    step = 50 if value < 20 else 100 if value < 200 else 500 if value < 1000 else 1000
    return max(step, round(value * 100 / step) * step) - 1


def set_prices(items: list[dict], draw: random.Random) -> None:
    """Give every item ``list`` and ``low`` in cents.

    The items' price ideas fix only their order; the k-th cheapest gets the k-th quantile of the list distribution, so
    that the distribution is as stated whatever the table says.
    """
    normal = NormalDist(math.log(MEDIAN), LOG_SD)
    for rank, item in enumerate(sorted(items, key=lambda item: (item["idea"], item["noun"]))):
        dollars = math.exp(normal.inv_cdf((rank + 0.5) / len(items)))
        item["list"] = shop_price(min(max(dollars, CHEAPEST), DEAREST))
    by_category: dict[str, list[dict]] = {}
    for item in items:
        by_category.setdefault(item["category"], []).append(item)
    for members in by_category.values():
        # One stratified draw per member keeps each category's mean where the table puts it.
        places = [(index + draw.random()) / len(members) for index in range(len(members))]
        order = sorted(range(len(members)), key=lambda _: draw.random())
        for place, index in zip(places, order, strict=True):
            item = members[index]
            ratio = NormalDist(item["ratio"], RATIO_SD).inv_cdf(min(max(place, 0.001), 0.999))
            item["low"] = round(item["list"] * min(max(ratio, 0.09), 0.98))


def money(cents: int) -> str:
    """``123456 -> "$1,234.56"``: the catalogue's own way, thousands comma included."""
    return f"${cents // 100:,}.{cents % 100:02d}"


def date(draw: random.Random, first: int, last: int) -> str:
    return f"{MONTHS[int(draw.random() * 12)]} {1 + int(draw.random() * 28):02d}, {draw.randint(first, last)}"


def record(item: dict, number: int, draw: random.Random) -> dict:
    """One record in the published schema. ``number`` (from 0) decides which awkward case it is, if any."""
    brand = BRANDS[int(draw.random() * len(BRANDS))]
    model = f"{'ABCDEFGHKLMNPRSTVX'[int(draw.random() * 18)]}{draw.randint(2, 98) * 10}"
    finish = FINISHES[int(draw.random() * len(FINISHES))]
    media = item["category"] == "vinyl-film"
    if media:
        title = f"{item['noun']} – {brand} Edition"
    elif item["category"] in PLAIN:
        title = f"{brand} {item['noun']}"
    else:
        title = f"{brand} {model} {item['noun']}, {finish}"
    closings = sorted(MEDIA_CLOSINGS if media else CLOSINGS, key=lambda _: draw.random())[: int(draw.random() * 3)]
    description = " ".join([item["text"].replace("{brand}", brand), *closings])
    bullets = sorted(MEDIA_BULLETS if media else BULLETS, key=lambda _: draw.random())[: 2 + int(draw.random() * 3)]
    highest = item["list"]
    # In half of the published records the list price was once topped; in a tenth it is the highest of all.
    kind = draw.random()
    list_price, top = (highest, highest)
    if kind < 0.5:
        list_price = max(item["low"], shop_price(highest / 100 * (0.62 + 0.33 * draw.random())))
    elif kind < 0.61:
        top = max(item["low"] + 1, round(highest * (0.8 + 0.18 * draw.random())))
    current = item["low"] + round((min(list_price, top) - item["low"]) * draw.random() * 0.8)
    out = {
        "title": title,
        "current_price": money(current),
        "list_price": money(list_price),
        "average_price": money((highest + item["low"] + current) // 3),
        "category": item["category"],
        "badge": "Best Price" if current == item["low"] else "",
        "amazon_title": title,
        "description": description,
        "features": "\n".join([f"{item['noun'].upper()}: {item['text'].replace('{brand}', brand)}", *bullets]),
        "lowest_price_date": date(draw, 2016, 2023),
        "lowest_price": money(item["low"]),
        "highest_price_date": date(draw, 2016, 2023),
        "highest_price": money(top),
        "current_price_date": date(draw, 2023, 2023),
        "synthetic": True,
    }
    if number % 11 == 4:
        del out["description"]
    elif number % 41 == 7:
        out["description"] = "TBD"
    elif number % 7 == 3:
        del out["features"]
    if number == 77:
        del out["description"], out["features"]
    return out


def make(target: Path) -> None:
    """Write the sample's JSON files into ``target`` (made if missing)."""
    draw = random.Random(SEED)
    items = read_items()
    set_prices(items, draw)
    files: dict[str, list[dict]] = {}
    for number, item in enumerate(items):
        files.setdefault(item["category"], []).append(record(item, number, draw))
    target.mkdir(parents=True, exist_ok=True)
    for category, records in files.items():
        text = json.dumps(records, indent=2, ensure_ascii=False) + "\n"
        (target / f"{category}.json").write_bytes(text.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=HERE / "sample", help="folder to write into")
    make(parser.parse_args().to)
