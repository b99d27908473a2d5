"""What is known about the published AmazonHistoryPrice files; skipped where they are absent."""

import argparse
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from negolab.catalog import Catalog, load_catalog, price_field, published_files
from negolab.commands.data import add_parser, list_against_highest, mutual_count, quantile
from negolab.money import dollars

FIRST_NUMBERS = {
    "automotive": 1,
    "baby-products": 8,
    "beauty": 19,
    "books": 31,
    "electronics": 44,
    "health-personal-care": 328,
    "home-kitchen": 330,
    "industrial-scientific": 353,
    "movies-tv": 355,
    "music": 430,
    "other": 435,
    "patio-lawn-garden": 723,
    "pet-supplies": 733,
    "software": 738,
    "sports-outdoors": 742,
    "tools-home-improvement": 758,
    "toys-games": 902,
    "video-games": 924,
}
QUANTILE_POINTS = (0, 5, 10, 25, 50, 75, 90, 95, 100)


@pytest.fixture(scope="module")
def catalog(real_data_dir: Path) -> Catalog:
    return load_catalog(real_data_dir)


def numbers(products) -> set[int]:
    return {int(product.listing.codename.rpartition("_")[2]) for product in products}


def text_groups(products) -> list[list[int]]:
    by_text: dict[str, list[int]] = {}
    for index, product in enumerate(products):
        if product.listing.description:
            by_text.setdefault(product.listing.description, []).append(index)
    return [group for group in by_text.values() if len(group) > 1]


def title_groups(products) -> list[list[int]]:
    by_title: dict[str, list[int]] = {}
    for index, product in enumerate(products):
        by_title.setdefault(re.sub("[^a-z0-9]", "", product.listing.title.lower())[:40], []).append(index)
    return [group for group in by_title.values() if len(group) > 1]


def test_all_records_are_used(catalog: Catalog) -> None:
    assert (len(catalog.products), len(catalog.files), catalog.problems, catalog.notes) == (930, 18, (), ())
    assert catalog.name == "amazon_history_price"
    assert len(catalog.by_codename) == 930
    assert {product.raw["category"] + ".json" == product.file for product in catalog.products} == {True}


def test_numbering(catalog: Catalog) -> None:
    first: dict[str, int] = {}
    for number, product in enumerate(catalog.products, 1):
        assert product.listing.codename == f"{product.listing.category}_{number}"
        first.setdefault(product.listing.category, number)
    assert first == FIRST_NUMBERS
    joined = "\n".join(product.listing.codename for product in catalog.products)
    assert hashlib.sha256(joined.encode()).hexdigest() == catalog.fingerprint
    assert catalog.fingerprint.startswith("4f473c88ced9ae0d")


def test_the_product_of_the_papers(catalog: Catalog) -> None:
    product = catalog.by_codename["baby-products_17"]
    assert (dollars(product.listing.list_cents), dollars(product.cost_cents)) == ("$34.99", "$18.75")
    assert "Itzy" in product.listing.title
    assert sum("Itzy" in p.listing.title for p in catalog.products) == 1
    assert (product.file, product.position) == ("baby-products.json", 9)


def test_files_are_the_published_ones(catalog: Catalog, real_data_dir: Path) -> None:
    published = published_files()
    assert tuple(published) == catalog.files
    for name, (size, sha256) in published.items():
        content = (real_data_dir / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, sha256)
    assert published["electronics.json"][1].startswith("7995bace9453")
    assert published["other.json"][1].startswith("6868df944d0a")
    assert published["baby-products.json"][1].startswith("b2b1b79a3659")


def test_list_price_against_highest(catalog: Catalog) -> None:
    assert list_against_highest(catalog.products) == (468, 102, 360)


def test_every_product_has_a_margin_by_the_max_rule(catalog: Catalog) -> None:
    assert min(product.listing.list_cents - product.cost_cents for product in catalog.products) == 99
    without = [p for p in catalog.products if price_field(p.raw, "list_price") <= p.cost_cents]
    assert numbers(without) == {590, 923}
    assert sum(product.listing.list_cents - product.cost_cents < 100 for product in catalog.products) == 5


def test_texts(catalog: Catalog) -> None:
    sources = Counter(product.text_source for product in catalog.products)
    assert (sources["features"], sources["none"]) == (94, 8)
    empty = [product for product in catalog.products if not product.listing.description]
    assert numbers(empty) == {351, 360, 362, 407, 645, 757, 759, 885}
    short = {26, 23, 28, 118}
    fallbacks = [p for p in catalog.products if p.text_source == "features" and "description" in p.raw]
    assert numbers(fallbacks) == short
    assert sum("description" not in product.raw for product in catalog.products) == 98
    assert sum("features" not in product.raw for product in catalog.products) == 137
    assert all(product.listing.description != "None" for product in catalog.products)
    assert max(len(product.listing.description) for product in catalog.products) == 16915
    assert sum(len(product.listing.description) > 2000 for product in catalog.products) == 47


@pytest.mark.parametrize(("tenths", "mutual"), [(5, 448), (6, 641), (7, 782), (8, 886), (9, 920), (10, 930)])
def test_mutual_interest(catalog: Catalog, tenths: int, mutual: int) -> None:
    assert mutual_count(catalog.products, tenths, 10) == mutual


