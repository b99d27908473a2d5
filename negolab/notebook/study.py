"""A study: one notebook's checked settings, its folder, and playing several sellers on the same markets."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negolab.catalog import SAMPLE, Catalog, load_catalog
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate, plan
from negolab.notebook.frames import Panel, Table
from negolab.notebook.parameters import ParameterError, check
from negolab.panel import load_panel
from negolab.papers.multi_buyer import ARXIV
from negolab.paths import notebooks_dir
from negolab.policies.registry import SELLERS
from negolab.policies.spec import ModelSpec, key_values, spec_of
from negolab.scenario import MAX_SEED, regime
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
    catalog: Catalog
    split: str
    per_product: int
    products: int | None
    """Play only the split's first so many products; None: all."""
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

    @property
    def data(self) -> str:
        """Which products these are, for captions and tables."""
        return data_name(self.catalog.name)

    @property
    def markets(self) -> str:
        """How many markets one seller plays, in words, and how many those few that play less."""
        return self.most_markets + (f"; {self.few_markets}" if self.few_markets else "")

    @property
    def few_markets(self) -> str:
        """Which language models play the first products only, and how many; empty where none does."""
        few = [name for name in self.models if name not in self.small]
        chosen = len(self.catalog.split(self.split)[: self.products])
        first = min(chosen, self.model_products or chosen)
        return f"{', '.join(few)}: first {first} products, seed {self.seeds[0]}" if few else ""

    @property
    def most_markets(self) -> str:
        """How many markets all other sellers play."""
        chosen = len(self.catalog.split(self.split)[: self.products])
        first = "" if self.products is None else "first "
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        each = "1 episode" if self.per_product == 1 else f"{self.per_product} episodes"
        return f"{self.split} split, {first}{chosen} products, {each} each, {seeds}"

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
        return "language model" if seller in self.models else "scripted" if seller in SELLERS else "own"

    def play(self, regime_name: str, sellers: Sequence[str] | None = None, modelled: bool = False) -> Panel:
        """Play ``sellers`` (default: the study's) on the study's markets under every seed, or take up what is already
        there; ``modelled``: against the study's language models as buyers. Raises ``NegolabError`` when a run folder
        belongs to another run."""
        panel: Panel = {}
        against = "-modelled" if modelled else ""
        for seller in self.sellers if sellers is None else sellers:
            panel[seller] = []
            for seed in self.seeds[:1] if self._large(seller) else self.seeds:
                name = re.sub(r"[^A-Za-z0-9._-]", "_", seller)
                folder = self.out / "evaluations" / f"{regime_name}{against}-{name}-seed{seed}"
                settings = self.settings(seller, regime_name, seed, modelled)
                evaluate(settings, folder, self.catalog, progress=False)
                panel[seller].append(Run(folder))
        return panel

    def _large(self, seller: str) -> bool:
        return seller in self.models and seller not in self.small

    def settings(self, seller: str, regime_name: str, seed: int, modelled: bool = False) -> Settings:
        """One evaluation of this study."""
        few = self.model_products if self._large(seller) else None
        types = regime(regime_name).buyer_types
        return Settings(
            self.models.get(seller, seller),
            regime_name,
            split=self.split,
            per_product=self.per_product,
            products=min((n for n in (self.products, few) if n is not None), default=None),
            seed=seed,
            buyers={kind: self.buyers[kind] for kind in types} if modelled else {},
        )

    def title(self, text: str, models: bool = True) -> str:
        """A figure's title that says which data it was drawn from; ``models``: language models are in it."""
        few = self.few_markets if models else ""
        return f"{text}\nours: {self.data}; {self.most_markets}" + (f"\n{few}" if few else "")

    def table(self, frame: Any, caption: str, markdown: str = "") -> Table:
        """A table of results with its caption and data; ``markdown`` replaces the plain rendering of ``frame``."""
        return Table(frame, f"{caption} Our rows: {self.data}; {self.markets}.", self.data, markdown)

    def catalogue_table(self, frame: Any, caption: str) -> Table:
        """A table about the products themselves."""
        return Table(frame, f"{caption} Data: {self.data}.", self.data)

    def published_table(self, frame: Any, caption: str) -> Table:
        """A table that holds nothing measured on the study's products."""
        return Table(frame, caption, f"arXiv {ARXIV}")

    def write(
        self,
        tables: Mapping[str, Table] | None = None,
        figures: Mapping[str, Figure] | None = None,
        transcripts: Mapping[str, str] | None = None,
    ) -> None:
        """Write tables (CSV and Markdown), figures (PNG and SVG) and transcripts (HTML), and print the last line."""
        write_results(self.out, tables, figures, transcripts)


def data_name(catalog: str) -> str:
    """Which products a catalogue's are, for captions and tables; ``catalog`` is its name."""
    known = {SAMPLE: "bundled synthetic sample (invented products)", "amazon_history_price": "AmazonHistoryPrice"}
    return known.get(catalog, f"catalogue {catalog!r}")


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


def begin(name: str, **parameters: Any) -> Study:
    """Check a notebook's parameters and open its study.

    A notebook passes those of ``PARAMETERS`` that it offers; the others have the defaults below. ``weak`` and
    ``strong`` name two sellers in place of ``sellers``. Raises ``ParameterError``, in one line, before anything is
    played.
    """
    check(parameters)
    given = {**_DEFAULTS, **parameters}
    pair = [given[part] for part in ("weak", "strong") if given[part]]
    sellers = tuple(pair) or tuple(part.strip() for part in given["sellers"].split(",") if part.strip()) or SELLERS
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
        catalog = load_catalog(given["data"])
        for seller in sellers:
            who = models.get(seller, seller)
            plan(Settings(who, split=given["split"], products=products, seed=seeds[-1]), catalog)
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
}


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


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure as a cell's last value."""

    png: bytes
    size: tuple[int, int]
    """Width and height on screen, in CSS pixels."""

    def __repr__(self) -> str:  # a notebook keeps it beside the picture: not the bytes once more
        return f"Picture({self.size[0]} x {self.size[1]})"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png, {"width": self.size[0], "height": self.size[1]}


def show(figure: Figure) -> Picture:
    """Show a figure in a notebook just as its file will look; nothing is kept on disk."""
    from negolab import plots

    with tempfile.TemporaryDirectory() as folder:
        saved = plots.save(figure, folder, "figure", formats=("png",))
        return Picture(saved.paths[0].read_bytes(), saved.size)


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page as a cell's last value, in a frame of its own so that its styles stay its own."""

    source: str
    height: int = 640

    def __repr__(self) -> str:
        return f"Page({len(self.source):,} characters)"

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(self.source)}"></iframe>'
