"""Clusters of substitutable products, their catalogues and splits (2609.33289, section 4: five products of one kind).

A cluster is to a market of several items what a product is to a market of one: what is drawn from, split and repeated.
The paper's own clusters are not published. ``load_clusters`` knows three kinds of sources: the bundled, invented ones
(``data/make_cluster_sample.py``), those that ``data/make_clusters.py`` has built from the published AmazonHistoryPrice
products, and a user's own file, which ``negolab.cluster_files`` reads.

The splits are by cluster, ``train`` and ``test`` of the same categories, and ``held_out``: a category that neither of
them contains.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from negolab.catalog import (
    AUTO,
    RULE,
    SAMPLE,
    Catalog,
    Problem,
    Product,
    find_data,
    load_catalog,
    read_json,
)
from negolab.cluster_files import SPLITS, read_file
from negolab.errors import NegolabError
from negolab.paths import data_dir

OWN_RULE = "as-written-else-cluster-name-and-place-from-1"
"""Name of the codename rule of clusters that bring their own products."""
FILE_TYPES = (".csv", ".json")
"""Endings of a file of clusters."""


@dataclass(frozen=True)
class Cluster:
    """Products of one kind, from which the items of a market are drawn."""

    name: str
    category: str
    kind: str
    """What the products are, as a short noun."""
    products: tuple[Product, ...]


@dataclass(frozen=True)
class ClusterCatalog:
    """All usable clusters of one source, in their order there; has what ``Catalog`` has, by cluster."""

    name: str
    """``amazon_history_price``, ``sample``, or the file's name without its ending."""
    clusters: tuple[Cluster, ...]
    problems: tuple[Problem, ...]
    """Left-out records of the published catalogue that a cluster needs. Own files have none: a mistake there raises."""
    notes: tuple[str, ...]
    """Things a reader of the results should know, such as clusters that had to be left out."""
    files: tuple[str, ...]
    fingerprint: str
    """sha256 (hex) of all cluster names and codenames: the numbering's identity."""
    data_sha256: str
    """sha256 (hex) over file names and contents: any changed byte changes it."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Cluster names of the fixed splits; empty where there are none."""
    rule: str = OWN_RULE
    brands: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Brand by codename, for tables; products without a known brand are missing. No player sees it."""

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products of all clusters, cluster by cluster."""
        return tuple(product for cluster in self.clusters for product in cluster.products)

    @cached_property
    def by_codename(self) -> Mapping[str, Product]:
        """Products by codename."""
        return {product.listing.codename: product for product in self.products}

    @cached_property
    def by_name(self) -> Mapping[str, Cluster]:
        """Clusters by name."""
        return {cluster.name: cluster for cluster in self.clusters}

    def split(self, name: str) -> list[Cluster]:
        """Clusters of a split in the catalogue's order: ``train``, ``test``, ``held_out``, several of these joined by
        ``+``, ``all``, or a JSON file that lists cluster names.

        Raises ``NegolabError`` for any other name, for fixed splits where the source states none, and for a file that
        is not a list of known cluster names.
        """
        if name == "all":
            return list(self.clusters)
        parts = name.split("+")
        if all(part in self.splits for part in parts):
            return self._chosen([cluster for part in parts for cluster in self.splits[part]])
        if name.endswith(".json") or Path(name).is_file():
            return self._chosen(self._names_from_file(Path(name)))
        known = ", ".join(self.splits) or "none for this source"
        some = "some of them as in train+test, " if len(self.splits) > 1 else ""
        raise NegolabError(
            f"split {name!r} does not exist for clusters {self.name!r}; fixed splits: {known}; "
            f"also allowed: all, {some}or the path of a JSON file with a list of cluster names"
        )

    def _chosen(self, names: Sequence[str]) -> list[Cluster]:
        wanted = frozenset(names)
        return [cluster for cluster in self.clusters if cluster.name in wanted]

    def _names_from_file(self, path: Path) -> tuple[str, ...]:
        names, _ = read_json(path)
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise NegolabError(f'{path}: expected a JSON list with at least one cluster name, such as ["desk-lamps"]')
        if len(set(names)) < len(names):
            twice = next(name for index, name in enumerate(names) if name in names[:index])
            raise NegolabError(f"{path}: cluster {twice!r} stands twice in the list")
        unknown = next((name for name in names if name not in self.by_name), None)
        if unknown is not None:
            raise NegolabError(f"{path}: cluster {unknown!r} is not among clusters {self.name!r}")
        return tuple(names)


