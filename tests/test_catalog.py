"""The catalogue's rules on tiny made-up folders, and the bundled sample."""

import hashlib
import json
import os
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from negolab.catalog import RULE, load_catalog
from negolab.commands.data import list_against_highest, mutual_count, quantile, summarise
from negolab.errors import NegolabError
from negolab.money import cents_from_text
from negolab.paths import data_dir, notebooks_dir


def record(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "title": "A thing",
        "list_price": "$20.00",
        "highest_price": "$25.50",
        "lowest_price": "$10.01",
        "current_price": "$12.00",
        "category": "toys",
        "description": "Good for playing.",
        "features": "RED: very",
    }
    base.update(changes)
    return {key: value for key, value in base.items() if value is not ...}


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(exist_ok=True)
    for stem, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.json").write_text(text, encoding="utf-8")
    return folder


def only(folder: Path, **changes: object):
    """The catalogue of one changed record between two good ones."""
    return load_catalog(write(folder, toys=[record(), record(**changes), record()]))


def test_prices_text_and_place(tmp_path: Path) -> None:
    catalog = only(tmp_path, list_price="$1,299.99", highest_price="$999.00")
    assert [(p.listing.list_cents, p.cost_cents) for p in catalog.products] == [
        (2550, 1001),
        (129999, 1001),
        (2550, 1001),
    ]
    first = catalog.products[0]
    assert first.listing.codename == "toys_1"
    assert (first.listing.title, first.listing.description, first.listing.category) == (
        "A thing",
        "Good for playing.",
        "toys",
    )
    assert (first.file, first.position, first.text_source) == ("toys.json", 0, "description")
    assert first.raw["current_price"] == "$12.00" and first.raw["list_price"] == "$20.00"


def test_one_counter_over_files_in_byte_order(tmp_path: Path) -> None:
    # Bytes: "-" < "2" < "B" < "a" < "é"; a locale would put B after a, a natural sort 10 after 2.
    stems = ["x-1", "x10", "x2", "B", "a", "é"]
    write(tmp_path, **{stem: [record(category="c"), record(category="c")] for stem in stems})
    catalog = load_catalog(tmp_path)
    assert catalog.files == ("B.json", "a.json", "x-1.json", "x10.json", "x2.json", "é.json")
    assert [p.listing.codename for p in catalog.products] == [f"c_{number}" for number in range(1, 13)]
    assert [p.position for p in catalog.products] == [0, 1] * 6
    names = "\n".join(p.listing.codename for p in catalog.products)
    assert catalog.fingerprint == hashlib.sha256(names.encode()).hexdigest()


def test_other_files_and_folders_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, toys=[record()])
    before = load_catalog(tmp_path)
    write(tmp_path / ".ipynb_checkpoints", toys=[record()])
    write(tmp_path / "aaa.json", toys=[record()])  # a folder with a file's name
    write(tmp_path, **{".hidden": [record()]})
    (tmp_path / "README.md").write_text("no JSON")
    (tmp_path / "toys.json.part").write_text("[")
    (tmp_path / "TOYS.JSON").write_text("[")
    assert load_catalog(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "text", "source"),
    [
        ({"description": "NA"}, "RED: very", "features"),
        ({"description": ...}, "RED: very", "features"),
        ({"description": None}, "RED: very", "features"),
        ({"description": "Four"}, "RED: very", "features"),
        ({"description": "Fives"}, "Fives", "description"),
        ({"description": "NA", "features": "no"}, "NA", "description"),
        ({"description": "NA", "features": ...}, "NA", "description"),
        ({"description": ..., "features": ...}, "", "none"),
        ({"features": None}, "Good for playing.", "description"),
    ],
)
def test_which_text_is_used(tmp_path: Path, changes: dict[str, object], text: str, source: str) -> None:
    product = only(tmp_path, **changes).products[1]
    assert (product.listing.description, product.text_source) == (text, source)


