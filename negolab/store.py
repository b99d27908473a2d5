"""A run folder: what lies in it, and reading it with distrust. ``writer.py`` writes it.

* ``manifest.json`` says everything that decides the episodes (settings, players, data hash, code), and carries its own
  hash and that of the products.
* ``products.jsonl`` holds the products in play, so that a run can be verified and shown without the catalogue.
* ``episodes.jsonl`` holds one line per finished episode, each with its checksum; in episode order once all are there,
  so that the finished file does not depend on workers, crashes or batch sizes.
* ``metrics.csv`` is computed from the episodes of a finished run.
* ``episodes.damaged.jsonl`` keeps lines that could not be trusted; they never enter a table.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson

import negolab
from negolab.catalog import Listing, Product
from negolab.clusters import Cluster
from negolab.episodes import TURN_COLUMNS, Episode, parse_line
from negolab.errors import DamagedRun, NegolabError

MANIFEST, PRODUCTS, EPISODES = "manifest.json", "products.jsonl", "episodes.jsonl"
DAMAGED, METRICS_CSV = "episodes.damaged.jsonl", "metrics.csv"
LOCK, PID = "run.lock", "run.pid"
_FORMAT = 2  # 1: one item, a price in each turn
_SEAL = "manifest_sha256"
_MAX_PER_PRODUCT = 1_000_000  # the most that a schedule allows


# What decides an episode or a number. How it is shown (commands, plots, transcripts, notebooks) is left out: a changed
# colour must not keep a run from being resumed.
_DECIDING = (
    "catalog.py",
    "cluster_files.py",
    "clusters.py",
    "environment",
    "episodes.py",
    "games.py",
    "metrics",
    "money.py",
    "oracle.py",
    "parser",
    "policies",
    "prompts",
    "reward.py",
    "rollout.py",
    "scenario",
    "seeds.py",
    "statistics.py",
)


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Hash of the sources and prompt templates that decide results: different code does not mix in one run."""
    root = Path(negolab.__file__).parent
    digest = hashlib.sha256()
    for name in _DECIDING:
        place = root / name
        files = sorted(p for p in place.rglob("*") if p.suffix in (".py", ".j2")) if place.is_dir() else [place]
        for path in files:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def new_manifest(
    settings: Mapping[str, Any],
    players: Mapping[str, Any],
    data: Mapping[str, Any],
    units: Sequence[Product | Cluster],
    n: int,
) -> dict[str, Any]:
    """The manifest of a run of ``n`` episodes. Holds no time and no path: equal runs have equal manifests.

    Raises ``NegolabError`` for values that JSON cannot hold, such as names that are not valid Unicode.
    """
    plain = {
        "format": _FORMAT,
        "negolab": negolab.__version__,
        "code_sha256": code_sha256(),
        "products_sha256": hashlib.sha256(products_bytes(units)).hexdigest(),
        "turn_columns": TURN_COLUMNS,
        "episodes": n,
        "settings": settings,
        "players": players,
        "data": data,
    }
    try:
        return seal(orjson.loads(orjson.dumps(plain)))
    except TypeError as error:
        raise NegolabError(f"the run's settings cannot be written down: {error}") from None


def seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a hash of itself as its last field, so that an edited one is noticed."""
    bare = {key: value for key, value in manifest.items() if key != _SEAL}
    digest = hashlib.sha256(orjson.dumps(bare, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {**bare, _SEAL: digest}


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored."""
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"


def differences(known: Any, now: Any, words: Mapping[str, str], where: str = "") -> Iterator[tuple[str, str]]:
    """What differs between two manifests, or parts of them: its place (``settings.seed``) and a text for the user.

    ``words``: the texts of places whose values say nothing to a user, such as hashes.
    """
    if isinstance(known, dict) and isinstance(now, dict):
        for key in sorted(known.keys() | now.keys()):
            yield from differences(known.get(key), now.get(key), words, f"{where}.{key}".lstrip("."))
    elif known != now:
        yield where, words.get(where) or f"{where}: {_short(known)} there, {_short(now)} now"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:37] + "..."


def product_to_json(product: Product) -> dict[str, Any]:
    """A product as it is kept with a run."""
    listing = product.listing
    return {
        "codename": listing.codename,
        "title": listing.title,
        "description": listing.description,
        "category": listing.category,
        "list_cents": listing.list_cents,
        "cost_cents": product.cost_cents,
        "text_source": product.text_source,
    }


def product_from_json(data: Mapping[str, Any]) -> Product:
    """Read back ``product_to_json``."""
    listing = Listing(data["codename"], data["title"], data["description"], data["category"], data["list_cents"])
    return Product(listing, data["cost_cents"], text_source=data["text_source"])


def products_bytes(units: Sequence[Product | Cluster]) -> bytes:
    """All products of a run as they are stored: of a cluster one after the other, each with its name."""
    rows = []
    for unit in units:
        if isinstance(unit, Cluster):
            rows += [{**product_to_json(p), "cluster": unit.name, "kind": unit.kind} for p in unit.products]
        else:
            rows.append(product_to_json(unit))
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def products_of(units: Sequence[Product | Cluster]) -> list[Product]:
    """All products of a run, unit by unit."""
    return [p for unit in units for p in (unit.products if isinstance(unit, Cluster) else (unit,))]


def _units(rows: Sequence[Mapping[str, Any]]) -> list[Product | Cluster]:
    """Read back ``products_bytes``."""
    units: list[Product | Cluster] = []
    for name, group in groupby(rows, key=lambda row: row.get("cluster")):
        members = list(group)
        products = tuple(map(product_from_json, members))
        if name is None:
            units += products
        else:
            units.append(Cluster(name, products[0].listing.category, members[0]["kind"], products))
    return units


