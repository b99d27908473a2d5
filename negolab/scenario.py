"""Scenarios: everything random about a market, drawn before anybody speaks (2607.05863, sections 3.1, 3.3, 9.2, 9.3).

The bilateral game of 2604.09855 is drawn by the same rules: one buyer, whose budget is a fixed share of the list price.

A ``Regime`` says how markets are drawn; ``draw`` makes one ``Scenario`` from (seed, product, repetition). The seller is
no part of it, so one seed gives the same markets to every seller, in any order and with any number of workers.

Readings of the paper that are not spelled out there: budgets and openings are rounded half up to whole cents; a
regulated opening never exceeds its buyer's budget; with more buyers than budget tiers the tiers repeat in order before
they are permuted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from negolab.catalog import Product
from negolab.errors import NegolabError
from negolab.money import round_cents
from negolab.seeds import generator

MAX_SEED = 2**63 - 1

Interval = tuple[float, float]

GAMES = ("market", "bilateral")
"""Rules that a scenario may be played by: ``environment.Market``, ``environment.Bilateral``."""
PERSONAS = ("neutral", "begging", "insulting", "unyielding")
"""How a seller of the bilateral game may be told to behave (2604.09855, table 3)."""
_BILATERAL_KNOBS = ("game", "reject", "personas")  # left out of a market's record


@dataclass(frozen=True, slots=True)
class Regime:
    """How markets are drawn. Ratios are fractions of the list price."""

    name: str
    n_buyers: int
    """N, the number of sealed buyers."""
    per_buyer_cap: int
    """K, the most seller messages one buyer may get."""
    message_budget: int
    """T, the seller's messages in the whole episode."""
    budget_tiers: tuple[Interval, ...]
    """Budget-ratio intervals, handed out by a uniform permutation of the slots."""
    first_offer: Interval | None
    """Ratio interval of the regulated first offer; None: buyers open as they like."""
    buyer_types: tuple[str, ...]
    """Each slot's buyer type is drawn uniformly from these."""
    game: str = "market"
    """Whose rules are played: one of ``GAMES``."""
    reject: bool = False
    """The bilateral game: whether ``[REJECT]`` is an action. The sources disagree."""
    personas: tuple[str, ...] = ("neutral",)
    """The bilateral game: the seller's persona is drawn uniformly from these (``PERSONAS``)."""

    def __post_init__(self) -> None:
        """Raise ``NegolabError`` for a knob out of range: what, its value, and what is allowed."""
        for knob, top in (("n_buyers", 1000), ("per_buyer_cap", 1000), ("message_budget", 100_000)):
            value = getattr(self, knob)
            if type(value) is not int or not 1 <= value <= top:
                raise NegolabError(
                    f"regime {self.name}: {knob} is {value!r}; allowed: a whole number from 1 to {top:,}"
                )
        if not isinstance(self.budget_tiers, tuple) or not self.budget_tiers:
            raise NegolabError(
                f"regime {self.name}: budget_tiers is empty; give at least one interval such as 0.40-1.15"
            )
        for tier in self.budget_tiers:
            _check_interval(f"regime {self.name}: budget tier", tier)
        if self.first_offer is not None:
            _check_interval(f"regime {self.name}: first_offer", self.first_offer)
        if (
            not isinstance(self.buyer_types, tuple)
            or not self.buyer_types
            or not all(isinstance(t, str) and t for t in self.buyer_types)
        ):
            raise NegolabError(f"regime {self.name}: buyer_types is {self.buyer_types!r}; give at least one type")
        self._check_game()

    def _check_game(self) -> None:
        where = f"regime {self.name}:"
        if self.game not in GAMES:
            raise NegolabError(f"{where} game is {self.game!r}; allowed: {', '.join(GAMES)}")
        if type(self.reject) is not bool:
            raise NegolabError(f"{where} reject is {self.reject!r}; allowed: true or false")
        if not isinstance(self.personas, tuple) or not self.personas or not set(self.personas) <= set(PERSONAS):
            raise NegolabError(f"{where} personas is {self.personas!r}; allowed: one or more of {', '.join(PERSONAS)}")
        if self.game == "market":
            if self.reject or self.personas != ("neutral",):
                raise NegolabError(f"{where} reject and personas are knobs of the bilateral game")
            return
        if self.n_buyers != 1 or self.first_offer is not None:
            raise NegolabError(f"{where} the bilateral game has one buyer, and no regulated first offer")
        if self.per_buyer_cap != self.message_budget:
            raise NegolabError(
                f"{where} per_buyer_cap is {self.per_buyer_cap} and message_budget {self.message_budget}; in the "
                "bilateral game both are the number of turns and must be equal"
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal but departs from the paper's setting."""
        if self.game == "market" and self.message_budget >= self.n_buyers * self.per_buyer_cap:
            return (
                f"T = {self.message_budget} is not below N x K = {self.n_buyers * self.per_buyer_cap}: "
                "the seller can exhaust every buyer, so the paper's trade-off (T < N x K) is gone",
            )
        return ()

    def override(self, **knobs: Any) -> "Regime":
        """A copy with some knobs changed. None leaves a knob alone; ``first_offer="free"`` switches the regulator off;
        lists (from YAML) are as good as tuples. Raises ``NegolabError`` for an unknown knob or a bad value."""
        allowed = {f.name for f in fields(self)}
        unknown = sorted(set(knobs) - allowed)
        if unknown:
            raise NegolabError(f"unknown regime knob {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}")
        knobs = {k: _tuples(v) for k, v in knobs.items() if v is not None}
        if knobs.get("first_offer") == "free":
            knobs["first_offer"] = None
        return replace(self, **knobs)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        skipped = _BILATERAL_KNOBS if self.game == "market" else ()
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Regime":
        """Read back ``to_json``. Raises ``TypeError`` for other fields, ``NegolabError`` for a knob out of range."""
        return cls(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _check_interval(what: str, interval: object) -> None:
    match interval:
        case (int() | float() as low, int() | float() as high):
            pass
        case _:
            raise NegolabError(f"{what} is {interval!r}; allowed: two numbers, low and high")
    if not (0.0 < low <= high <= 100.0):  # also refuses NaN
        raise NegolabError(f"{what} {low}-{high}; allowed: 0 < low <= high <= 100, as fractions of the list price")


IN_DISTRIBUTION = Regime(
    name="in_distribution",
    n_buyers=3,
    per_buyer_cap=3,
    message_budget=7,
    budget_tiers=((0.40, 0.55), (0.65, 0.80), (1.00, 1.15)),
    first_offer=(0.25, 0.30),
    buyer_types=("iter-60",),
)
"""Table 6: three rank-ordered tiers, regulated first offers, the iter-60 buyer."""

OOD_DIVERSE = Regime(
    name="ood_diverse",
    n_buyers=5,
    per_buyer_cap=3,
    message_budget=9,
    budget_tiers=((0.40, 1.15),),
    first_offer=None,
    buyer_types=("iter-50", "iter-60", "iter-70"),
)
"""Table 8: five buyers of mixed types, free openings; K stays 3."""

BILATERAL = Regime(
    name="bilateral",
    n_buyers=1,
    per_buyer_cap=6,
    message_budget=6,
    budget_tiers=((0.8, 0.8),),
    first_offer=None,
    buyer_types=("learner",),
    game="bilateral",
)
"""2604.09855: one buyer with 0.8 x list price, six turns, the buyer learns. Its type names no player: who plays is
said beside it, so that every learner meets the same games."""

REGIMES: Mapping[str, Regime] = {r.name: r for r in (IN_DISTRIBUTION, OOD_DIVERSE)}
"""The market's regimes by name."""
_ALL = {**REGIMES, BILATERAL.name: BILATERAL}


def regime(name: str, **knobs: Any) -> Regime:
    """A named regime, with knobs changed (None: unchanged). Raises ``NegolabError`` for an unknown name or knob."""
    if name not in _ALL:
        raise NegolabError(f"unknown regime {name!r}; allowed: {', '.join(_ALL)}")
    return _ALL[name].override(**knobs)


class Scenario(NamedTuple):
    """One market, complete and immutable. Money in cents; buyers are counted from 1 (``budgets[0]`` is Buyer 1's)."""

    episode: int
    """Position in the run; decides the order of the stored episodes and nothing else."""
    rep: int
    """Repetition on this product, from 0."""
    regime: str
    product: Product
    per_buyer_cap: int
    message_budget: int
    budgets: tuple[int, ...]
    openings: tuple[int, ...] | None
    """Regulated first offers; None where buyers open freely."""
    buyer_types: tuple[str, ...]
    keys: tuple[int, ...]
    """One random 63-bit word per seat, the seller's first: all that seat's own randomness comes from it. Independent
    words: none follows from another. (Who knows the run's seed can draw the whole market; a seat is not told it.)"""
    game: str = "market"
    reject: bool = False
    persona: str = "neutral"
    """The bilateral game: how the seller is to behave."""

    @property
    def n_buyers(self) -> int:
        """N."""
        return len(self.budgets)

    def rank(self, buyer: int) -> int:
        """Rank of a buyer by hidden budget, 1 the highest; equal budgets share the better rank."""
        mine = self.budgets[buyer - 1]
        return 1 + sum(other > mine for other in self.budgets)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the listing's text stays in the run's products file."""
        listing = self.product.listing
        bilateral = {"game": self.game, "reject": self.reject, "persona": self.persona}
        return {
            "rep": self.rep,
            "regime": self.regime,
            "codename": listing.codename,
            "list_cents": listing.list_cents,
            "cost_cents": self.product.cost_cents,
            "per_buyer_cap": self.per_buyer_cap,
            "message_budget": self.message_budget,
            "budgets": self.budgets,
            "openings": self.openings,
            "buyer_types": self.buyer_types,
            "keys": self.keys,
            **(bilateral if self.game != "market" else {}),
        }

    @classmethod
    def from_json(cls, episode: int, data: Mapping[str, Any], product: Product) -> "Scenario":
        """Read back ``to_json``. Raises ``KeyError``/``TypeError``/``ValueError`` on a record that is not one."""
        listing = product.listing
        stored = (data["codename"], data["list_cents"], data["cost_cents"])
        if stored != (listing.codename, listing.list_cents, product.cost_cents):
            raise ValueError(f"scenario {stored} does not match product {listing.codename}")
        return cls(
            episode=episode,
            rep=data["rep"],
            regime=data["regime"],
            product=product,
            per_buyer_cap=data["per_buyer_cap"],
            message_budget=data["message_budget"],
            budgets=tuple(data["budgets"]),
            openings=None if data["openings"] is None else tuple(data["openings"]),
            buyer_types=tuple(data["buyer_types"]),
            keys=tuple(data["keys"]),
            game=data.get("game", "market"),
            reject=data.get("reject", False),
            persona=data.get("persona", "neutral"),
        )


def draw(regime: Regime, product: Product, *, seed: int, rep: int, episode: int = 0) -> Scenario:
    """Draw the ``rep``-th market of ``product`` under ``seed``; ``episode`` only names its place in the run."""
    rng = generator(seed, "market", product.listing.codename, rep)
    n, list_cents = regime.n_buyers, product.listing.list_cents
    # All numbers are drawn in every regime, so switching one knob leaves the other draws alone.
    u = rng.random(4 * n).tolist()
    keys = tuple([word >> 1 for word in rng.bit_generator.random_raw(n + 1).tolist()])
    order = sorted(range(n), key=u[3 * n :].__getitem__)  # a uniform permutation
    tiers, types, budgets = regime.budget_tiers, regime.buyer_types, []
    for place, ratio in zip(order, u, strict=False):
        low, high = tiers[place % len(tiers)]
        budgets.append(round_cents((low + (high - low) * ratio) * list_cents) or 1)
    openings = None
    if regime.first_offer is not None:
        low, high = regime.first_offer
        offers = [round_cents((low + (high - low) * ratio) * list_cents) or 1 for ratio in u[n : 2 * n]]
        openings = tuple(map(min, offers, budgets))
    buyer_types = tuple([types[int(ratio * len(types))] for ratio in u[2 * n : 3 * n]])
    k, t = regime.per_buyer_cap, regime.message_budget
    personas = regime.personas
    persona = personas[0] if len(personas) == 1 else personas[int(rng.random() * len(personas))]
    game = (regime.game, regime.reject, persona)
    fields = (episode, rep, regime.name, product, k, t, tuple(budgets), openings, buyer_types, keys, *game)
    return tuple.__new__(Scenario, fields)  # a third of the time of the named tuple's own constructor


class Schedule(Sequence[Scenario]):
    """The markets of a run: ``per_product`` repetitions of each product, product by product, drawn when asked for."""

    def __init__(self, regime: Regime, products: Sequence[Product], *, seed: int, per_product: int = 1) -> None:
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise NegolabError(f"seed is {seed!r}; allowed: a whole number from 0 to {MAX_SEED}")
        if type(per_product) is not int or not 1 <= per_product <= 1_000_000:
            raise NegolabError(f"per-product is {per_product!r}; allowed: a whole number from 1 to 1,000,000")
        if not products:
            raise NegolabError("no products to play: the catalogue or the chosen split is empty")
        self.regime, self.products, self.seed, self.per_product = regime, products, seed, per_product

    def __len__(self) -> int:
        return len(self.products) * self.per_product

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        position, rep = divmod(index, self.per_product)
        return draw(self.regime, self.products[position], seed=self.seed, rep=rep, episode=index)