@pytest.mark.parametrize(
    ("changes", "cents"),
    [
        ({"lowest_price": 10}, 1000),
        ({"lowest_price": 10.5}, 1050),
        ({"lowest_price": 19.99}, 1999),
        ({"lowest_price": 0.07}, 7),
        ({"lowest_price": "7"}, 700),
        ({"lowest_price": "$7.5"}, 750),
        ({"lowest_price": 0}, 0),
    ],
)
def test_prices_as_numbers(tmp_path: Path, changes: dict[str, object], cents: int) -> None:
    assert only(tmp_path, **changes).products[1].cost_cents == cents


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lowest_price": ...}, "lowest_price is missing"),
        ({"highest_price": None}, "highest_price is missing"),
        ({"list_price": "N/A"}, "list_price is not a price: 'N/A'"),
        ({"list_price": ""}, "list_price is not a price"),
        ({"lowest_price": "-3.00"}, "lowest_price is not a price"),
        ({"lowest_price": -3}, "lowest_price is not a price"),
        ({"lowest_price": 9.999}, "lowest_price is not a price"),
        ({"lowest_price": "9.999"}, "lowest_price is not a price"),
        ({"lowest_price": 1e-7}, "lowest_price is not a price"),
        ({"lowest_price": True}, "lowest_price is not a price but true/false"),
        ({"lowest_price": ["9.99"]}, "lowest_price is not a price but a list"),
        ({"highest_price": float("nan")}, "highest_price is not a price"),
        ({"highest_price": float("inf")}, "highest_price is not a price"),
        ({"highest_price": "1e5"}, "highest_price is not a price"),
        ({"highest_price": "9" * 5000}, "highest_price is not a price"),
        ({"highest_price": 10_000_001}, "highest_price is above the largest allowed amount"),
        ({"highest_price": 1e300}, "highest_price is above the largest allowed amount"),
        ({"lowest_price": "25.50"}, "no margin: list price $25.50 is not above cost $25.50"),
        ({"lowest_price": "30"}, "no margin"),
        ({"title": ...}, "title is missing or empty"),
        ({"title": "  "}, "title is missing or empty"),
        ({"title": 7}, "title is not text but a number"),
        ({"title": "half \ud83d"}, "title is not valid Unicode at character 5"),
        ({"description": {"en": "x"}}, "description is not text but an object"),
        ({"features": ["a", "b"]}, "features is not text but a list"),
        ({"category": 3}, "category"),
        ({"category": "a (b)"}, "category"),
        ({"category": ""}, "category"),
    ],
)
def test_a_broken_record_is_reported_and_keeps_its_number(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    catalog = only(tmp_path, **changes)
    assert [p.listing.codename for p in catalog.products] == ["toys_1", "toys_3"]
    (problem,) = catalog.problems
    assert (problem.file, problem.position, problem.codename) == ("toys.json", 1, "toys_2")
    assert reason in problem.reason and len(problem.reason) < 150 and "\n" not in problem.reason
    assert str(problem).startswith("toys.json[1] (toys_2): ")


@pytest.mark.parametrize("thing", [None, 3, "text", [1], True])
def test_a_record_that_is_no_object(tmp_path: Path, thing: object) -> None:
    catalog = load_catalog(write(tmp_path, toys=[thing, record()]))
    assert [p.listing.codename for p in catalog.products] == ["toys_2"]
    assert "not a JSON object" in catalog.problems[0].reason


def test_a_broken_record_leaves_the_numbering_as_it_was(tmp_path: Path) -> None:
    good = load_catalog(write(tmp_path / "good", toys=[record(), record()]))
    bad = load_catalog(write(tmp_path / "bad", toys=[record(), record(title="")]))
    assert good.fingerprint == bad.fingerprint
    assert good.data_sha256 != bad.data_sha256


def test_category_is_the_records_own(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path, mixed=[record(category="toys"), record(category=...)]))
    assert [p.listing.codename for p in catalog.products] == ["toys_1", "mixed_2"]
    assert any("mixed.json[0]" in note and "category" in note for note in catalog.notes)


def test_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "toys.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([record()]).encode())
    assert len(load_catalog(tmp_path).products) == 1