class Line(NamedTuple):
    """One stored line: where it lies and what it holds."""

    offset: int
    raw: bytes
    data: dict[str, Any] | None
    problem: str
    """Why the line cannot be used; empty for a good one."""


def scan(path: Path) -> Iterator[Line]:
    """Every line of an episodes file, good or not. A last line without its newline is torn, whatever it says."""
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            data, problem = None, ""
            if not raw.endswith(b"\n"):
                problem = "the last line is torn: the writer was stopped while writing it"
            elif not raw.strip():
                problem = "the line is empty"
            else:
                try:
                    data = parse_line(raw[:-1])
                except ValueError as error:
                    problem = str(error)
            yield Line(offset, raw, data, problem)
            offset += len(raw)


class Run:
    """A run folder for reading. Raises ``NegolabError`` when it is none, ``DamagedRun`` when it cannot be trusted."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.units = _read_units(self.folder, self.manifest)
        """What the run repeats: products, or clusters of them."""
        self.products = {product.listing.codename: product for product in products_of(self.units)}
        if self.n > len(self.units) * _MAX_PER_PRODUCT:  # a forged number must not ask for all memory
            raise DamagedRun(f"{self.folder / MANIFEST}: {self.n} episodes of {len(self.products)} products cannot be")

    @property
    def n(self) -> int:
        """Episodes that the run owes in all."""
        return int(self.manifest["episodes"])

    @property
    def game(self) -> tuple[str, str]:
        """Whose rules were played and how replies are written: a regime's ``game`` and ``protocol``."""
        regime = self.manifest["settings"]["regime"]
        return regime.get("game", "market"), regime.get("protocol", "lines")

    def lines(self) -> Iterator[Line]:
        """The stored lines, unchecked beyond their checksum."""
        path = self.folder / EPISODES
        return scan(path) if path.exists() else iter(())

    def episodes(self, *, complete: bool = False) -> Iterator[Episode]:
        """All episodes in stored order. Raises ``DamagedRun`` at the first line that cannot be trusted, also for an
        episode that is there twice or not part of the run.

        ``complete``: raise it as well, at the end, when an episode is missing. Whoever averages wants that: an
        unfinished run lacks its longest episodes rather than a random part.
        """
        seen = bytearray(self.n)
        for number, line in enumerate(self.lines(), 1):
            problem = line.problem
            if line.data is not None:
                problem = place_problem(line.data["episode"], seen)
            if problem or line.data is None:
                hint = "see `negolab verify`; running the evaluation again sets it aside and plays it again"
                raise DamagedRun(f"{self.folder / EPISODES}, line {number}: {problem}; {hint}")
            yield self.read(line.data, number)
        missing = seen.count(0)
        if complete and missing:
            raise DamagedRun(
                f"{self.folder} is not finished: {missing} of {self.n} episodes are missing; "
                "run the evaluation again to play them"
            )

    def read(self, data: Mapping[str, Any], number: int) -> Episode:
        """One parsed line as an episode. Raises ``DamagedRun`` where its fields are not those of one."""
        try:
            return Episode.from_json(data, self.products)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise DamagedRun(f"{self.folder / EPISODES}, line {number}: not an episode record ({detail})") from None


def place_problem(episode: int, seen: bytearray) -> str:
    """Mark ``episode`` as seen; says what is wrong with its number, empty for the first of an owed one."""
    if not 0 <= episode < len(seen):
        return f"episode {episode} is not part of this run"
    if seen[episode]:
        return f"episode {episode} is recorded twice"
    seen[episode] = 1
    return ""


def read_manifest(folder: Path) -> dict[str, Any]:
    """A run folder's manifest. Raises ``NegolabError`` where there is no run, ``DamagedRun`` where it was changed."""
    path = folder / MANIFEST
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise NegolabError(f"{folder} {what}; expected a run folder written by `negolab evaluate --out DIR`")
    if not path.is_file():
        if (folder / EPISODES).exists():
            raise DamagedRun(f"{folder} holds episodes but no {MANIFEST}, so nobody can say what they are; {_REMEDY}")
        raise NegolabError(f"{folder} is not a run folder: it has no {MANIFEST}")
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedRun(f"{path} cannot be read: {error}; {_REMEDY}") from None
    if isinstance(found, dict) and found.get("format") == 1:
        raise NegolabError(f"{folder} was written by an earlier negolab (format 1, now {_FORMAT}); evaluate it anew")
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise DamagedRun(f"{path} is not a manifest of format {_FORMAT}; {_REMEDY}")
    try:
        sealed = seal(found)
    except TypeError:
        sealed = {}
    if found != sealed or type(found.get("episodes")) is not int or found["episodes"] < 0:
        raise DamagedRun(f"{path} was changed after it was written: its own hash does not match; {_REMEDY}")
    return found


_REMEDY = "bring the file back from a copy, or move the folder away and evaluate into a new one"


def _read_units(folder: Path, manifest: Mapping[str, Any]) -> list[Product | Cluster]:
    path = folder / PRODUCTS
    hint = "running the evaluation again writes it anew"
    if not path.is_file():
        raise DamagedRun(f"{path} is missing; {hint}")
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.get("products_sha256"):
            raise DamagedRun(f"{path} was changed after it was written: its hash is not the manifest's; {hint}")
        return _units([orjson.loads(line) for line in content.splitlines()])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedRun(f"{path} cannot be read: {type(error).__name__}: {error}; {hint}") from None
