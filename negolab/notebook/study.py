"""A study: one notebook's checked settings, its folder, and playing several sellers on the same markets."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.catalog import SAMPLE, Catalog
from negolab.clusters import ClusterCatalog
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, plan
from negolab.notebook.frames import Panel, Table
from negolab.notebook.parameters import ParameterError, check
from negolab.panel import load_panel
from negolab.papers import multi_buyer, multi_item
from negolab.paths import notebooks_dir
from negolab.plan import catalog_for
from negolab.policies.registry import ITEM_SELLERS, SELLERS, is_scripted
from negolab.policies.spec import ModelSpec, key_values, spec_of
from negolab.scenario import IN_DISTRIBUTION, MAX_SEED, Regime, regime
from negolab.store import Run, code_sha256

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS_VARIABLE = "NEGOLAB_RUNS"
"""Environment variable: where run folders go that nobody named."""
FINISHED = "finished:"
"""A notebook's last line of output begins so, and nothing else does."""


@dataclass(frozen=True)
class Study:
    """One notebook's settings, data and folder, all checked. ``begin`` makes it."""

    name: str
    """The notebook's name, without its suffix."""
    catalog: Catalog | ClusterCatalog
    split: str
    per_product: int
    products: int | None
    """Play only the split's first so many products, or clusters of them; None: all."""
    seeds: tuple[int, ...]
    sellers: tuple[str, ...]
    baseline: str
    """The seller that the others are compared with."""
    out: Path
    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Language models among the sellers, by name."""
    model_products: int | None = None
    """Language models play only the first so many products, under the first seed; None: as the others."""
    small: tuple[str, ...] = ()
    """Language models small enough to play all that the others play."""
    buyers: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Language models that can buy, by buyer type."""
    regime: Regime = IN_DISTRIBUTION
    """The first regime that is played: with several items markets are drawn from clusters, and speak in tags."""
    more_splits: tuple[str, ...] = ()
    """Splits that some of its regimes are played on instead of ``split``."""

    @property
    def data(self) -> str:
        """Which products these are, for captions and tables."""
        return data_name(self.catalog.name, isinstance(self.catalog, ClusterCatalog))

    @property
    def arxiv(self) -> str:
        """The paper that the study is about."""
        return (multi_item if self.regime.protocol == "tags" else multi_buyer).ARXIV

    @property
    def what(self) -> str:
        """What markets are drawn from and errors are clustered by: products, or clusters of them."""
        return "clusters" if isinstance(self.catalog, ClusterCatalog) else "products"

    @property
    def markets(self) -> str:
        """How many markets one seller plays, in words, and how many those few that play less."""
        seen = self.what == "clusters" and ("train" in self.split.split("+") or self.split == "all")
        why = "train split played too, since scripted players' rules are tuned by hand, not trained"
        parts = [self.most_markets, self.few_markets, why if seen else ""]
        return "; ".join(part for part in parts if part)

    @property
    def held_out(self) -> str:
        """The held-out category of clusters, which stands for the paper's; empty where there is none."""
        if not isinstance(self.catalog, ClusterCatalog) or "held_out" not in self.catalog.splits:
            return ""
        return ", ".join(dict.fromkeys(cluster.category for cluster in self.catalog.split("held_out")))

    @property
    def few_markets(self) -> str:
        """Which language models play the first products only, and how many; empty where none does."""
        few = [name for name in self.models if name not in self.small]
        chosen = len(self.catalog.split(self.split)[: self.products])
        first = min(chosen, self.model_products or chosen)
        return f"{', '.join(few)}: first {first} {self.what}, seed {self.seeds[0]}" if few else ""

    @property
    def most_markets(self) -> str:
        """How many markets all other sellers play."""
        first = "" if self.products is None else "first "
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        each = "1 episode" if self.per_product == 1 else f"{self.per_product} episodes"
        chosen = {split: len(self.catalog.split(split)[: self.products]) for split in (self.split, *self.more_splits)}
        parts = [f"{split} split, {first}{n} {self.what}" for split, n in chosen.items()]
        return f"{'; '.join(parts)}, {each} each, {seeds}"

    def __repr__(self) -> str:  # a notebook keeps it beside the Markdown: not the whole catalogue
        return f"Study({self.name!r}: {self.data}; {self.markets})"

    def _repr_markdown_(self) -> str:
        lines = [
            f"- **data:** {self.data}",
            f"- **markets:** {self.markets}; the same ones for every seller",
            f"- **sellers:** {', '.join(f'{name} ({self.kind(name)})' for name in self.sellers)}",
            f"- **folder:** `{self.out}`",
            *(f"- **note:** {note}" for note in self.catalog.notes),
            *(f"- **left out:** {problem}" for problem in self.catalog.problems[:5]),
        ]
        return "\n".join(lines)

    def kind(self, seller: str) -> str:
        """What a seller is: scripted, or a language model."""
        return "language model" if seller in self.models else "scripted" if self._scripted(seller) else "own"

    def _scripted(self, seller: str) -> bool:
        return is_scripted("seller", seller, self.regime.game, self.regime.protocol)

    def play(
        self, regime_name: str, sellers: Sequence[str] | None = None, modelled: bool = False, split: str = ""
    ) -> Panel:
        """Play ``sellers`` (default: the study's) on the study's markets under every seed, or take up what is already
        there; ``modelled``: against the study's language models as buyers; ``split``: on this one instead of the
        study's. Raises ``NegolabError`` when a run folder belongs to another run."""
        panel: Panel = {}
        against = ("-modelled" if modelled else "") + (f"-{_plain(split)}" if split else "")
        for seller in self.sellers if sellers is None else sellers:
            panel[seller] = []
            for seed in self.seeds[:1] if self._large(seller) else self.seeds:
                folder = self.out / "evaluations" / f"{regime_name}{against}-{_plain(seller)}-seed{seed}"
                settings = self.settings(seller, regime_name, seed, modelled, split)
                evaluate(settings, folder, self.catalog, progress=False)
                panel[seller].append(Run(folder))
        return panel

    def _large(self, seller: str) -> bool:
        return seller in self.models and seller not in self.small

    def settings(self, seller: str, regime_name: str, seed: int, modelled: bool = False, split: str = "") -> Settings:
        """One evaluation of this study."""
        few = self.model_products if self._large(seller) else None
        types = regime(regime_name).buyer_types
        return Settings(
            self.models.get(seller, seller),
            regime_name,
            split=split or self.split,
            per_product=self.per_product,
            products=min((n for n in (self.products, few) if n is not None), default=None),
            seed=seed,
            buyers={kind: self.buyers[kind] for kind in types} if modelled else {},
        )

    def title(self, text: str, models: bool = True) -> str:
        """A figure's title that says which data it was drawn from; ``models``: language models are in it."""
        few = self.few_markets if models else ""
        apart = "\n" if self.what == "clusters" else " "  # what is drawn from clusters takes more words
        return f"{text}\nours: {self.data};{apart}{self.most_markets}" + (f"\n{few}" if few else "")

    def table(self, frame: Any, caption: str, markdown: str = "") -> Table:
        """A table of results with its caption and data; ``markdown`` replaces the plain rendering of ``frame``."""
        return Table(frame, f"{caption} Our rows: {self.data}; {self.markets}.", self.data, markdown, self.arxiv)

    def catalogue_table(self, frame: Any, caption: str) -> Table:
        """A table about the products themselves."""
        return Table(frame, f"{caption} Data: {self.data}.", self.data, arxiv=self.arxiv)

    def published_table(self, frame: Any, caption: str) -> Table:
        """A table that holds nothing measured on the study's products."""
        return Table(frame, caption, f"arXiv {self.arxiv}", arxiv=self.arxiv)

    def write(
        self,
        tables: Mapping[str, Table] | None = None,
        figures: Mapping[str, Figure] | None = None,
        transcripts: Mapping[str, str] | None = None,
    ) -> None:
        """Write tables (CSV and Markdown), figures (PNG and SVG) and transcripts (HTML), and print the last line."""
        write_results(self.out, tables, figures, transcripts)


