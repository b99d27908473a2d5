"""Scenarios and the regimes they are drawn from: everything random about a market, before anybody speaks."""

from negolab.scenario.drawing import MAX_SEED, Scenario, Schedule, Unit, draw
from negolab.scenario.regimes import (
    BILATERAL,
    GAINS,
    GAMES,
    IN_DISTRIBUTION,
    MULTI_PRODUCT,
    MULTI_PRODUCT_OOD,
    OOD_DIVERSE,
    PERSONAS,
    PROTOCOLS,
    REGIMES,
    TRADE,
    TRADE_DRAWS,
    Interval,
    Regime,
    regime,
)

__all__ = [
    "BILATERAL",
    "GAINS",
    "GAMES",
    "IN_DISTRIBUTION",
    "MAX_SEED",
    "MULTI_PRODUCT",
    "MULTI_PRODUCT_OOD",
    "OOD_DIVERSE",
    "PERSONAS",
    "PROTOCOLS",
    "REGIMES",
    "TRADE",
    "TRADE_DRAWS",
    "Interval",
    "Regime",
    "Scenario",
    "Schedule",
    "Unit",
    "draw",
    "regime",
]
