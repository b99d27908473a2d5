"""The clusters of the published products; skipped where those are absent."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from negolab.clusters import ClusterCatalog, load_clusters
from negolab.commands.data import list_spread
from negolab.paths import data_dir

COMMITTED = data_dir() / "clusters" / "amazon_history_price.json"


@pytest.fixture(scope="module")
def catalog(real_data_dir: Path) -> ClusterCatalog:
    return load_clusters(real_data_dir)


def test_every_cluster_keeps_the_stated_rules(catalog: ClusterCatalog) -> None:
    settings = json.loads(COMMITTED.read_text(encoding="utf-8"))["settings"]
    low, high = settings["spread"]
    assert len(catalog.by_codename) == len(catalog.products) == 5 * len(catalog.clusters) >= 200
    for cluster in catalog.clusters:
        assert len(cluster.products) == settings["size"]
        assert {p.listing.category for p in cluster.products} == {cluster.category}
        assert low <= list_spread(cluster) <= high, cluster.name
        assert all(p.cost_cents < p.listing.list_cents for p in cluster.products)
        brands = [b for p in cluster.products if (b := catalog.brands.get(p.listing.codename))]
        assert max(map(brands.count, brands), default=0) <= settings["same_brand"][-1], cluster.name
    assert (catalog.name, catalog.problems, catalog.notes) == ("amazon_history_price", (), ())


def test_splits(catalog: ClusterCatalog) -> None:
    train, test, held = (catalog.split(part) for part in ("train", "test", "held_out"))
    assert len(train) + len(test) + len(held) == len(catalog.clusters)
    assert {c.category for c in held} == {"electronics"}
    assert "electronics" not in {c.category for c in [*train, *test]}
    assert {c.category for c in test} <= {c.category for c in train}
    assert len(test) == round(0.2 * (len(train) + len(test)))


def test_near_duplicates_give_one_product(catalog: ClusterCatalog) -> None:
    texts = [p.listing.description for p in catalog.products if p.listing.description]
    titles = [re.sub("[^a-z0-9]", "", p.listing.title.lower())[:40] for p in catalog.products]
    assert len(set(texts)) == len(texts) and len(set(titles)) == len(titles)


def test_the_committed_file_holds_no_product_text(catalog: ClusterCatalog) -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    assert not [p.listing.title for p in catalog.products if p.listing.title in text and len(p.listing.title) > 25]
    assert catalog.by_name["electronics-wireless-earbuds-1"].kind == "wireless earbuds"


def test_a_cluster_without_one_of_its_products_is_left_out(
    catalog: ClusterCatalog, real_data_dir: Path, tmp_path: Path
) -> None:
    for path in real_data_dir.glob("*.json"):
        shutil.copyfile(path, tmp_path / path.name)
    missed = catalog.by_name["beauty-perfume-for-women-1"].products[0]
    records = json.loads((tmp_path / missed.file).read_text(encoding="utf-8"))
    records[missed.position]["title"] = ""
    (tmp_path / missed.file).write_text(json.dumps(records), encoding="utf-8")
    damaged = load_clusters(tmp_path)
    assert len(damaged.clusters) == len(catalog.clusters) - 1
    assert [problem.codename for problem in damaged.problems] == [missed.listing.codename]
    assert any("beauty-perfume-for-women-1 left out" in note for note in damaged.notes)
    assert "beauty-perfume-for-women-1" not in {c.name for c in damaged.split("all")}


@pytest.mark.skipif(not (data_dir() / "make_clusters.py").is_file(), reason="needs a working copy")
def test_the_committed_file_is_what_its_script_writes(real_data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn (dev extra)")
    runpy.run_path(str(data_dir() / "make_clusters.py"))["make"](real_data_dir, tmp_path / "made.json")
    assert (tmp_path / "made.json").read_bytes() == COMMITTED.read_bytes()