def data_name(catalog: str, clusters: bool = False) -> str:
    """Which products a catalogue's are, for captions and tables; ``catalog`` is its name, ``clusters``: of clusters."""
    known = {SAMPLE: "bundled synthetic sample (invented products)", "amazon_history_price": "AmazonHistoryPrice"}
    if clusters:
        known |= {SAMPLE: "bundled synthetic sample (invented clusters of products)"}
        known |= {"amazon_history_price": "AmazonHistoryPrice (clusters built here from its products)"}
    return known.get(catalog, f"{'clusters' if clusters else 'catalogue'} {catalog!r}")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def write_results(
    out: Path,
    tables: Mapping[str, Table] | None = None,
    figures: Mapping[str, Figure] | None = None,
    transcripts: Mapping[str, str] | None = None,
) -> None:
    """Write tables (CSV and Markdown), figures (PNG and SVG) and transcripts (HTML) below ``out``, and print a
    notebook's last line. Raises ``NegolabError`` where they cannot be written."""
    from negolab import plots

    files: list[Path] = []
    for name, table in (tables or {}).items():
        files.append(_text(out, f"tables/{name}.csv", table.csv()))
        files.append(_text(out, f"tables/{name}.md", table.text()))
    for name, figure in (figures or {}).items():
        files += plots.save(figure, out / "figures", name).paths
    for name, page in (transcripts or {}).items():
        files.append(_text(out, f"transcripts/{name}.html", page))
    for path in files:
        print(path.relative_to(out).as_posix())
    print(f"{FINISHED} {len(files)} files in {out}")


