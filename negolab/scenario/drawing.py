"""Scenarios: everything random about a market, drawn before anybody speaks (2607.05863, sections 3.1, 3.3, 9.2, 9.3;
with several items 2609.33289, sections 3, 5.2 and 9.1).

The bilateral game of 2604.09855 is drawn by the same rules: one buyer, whose budget is a fixed share of the list price.

A ``Regime`` says how markets are drawn; ``draw`` makes one ``Scenario`` from (seed, unit, repetition), where a unit is
a product, or a cluster of substitutable products from which the items are taken. The seller is no part of it, so one
seed gives the same markets to every seller, in any order and with any number of workers.

Readings of the papers that are not spelled out there: budgets and openings are rounded half up to whole cents, and are
never below one cent nor above the largest amount that a reply can name; a regulated opening never exceeds its buyer's
budget; with more buyers than budget tiers the tiers repeat in order before they are permuted. With several items a
buyer's tier holds for all of them, items are drawn without replacement and in random order, and correlated valuations
are those of a Gaussian copula, so that each keeps its uniform distribution.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from negolab.catalog import Product
from negolab.clusters import Cluster
from negolab.errors import NegolabError
from negolab.money import MAX_CENTS, dollars, round_cents
from negolab.scenario.regimes import Regime
from negolab.seeds import generator

MAX_SEED = 2**63 - 1
_REDRAWS = 1000
"""How often a value that does not fit is drawn again. Of the published listings the worst needs 60 on average."""

Unit = Product | Cluster
"""What a run repeats: a product, or a cluster from which a market's items are drawn."""