def test_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "toys.json").write_bytes(json.dumps([record(title="Crème 15” ＜x＞")], ensure_ascii=False).encode())
    code = (
        "import sys; from negolab.catalog import load_catalog; "
        "print(ascii(load_catalog(sys.argv[1]).products[0].listing.title))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == ascii("Crème 15” ＜x＞"), done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"title": "caf\xe9"}]', "not UTF-8 text at byte 15"),
        (b"[\n{]", "not JSON at line 2, column 2"),
        (b"", "not JSON at line 1, column 1"),
        (b'{"a": 1}', "expected a JSON list of product records, found an object"),
        (b"[" * 100_000, "not usable JSON"),
        (b"[" + b"9" * 5000 + b"]", "not usable JSON"),
        (b"[]", "hold no records"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "toys.json").write_bytes(content)
    with pytest.raises(NegolabError) as caught:
        load_catalog(tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert ("toys.json" in str(caught.value)) == (content != b"[]")


def test_folders_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    for place, message in (
        (tmp_path / "missing", "does not exist"),
        (file, "is a file, not a folder"),
        (empty, "holds no .json file"),
        ("a\0b", "cannot read catalogue folder|does not exist"),
    ):
        with pytest.raises(NegolabError, match=message) as caught:
            load_catalog(place)
        assert "\n" not in str(caught.value)


def test_extra_and_missing_files_are_noted(tmp_path: Path) -> None:
    notes = " ".join(load_catalog(write(tmp_path, toys=[record()], music=[record(category="music")])).notes)
    assert "extra toys.json" in notes and "missing automotive.json" in notes
    assert "contents differ from the published catalogue: music.json" in notes


def test_data_hash_sees_names_and_contents(tmp_path: Path) -> None:
    def sha(name: str, **files: object) -> str:
        return load_catalog(write(tmp_path / name, **files)).data_sha256

    first = sha("a", toys=[record()])
    assert first == sha("b", toys=[record()])
    assert first != sha("c", toyz=[record()])
    assert first != sha("d", toys=[record(features="other")])


def test_splits_of_an_unknown_catalogue(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path / "data", toys=[record(), record(title=""), record()]))
    assert len(catalog.split("all")) == 2 and catalog.name == "data"
    for name in ("train", "test", "nonsense", ""):
        with pytest.raises(NegolabError, match=r"fixed splits: none.*all, or the path of a JSON file"):
            catalog.split(name)


def test_split_from_a_file(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path / "data", toys=[record(), record(title=""), record(), record()]))
    chosen = tmp_path / "chosen.json"

    def split(content: str) -> list[str]:
        chosen.write_text(content)
        return [product.listing.codename for product in catalog.split(str(chosen))]

    assert split('["toys_4", "toys_1"]') == ["toys_1", "toys_4"]
    for content, message in (
        ('["toys_9"]', "'toys_9' is not in catalogue"),
        ('["toys_2"]', "'toys_2' cannot be used.*title"),
        ('["toys_1", "toys_1"]', "stands twice"),
        ("[]", "at least one codename"),
        ('{"test": []}', "expected a JSON list"),
        ("[1]", "expected a JSON list"),
        ("[", "not JSON at line 1"),
    ):
        with pytest.raises(NegolabError, match=message):
            split(content)
    with pytest.raises(NegolabError, match="No such file"):
        catalog.split(str(tmp_path / "none.json"))


def test_lookup_by_codename(sample_catalog) -> None:
    product = sample_catalog.products[41]
    assert sample_catalog.by_codename[product.listing.codename] is product
    with pytest.raises(KeyError):
        sample_catalog.by_codename["toys_9999"]


