"""Rules of play. Nothing here knows a prompt, a parser, a model or a file."""

from negolab.environment.base import (
    BUYER,
    SELLER,
    BilateralView,
    BuyerView,
    Channel,
    Environment,
    Move,
    Offer,
    Offers,
    Outcome,
    Request,
    Said,
    Sale,
    SellerView,
    Turn,
    Violation,
    item_name,
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
    "Offer",
    "Offers",
    "Outcome",
    "Request",
    "Said",
    "Sale",
    "SellerView",
    "Turn",
    "Violation",
    "item_name",
    "turn_labels",
]