class Scenario(NamedTuple):
    """One market, complete and immutable. Money in cents; buyers and items are counted from 1 (``valuations[0][0]`` is
    what item 1 is worth to Buyer 1)."""

    episode: int
    """Position in the run; decides the order of the stored episodes and nothing else."""
    rep: int
    """Repetition on this unit, from 0."""
    regime: str
    unit: str
    """What is repeated: the product's codename, or the cluster's name. Errors of means are clustered by it."""
    products: tuple[Product, ...]
    """The items, M of them."""
    per_buyer_cap: int
    message_budget: int
    valuations: tuple[tuple[int, ...], ...]
    """By buyer, then by item: what it is worth to the buyer, who never pays more."""
    openings: tuple[tuple[int, ...] | None, ...] | None
    """Regulated first offers by buyer, then by item; None for a buyer that opens freely, and where all do."""
    buyer_types: tuple[str, ...]
    keys: tuple[int, ...]
    """One random 63-bit word per seat, the seller's first: all that seat's own randomness comes from it. Independent
    words: none follows from another. (Who knows the run's seed can draw the whole market; a seat is not told it.)"""
    game: str = "market"
    reject: bool = False
    persona: str = "neutral"
    """The bilateral game: how the seller is to behave."""
    protocol: str = "lines"
    """How replies are written: one of ``PROTOCOLS``."""
    reserve: int | None = None
    """The trade game: the seller's reservation price. The product's cost and list price are there the lowest and
    highest price of the item's history."""

    @property
    def n_buyers(self) -> int:
        """N."""
        return len(self.valuations)

    @property
    def n_items(self) -> int:
        """M."""
        return len(self.products)

    @property
    def product(self) -> Product:
        """Item 1, where that is all there is."""
        return self.products[0]

    @property
    def budgets(self) -> tuple[int, ...]:
        """What item 1 is worth to each buyer: the budgets, where that is all there is."""
        return tuple([row[0] for row in self.valuations])

    def rank(self, buyer: int, item: int = 1) -> int:
        """Rank of a buyer by what the item is worth to it, 1 the highest; equal ones share the better rank."""
        mine = self.valuations[buyer - 1][item - 1]
        return 1 + sum(row[item - 1] > mine for row in self.valuations)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the listings' texts stay in the run's products file."""
        money = {
            "rep": self.rep,
            "regime": self.regime,
            "per_buyer_cap": self.per_buyer_cap,
            "message_budget": self.message_budget,
            "buyer_types": self.buyer_types,
            "keys": self.keys,
        }
        if self.protocol == "tags" or self.unit != self.product.listing.codename:
            items = [[p.listing.codename, p.listing.list_cents, p.cost_cents] for p in self.products]
            drawn = {"items": items, "valuations": self.valuations, "openings": self.openings}
            return {**money, "unit": self.unit, **drawn, "protocol": self.protocol}
        listing, openings = self.product.listing, self.openings
        bilateral = {"game": self.game, "reject": self.reject, "persona": self.persona}
        trade = {"game": self.game, "reserve": self.reserve, "protocol": self.protocol}
        return {
            **money,
            "unit": self.unit,
            "list_cents": listing.list_cents,
            "cost_cents": self.product.cost_cents,
            "budgets": self.budgets,
            "openings": None if openings is None else [None if fixed is None else fixed[0] for fixed in openings],
            **(bilateral if self.game == "bilateral" else {}),
            **(trade if self.game == "trade" else {}),
        }

    @classmethod
    def from_json(cls, episode: int, data: Mapping[str, Any], products: Mapping[str, Product]) -> "Scenario":
        """Read back ``to_json``; ``products`` by codename. Raises ``KeyError``/``TypeError``/``ValueError`` on a record
        that is not one."""
        openings = data["openings"]
        if "items" in data:
            stored = [tuple(item) for item in data["items"]]
            valuations = tuple(map(tuple, data["valuations"]))
            fixed = None if openings is None else tuple(None if row is None else tuple(row) for row in openings)
        else:
            stored = [(data["unit"], data["list_cents"], data["cost_cents"])]
            valuations = tuple((budget,) for budget in data["budgets"])
            fixed = None if openings is None else tuple(None if one is None else (one,) for one in openings)
        items = tuple(products[codename] for codename, _, _ in stored)
        for item, product in zip(stored, items, strict=True):
            if item != (product.listing.codename, product.listing.list_cents, product.cost_cents):
                raise ValueError(f"scenario {item} does not match product {product.listing.codename}")
        return cls(
            episode=episode,
            rep=data["rep"],
            regime=data["regime"],
            unit=data["unit"],
            products=items,
            per_buyer_cap=data["per_buyer_cap"],
            message_budget=data["message_budget"],
            valuations=valuations,
            openings=fixed,
            buyer_types=tuple(data["buyer_types"]),
            keys=tuple(data["keys"]),
            game=data.get("game", "market"),
            reject=data.get("reject", False),
            persona=data.get("persona", "neutral"),
            protocol=data.get("protocol", "lines"),
            reserve=data.get("reserve"),
        )


def draw(regime: Regime, unit: Unit, *, seed: int, rep: int, episode: int = 0) -> Scenario:
    """Draw the ``rep``-th market of ``unit`` under ``seed``; ``episode`` only names its place in the run.

    Raises ``NegolabError`` where the unit has fewer items than the regime sells, and where it wants a cluster.
    """
    if isinstance(unit, Cluster):
        return _draw_items(regime, unit, seed, rep, episode)
    if regime.n_items > 1 or regime.item_correlation or regime.buyer_correlation:
        raise _no_cluster(regime, f"{unit.listing.codename} is a product")
    if regime.game == "trade":
        return _draw_trade(regime, unit, seed, rep, episode)
    rng = generator(seed, "market", unit.listing.codename, rep)
    n, list_cents = regime.n_buyers, unit.listing.list_cents
    # All numbers are drawn in every regime, so switching one knob leaves the other draws alone.
    u = rng.random(4 * n).tolist()
    keys = tuple([word >> 1 for word in rng.bit_generator.random_raw(n + 1).tolist()])
    order = sorted(range(n), key=u[3 * n :].__getitem__)  # a uniform permutation
    tiers, types, budgets = regime.budget_tiers, regime.buyer_types, []
    for place, ratio in zip(order, u, strict=False):
        low, high = tiers[place % len(tiers)]
        budgets.append(_worth((low + (high - low) * ratio) * list_cents))
    openings: tuple[tuple[int, ...] | None, ...] | None = None
    if regime.first_offer is not None:
        low, high = regime.first_offer
        offers = [round_cents((low + (high - low) * ratio) * list_cents) or 1 for ratio in u[n : 2 * n]]
        openings = tuple(zip(map(min, offers, budgets)))
    buyer_types = tuple([types[int(ratio * len(types))] for ratio in u[2 * n : 3 * n]])
    k, t = regime.per_buyer_cap, regime.message_budget
    personas = regime.personas
    persona = personas[0] if len(personas) == 1 else personas[int(rng.random() * len(personas))]
    if regime.first_offer_rate < 1.0 and openings is not None:
        free = rng.random(n) >= regime.first_offer_rate
        opened = zip(free, openings, strict=True)
        openings = None if free.all() else tuple([None if is_free else fixed for is_free, fixed in opened])
    name, game = unit.listing.codename, (regime.game, regime.reject, persona, regime.protocol, None)
    fields = (episode, rep, regime.name, name, (unit,), k, t, tuple(zip(budgets)), openings, buyer_types, keys, *game)
    return tuple.__new__(Scenario, fields)  # a third of the time of the named tuple's own constructor


def _worth(cents: float) -> int:
    """A valuation or budget: an amount that a reply can name, so that somebody who knows it can ask for it."""
    return min(round_cents(cents), MAX_CENTS) or 1


def _no_cluster(regime: Regime, what: str) -> NegolabError:
    wanted = f"sells {regime.n_items} items" if regime.n_items > 1 else "has correlated valuations"
    return NegolabError(f"regime {regime.name} {wanted}, which needs clusters; {what}")


def _draw_items(regime: Regime, cluster: Cluster, seed: int, rep: int, episode: int) -> Scenario:
    """The market of several items: M products of the cluster. Raises ``NegolabError`` where it has fewer."""
    n, m = regime.n_buyers, regime.n_items
    if len(cluster.products) < m:
        raise NegolabError(
            f"cluster {cluster.name} has {len(cluster.products)} products; regime {regime.name} sells {m} of one"
        )
    rng = generator(seed, "items market", cluster.name, rep)
    u = rng.random(3 * n).tolist()
    keys = tuple([word >> 1 for word in rng.bit_generator.random_raw(n + 1).tolist()])
    chosen = rng.permutation(len(cluster.products))[:m].tolist()
    products = tuple([cluster.products[at] for at in chosen])
    order = sorted(range(n), key=u.__getitem__)
    ratios = _ratios(regime, rng.random((n, m)), rng.standard_normal(n + m))
    offers = rng.random((n, m)).tolist()
    tiers, types = regime.budget_tiers, regime.buyer_types
    lists = [product.listing.list_cents for product in products]
    valuations: list[tuple[int, ...]] = []
    openings: list[tuple[int, ...] | None] = []
    for buyer, place in enumerate(order):
        low, high = tiers[place % len(tiers)]
        worth = tuple([_worth((low + (high - low) * r) * cents) for r, cents in zip(ratios[buyer], lists, strict=True)])
        valuations.append(worth)
        if regime.first_offer is None or u[2 * n + buyer] >= regime.first_offer_rate:
            openings.append(None)
            continue
        low, high = regime.first_offer
        drawn = zip(offers[buyer], lists, strict=True)
        fixed = [round_cents((low + (high - low) * ratio) * cents) or 1 for ratio, cents in drawn]
        openings.append(tuple(map(min, fixed, worth)))
    return Scenario(
        episode=episode,
        rep=rep,
        regime=regime.name,
        unit=cluster.name,
        products=products,
        per_buyer_cap=regime.per_buyer_cap,
        message_budget=regime.message_budget,
        valuations=tuple(valuations),
        openings=None if all(fixed is None for fixed in openings) else tuple(openings),
        buyer_types=tuple([types[int(ratio * len(types))] for ratio in u[n : 2 * n]]),
        keys=keys,
        protocol=regime.protocol,
    )


def _ratios(regime: Regime, uniform: Any, factors: Any) -> list[list[float]]:
    """Where in its tier each valuation lies, by buyer and item, uniform in [0, 1]. ``uniform``: N x M independent
    numbers; ``factors``: N + M standard normal ones, a buyer's or an item's share in all its valuations."""
    a, b = regime.item_correlation, regime.buyer_correlation
    if a == b == 0:
        return uniform.tolist()
    n, m = uniform.shape
    own = math.sqrt(1 - (a + b))  # 1 - a - b may come out below zero: 1 - 0.9 - 0.1 does
    rich, fine = math.sqrt(b) * factors[:n], math.sqrt(a) * factors[n:]
    normal = NormalDist()
    return [
        [
            normal.cdf(own * normal.inv_cdf(min(max(float(uniform[i, j]), 1e-12), 1 - 1e-12)) + rich[i] + fine[j])
            for j in range(m)
        ]
        for i in range(n)
    ]


def _trade_room(regime: Regime, product: Product, reserve: int) -> tuple[float, float]:
    """Between which values the buyer's may be drawn, in cents, given the seller's. Raises ``NegolabError`` where there
    are none."""
    low, high = product.cost_cents, product.listing.list_cents
    bottom, top = 0.4 * low, high + 0.1 * (high - low)
    # Half a cent further, so that what is rounded to whole cents still differs by more than one.
    if regime.gains == "gft":
        bottom = max(bottom, reserve + 1.5)
    elif regime.gains == "ngft":
        top = min(top, reserve - 1.5)
    if bottom >= top:
        raise NegolabError(
            f"{product.listing.codename}: with a history from {dollars(low)} to {dollars(high)} and the seller's "
            f"reservation price at {dollars(reserve)} the buyer's cannot be more than a cent "
            f"{'above' if regime.gains == 'gft' else 'below'} it"
        )
    return bottom, top


def _reserve(product: Product, ratio: float) -> int:
    return max(1, round_cents((0.6 + 0.3 * ratio) * product.cost_cents))


def _draw_trade(regime: Regime, product: Product, seed: int, rep: int, episode: int) -> Scenario:
    """The trade game (2604.16472; facts of its authors' code): with the lowest and highest price L and H of the item's
    history, the seller's reservation price is uniform on [0.6 L, 0.9 L], the buyer's on [0.4 L, H + 0.1 (H - L)], and
    where the regime wants gains from trade, or none, more than a cent above the seller's, or below it. All are rounded
    to cents.

    ``redraw`` draws the buyer's again until it fits, as the authors' later code does, ``conditional`` draws it from
    what fits, as the earlier one: given the seller's, which neither draws again, the law is the same. So ``redraw``
    may give up after a while and go the other way, where hardly anything fits.
    """
    rng = generator(seed, "trade", product.listing.codename, rep)
    keys = tuple([word >> 1 for word in rng.bit_generator.random_raw(2).tolist()])
    reserve = _reserve(product, rng.random())
    bottom, top = _trade_room(regime, product, reserve)
    value: float | None = None
    if regime.trade_draw == "redraw":
        low, high = product.cost_cents, product.listing.list_cents
        widest = (0.4 * low, high + 0.1 * (high - low))
        for _ in range(_REDRAWS):
            drawn = widest[0] + (widest[1] - widest[0]) * rng.random()
            if bottom <= drawn < top:
                value = drawn
                break
    if value is None:
        value = bottom + (top - bottom) * rng.random()
    return Scenario(
        episode=episode,
        rep=rep,
        regime=regime.name,
        unit=product.listing.codename,
        products=(product,),
        per_buyer_cap=regime.per_buyer_cap,
        message_budget=regime.message_budget,
        valuations=((max(1, round_cents(value)),),),
        openings=None,
        buyer_types=regime.buyer_types,
        keys=keys,
        game="trade",
        protocol=regime.protocol,
        reserve=reserve,
    )


class Schedule(Sequence[Scenario]):
    """The markets of a run: ``per_product`` repetitions of each unit, unit by unit, drawn when asked for."""

    def __init__(self, regime: Regime, units: Sequence[Unit], *, seed: int, per_product: int = 1) -> None:
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise NegolabError(f"seed is {seed!r}; allowed: a whole number from 0 to {MAX_SEED}")
        if type(per_product) is not int or not 1 <= per_product <= 1_000_000:
            raise NegolabError(f"per-product is {per_product!r}; allowed: a whole number from 1 to 1,000,000")
        if not units:
            raise NegolabError("nothing to play: the catalogue or the chosen split is empty")
        self.regime, self.units, self.seed, self.per_product = regime, units, seed, per_product
        clusters = all(isinstance(unit, Cluster) for unit in units)
        if not clusters and (regime.n_items > 1 or regime.item_correlation or regime.buyer_correlation):
            raise _no_cluster(regime, "these are products")
        if regime.game != "market" and any(isinstance(unit, Cluster) for unit in units):
            raise NegolabError(f"regime {regime.name}: the {regime.game} game is about one product, not about clusters")
        for unit in units:
            if isinstance(unit, Cluster) and len(unit.products) < regime.n_items:
                raise NegolabError(
                    f"cluster {unit.name} has {len(unit.products)} products; regime {regime.name} sells "
                    f"{regime.n_items} of one"
                )
            if isinstance(unit, Product) and regime.game == "trade":
                for ratio in (0.0, 1.0):  # now rather than in the middle of a run
                    _trade_room(regime, unit, _reserve(unit, ratio))

    @property
    def products(self) -> list[Product]:
        """Everything that may be on sale, unit by unit."""
        return [p for unit in self.units for p in (unit.products if isinstance(unit, Cluster) else (unit,))]

    def __len__(self) -> int:
        return len(self.units) * self.per_product

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        position, rep = divmod(index, self.per_product)
        return draw(self.regime, self.units[position], seed=self.seed, rep=rep, episode=index)
