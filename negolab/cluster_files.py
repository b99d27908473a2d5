"""A user's own clusters of substitutable products: one CSV or JSON file, always UTF-8 (a byte order mark is allowed).

CSV: a header and a row for each product, in any order of columns::

    cluster,category,kind,split,title,brand,description,list_price,cost,codename

``cluster``, ``category``, ``title``, ``list_price`` and ``cost`` must be there, the others may be missing. ``kind``
(what the products are, such as "desk lamp") and ``split`` belong to the cluster: the rows of one cluster say the same.

JSON: a list of clusters; ``kind``, ``split``, ``brand``, ``description`` and ``codename`` may be missing::

    [{"name": "desk-lamps", "category": "lighting", "kind": "desk lamp", "split": "train",
      "products": [{"title": "...", "brand": "...", "description": "...", "list_price": "39.99", "cost": 21.5}]}]

Prices are dollars: text such as ``"$1,299.99"``, or a number with at most two decimals; ``cost`` is the seller's
reservation price and must be below ``list_price``. A cluster has two or more products. Names of clusters, categories
and codenames are letters, digits, hyphens and underscores: they stand inside prompts as ``(1x codename)``. A product
without a codename gets its cluster's name and its place there, from 1: ``desk-lamps_3``. No name and no codename stands
twice.

Either every cluster has a ``split`` (``train``, ``test`` or ``held_out``) or none has; a category with a held-out
cluster must be held out as a whole. Every mistake raises ``NegolabError`` with file, place and what is allowed.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from negolab.catalog import NAME, Listing, Product, json_kind, price_field, read_json, text_field
from negolab.errors import NegolabError
from negolab.money import dollars

SPLITS = ("train", "test", "held_out")
"""Fixed splits, where clusters have any."""
_NAME_RULE = "letters, digits, hyphens and underscores only"
_OF_CLUSTER = ("category", "kind", "split")
_OF_PRODUCT = ("title", "brand", "description", "list_price", "cost", "codename")
_COLUMNS = ("cluster", *_OF_CLUSTER, *_OF_PRODUCT)
_NEEDED = ("cluster", "category", "title", "list_price", "cost")
_KEYS = ("name", *_OF_CLUSTER, "products")


class Entry(NamedTuple):
    """A checked cluster."""

    name: str
    category: str
    kind: str
    split: str
    """"" where the file states none."""
    products: tuple[Product, ...]


class Found(NamedTuple):
    """What a file holds."""

    clusters: list[Entry]
    brands: dict[str, str]
    """By codename."""


class _Row(NamedTuple):
    """A product's record and where it stands."""

    where: str
    record: Mapping[str, object]


class _Group(NamedTuple):
    """A cluster as the file has it."""

    where: str
    name: str
    about: Mapping[str, object]
    """category, kind, split"""
    rows: list[_Row]


def read_file(path: Path) -> tuple[Found, bytes]:
    """The clusters of a file and its bytes. Raises ``NegolabError`` for the first mistake in it."""
    groups, content = _csv_groups(path) if path.suffix.lower() == ".csv" else _json_groups(path)
    if not groups:
        raise NegolabError(f"{path}: holds no cluster; at least one of two or more products is needed")
    found = Found([], {})
    names: dict[str, str] = {}
    codenames: dict[str, str] = {}
    position = 0
    for group in groups:
        if group.name in names:
            raise NegolabError(f"{group.where}: cluster name {group.name!r} stands at {names[group.name]} already")
        names[group.name] = group.where
        category, split = _about(group)
        products: list[Product] = []
        for row in group.rows:
            product, brand = _product(row, category, f"{group.name}_{len(products) + 1}", path.name, position)
            position += 1
            codename = product.listing.codename
            if codename in codenames:
                raise NegolabError(f"{row.where}: codename {codename!r} stands at {codenames[codename]} already")
            codenames[codename] = row.where
            products.append(product)
            if brand:
                found.brands[codename] = brand
        if len(products) < 2:
            count = f"{len(products)} product{'s' * (not products)}"
            raise NegolabError(f"{group.where}: cluster {group.name!r} has {count}; at least 2 are needed")
        kind = _text(group.where, group.about, "kind") or category
        found.clusters.append(Entry(group.name, category, kind, split, tuple(products)))
    _check_splits(path, found)
    return found, content


def _csv_groups(path: Path) -> tuple[list[_Group], bytes]:
    """The rows of a CSV file by cluster, in the order in which clusters first appear."""
    try:
        content = path.read_bytes()
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        groups: dict[str, _Group] = {}
        for where, values in _lines(path, reader):
            if len(values) != len(header):
                raise NegolabError(f"{where}: {len(values)} values for {len(header)} columns")
            record = dict(zip(header, values, strict=True))
            name = _name(where, record, "cluster")
            about = {key: record.get(key, "").strip() for key in _OF_CLUSTER}
            group = groups.setdefault(name, _Group(where, name, about, []))
            for key in _OF_CLUSTER:
                if about[key] != group.about[key]:
                    raise NegolabError(
                        f"{where}: {key} of cluster {name!r} is {about[key]!r}, but {group.about[key]!r} at "
                        f"{group.where}; all rows of a cluster have the same"
                    )
            group.rows.append(_Row(where, {key: record[key] for key in _OF_PRODUCT if key in record}))
    except OSError as error:
        raise NegolabError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NegolabError(f"{path}: not UTF-8 text at byte {error.start}; save it as CSV UTF-8") from error
    except csv.Error as error:
        raise NegolabError(f"{path}: not CSV at line {reader.line_num}: {error}") from error
    return list(groups.values()), content


