"""Panel files: several sellers that play the same markets, as YAML. Reading and judging one; ``panel_run`` plays it.

A panel has four parts: ``run`` (the markets and who buys), ``defaults`` (options of every selling model), ``sellers``
(a list; an entry's own options go before the defaults) and ``baseline`` (whom the others are compared with). Every
mistake is one line that names the file and the place in it; nothing is played before all of it is right.

YAML 1.1 reads some texts as what nobody means (``no`` as false, ``010`` as eight, ``1e-5`` as a text): those are
refused rather than guessed at. Paths in a panel are, as on the command line, seen from the current folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from negolab.catalog import SAMPLE
from negolab.errors import NegolabError
from negolab.paths import data_dir
from negolab.plan import Settings
from negolab.policies.cast import EVERY
from negolab.policies.registry import BUYERS, ITEM_SELLERS, SELLERS
from negolab.policies.spec import ENGINES, SPECS, ModelSpec, is_model, spec_of
from negolab.scenario import MAX_SEED, REGIMES, Regime, regime
from negolab.yaml_file import read_yaml

SCRIPTED, MODEL, OWN = "scripted", "language model", "your own"
"""Kinds of sellers."""

_PARTS = ("run", "defaults", "sellers", "baseline")
_KNOBS = tuple(f.name for f in fields(Regime) if f.name != "name")
_RUN = ("regime", "split", "per_product", "products", "seed", "data", "buyers", *_KNOBS)
_TEXTS = ("regime", "split", "data")
_WHOLE = {"per_product": (1, 1_000_000), "products": (1, 10**9), "seed": (0, MAX_SEED)}
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]|table\.(md|csv|tex)|panel\.json", re.IGNORECASE)
"""What no folder can or may be called: devices of Windows, and the files that a panel's own folder holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a panel."""

    name: str
    """The row's name, unique in its panel (also without regard to case)."""
    seller: str | ModelSpec
    """As ``Settings.seller``."""
    params: str
    """Size, for the table."""
    kind: str
    """``SCRIPTED``, ``MODEL`` or ``OWN``."""

    @property
    def folder(self) -> str:
        """A folder's name that is safe on every file system and that no other entry has."""
        safe = re.sub(r"[^A-Za-z0-9._+=-]+", "-", self.name).strip("-.")[:80].rstrip("-.")
        if _RESERVED.fullmatch(safe) or _RESERVED.fullmatch(safe.split(".")[0]):
            safe = safe.replace(".", "-")  # Windows takes con.txt for the device, too
        elif safe == self.name:
            return safe
        digest = hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"{safe or 'seller'}-{digest}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel file, judged."""

    name: str
    """The file's name without its ending."""
    where: str
    """The file, for messages."""
    entries: tuple[Entry, ...]
    baseline: str | None
    """The name of an entry; None: no comparison."""
    data: str
    """Catalogue: ``sample``, ``auto``, a folder, or a file of clusters."""
    run: Mapping[str, Any]
    """The other settings of every entry's run, by name (see ``evaluate.Settings``)."""

    @property
    def regime(self) -> Regime:
        """How the markets are drawn. Raises ``NegolabError`` where the knobs do not fit the regime."""
        return regime(self.run["regime"], **self.run.get("knobs", {}))

    def settings(self, entry: Entry) -> Settings:
        """What decides the entry's run."""
        return Settings(seller=entry.seller, **self.run)

    def changed(self, data: str | None = None, knobs: Mapping[str, Any] | None = None, **run: Any) -> Panel:
        """The same panel with settings that the command line gave; None leaves one alone."""
        given = {name: value for name, value in run.items() if value is not None}
        merged = {**self.run.get("knobs", {}), **(knobs or {})}
        return replace(self, data=self.data if data is None else data, run={**self.run, **given, "knobs": merged})

    def only(self, names: Sequence[str]) -> tuple[Entry, ...]:
        """The entries of these names, all for none. Raises ``NegolabError`` for a name that no entry has."""
        known = {entry.name: entry for entry in self.entries}
        for name in names:
            if name not in known:
                raise NegolabError(f"--only {name}: not in {self.where}; there are: {', '.join(known)}")
        return tuple(entry for entry in self.entries if not names or entry.name in names)

    def check(self, entries: Sequence[Entry]) -> None:
        """Raise ``NegolabError`` for a game that no panel is for, and for a scripted seller among ``entries`` that does
        not play this market. Only once the command line has been read: it may change the market."""
        drawn = self.regime
        if drawn.game != "market":
            raise NegolabError(
                f"{self.where}: regime {drawn.name} is no market; allowed: {', '.join(REGIMES)} (that game has no "
                "panel, see `negolab evaluate --game`)"
            )
        names = _scripted(drawn)
        for number, entry in enumerate(self.entries, 1):
            if entry in entries and entry.kind == SCRIPTED and entry.seller not in names:
                raise NegolabError(
                    f"{self.where}, entry {number} ({entry.name}): {entry.seller} does not sell where replies are "
                    f"written in {drawn.protocol}, as they are here (regime {drawn.name}); {_allowed(names)}"
                )


