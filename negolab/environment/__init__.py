"""Rules of play. Nothing here knows a prompt, a parser, a model or a file."""

from negolab.environment.base import (
    BUYER,
    SELLER,
    BilateralView,
    BuyerView,
    Channel,
    Environment,
    Move,
    Outcome,
    Request,
    Said,
    SellerView,
    Turn,
    Violation,
    turn_labels,
)
from negolab.environment.bilateral import Bilateral
from negolab.environment.market import Market

__all__ = [
    "BUYER",
    "SELLER",
    "Bilateral",
    "BilateralView",
    "BuyerView",
    "Channel",
    "Environment",
    "Market",
    "Move",
    "Outcome",
    "Request",
    "Said",
    "SellerView",
    "Turn",
    "Violation",
    "turn_labels",
]
