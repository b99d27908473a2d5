"""Rules of play. Nothing here knows a prompt, a parser, a model or a file."""

from negolab.environment.base import (
    SELLER,
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
from negolab.environment.market import Market

__all__ = [
    "SELLER",
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