def _text(out: Path, name: str, text: str) -> Path:
    path = out / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise NegolabError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def begin(
    name: str, market: str = IN_DISTRIBUTION.name, more: Sequence[tuple[str, str]] = (), **parameters: Any
) -> Study:
    """Check a notebook's parameters and open its study.

    A notebook passes those of ``PARAMETERS`` that it offers; the others have the defaults below. ``weak`` and
    ``strong`` name two sellers in place of ``sellers``. ``market`` is the first regime that it plays; ``more`` names
    further ones, each with the split that it is played on ("": the study's), so that what they lack is said at once.
    Markets of several items take ``clusters``, ``cluster_split`` and so on for ``products`` and ``split``.
    Raises ``ParameterError``, in one line, before anything is played.
    """
    check(parameters)
    given = {**_DEFAULTS, **parameters}
    played = regime(market)
    tags = played.protocol == "tags"
    given |= {mine: given[theirs] for mine, theirs in _OF_CLUSTERS.items()} if tags else {}
    pair = [given[part] for part in ("weak", "strong") if given[part]]
    named = tuple(pair) or tuple(part.strip() for part in given["sellers"].split(",") if part.strip())
    sellers = named or (ITEM_SELLERS if tags else SELLERS)
    small, buyers = _small(given)
    models = {**_models(given), **small}
    sellers = (*sellers, *models)
    if len(set(sellers)) < len(sellers):
        raise ParameterError(f"the sellers {', '.join(sellers)} name one twice")
    seeds = range(given["seed"], given["seed"] + given["seeds"])
    if seeds[-1] > MAX_SEED:
        raise ParameterError(f"parameter seeds: the last seed would be {seeds[-1]}; allowed: up to {MAX_SEED}")
    products = given["products"] or None
    try:
        catalog = catalog_for(played, given["data"])
        for seller in sellers:
            for other, split in ((market, ""), *more):
                settings = Settings(models.get(seller, seller), other, split=split or given["split"])
                plan(replace(settings, products=products, seed=seeds[-1]), catalog)
    except NegolabError as error:
        raise ParameterError(str(error)) from None
    baseline = given["baseline"] or sellers[0]
    if baseline not in sellers:
        hint = f"set baseline to one of the sellers played: {', '.join(sellers)}"
        raise ParameterError(f"parameter baseline is {baseline!r}, which is not played; {hint}")
    chosen = {"name": name, "split": given["split"], "per_product": given["per_product"], "products": products}
    chosen |= {"seeds": tuple(seeds), "sellers": sellers, "baseline": baseline}
    few = given["model_products"] or None
    chosen |= {"small": tuple(small)}
    decides = chosen | {"models": [spec.deciding() | {"model": spec.label} for spec in models.values()], "few": few}
    decides |= {"buyers": {kind: spec.deciding() | {"model": spec.label} for kind, spec in buyers.items()}}
    out = output_folder(given["out"], name, [decides, catalog.data_sha256, code_sha256()])
    splits = tuple(dict.fromkeys(split for _, split in more if split not in ("", given["split"])))
    chosen |= {"regime": played, "more_splits": splits}
    return Study(catalog=catalog, out=out, models=models, model_products=few, buyers=buyers, **chosen)