def _lines(path: Path, reader: Any) -> Iterator[tuple[str, list[str]]]:
    """Rows with the line where each begins; blank lines are skipped."""
    begins = reader.line_num + 1
    for values in reader:
        if any(value.strip() for value in values):
            yield f"{path}, line {begins}", values
        begins = reader.line_num + 1


def _check_header(path: Path, header: list[str]) -> None:
    allowed = f"columns: {', '.join(_COLUMNS)}, of which {', '.join(_NEEDED)} must be there"
    if not any(header):
        raise NegolabError(f"{path}: is empty; {allowed}")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise NegolabError(f"{path}, line 1: values must be separated by commas; {allowed}")
    unknown = [name for name in header if name not in _COLUMNS]
    missing = [name for name in _NEEDED if name not in header]
    twice = [name for index, name in enumerate(header) if name in header[:index]]
    for what, names in (("unknown", unknown), ("missing", missing), ("doubled", twice)):
        if names:
            raise NegolabError(f"{path}, line 1: {what} column {names[0]!r}; {allowed}")


def _json_groups(path: Path) -> tuple[list[_Group], bytes]:
    clusters, content = read_json(path)
    if not isinstance(clusters, list):
        raise NegolabError(f"{path}: expected a JSON list of clusters, found {json_kind(clusters)}")
    groups = []
    for number, cluster in enumerate(clusters, 1):
        where = f"{path}, cluster {number}"
        _check_keys(where, cluster, _KEYS)
        name = _name(where, cluster, "name")
        rows = cluster.get("products")
        if not isinstance(rows, list):
            raise NegolabError(f"{where} ({name}): products must be a list of objects")
        places = [f"{where} ({name}), product {place}" for place in range(1, len(rows) + 1)]
        for place, row in zip(places, rows, strict=True):
            _check_keys(place, row, _OF_PRODUCT)
        about = {key: cluster.get(key) for key in _OF_CLUSTER}
        groups.append(_Group(where, name, about, [_Row(*pair) for pair in zip(places, rows, strict=True)]))
    return groups, content


def _check_keys(where: str, record: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(record, dict):
        raise NegolabError(f"{where}: not a JSON object but {json_kind(record)}")
    unknown = next((key for key in record if key not in allowed), None)
    if unknown is not None:
        raise NegolabError(f"{where}: unknown key {unknown!r}; allowed: {', '.join(allowed)}")


def _about(group: _Group) -> tuple[str, str]:
    """The cluster's category and split."""
    split = _text(group.where, group.about, "split")
    if split not in ("", *SPLITS):
        raise NegolabError(f"{group.where}: split is {split!r}; allowed: {', '.join(SPLITS)}, or nothing")
    return _name(group.where, group.about, "category"), split


def _product(row: _Row, category: str, default: str, file: str, position: int) -> tuple[Product, str]:
    title, description = _text(row.where, row.record, "title"), _text(row.where, row.record, "description")
    if not title:
        raise NegolabError(f"{row.where}: title is missing or empty")
    codename = _text(row.where, row.record, "codename") or default
    if not NAME.fullmatch(codename):
        raise NegolabError(f"{row.where}: codename is {codename!r}; allowed: {_NAME_RULE}")
    try:
        list_cents, cost_cents = (price_field(row.record, key) for key in ("list_price", "cost"))
    except ValueError as error:
        raise NegolabError(f"{row.where}: {error}; allowed: dollars such as 39.99") from error
    if cost_cents >= list_cents:
        raise NegolabError(
            f"{row.where}: no margin: cost {dollars(cost_cents)} must be below list_price {dollars(list_cents)}"
        )
    listing = Listing(codename, title, description, category, list_cents)
    source = "description" if description else "none"
    return Product(listing, cost_cents, file, position, source, row.record), _text(row.where, row.record, "brand")


def _name(where: str, record: Mapping[str, object], key: str) -> str:
    name = _text(where, record, key)
    if not NAME.fullmatch(name):
        raise NegolabError(f"{where}: {key} is {name!r}; allowed: {_NAME_RULE}")
    return name


def _text(where: str, record: Mapping[str, object], key: str) -> str:
    """A text field without blanks around it; missing and null are ``""``."""
    try:
        return text_field(record, key).strip()
    except ValueError as error:
        raise NegolabError(f"{where}: {error}") from error


def _check_splits(path: Path, found: Found) -> None:
    without = [entry.name for entry in found.clusters if not entry.split]
    if without and len(without) < len(found.clusters):
        raise NegolabError(f"{path}: cluster {without[0]!r} has no split but others do; give one to all or to none")
    held = {entry.category: entry.name for entry in found.clusters if entry.split == "held_out"}
    for entry in found.clusters:
        if entry.split != "held_out" and entry.category in held:
            raise NegolabError(
                f"{path}: cluster {entry.name!r} has split {entry.split!r}, but {held[entry.category]!r} of the same "
                f"category {entry.category!r} is held_out; hold out a category as a whole"
            )
