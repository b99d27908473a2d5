"""Products and catalogues: the AmazonHistoryPrice reader, the bundled sample and the fixed train/test splits.

``Listing`` is what is public about an item, ``Product`` adds what only its seller knows.

Prices follow the catalogue's own reader: the list price is ``max(list_price, highest_price)``, the seller's cost is
``lowest_price``, and ``features`` stands in for a missing description. Codenames follow the papers that report on this
catalogue (2607.05863 names ``baby-products_17``): one counter runs over all files in byte order of their names, from 1,
and never skips a record. The catalogue's own code numbers each file by itself and would call that item
``baby-products_10``; the two must not be mixed, so a catalogue carries the name of its rule.

A record that cannot be used is left out and reported, but keeps its number: the names after it must not move.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from negolab.errors import NegolabError
from negolab.money import MAX_CENTS, cents_from_text, dollars
from negolab.paths import data_dir

SAMPLE = "sample"
"""``load_catalog(SAMPLE)`` reads the bundled, invented products."""
AUTO = "auto"
"""``load_catalog(AUTO)`` reads the published catalogue if it is there, else the sample."""
DATA_VARIABLE = "NEGOLAB_DATA"
"""Environment variable that names the published catalogue's folder."""
FETCHED = Path("data") / "AmazonHistoryPrice"
"""Where ``negolab data fetch`` puts it, below the current folder."""
RULE = "running-counter-over-files-in-byte-order-from-1"
"""Name of the codename rule; stored in split files and run manifests."""
SHORTEST_DESCRIPTION = 5
"""Descriptions below this many characters ("NA", "TBD") give way to ``features`` (rule of the catalogue's reader)."""

CHECKSUMS = "amazon_history_price.sha256.json"
"""File in the data folder with size and sha256 of every published file."""
# A codename stands inside "(1x codename)": no blanks, no brackets.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What a category, and with it a codename, may look like."""
_PRICES = ("list_price", "highest_price", "lowest_price")


@dataclass(frozen=True, slots=True)
class Listing:
    """The public side of a product: everything a buyer may read."""

    codename: str
    """``{category}_{g}``, g the running number over all files in byte order, from 1 (paper: ``baby-products_17``)."""
    title: str
    description: str
    """Full listing text (``description``, or ``features`` where that is missing); may be empty."""
    category: str
    list_cents: int
    """Public list price in cents: max(list_price, highest_price) of the record."""


