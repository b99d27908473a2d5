"""Tournaments of the trade game (2604.16472, section 4): who plays, on which scenarios, and every run that this makes.

A tournament file has three parts: ``run`` (the scenarios), ``defaults`` (options of every language model) and
``traders`` (a list; an entry's own options go before the defaults). Everybody sells to everybody, itself too, and all
pairs play the same scenarios: the paper's 400 with gains from trade and 200 without are two and one for each of 200
products. Every pair and kind of scenario is an ordinary run, as ``negolab evaluate --game trade`` would make it;
``tournament_run`` plays them.

The paper's 200 products are a validation split that is not published. Here they are drawn from a split of the catalogue
(by default from all of it) by a fixed random order of the codenames, which the tournament's seed does not change, so
that fewer of them are part of more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from negolab.catalog import SAMPLE, Catalog, Product
from negolab.errors import NegolabError
from negolab.panel import MODEL, OWN, SCRIPTED, Entry, check_defaults, check_keys, mapping, model_of, named, options_of
from negolab.paths import data_dir
from negolab.plan import Plan, Settings
from negolab.policies.cast import EVERY
from negolab.policies.registry import TRADERS
from negolab.policies.spec import ENGINES, is_model
from negolab.scenario import MAX_SEED, TRADE_DRAWS, Schedule, regime
from negolab.seeds import generator
from negolab.yaml_file import read_yaml

KINDS = ("gft", "ngft")
"""With gains from trade, and without."""
RUNS = "runs"
"""The folder of all runs in a tournament's own: ``runs/SELLER/BUYER/KIND``."""

_PARTS = ("run", "defaults", "traders")
_WHOLE = {
    "products": (1, 10**9),
    "gft_per_product": (0, 1_000_000),
    "ngft_per_product": (0, 1_000_000),
    "seed": (0, MAX_SEED),
    "rounds": (1, 1000),
}


class Match(NamedTuple):
    """One run of a tournament."""

    seller: Entry
    buyer: Entry
    kind: str
    """One of ``KINDS``."""

    @property
    def folder(self) -> Path:
        """Its run folder, seen from the tournament's."""
        return Path(RUNS) / self.seller.folder / self.buyer.folder / self.kind

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.seller.name} sells to {self.buyer.name} ({self.kind})"

    @property
    def sides(self) -> tuple[Entry, Entry]:
        """Seller and buyer."""
        return self.seller, self.buyer


