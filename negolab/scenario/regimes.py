"""Regimes: how markets are drawn, and the named ones of the papers.

2607.05863, sections 3.1, 3.3, 9.2 and 9.3; with several items 2609.33289, sections 5.2 and 9.1; the bilateral game of
2604.09855: one buyer, whose budget is a fixed share of the list price.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from negolab.errors import NegolabError

Interval = tuple[float, float]

GAMES = ("market", "bilateral", "trade")
"""Rules that a scenario may be played by: ``environment.Market``, ``environment.Bilateral``, ``environment.Trade``."""
PERSONAS = ("neutral", "begging", "insulting", "unyielding")
"""How a seller of the bilateral game may be told to behave (2604.09855, table 3)."""
PROTOCOLS = ("lines", "tags", "tools")
"""How replies are written: ``parser.lines`` (2607.05863), ``parser.tags`` (2609.33289), ``parser.tools`` (2604.16472).
"""
GAINS = ("gft", "ngft", "any")
"""The trade game: the buyer values the item above the seller's reservation price (gains from trade), below it, or as it
happens."""
TRADE_DRAWS = ("redraw", "conditional")
"""The trade game: how a buyer's value of the wanted kind is found."""


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
    """Budget-ratio intervals, handed out by a uniform permutation of the slots. With several items the ratio of what an
    item is worth to a buyer, drawn for each."""
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
    protocol: str = "lines"
    """How replies are written: one of ``PROTOCOLS``."""
    n_items: int = 1
    """M, the number of items; several need ``tags``."""
    first_offer_rate: float = 1.0
    """Probability, for each buyer, that its first offer is regulated at all."""
    item_correlation: float = 0.0
    """Correlation, before the step to uniform, between what two buyers think an item is worth."""
    buyer_correlation: float = 0.0
    """The same between what one buyer thinks two items are worth. Both together are 1 at most."""
    gains: str = "any"
    """The trade game: one of ``GAINS``."""
    trade_draw: str = "redraw"
    """The trade game: one of ``TRADE_DRAWS``."""

    def __post_init__(self) -> None:
        """Raise ``NegolabError`` for a knob out of range: what, its value, and what is allowed."""
        limits = {"n_buyers": 1000, "per_buyer_cap": 1000, "message_budget": 100_000, "n_items": 100}
        for knob, top in limits.items():
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
        self._check_items()
        self._check_game()

    def _check_items(self) -> None:
        where = f"regime {self.name}:"
        if self.protocol not in PROTOCOLS:
            raise NegolabError(f"{where} protocol is {self.protocol!r}; allowed: {', '.join(PROTOCOLS)}")
        if self.n_items > 1 and self.protocol != "tags":
            raise NegolabError(f"{where} {self.n_items} items and protocol {self.protocol}; several items need tags")
        for knob in ("first_offer_rate", "item_correlation", "buyer_correlation"):
            value = getattr(self, knob)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise NegolabError(f"{where} {knob} is {value!r}; allowed: a number from 0 to 1")
        if self.item_correlation + self.buyer_correlation > 1:
            raise NegolabError(f"{where} item_correlation and buyer_correlation add up to more than 1")

    def _check_game(self) -> None:
        where = f"regime {self.name}:"
        if self.game not in GAMES:
            raise NegolabError(f"{where} game is {self.game!r}; allowed: {', '.join(GAMES)}")
        if type(self.reject) is not bool:
            raise NegolabError(f"{where} reject is {self.reject!r}; allowed: true or false")
        if not isinstance(self.personas, tuple) or not self.personas or not set(self.personas) <= set(PERSONAS):
            raise NegolabError(f"{where} personas is {self.personas!r}; allowed: one or more of {', '.join(PERSONAS)}")
        if (self.gains, self.trade_draw) != ("any", "redraw") and self.game != "trade":
            raise NegolabError(f"{where} gains and trade_draw are knobs of the trade game")
        if self.game == "market":
            if self.protocol == "tools":
                raise NegolabError(f"{where} tools are how the trade game is played; the market has lines and tags")
            if self.reject or self.personas != ("neutral",):
                raise NegolabError(f"{where} reject and personas are knobs of the bilateral game")
            return
        if self.game == "trade":
            self._check_trade(where)
            return
        if self.n_buyers != 1 or self.first_offer is not None:
            raise NegolabError(f"{where} the bilateral game has one buyer, and no regulated first offer")
        if self.n_items != 1 or self.protocol != "lines":
            raise NegolabError(f"{where} the bilateral game has one item, and its replies are written in lines")
        if self.per_buyer_cap != self.message_budget:
            raise NegolabError(
                f"{where} per_buyer_cap is {self.per_buyer_cap} and message_budget {self.message_budget}; in the "
                "bilateral game both are the number of turns and must be equal"
            )

    def _check_trade(self, where: str) -> None:
        if self.gains not in GAINS:
            raise NegolabError(f"{where} gains is {self.gains!r}; allowed: {', '.join(GAINS)}")
        if self.trade_draw not in TRADE_DRAWS:
            raise NegolabError(f"{where} trade_draw is {self.trade_draw!r}; allowed: {', '.join(TRADE_DRAWS)}")
        if (self.n_buyers, self.n_items, self.protocol) != (1, 1, "tools") or self.first_offer is not None:
            raise NegolabError(f"{where} the trade game has one buyer, one item, tools, and no regulated first offer")
        if self.reject or self.personas != ("neutral",):
            raise NegolabError(f"{where} reject and personas are knobs of the bilateral game")
        if self.per_buyer_cap != self.message_budget:
            raise NegolabError(
                f"{where} per_buyer_cap is {self.per_buyer_cap} and message_budget {self.message_budget}; in the trade "
                "game both are the number of rounds and must be equal"
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
        # What only some markets have is left out where it says nothing: the records of the others stay as they were.
        return {
            f.name: value
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
            or (self.game == "bilateral" and f.name in _BILATERAL_KNOBS)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Regime":
        """Read back ``to_json``. Raises ``TypeError`` for other fields, ``NegolabError`` for a knob out of range."""
        return cls(**{name: _tuples(value) for name, value in data.items()})


_BILATERAL_KNOBS = ("game", "reject", "personas")


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

MULTI_PRODUCT = Regime(
    name="multi_product",
    n_buyers=3,
    per_buyer_cap=3,
    message_budget=7,
    budget_tiers=((0.40, 1.15),),
    first_offer=(0.25, 0.30),
    buyer_types=("iter-60",),
    protocol="tags",
    n_items=3,
    first_offer_rate=0.5,
)
"""2609.33289, section 5.2: three items of a cluster, three buyers. The interval of valuations is not published; this is
the one of 2607.05863, table 8."""

_VARIED = replace(MULTI_PRODUCT, name="multi_varied", buyer_types=OOD_DIVERSE.buyer_types)
MULTI_PRODUCT_OOD = (
    _VARIED,
    replace(_VARIED, name="multi_expanded", n_buyers=5, n_items=5, message_budget=12),
    replace(_VARIED, name="multi_item_heavy", n_items=5),
    replace(_VARIED, name="multi_buyer_heavy", n_buyers=5, message_budget=9),
    replace(_VARIED, name="multi_item_correlation", item_correlation=0.8),
)
"""2609.33289, section 9.1: buyers of mixed types, and one shift each; ``papers.multi_item.SUITES`` says of which split.
N, M, T and the strength of the correlation are not published: these are ours."""

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

TRADE = Regime(
    name="trade",
    n_buyers=1,
    per_buyer_cap=10,
    message_budget=10,
    budget_tiers=((1.0, 1.0),),
    first_offer=None,
    buyer_types=("trader",),
    game="trade",
    protocol="tools",
)
"""2604.16472: two traders, ten rounds in all. Both values follow from the item's own price history, so ``budget_tiers``
decides nothing here."""

REGIMES: Mapping[str, Regime] = {r.name: r for r in (IN_DISTRIBUTION, OOD_DIVERSE, MULTI_PRODUCT, *MULTI_PRODUCT_OOD)}
"""The market's regimes by name."""
_ALL = {**REGIMES, BILATERAL.name: BILATERAL, TRADE.name: TRADE}


def regime(name: str, **knobs: Any) -> Regime:
    """A named regime, with knobs changed (None: unchanged). Raises ``NegolabError`` for an unknown name or knob."""
    if name not in _ALL:
        raise NegolabError(f"unknown regime {name!r}; allowed: {', '.join(_ALL)}")
    return _ALL[name].override(**knobs)