@dataclass(frozen=True, slots=True)
class Product:
    """A listing and its seller's private cost."""

    listing: Listing
    cost_cents: int
    """The seller's reservation price in cents: the record's lowest_price. Never part of a buyer's view."""
    file: str = ""
    position: int = -1
    """Zero-based position in ``file``."""
    text_source: str = "description"
    """Which field ``listing.description`` came from: ``description``, ``features`` or ``none``."""
    raw: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The record as it stood in the file."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that was left out. Its number stays reserved."""

    file: str
    position: int
    """Zero-based position in ``file``."""
    codename: str
    """The name the record would have had."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}[{self.position}] ({self.codename}): {self.reason}"


@dataclass(frozen=True)
class Catalog:
    """All usable products of one folder, in running order."""

    name: str
    """``amazon_history_price``, ``sample``, or the folder's name where the numbering is not a known one."""
    products: tuple[Product, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    """Things a reader of the results should know, such as files that the published catalogue does not have."""
    files: tuple[str, ...]
    """File names in the order in which they were numbered."""
    fingerprint: str
    """sha256 (hex) of all numbered codenames (left-out records too) joined by newlines: the numbering's identity."""
    data_sha256: str
    """sha256 (hex) over file names and contents: any changed byte changes it."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """The committed split of this numbering: ``train`` and ``test`` codenames; empty where there is none."""
    rule: str = RULE

    @cached_property
    def by_codename(self) -> Mapping[str, Product]:
        """Products by codename."""
        return {product.listing.codename: product for product in self.products}

    def split(self, name: str) -> list[Product]:
        """Products of a split in running order: ``train``, ``test``, ``all``, or a JSON file with a list of codenames.

        Left-out records are missing from their split. Raises ``NegolabError`` for any other name, for ``train`` and
        ``test`` where no split is known for this numbering, and for a file that is not a list of known codenames.
        """
        if name == "all":
            return list(self.products)
        if name in self.splits:
            return self._chosen(self.splits[name])
        if name.endswith(".json") or Path(name).is_file():
            return self._chosen(self._names_from_file(Path(name)))
        known = ", ".join(sorted(self.splits)) or "none for this numbering of products"
        raise NegolabError(
            f"split {name!r} does not exist for catalogue {self.name!r}; fixed splits: {known}; "
            "also allowed: all, or the path of a JSON file with a list of codenames"
        )

    def _chosen(self, names: tuple[str, ...]) -> list[Product]:
        wanted = frozenset(names)
        return [product for product in self.products if product.listing.codename in wanted]

    def _names_from_file(self, path: Path) -> tuple[str, ...]:
        names, _ = read_json(path)
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise NegolabError(f'{path}: expected a JSON list with at least one codename, such as ["books_31"]')
        if len(set(names)) < len(names):
            twice = next(name for index, name in enumerate(names) if name in names[:index])
            raise NegolabError(f"{path}: codename {twice!r} stands twice in the list")
        left_out = {problem.codename: problem for problem in self.problems}
        for name in names:
            if name in left_out:
                raise NegolabError(f"{path}: codename {name!r} cannot be used: {left_out[name]}")
            if name not in self.by_codename:
                raise NegolabError(f"{path}: codename {name!r} is not in catalogue {self.name!r}")
        return tuple(names)


def load_catalog(folder: str | Path) -> Catalog:
    """Read every ``*.json`` file of a folder; ``"sample"`` (as text) is the bundled sample, ``"auto"`` the published
    catalogue where it is found (``find_data``), else the sample.

    Sub-folders, hidden files and other file types are ignored. Raises ``NegolabError`` (one line) for a missing or
    empty folder, and for a file that cannot be read, is not UTF-8, not JSON, or not a list. A bad record inside a good
    file never raises: see ``Catalog.problems``.
    """
    if folder == AUTO:
        folder = find_data()
    place = data_dir() / "sample" if folder == SAMPLE else Path(folder)
    products: list[Product] = []
    problems: list[Problem] = []
    names: list[str] = []
    strays: list[str] = []
    digest = hashlib.sha256()
    checksums: dict[str, str] = {}
    for path in _catalogue_files(place):
        records, content = read_json(path)
        if not isinstance(records, list):
            raise NegolabError(f"{path}: expected a JSON list of product records, found {json_kind(records)}")
        checksums[path.name] = hashlib.sha256(content).hexdigest()
        digest.update(f"{len(path.name)} {path.name} {len(content)} ".encode(errors="surrogateescape") + content)
        for position, record in enumerate(records):
            category = _category(record, path.stem)
            names.append(f"{category or 'unnamed'}_{len(names) + 1}")
            if category != path.stem:
                strays.append(f"{path.name}[{position}]")
            try:
                products.append(_product(record, names[-1], category, path.name, position))
            except ValueError as error:
                problems.append(Problem(path.name, position, names[-1], str(error)))
    if not names:
        raise NegolabError(f"{place}: the JSON files hold no records; a catalogue needs at least one product")
    fingerprint = hashlib.sha256("\n".join(names).encode()).hexdigest()
    split_name, splits = _split_for(fingerprint)
    return Catalog(
        name=split_name or place.resolve().name,
        products=tuple(products),
        problems=tuple(problems),
        notes=tuple(_notes(split_name, checksums, strays, problems, splits)),
        files=tuple(checksums),
        fingerprint=fingerprint,
        data_sha256=digest.hexdigest(),
        splits=splits,
    )


def find_data(data: str = AUTO) -> str:
    """The catalogue that ``data`` means. ``"auto"`` is the folder in ``$NEGOLAB_DATA``, else where
    ``negolab data fetch`` puts it (below the current folder, or in a working copy's ``data``), else ``"sample"``.
    Raises ``NegolabError`` when ``$NEGOLAB_DATA`` names no folder."""
    if data != AUTO:
        return data
    named = os.environ.get(DATA_VARIABLE, "")
    if named:
        if not Path(named).is_dir():
            raise NegolabError(f"${DATA_VARIABLE} is {named}, which is not a folder; mend or unset it")
        return named
    for folder in (Path.cwd() / FETCHED, data_dir() / FETCHED.name):
        if folder.is_dir() and any(folder.glob("*.json")):
            return str(folder)
    return SAMPLE


def published_files() -> dict[str, tuple[int, str]]:
    """The published catalogue: file name -> (bytes, sha256 hex), in byte order of names."""
    path = data_dir() / CHECKSUMS
    found, _ = read_json(path)
    if not isinstance(found, dict):
        raise NegolabError(f"{path}: damaged; install negolab again")
    return {name: (entry["bytes"], entry["sha256"]) for name, entry in sorted(found["files"].items())}


def _catalogue_files(place: Path) -> list[Path]:
    """The folder's JSON files in plain byte order: a locale's or a "natural" order would give other codenames."""
    hint = "give a folder with the catalogue's JSON files (see `negolab data fetch`), or `sample`"
    try:
        if not place.is_dir():
            what = "is a file, not a folder" if place.exists() else "does not exist"
            raise NegolabError(f"catalogue folder {place} {what}; {hint}")
        entries = [path for path in place.iterdir() if path.suffix == ".json" and not path.name.startswith(".")]
        files = sorted((path for path in entries if path.is_file()), key=lambda path: os.fsencode(path.name))
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        raise NegolabError(f"cannot read catalogue folder {place}: {getattr(error, 'strerror', error)}") from error
    if not files:
        raise NegolabError(f"catalogue folder {place} holds no .json file; {hint}")
    return files


def read_json(path: Path) -> tuple[object, bytes]:
    """A JSON file's value and bytes; always UTF-8 (a byte order mark is allowed), whatever the machine's locale."""
    try:
        content = path.read_bytes()
        return json.loads(content.decode("utf-8-sig")), content
    except OSError as error:
        raise NegolabError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NegolabError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise NegolabError(f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists within lists without end
        raise NegolabError(f"{path}: not usable JSON: {error}") from error


def _category(record: object, stem: str) -> str:
    """The record's category, the file's name where it has none; "" where neither can be part of a codename."""
    found = record.get("category", stem) if isinstance(record, dict) else stem
    for candidate in (found, stem):
        if isinstance(candidate, str) and NAME.fullmatch(candidate):
            return candidate
    return ""


def _product(record: object, codename: str, category: str, file: str, position: int) -> Product:
    """One record as a product; ``ValueError`` says why it cannot be used."""
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but {json_kind(record)}")
    if record.get("category", category) != category or not category:
        raise ValueError("category (or file name) must be letters, digits, hyphens and underscores only")
    title = text_field(record, "title")
    if not title.strip():
        raise ValueError("title is missing or empty")
    prices = [price_field(record, key) for key in _PRICES]
    list_cents, cost_cents = max(prices[0], prices[1]), prices[2]
    if cost_cents >= list_cents:
        raise ValueError(f"no margin: list price {dollars(list_cents)} is not above cost {dollars(cost_cents)}")
    text, source = _used_text(record)
    listing = Listing(codename, title, text, category, list_cents)
    return Product(listing, cost_cents, file, position, source, record)


def _used_text(record: Mapping[str, object]) -> tuple[str, str]:
    description, features = text_field(record, "description"), text_field(record, "features")
    if len(description) < SHORTEST_DESCRIPTION and len(features) > len(description):
        return features, "features"
    return description, "description" if description else "none"


def text_field(record: Mapping[str, object], key: str) -> str:
    """A text field; missing and null are ``""``."""
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text but {json_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, written as an escape: no prompt could carry it
        raise ValueError(f"{key} is not valid Unicode at character {error.start}") from error
    return value


def price_field(record: Mapping[str, object], key: str) -> int:
    """A price field of a raw record in cents: text such as ``"1,299.99"``, or a number with at most two decimals.

    ``ValueError`` for anything else, and above ``MAX_CENTS``.
    """
    value = record.get(key)
    if value is None:
        raise ValueError(f"{key} is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{key} is not a price but {json_kind(value)}")
    # repr is the shortest text that reads back as the same number, so 19.99 stays 19.99; plain digits, no exponent.
    written = value if isinstance(value, str) else f"{Decimal(repr(value)):f}".removesuffix(".0")
    try:
        cents = cents_from_text(written)
    except ValueError as error:
        shown = written if len(written) <= 40 else written[:40] + "..."
        raise ValueError(f"{key} is not a price: {shown!r}") from error
    if cents > MAX_CENTS:
        raise ValueError(f"{key} is above the largest allowed amount, {dollars(MAX_CENTS)}")
    return cents


def json_kind(value: object) -> str:
    """What a JSON value is, in words for a message."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", type(None): "null"}
    return names.get(type(value), "a number")


def _split_for(fingerprint: str) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Name and codename lists of the committed split made for this numbering; ("", {}) where there is none."""
    for path in sorted((data_dir() / "splits").glob("*.json")):
        found, _ = read_json(path)
        if isinstance(found, dict) and found.get("fingerprint") == fingerprint and found.get("rule") == RULE:
            return found["name"], {part: tuple(found[part]) for part in ("train", "test")}
    return "", {}


def _notes(
    split_name: str,
    checksums: Mapping[str, str],
    strays: list[str],
    problems: list[Problem],
    splits: Mapping[str, tuple[str, ...]],
) -> list[str]:
    notes: list[str] = []
    if split_name != SAMPLE:
        published = published_files()
        extra, missing = sorted(checksums.keys() - published), sorted(published.keys() - checksums)
        if extra or missing:
            parts = [f"{word} {', '.join(files)}" for word, files in (("extra", extra), ("missing", missing)) if files]
            notes.append(
                f"files differ from the published {len(published)} ({'; '.join(parts)}): "
                "codename numbers differ from the published catalogue"
            )
        changed = [name for name, sha256 in checksums.items() if name in published and published[name][1] != sha256]
        if changed:
            notes.append(f"contents differ from the published catalogue: {', '.join(changed)}")
    if strays:
        more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
        notes.append(f"category is not the file's name, the record's own is used: {', '.join(strays[:3])}{more}")
    for part, names in splits.items():
        lost = sum(problem.codename in names for problem in problems)
        if lost:
            notes.append(f"split {part}: {lost} of {len(names)} products left out, see problems")
    return notes