def packaged() -> dict[str, Path]:
    """The panels that come with negolab, by name."""
    return {path.stem: path for path in sorted((data_dir() / "panels").glob("*.yaml"))}


def load_panel(name: str) -> Panel:
    """A panel by the name of a packaged one, or by its file's path. Raises ``NegolabError`` for whatever is wrong."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in packaged():
            raise NegolabError(f"no panel {name!r}; there are: {', '.join(packaged())}; or give a YAML file")
        path = packaged()[name]
    where = f"panel {path.name}"
    data = read_yaml(path, "panel", f"the parts {', '.join(_PARTS)}")
    check_keys(data, _PARTS, where)
    defaults = mapping(data.get("defaults"), f"{where}, defaults")
    check_defaults(defaults, f"{where}, defaults")
    run, catalog = _run(mapping(data.get("run"), f"{where}, run"), f"{where}, run")
    scripted = _scripted(regime(run["regime"], **run["knobs"]))
    entries = tuple(_entries(data.get("sellers"), defaults, scripted, where))
    baseline = data.get("baseline")
    if baseline is not None and baseline not in [entry.name for entry in entries]:
        names = ", ".join(entry.name for entry in entries)
        raise NegolabError(f"{where}: baseline is {baseline!r}; allowed: the name of an entry, {names}")
    return Panel(path.stem, where, entries, baseline, catalog, run)


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A part of a file as a mapping; one that is empty has nothing in it. Raises ``NegolabError`` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NegolabError(f"{where} must be lines such as seed: 0")
    return value


def check_keys(given: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    """Raise ``NegolabError`` for the first key that is not allowed."""
    for key in given:
        if key not in allowed:
            raise NegolabError(f"{where}: unknown {key!r}; allowed: {', '.join(allowed)}")


# -- models and sellers -----------------------------------------------------------------------------------------------


def _scripted(drawn: Regime) -> tuple[str, ...]:
    """Names of the scripted sellers of the regime's market."""
    return ITEM_SELLERS if drawn.protocol == "tags" else SELLERS


def _allowed(scripted: Sequence[str]) -> str:
    """Which sellers may be named, in words."""
    models = ", ".join(f"{engine}:MODEL" for engine in ENGINES)
    return f"allowed: {', '.join(scripted)}, module:factory for your own, or a language model as {models}"


def options_of(engine: str) -> dict[str, Any]:
    """An engine's options by name."""
    return {option.name: option for option in fields(SPECS[engine]) if option.metadata}


def check_defaults(defaults: Mapping[str, Any], where: str) -> None:
    """Raise ``NegolabError`` for options of all models that are none, or have values that are not allowed."""
    everywhere = {name: option for engine in ENGINES for name, option in options_of(engine).items()}
    allowed = [name for name in everywhere if name not in ("name", "params")]
    check_keys(defaults, allowed, where)
    for engine in ENGINES:  # judged here, where they stand, and not at the entry that is the first to get them
        mine = {name: value for name, value in defaults.items() if name in options_of(engine)}
        model_of(f"{engine}:any", mine, where)


def model_of(name: str, given: Mapping[str, Any], where: str) -> ModelSpec:
    """The model with options as a file gives them: values of the option's own type, an empty one left out."""
    known, values = options_of(name.partition(":")[0]), {}
    check_keys(given, [*known], where)
    for key, value in given.items():
        wants_text = str(known[key].type) == "str"
        fits = isinstance(value, str) == wants_text or (key == "body" and isinstance(value, dict))
        if value is None and known[key].default is None:
            continue
        if not fits:
            hint = "; put it in quotes" if wants_text and isinstance(value, bool | int | float) else ""
            raise NegolabError(f"{where}: {key} is {value!r}; allowed: {known[key].metadata['says']}{hint}")
        values[key] = value
    try:
        return spec_of(name, values)
    except (NegolabError, TypeError) as error:  # TypeError: a body that JSON cannot hold
        raise NegolabError(f"{where}: {error}") from None


def _entries(given: Any, defaults: Mapping[str, Any], scripted: Sequence[str], where: str) -> Iterator[Entry]:
    if not isinstance(given, list) or not given:
        raise NegolabError(f"{where}: sellers must be a list of entries such as - seller: prober")
    seen: dict[str, int] = {}
    for number, options in enumerate(given, 1):
        entry = _entry(options, defaults, scripted, f"{where}, entry {number}")
        before = seen.setdefault(entry.name.casefold(), number)
        if before != number:
            raise NegolabError(
                f"{where}, entry {number}: the name {entry.name!r} is that of entry {before}; give it one of its own "
                "with name:"
            )
        yield entry