@dataclass(frozen=True, slots=True)
class TournamentSettings:
    """A tournament file, judged; also made directly. Money plays no part in it."""

    name: str
    """The file's name without its ending."""
    where: str
    """The file, for messages."""
    entries: tuple[Entry, ...]
    """Who plays, each as seller and as buyer: an entry's ``seller`` names the trader, whichever seat it has."""
    data: str = SAMPLE
    """Catalogue: ``sample``, ``auto``, or a folder."""
    split: str = "all"
    """From which of the catalogue's splits products are drawn, or the path of a JSON list of codenames."""
    products: int = 200
    """How many products are played."""
    gft_per_product: int = 2
    """Scenarios with gains from trade for each product and pair."""
    ngft_per_product: int = 1
    """The same without."""
    seed: int = 0
    """Of all scenarios; the choice of the products does not depend on it."""
    trade_draw: str = "redraw"
    """How a buyer's value is found: one of ``scenario.TRADE_DRAWS``."""
    rounds: int = 10
    """Most rounds of a negotiation, each one side's turn."""

    def __post_init__(self) -> None:
        """Raise ``NegolabError`` for a value that is not allowed."""
        for name, (low, high) in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise NegolabError(f"{self.where}: {name} is {value!r}; allowed: a whole number from {low} to {high}")
        for name in ("data", "split"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise NegolabError(f"{self.where}: {name} is {value!r}; allowed: a text")
        if self.trade_draw not in TRADE_DRAWS:
            raise NegolabError(f"{self.where}: trade_draw is {self.trade_draw!r}; allowed: {', '.join(TRADE_DRAWS)}")
        if not self.gft_per_product and not self.ngft_per_product:
            raise NegolabError(f"{self.where}: gft_per_product and ngft_per_product are both 0: nothing is played")

    def changed(self, **given: Any) -> TournamentSettings:
        """The same with settings that the command line gave; None leaves one alone."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def per_product(self, kind: str) -> int:
        """Scenarios of a kind for each product and pair."""
        return self.gft_per_product if kind == "gft" else self.ngft_per_product

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of which something is played."""
        return tuple(kind for kind in KINDS if self.per_product(kind))

    def matches(self, only: Sequence[str] = ()) -> list[Match]:
        """Every run, seller by seller. ``only``: names of traders, for the runs among these, and ``SELLER/BUYER`` for
        one pair's. Raises ``NegolabError`` for a name that no entry has."""
        pairs = self._chosen(only)
        return [
            Match(seller, buyer, kind)
            for seller in self.entries
            for buyer in self.entries
            for kind in self.kinds
            if pairs is None or (seller.name, buyer.name) in pairs
        ]

    def _chosen(self, only: Sequence[str]) -> set[tuple[str, str]] | None:
        """The pairs that ``only`` names; None for all."""
        names = [entry.name for entry in self.entries]
        of_pairs = {f"{seller}/{buyer}": (seller, buyer) for seller in names for buyer in names}
        for text in only:
            if text not in names and text not in of_pairs:
                raise NegolabError(
                    f"--only {text}: not in {self.where}; there are: {', '.join(names)}; or SELLER/BUYER for a pair"
                )
        among = [text for text in only if text in names]
        pairs = {of_pairs[text] for text in only if text not in names}
        return pairs | {(seller, buyer) for seller in among for buyer in among} if only else None

    def plan(self, match: Match, catalog: Catalog, products: Sequence[Product]) -> Plan:
        """One run's plan, its players made. Raises ``NegolabError`` for a player that cannot be."""
        knobs = {
            "gains": match.kind,
            "trade_draw": self.trade_draw,
            "per_buyer_cap": self.rounds,
            "message_budget": self.rounds,
        }
        settings = Settings(
            match.seller.seller,
            regime="trade",
            knobs=knobs,
            split="file",
            per_product=self.per_product(match.kind),
            seed=self.seed,
            buyers={EVERY: match.buyer.seller},
        )
        drawn = regime("trade", **knobs)
        schedule = Schedule(drawn, products, seed=self.seed, per_product=settings.per_product)
        made = Plan(settings, catalog, schedule)
        made.cast()
        return made


def choose_products(catalog: Catalog, split: str, wanted: int) -> tuple[list[Product], str]:
    """The products that a tournament is played on, in the catalogue's order, and a note on their choice.

    Raises ``NegolabError`` for a split that does not exist.
    """
    there = catalog.split(split)
    # Uniform numbers of their own, so that neither the order nor the rest of the catalogue has an influence.
    place = {p.listing.codename: generator("tournament products", p.listing.codename).random() for p in there}
    drawn = sorted(there, key=lambda p: (place[p.listing.codename], p.listing.codename))[:wanted]
    chosen = {p.listing.codename for p in drawn}
    where = f"of catalogue {catalog.name}" + ("" if split == "all" else f", split {Path(split).name}")
    if len(there) < wanted:
        note = f"{where[3:]} has {len(there)} products, not {wanted}: each pair plays fewer negotiations"
    else:
        note = f"{len(drawn)} {where}'s {len(there)} products are played, by a fixed random order of their names"
    return [p for p in there if p.listing.codename in chosen], note


# -- files ------------------------------------------------------------------------------------------------------------


def packaged() -> dict[str, Path]:
    """The tournaments that come with negolab, by name."""
    return {path.stem: path for path in sorted((data_dir() / "tournaments").glob("*.yaml"))}


def load_tournament(name: str) -> TournamentSettings:
    """A tournament by the name of a packaged one, or by its file's path. Raises ``NegolabError`` for whatever is
    wrong."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in packaged():
            raise NegolabError(f"no tournament {name!r}; there are: {', '.join(packaged())}; or give a YAML file")
        path = packaged()[name]
    where = f"tournament {path.name}"
    data = read_yaml(path, "tournament", f"the parts {', '.join(_PARTS)}")
    check_keys(data, _PARTS, where)
    defaults = mapping(data.get("defaults"), f"{where}, defaults")
    check_defaults(defaults, f"{where}, defaults")
    run = mapping(data.get("run"), f"{where}, run")
    allowed = [f.name for f in fields(TournamentSettings) if f.name not in ("name", "where", "entries")]
    check_keys(run, allowed, f"{where}, run")
    return TournamentSettings(path.stem, where, entries_of(data.get("traders"), defaults, where), **run)


def entries_of(given: Any, defaults: Mapping[str, Any], where: str) -> tuple[Entry, ...]:
    """The traders of a file. Raises ``NegolabError`` for a mistake in them."""
    if not isinstance(given, list) or not given:
        raise NegolabError(f"{where}: traders must be a list of entries such as - trader: anchor")
    seen: dict[str, int] = {}
    found = []
    for number, options in enumerate(given, 1):
        entry = _entry(options, defaults, f"{where}, entry {number}")
        before = seen.setdefault(entry.name.casefold(), number)
        if before != number:
            raise NegolabError(
                f"{where}, entry {number}: the name {entry.name!r} is that of entry {before}; give it one of its own "
                "with name:"
            )
        found.append(entry)
    return tuple(found)


def _entry(options: Any, defaults: Mapping[str, Any], where: str) -> Entry:
    models = ", ".join(f"{engine}:MODEL" for engine in ENGINES)
    allowed = f"{', '.join(TRADERS)}, module:factory for your own, or a language model as {models}"
    if not isinstance(options, dict):
        raise NegolabError(f"{where} is {options!r}; allowed: lines such as trader: anchor")
    given = dict(options)
    trader = given.pop("trader", None)
    if not isinstance(trader, str) or not trader.strip():
        raise NegolabError(f"{where} needs trader: one of {allowed}")
    where = f"{where} ({given['name'] if isinstance(given.get('name'), str) else trader})"
    if is_model(trader):
        mine = options_of(trader.partition(":")[0])
        model = model_of(trader, {**{k: v for k, v in defaults.items() if k in mine}, **given}, where)
        return named(Entry(model.label, model, model.params, MODEL), where, TRADERS, ())
    for key in given:
        if key not in ("name", "params"):
            raise NegolabError(f"{where}: {key!r} goes with a language model; allowed here: name, params")
    module, colon, factory = trader.partition(":")
    if trader not in TRADERS and not (colon and module.strip() and factory.strip()):
        raise NegolabError(f"{where}: unknown trader; allowed: {allowed}")
    kind = SCRIPTED if trader in TRADERS else OWN
    return named(Entry(given.get("name", trader), trader, given.get("params", ""), kind), where, TRADERS, ())