def test_prices(catalog: Catalog) -> None:
    lists = sorted(product.listing.list_cents for product in catalog.products)
    costs = sorted(product.cost_cents for product in catalog.products)
    ratios = sorted(product.cost_cents / product.listing.list_cents for product in catalog.products)

    def points(values: list, unit: float) -> list[float]:
        return [quantile(values, point) / unit for point in QUANTILE_POINTS]

    published_lists = [4.99, 23.86, 32.53, 59.07, 179.99, 399.99, 799.00, 1199.99, 4299.98]
    published_costs = [1.00, 7.99, 9.99, 25.52, 87.88, 228.00, 461.50, 749.00, 2519.10]
    published_ratios = [0.0856, 0.2173, 0.2614, 0.3693, 0.5082, 0.6471, 0.7500, 0.8000, 0.9980]
    assert points(lists, 100) == pytest.approx(published_lists, abs=0.0051)
    assert points(costs, 100) == pytest.approx(published_costs, abs=0.0051)
    assert points(ratios, 1) == pytest.approx(published_ratios, abs=0.000051)
    assert sum(lists) / 93000 == pytest.approx(329.872, abs=0.0005)
    assert sum(costs) / 93000 == pytest.approx(188.939, abs=0.0005)
    assert sum(ratios) / 930 == pytest.approx(0.510798, abs=5e-7)


def test_near_duplicates_are_where_they_were_counted(catalog: Catalog) -> None:
    texts, titles = text_groups(catalog.products), title_groups(catalog.products)
    assert (len(texts), sum(map(len, texts))) == (39, 89)
    assert (len(titles), sum(map(len, titles))) == (25, 54)


def test_split_sizes(catalog: Catalog) -> None:
    train, test = catalog.split("train"), catalog.split("test")
    assert (len(train), len(test)) == (802, 128)
    assert {p.listing.codename for p in [*train, *test]} == set(catalog.by_codename)
    assert "baby-products_17" in {product.listing.codename for product in test}


def test_no_near_duplicate_stands_on_both_sides(catalog: Catalog) -> None:
    in_test = {product.listing.codename for product in catalog.split("test")}
    prefixes: dict[str, list[int]] = {}
    for index, product in enumerate(catalog.products):
        prefixes.setdefault(product.listing.title[:40], []).append(index)
    for group in [*text_groups(catalog.products), *title_groups(catalog.products), *prefixes.values()]:
        sides = {catalog.products[index].listing.codename in in_test for index in group}
        assert len(sides) == 1, [catalog.products[index].listing.codename for index in group]


def test_no_fuzzy_near_duplicate_stands_on_both_sides(catalog: Catalog) -> None:
    process = pytest.importorskip("rapidfuzz.process", reason="needs rapidfuzz (dev extra)")
    fuzz = pytest.importorskip("rapidfuzz.fuzz")
    train, test = catalog.split("train"), catalog.split("test")

    def closest(texts, others, measure) -> float:
        return float(process.cdist([t.lower() for t in texts], [o.lower() for o in others], scorer=measure).max())

    def titles(products) -> list[str]:
        return [p.listing.title for p in products]

    def texts(products) -> list[str]:
        return [p.listing.description[:800] for p in products if len(p.listing.description) >= 100]

    assert closest(titles(test), titles(train), fuzz.ratio) < 80
    assert closest(titles(test), titles(train), fuzz.token_sort_ratio) < 80
    assert closest(texts(test), texts(train), fuzz.ratio) < 75
    # The measure does see near duplicates: inside one side they are there.
    inside = process.cdist(titles(train), titles(train), scorer=fuzz.ratio)
    assert ((inside >= 80).sum() - len(train)) / 2 > 100


def test_the_test_side_is_like_the_whole(catalog: Catalog) -> None:
    test = catalog.split("test")
    whole = Counter(product.listing.category for product in catalog.products)
    there = Counter(product.listing.category for product in test)
    for category, count in whole.items():
        assert abs(there[category] - 128 * count / 930) <= 1.0, category
    lists = sorted(product.listing.list_cents for product in test)
    assert quantile(lists, 50) == pytest.approx(17999, rel=0.05)
    ratios = [product.cost_cents / product.listing.list_cents for product in test]
    assert sum(ratios) / 128 == pytest.approx(0.511, abs=0.01)
    assert 128 - mutual_count(test, 8, 10) in range(4, 9)


def test_summary_command(real_data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())

    def run(*words: str) -> str:
        args = parser.parse_args(["data", *words])
        assert args.run(args) == 0
        return capsys.readouterr().out

    copy = str(tmp_path / "copy")
    assert "files fetched: 18" in run("fetch", "--from", str(real_data_dir), "--to", copy)
    lines = run("summary", "--data", copy).splitlines()
    for line in (
        "catalogue: amazon_history_price",
        "products: 930",
        "files: 18",
        "problems: 0",
        "split: 802 train / 128 test",
        "mutual / conflicting at 0.8: 886 / 44",
        "list price below / above / equal to highest: 468 / 102 / 360",
        "text from features: 94",
        "without text: 8",
    ):
        assert line in lines
    found = json.loads(run("summary", "--data", copy, "--json"))
    assert (found["products"], found["splits"], found["mutual_at_0.8"]) == (930, {"train": 802, "test": 128}, 886)
    (tmp_path / "copy" / "zzz.json").write_text("[7]")
    lines = run("summary", "--data", copy).splitlines()
    assert "problem: zzz.json[0] (zzz_931): not a JSON object but a number" in lines
    assert "split: none for this numbering of products" in lines
    assert any(line.startswith("note: files differ from the published 18 (extra zzz.json)") for line in lines)