def test_the_sample_is_like_the_published_catalogue(sample_catalog) -> None:
    products = sample_catalog.products
    assert (len(products), len(sample_catalog.files), sample_catalog.problems) == (120, 12, ())
    assert sample_catalog.name == "sample" and sample_catalog.notes == () and sample_catalog.rule == RULE
    lists = sorted(product.listing.list_cents for product in products)
    ratios = [product.cost_cents / product.listing.list_cents for product in products]
    assert quantile(lists, 50) == pytest.approx(18000, rel=0.05)
    assert 450 <= lists[0] < 700 and 350_000 < lists[-1] < 430_000
    assert statistics.fmean(ratios) == pytest.approx(0.51, abs=0.02)
    assert statistics.stdev(ratios) == pytest.approx(0.18, abs=0.02)
    assert 0.085 < min(ratios) < 0.12 and 0.95 < max(ratios) < 0.99
    assert all(count > 10 for count in list_against_highest(products))
    assert 0.03 < 1 - mutual_count(products, 8, 10) / len(products) < 0.1
    sources = [product.text_source for product in products]
    assert sources.count("features") >= 8 and sources.count("none") >= 1
    assert all(product.raw["synthetic"] is True for product in products)
    text = "".join(product.listing.title + product.listing.description for product in products)
    assert '"' in text and not text.isascii()
    assert any("," in str(product.raw["highest_price"]) for product in products)
    assert len({product.listing.title for product in products}) == 120
    current = [cents_from_text(str(product.raw["current_price"])) for product in products]
    assert all(p.cost_cents <= now <= p.listing.list_cents for p, now in zip(products, current, strict=True))


def test_the_samples_split(sample_catalog) -> None:
    train, test = sample_catalog.split("train"), sample_catalog.split("test")
    assert (len(train), len(test)) == (96, 24)
    assert {p.listing.codename for p in [*train, *test]} == set(sample_catalog.by_codename)
    assert {p.listing.category for p in test} == {p.listing.category for p in train}
    numbers = [int(p.listing.codename.rpartition("_")[2]) for p in test]
    assert numbers == sorted(numbers)


def test_a_broken_record_is_missing_from_its_split_and_noted(tmp_path: Path, sample_catalog) -> None:
    lost = sample_catalog.split("test")[0]
    for file in sample_catalog.files:
        records = json.loads((data_dir() / "sample" / file).read_text(encoding="utf-8"))
        if file == lost.file:
            records[lost.position]["lowest_price"] = "soon"
        write(tmp_path, **{Path(file).stem: records})
    catalog = load_catalog(tmp_path)
    assert (len(catalog.split("train")), len(catalog.split("test"))) == (96, 23)
    assert catalog.notes == ("split test: 1 of 24 products left out, see problems",)


def test_the_sample_script_writes_the_same_bytes(tmp_path: Path) -> None:
    runpy.run_path(str(data_dir() / "make_sample.py"))["make"](tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (data_dir() / "sample").glob("*.json")}


def test_the_split_script_writes_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("rapidfuzz", reason="making a split needs rapidfuzz (dev extra)")
    runpy.run_path(str(data_dir() / "make_split.py"))["make"]("sample", "sample", tmp_path / "sample.json")
    assert (tmp_path / "sample.json").read_bytes() == (data_dir() / "splits" / "sample.json").read_bytes()


def test_summary_of_one_product_has_no_spread(tmp_path: Path) -> None:
    found = summarise(load_catalog(write(tmp_path, toys=[record()])))
    assert found["products"] == 1 and found["splits"] == {} and found["cost_cents"]["sd"] is None
    assert (found["mutual_at_0.8"], found["conflicting_at_0.8"]) == (1, 0)


def test_mutual_is_strict_and_exact(tmp_path: Path) -> None:
    prices = {"list_price": "99.99", "highest_price": "99.99"}  # 0.8 of it is 79.992
    low = ("79.99", "80.00")
    catalog = load_catalog(write(tmp_path / "a", toys=[record(lowest_price=price, **prices) for price in low]))
    assert [mutual_count([product], 8, 10) for product in catalog.products] == [1, 0]
    even = only(tmp_path / "b", list_price="10", highest_price="10", lowest_price="8").products[1]
    assert mutual_count([even], 8, 10) == 0


def test_bundled_folders_exist() -> None:
    assert (data_dir() / "splits").is_dir() and notebooks_dir().is_dir()


def test_import_is_light() -> None:
    code = (
        "import sys, negolab.catalog, negolab.commands.data; "
        "print([name for name in ('numpy', 'pandas', 'tqdm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
