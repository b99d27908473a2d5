"""Clusters of substitutable products: the bundled sample, splits, and a user's own files with every mistake in them."""

import argparse
import json
import runpy
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from negolab.cli import main
from negolab.clusters import ClusterCatalog, load_clusters
from negolab.commands.data import add_parser, list_spread
from negolab.errors import NegolabError
from negolab.paths import data_dir
from runs import one_line

HEADER = "cluster,category,kind,split,title,brand,description,list_price,cost,codename"
ROWS = (
    'lamps,lighting,desk lamp,train,"Lamp A, 40 cm",Torvane,Dims.,"$1,039.99",21.50,',
    "chairs,seats,,held_out,Chair A,,,100,60,chair-a",
    "lamps,lighting,desk lamp,train,Lamp B,Lumeqa,,44.9,20,",
    "chairs,seats,,held_out,Chair B,,,120,60,chair-b",
)


@pytest.fixture(scope="module")
def sample() -> ClusterCatalog:
    return load_clusters("sample")


def csv_file(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "own.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def json_file(folder: Path, clusters: object) -> Path:
    path = folder / "own.json"
    path.write_text(json.dumps(clusters), encoding="utf-8")
    return path


def cluster(**changes: object) -> dict[str, Any]:
    products = [
        {"title": "Lamp A", "list_price": "39.99", "cost": 21.5},
        {"title": "B", "list_price": 45, "cost": "20"},
    ]
    made: dict[str, Any] = {"name": "lamps", "category": "lighting", "products": products, **changes}
    return {key: value for key, value in made.items() if value is not ...}


def product(**changes: object) -> dict[str, Any]:
    made = cluster()
    made["products"][1] = {k: v for k, v in {**made["products"][1], **changes}.items() if v is not ...}
    return made


def test_sample_has_the_papers_shape(sample: ClusterCatalog) -> None:
    assert sample.name == "sample" and len(sample.clusters) == 104
    assert {len(c.products) for c in sample.clusters} == {5} and len(sample.by_codename) == 520
    assert len(Counter(c.category for c in sample.clusters)) == 13
    assert 1.7 <= statistics.median(map(list_spread, sample.clusters)) <= 2.0
    named = [len({sample.brands[p.listing.codename] for p in c.products}) for c in sample.clusters]
    assert statistics.fmean(named) == pytest.approx(4.4, abs=0.02)
    assert named.count(5) / len(named) == pytest.approx(0.59, abs=0.01)
    prices = {
        part: statistics.median(p.listing.list_cents for c in sample.split(part) for p in c.products)
        for part in ("train", "test", "held_out")
    }
    assert prices["held_out"] == pytest.approx(16549, rel=0.05)
    assert prices["train"] == pytest.approx(4410, rel=0.1)
    ratios = [p.cost_cents / p.listing.list_cents for p in sample.products]
    assert statistics.fmean(ratios) == pytest.approx(0.511, abs=0.03)
    assert statistics.stdev(ratios) == pytest.approx(0.183, abs=0.03)


def test_sample_products_differ(sample: ClusterCatalog) -> None:
    assert len({p.listing.title for p in sample.products}) == 520
    assert len({p.listing.description for p in sample.products}) == 520
    for one in sample.clusters:
        assert len({p.listing.description.split(".")[0] for p in one.products}) == 5, one.name
        assert all(sample.brands[p.listing.codename] in p.listing.title for p in one.products)


def test_sample_splits_are_by_cluster_and_category(sample: ClusterCatalog) -> None:
    train, test, held = (sample.split(part) for part in ("train", "test", "held_out"))
    assert (len(train), len(test), len(held)) == (77, 19, 8)
    assert {c.name for c in train} | {c.name for c in test} | {c.name for c in held} == set(sample.by_name)
    assert {c.category for c in held} == {"musical-instruments"}
    assert {c.category for c in train} == {c.category for c in test}
    assert "musical-instruments" not in {c.category for c in train}
    assert sample.split("all") == list(sample.clusters)


@pytest.mark.skipif(not (data_dir() / "make_cluster_sample.py").is_file(), reason="needs a working copy")
def test_sample_is_what_its_script_writes(tmp_path: Path) -> None:
    made = runpy.run_path(str(data_dir() / "make_cluster_sample.py"))
    made["make"](tmp_path / "sample.json")
    assert (tmp_path / "sample.json").read_bytes() == (data_dir() / "clusters" / "sample.json").read_bytes()
    assert (tmp_path / "sample.json").stat().st_size < 400_000


def test_csv(tmp_path: Path) -> None:
    catalog = load_clusters(csv_file(tmp_path, *ROWS))
    assert [(c.name, c.category, c.kind) for c in catalog.clusters] == [
        ("lamps", "lighting", "desk lamp"),
        ("chairs", "seats", "seats"),
    ]
    assert list(catalog.by_codename) == ["lamps_1", "lamps_2", "chair-a", "chair-b"]
    first, second = catalog.by_name["lamps"].products
    assert (first.listing.title, first.listing.description, first.listing.category) == (
        "Lamp A, 40 cm",
        "Dims.",
        "lighting",
    )
    assert (first.listing.list_cents, first.cost_cents, second.listing.list_cents) == (103999, 2150, 4490)
    assert (first.text_source, second.text_source) == ("description", "none")
    assert catalog.brands == {"lamps_1": "Torvane", "lamps_2": "Lumeqa"}
    assert catalog.splits == {"train": ("lamps",), "held_out": ("chairs",)}
    assert (catalog.name, catalog.files, catalog.problems) == ("own", ("own.csv",), ())


def test_json_says_the_same_as_csv(tmp_path: Path) -> None:
    text = load_clusters(csv_file(tmp_path, *[row.replace("chair-a", "").replace("chair-b", "") for row in ROWS]))
    (tmp_path / "own.csv").unlink()
    rows = [
        {
            "name": c.name,
            "category": c.category,
            "kind": c.kind,
            "split": "train" if c.name == "lamps" else "held_out",
            "products": [
                {
                    "title": p.listing.title,
                    "brand": text.brands.get(p.listing.codename),
                    "description": p.listing.description,
                    "list_price": p.listing.list_cents / 100,
                    "cost": p.cost_cents / 100,
                }
                for p in c.products
            ],
        }
        for c in text.clusters
    ]
    json_file(tmp_path, rows)
    other = load_clusters(tmp_path)  # the folder with this one file
    assert [[p.listing for p in c.products] for c in other.clusters] == [
        [p.listing for p in c.products] for c in text.clusters
    ]
    assert (other.splits, other.brands, other.fingerprint) == (text.splits, text.brands, text.fingerprint)
    assert other.data_sha256 != text.data_sha256


def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path) -> None:
    plain = load_clusters(csv_file(tmp_path, *ROWS))
    (tmp_path / "own.csv").write_bytes(("\ufeff" + "\r\n".join([HEADER, "", *ROWS, ",,,,,,,,,"])).encode())
    assert [c.name for c in load_clusters(tmp_path / "own.csv").clusters] == [c.name for c in plain.clusters]