def _entry(options: Any, defaults: Mapping[str, Any], scripted: Sequence[str], where: str) -> Entry:
    if not isinstance(options, dict):
        raise NegolabError(f"{where} is {options!r}; allowed: lines such as seller: prober")
    given = dict(options)
    seller = given.pop("seller", None)
    if not isinstance(seller, str) or not seller.strip():
        raise NegolabError(f"{where} needs seller: ENGINE:MODEL, module:factory, or one of {', '.join(scripted)}")
    where = f"{where} ({given['name'] if isinstance(given.get('name'), str) else seller})"
    if is_model(seller):
        mine = options_of(seller.partition(":")[0])
        model = model_of(seller, {**{k: v for k, v in defaults.items() if k in mine}, **given}, where)
        return named(Entry(model.label, model, model.params, MODEL), where)
    for key in given:
        if key not in ("name", "params"):
            raise NegolabError(f"{where}: {key!r} goes with a language model; allowed here: name, params")
    module, colon, factory = seller.partition(":")
    known = seller in SELLERS or seller in ITEM_SELLERS  # of which market they are is checked when that is settled
    if not known and not (colon and module.strip() and factory.strip()):
        raise NegolabError(f"{where}: unknown seller; {_allowed(scripted)}")
    kind = SCRIPTED if known else OWN
    return named(Entry(given.get("name", seller), seller, given.get("params", ""), kind), where)


def named(
    entry: Entry, where: str, players: Sequence[str] = (*SELLERS, *ITEM_SELLERS), others: Sequence[str] = BUYERS
) -> Entry:
    """The entry, if it may be called so. Raises ``NegolabError`` for a name that a table cannot show, or that is one of
    ``players`` whom the entry is not, or one of ``others``."""
    for key, value in (("name", entry.name), ("params", entry.params)):
        if not isinstance(value, str) or not value.isprintable() or value != value.strip():
            raise NegolabError(f"{where}: {key} is {value!r}; allowed: a text of one line, in quotes")
    if not entry.name:
        raise NegolabError(f"{where}: name is empty")
    if entry.name in others or (entry.name in players and entry.seller != entry.name):
        raise NegolabError(f"{where}: {entry.name!r} is the name of another player; give it one of its own with name:")
    return entry


# -- the run ----------------------------------------------------------------------------------------------------------


def _run(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str]:
    """The settings of every entry's run, and the catalogue."""
    check_keys(given, _RUN, where)
    for name in _TEXTS:
        if not isinstance(given.get(name, "x"), str) or not given.get(name, "x"):
            raise NegolabError(f"{where}: {name} is {given[name]!r}; allowed: a text")
    for name, (low, high) in _WHOLE.items():
        value = given.get(name)
        if name in given and (type(value) is not int or not low <= value <= high):
            raise NegolabError(f"{where}: {name} is {value!r}; allowed: a whole number from {low} to {high}")
    knobs = {name: given[name] for name in _KNOBS if name in given}
    name = given.get("regime", "in_distribution")
    try:
        chosen = regime(name, **knobs)
    except (NegolabError, TypeError) as error:
        raise NegolabError(f"{where}: {error}") from None
    run = {key: given[key] for key in ("split", "per_product", "products", "seed") if key in given}
    buyers = _buyers(given.get("buyers"), chosen.buyer_types, f"{where}, buyers")
    return {**run, "regime": name, "knobs": knobs, "buyers": buyers}, given.get("data", SAMPLE)


def _buyers(given: Any, types: Sequence[str], where: str) -> dict[str, ModelSpec]:
    """Language models by buyer type."""
    if given is None or given == SCRIPTED:
        return {}
    if not isinstance(given, dict) or not given:
        raise NegolabError(f"{where} is {given!r}; allowed: scripted, or a model as model: ENGINE:MODEL with options")
    by_type = {EVERY: given} if "model" in given else given
    found = {}
    for kind, options in by_type.items():
        if kind != EVERY and kind not in types:
            raise NegolabError(f"{where}: no buyer of type {kind!r} in this market; allowed: {', '.join(types)}")
        place = where if kind == EVERY else f"{where}, {kind}"
        model = options.get("model") if isinstance(options, dict) else None
        if not isinstance(model, str) or not is_model(model):
            raise NegolabError(f"{place} needs model: ENGINE:MODEL, the engine one of {', '.join(ENGINES)}")
        found[kind] = model_of(model, {k: v for k, v in options.items() if k != "model"}, place)
    return found