def load_clusters(source: str | Path) -> ClusterCatalog:
    """Read the clusters of a source.

    - ``"sample"`` (as text): the bundled, invented ones.
    - ``"auto"``: those of the published products where these are found (``catalog.find_data``), else the sample.
    - A folder of the published catalogue: the committed clusters of its products, known by the numbering's
      fingerprint.
    - A ``.csv`` or ``.json`` file, or a folder with just one: a user's own, see ``negolab.cluster_files``.

    Raises ``NegolabError`` (one line) for a source that does not exist or cannot be read, for a catalogue whose
    numbering no committed clusters are known for, and for any mistake in a file of clusters.
    """
    if source == AUTO:
        source = find_data()
    if source == SAMPLE:
        return _from_file(data_dir() / "clusters" / "sample.json")
    place = Path(source)
    if place.is_dir():
        files = _files_in(place)
        return _over_products(place) if len(files) > 1 else _from_file(files[0])
    return _from_file(place)


def _files_in(place: Path) -> list[Path]:
    """The folder's files that may hold clusters or be part of a catalogue."""
    try:
        files = sorted(
            p for p in place.iterdir() if p.suffix.lower() in FILE_TYPES and p.is_file() and p.name[0] != "."
        )
    except OSError as error:
        raise NegolabError(f"cannot read folder {place}: {error.strerror}") from error
    if not files:
        raise NegolabError(f"folder {place} holds no .csv and no .json file; {_allowed()}")
    if len(files) > 1 and not any(path.suffix.lower() == ".json" for path in files):
        raise NegolabError(f"folder {place} holds {len(files)} .csv files; name the one with the clusters")
    return sorted(files)


def _from_file(path: Path) -> ClusterCatalog:
    if path.suffix.lower() not in FILE_TYPES or not path.is_file():
        what = "is neither a .csv nor a .json file" if path.is_file() else "does not exist"
        raise NegolabError(f"clusters {path}: {what}; {_allowed()}")
    found, content = read_file(path)
    head = f"{len(path.name)} {path.name} {len(content)} ".encode(errors="surrogateescape")
    clusters = tuple(Cluster(entry.name, entry.category, entry.kind, entry.products) for entry in found.clusters)
    return ClusterCatalog(
        name=path.stem,
        clusters=clusters,
        problems=(),
        notes=(),
        files=(path.name,),
        fingerprint=_fingerprint(clusters),
        data_sha256=hashlib.sha256(head + content).hexdigest(),
        splits=_splits([(entry.name, entry.split) for entry in found.clusters]),
        brands=found.brands,
    )


def _over_products(folder: Path) -> ClusterCatalog:
    """The committed clusters that were made for the numbering of the catalogue in ``folder``."""
    catalog = load_catalog(folder)
    for path in sorted((data_dir() / "clusters").glob("*.json")):
        made, content = read_json(path)
        if isinstance(made, dict) and (made.get("fingerprint"), made.get("rule")) == (catalog.fingerprint, RULE):
            return _committed(catalog, made, content)
    raise NegolabError(
        f"no clusters are known for the numbering of the products in {folder}: it is not the published catalogue's "
        "(`negolab data fetch` gets that); give a .csv or .json file with your own clusters, or: sample"
    )


def _committed(catalog: Catalog, made: Mapping[str, Any], content: bytes) -> ClusterCatalog:
    """Put the catalogue's products into the committed groups. One that misses a product is left out and noted."""
    clusters, notes, missed = [], [], []
    left_out = {problem.codename: problem for problem in catalog.problems}
    for row in made["clusters"]:
        missing = [codename for codename in row["products"] if codename not in catalog.by_codename]
        if missing:
            missed += [left_out[codename] for codename in missing if codename in left_out]
            notes.append(f"cluster {row['name']} left out: {', '.join(missing)} cannot be used")
            continue
        products = tuple(catalog.by_codename[codename] for codename in row["products"])
        clusters.append(Cluster(row["name"], row["category"], row["kind"], products))
    kept = {cluster.name for cluster in clusters}
    rows = [row for row in made["clusters"] if row["name"] in kept]
    return ClusterCatalog(
        name=catalog.name,
        clusters=tuple(clusters),
        problems=tuple(missed),
        notes=(*catalog.notes, *notes),
        files=catalog.files,
        fingerprint=_fingerprint(clusters),
        data_sha256=hashlib.sha256(catalog.data_sha256.encode() + content).hexdigest(),
        splits=_splits([(row["name"], row["split"]) for row in rows]),
        rule=RULE,
        brands={c: b for row in rows for c, b in zip(row["products"], row["brands"], strict=True) if b},
    )


def _splits(rows: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Cluster names by fixed split; splits without any are missing."""
    parts = {part: tuple(name for name, split in rows if split == part) for part in SPLITS}
    return {part: names for part, names in parts.items() if names}


def _fingerprint(clusters: Sequence[Cluster]) -> str:
    lines = [f"{cluster.name} {product.listing.codename}" for cluster in clusters for product in cluster.products]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _allowed() -> str:
    return "give a .csv or .json file with clusters, the published catalogue's folder, `sample` or `auto`"
