"""Products: what is public about an item (``Listing``) and what only its seller knows (``Product``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Listing:
    """The public side of a product: everything a buyer may read."""

    codename: str
    """``{category}_{g}`` with g the running number over all files in byte order, from 1 (paper: ``baby-products_17``)."""
    title: str
    description: str
    """Full listing text (``description``, or ``features`` where that is missing); may be empty."""
    category: str
    list_cents: int
    """Public list price in cents: max(list_price, highest_price) of the record."""


@dataclass(frozen=True, slots=True)
class Product:
    """A listing and its seller's private cost."""

    listing: Listing
    cost_cents: int
    """The seller's reservation price in cents: the record's lowest_price. Never part of a buyer's view."""
    file: str = ""
    position: int = -1
    """Zero-based position in ``file``."""
    text_source: str = "description"
    """Which field ``listing.description`` came from: ``description``, ``features`` or ``none``."""
    raw: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The record as it stood in the file."""