def _models(given: Mapping[str, Any]) -> dict[str, ModelSpec]:
    """The language models that the parameters name, by the name of their rows."""
    try:
        options = key_values([part for part in given["options"].split(",") if part.strip()], "parameter options:")
        found = [spec_of(given["model"].strip(), options)] if given["model"].strip() else []
        if given["panel"].strip():
            entries = load_panel(given["panel"].strip()).entries
            found += [entry.seller for entry in entries if isinstance(entry.seller, ModelSpec)]
    except NegolabError as error:
        raise ParameterError(str(error)) from None
    return {spec.label: spec for spec in found}


def _small(given: Mapping[str, Any]) -> tuple[dict[str, ModelSpec], dict[str, ModelSpec]]:
    """Sellers by name and buyers by type of the panel of small models."""
    if not given["pocket"].strip():
        return {}, {}
    try:
        panel = load_panel(given["pocket"].strip())
    except NegolabError as error:
        raise ParameterError(str(error)) from None
    sellers = {entry.name: entry.seller for entry in panel.entries if isinstance(entry.seller, ModelSpec)}
    return sellers, dict(panel.run["buyers"])


_DEFAULTS: Mapping[str, Any] = {
    "data": SAMPLE,
    "split": "test",
    "sellers": "",
    "baseline": "",
    "weak": "",
    "strong": "",
    "model": "",
    "options": "",
    "panel": "",
    "model_products": 0,
    "pocket": "",
    "per_product": 1,
    "products": 0,
    "seed": 0,
    "seeds": 1,
    "out": "",
    "cluster_split": "test",
    "per_cluster": 1,
    "clusters": 0,
    "model_clusters": 0,
    "item_panel": "",
}
_OF_CLUSTERS: Mapping[str, str] = {
    "split": "cluster_split",
    "per_product": "per_cluster",
    "products": "clusters",
    "model_products": "model_clusters",
    "panel": "item_panel",
}
"""What decides a study of products by what decides one of clusters: names of their own, since one profile serves all
notebooks and few products make fewer clusters still."""


def runs_dir() -> Path:
    """Where run folders go that nobody named: ``$NEGOLAB_RUNS``, else ``runs`` in the current folder.

    A notebook opened where it lies must not leave files beside itself: then it is ``runs`` in the working copy, or a
    fresh temporary folder for notebooks that came with an installed package.
    """
    named = os.environ.get(RUNS_VARIABLE, "")
    if named:
        return Path(named).absolute()
    here, shipped = Path.cwd().resolve(), notebooks_dir().resolve()
    if here == shipped or shipped in here.parents:
        if (shipped.parent / "pyproject.toml").is_file() and os.access(shipped.parent, os.W_OK):
            return shipped.parent / "runs"
        return Path(tempfile.mkdtemp(prefix="negolab-runs-"))
    return here / "runs"


def output_folder(out: str, name: str, decides: Any) -> Path:
    """A notebook's folder, made if need be: ``out``, or one in ``runs_dir()`` whose name holds a hash of ``decides``
    (plain data). Raises ``ParameterError`` when it cannot be written."""
    text = json.dumps(decides, sort_keys=True)
    default = f"{name}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    folder = Path(out).expanduser().absolute() if out.strip() else runs_dir() / default
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        hint = f"set the parameter out, or ${RUNS_VARIABLE}"
        raise ParameterError(f"cannot write to the folder {folder}: {error.strerror}; {hint}") from None
    return folder
