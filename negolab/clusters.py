"""Clusters of substitutable products (2609.33289, section 4)."""

from dataclasses import dataclass

from negolab.catalog import Product


@dataclass(frozen=True)
class Cluster:
    """Products of one kind, from which the items of a market are drawn."""

    name: str
    category: str
    kind: str
    """What the products are, as a short noun."""
    products: tuple[Product, ...]