def test_few_columns_in_any_order(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "1,2,A,c,k", "1,3,Ä,c,k", header="cost,list_price,title,category,cluster")
    catalog = load_clusters(path)
    assert [p.listing.title for p in catalog.products] == ["A", "Ä"] and catalog.splits == {}
    with pytest.raises(
        NegolabError,
        match="'train' does not exist for clusters 'own'; fixed splits: none for this source; also allowed: all, or",
    ):
        catalog.split("train")


def test_a_market_of_one_item_is_not_drawn_from_a_file_of_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is a good one, so its being a file is not all that can be said."""
    command = ["evaluate", "--data", str(csv_file(tmp_path, *ROWS)), "--split", "all", "--out", str(tmp_path / "run")]
    for more in (["--seller", "prober"], ["--seller", "screener", "--regime", "multi_product", "--items", "1"]):
        assert main([*command, *more]) == 2
        assert "is a file: markets of one item are drawn from a catalogue's folder" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_texts_of_a_source_are_shown_on_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"title": "Lamp\n\x1b[2J\u202eA", "brand": "B\nC", "list_price": 2, "cost": 1}
    products = [texts, {**texts, "title": "Lamp B"}]
    cluster = [{"name": "lamps", "category": "lighting", "kind": "desk\nlamp\x1b[0m", "products": products}]
    (tmp_path / "own.json").write_text(json.dumps(cluster), encoding="utf-8")
    assert main(["data", "clusters", "--data", str(tmp_path / "own.json"), "--list"]) == 0
    assert capsys.readouterr().out == "lamps: 2 products, desk lamp\\x1b[0m (lighting)\n"
    assert main(["data", "clusters", "--data", str(tmp_path / "own.json"), "--show", "lamps"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2] == "kind: desk lamp\\x1b[0m" and shown[5].endswith(", B C")
    assert shown[6] == "  Lamp \\x1b[2J\\u202eA" and len(shown) == 9


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("lamps,other,desk lamp,train,Lamp C,,,2,1,", "line 6: category of cluster 'lamps' is 'other', but 'lighting'"),
        ("lamps,lighting,lamp,train,Lamp C,,,2,1,", "line 6: kind of cluster 'lamps' is 'lamp', but 'desk lamp'"),
        ("lamps,lighting,desk lamp,test,C,,,2,1,", "line 6: split of cluster 'lamps' is 'test', but 'train'"),
        ("lamps,lighting,desk lamp,train,C,,,2,2,", "line 6: no margin: cost \\$2.00 must be below list_price \\$2.00"),
        ("lamps,lighting,desk lamp,train,C,,,2,2.005,", "line 6: cost is not a price: '2.005'"),
        ("lamps,lighting,desk lamp,train,C,,,,2,", "line 6: list_price is not a price: ''"),
        ("lamps,lighting,desk lamp,train,,,,2,1,", "line 6: title is missing or empty"),
        ("chairs,seats,,held_out,C,,,2,1,chair-a", "line 6: codename 'chair-a' stands at .*line 3 already"),
        ("lamps,lighting,desk lamp,train,C,,,2,1,a)b", "line 6: codename is 'a\\)b'; allowed: letters"),
        ("la mps,lighting,desk lamp,train,C,,,2,1,", "line 6: cluster is 'la mps'; allowed: letters"),
        ("lamps,lighting,desk lamp,train,C,,,2,1", "line 6: 9 values for 10 columns"),
        ("more,tables,table,train,C,,,2,1,", "line 6: cluster 'more' has 1 product; at least 2"),
        ("more,,table,train,C,,,2,1,\nmore,,table,train,D,,,2,1,", "line 6: category is ''; allowed: letters"),
        (
            "more,seats,,train,C,,,2,1,\nmore,seats,,train,D,,,2,1,",
            "'more' has split 'train', but 'chairs' of the same",
        ),
        ("more,beds,,,C,,,2,1,\nmore,beds,,,D,,,2,1,", "'more' has no split but others do"),
        ("more,beds,,dev,C,,,2,1,\nmore,beds,,dev,D,,,2,1,", "split is 'dev'; allowed: train, test, held_out"),
        ('more,beds,,train,"C,,,2,1,', "not CSV at line 6"),
    ],
)
def test_mistakes_in_a_csv_row(tmp_path: Path, row: str, message: str) -> None:
    path = csv_file(tmp_path, *ROWS, row)
    with pytest.raises(NegolabError, match=message) as caught:
        load_clusters(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; columns: cluster, category"),
        (b"cluster,category,title,list_price\n", "line 1: missing column 'cost'"),
        (b"cluster,category,title,list_price,cost,colour\n", "line 1: unknown column 'colour'"),
        (b"cluster,category,title,list_price,cost,cost\n", "line 1: doubled column 'cost'"),
        (b"cluster;category;title;list_price;cost\n", "line 1: values must be separated by commas"),
        (b"cluster,category,title,list_price,cost\n", "holds no cluster"),
        ("cluster,category,title,list_price,cost\na,b,Ä,2,1\n".encode("latin-1"), "not UTF-8 text at byte 43"),
        (HEADER.encode("utf-16"), "not UTF-8 text at byte 0"),
        (
            b"cluster,category,title,list_price,cost\na,b," + b"x" * 200_000 + b",2,1\n",
            "not CSV at line 2: field larger",
        ),
    ],
)
def test_mistakes_in_a_whole_csv(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(NegolabError, match=message):
        load_clusters(tmp_path / "own.csv")


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        ({}, "expected a JSON list of clusters, found an object"),
        ([], "holds no cluster"),
        ([7], "cluster 1: not a JSON object but a number"),
        ([cluster(), cluster(name=7)], "cluster 2: name is not text but a number"),
        ([cluster(), cluster()], "cluster 2: cluster name 'lamps' stands at .*cluster 1 already"),
        ([cluster(color="red")], "cluster 1: unknown key 'color'; allowed: name, category"),
        ([cluster(products=...)], "cluster 1 \\(lamps\\): products must be a list"),
        ([cluster(products=[])], "cluster 1: cluster 'lamps' has 0 product"),
        ([cluster(products=[1, 2])], "product 1: not a JSON object but a number"),
        ([product(price=3)], "product 2: unknown key 'price'; allowed: title"),
        ([product(title=...)], "product 2: title is missing"),
        ([product(cost=...)], "product 2: cost is missing; allowed: dollars"),
        ([product(cost=True)], "product 2: cost is not a price but true/false"),
        ([product(cost=-1)], "product 2: cost is not a price: '-1'"),
        ([product(cost=46)], "product 2: no margin"),
        ([product(title="\ud800")], "product 2: title is not valid Unicode"),
        ([product(codename="lamps_1")], "product 2: codename 'lamps_1' stands at .*product 1 already"),
    ],
)
def test_mistakes_in_json(tmp_path: Path, clusters: object, message: str) -> None:
    with pytest.raises(NegolabError, match=message):
        load_clusters(json_file(tmp_path, clusters))


def test_sources_that_hold_no_clusters(tmp_path: Path) -> None:
    with pytest.raises(NegolabError, match=r"holds no .csv and no .json file"):
        load_clusters(tmp_path)
    with pytest.raises(NegolabError, match="does not exist"):
        load_clusters(tmp_path / "none.csv")
    with pytest.raises(NegolabError, match=r"neither a .csv nor a .json file"):
        (tmp_path / "own.txt").write_text(HEADER)
        load_clusters(tmp_path / "own.txt")
    with pytest.raises(NegolabError, match=r"holds 2 .csv files"):
        for name in ("a.csv", "b.csv"):
            (tmp_path / name).write_text(HEADER)
        load_clusters(tmp_path)
    with pytest.raises(NegolabError, match="no clusters are known for the numbering of the products"):
        load_clusters(data_dir() / "sample")


def test_auto_is_the_sample_where_nothing_is_published(
    sample: ClusterCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("negolab.clusters.find_data", lambda: "sample")
    assert load_clusters("auto") == sample
    monkeypatch.setattr("negolab.clusters.find_data", lambda: str(tmp_path))
    with pytest.raises(NegolabError, match=str(tmp_path)):
        load_clusters("auto")


def test_split_from_a_file(sample: ClusterCatalog, tmp_path: Path) -> None:
    names = [sample.clusters[5].name, sample.clusters[2].name]
    assert [c.name for c in sample.split(str(json_file(tmp_path, names)))] == names[::-1]
    for listed, message in (
        ([], "at least one cluster name"),
        (names[:1] * 2, "stands twice"),
        (["none"], "'none' is not among"),
    ):
        with pytest.raises(NegolabError, match=message):
            sample.split(str(json_file(tmp_path, listed)))
    with pytest.raises(NegolabError, match=r"'dev' does not exist .* train, test, held_out; also allowed: all"):
        sample.split("dev")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["data", "clusters", *words])
    assert args.run(args) == 0
    return capsys.readouterr().out


def test_command(sample: ClusterCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys).splitlines()
    assert {"clusters: 104", "products: 520", "held_out: 8 (musical-instruments 8)"} <= set(lines)
    assert f"fingerprint: {sample.fingerprint}" in lines
    assert run(capsys, "--split", "test").splitlines()[1] == "clusters: 19"
    assert len(run(capsys, "--split", "held_out", "--list").splitlines()) == 8
    own = str(csv_file(tmp_path, *ROWS))
    shown = run(capsys, "--data", own, "--show", "lamps").splitlines()
    assert shown[:4] == ["cluster: lamps", "category: lighting", "kind: desk lamp", "split: train"]
    assert shown[5:7] == ["lamps_1: list $1039.99, cost $21.50, Torvane", "  Lamp A, 40 cm"]
    assert "without a split: 1 (c 1)" in run(
        capsys,
        "--data",
        str(csv_file(tmp_path, "a,c,A,2,1", "a,c,B,2,1", header="cluster,category,title,list_price,cost")),
    )
    assert main(["data", "clusters", "--show", "lamps"]) == 2
    assert "cluster 'lamps' is not in split 'all'" in capsys.readouterr().err


def test_splits_joined_by_a_plus_are_one_in_the_catalogues_order():
    catalog = load_clusters("sample")
    both = catalog.split("train+test")
    assert both == catalog.split("test+train") and len(both) == len(catalog.split("train")) + len(catalog.split("test"))
    assert {cluster.name for cluster in both} == {*catalog.splits["train"], *catalog.splits["test"]}
    with pytest.raises(NegolabError, match=r"train\+tset"):
        catalog.split("train+tset")
