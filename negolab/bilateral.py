"""The bilateral game (2604.09855) in one call: scripted or other players, episodes in memory.

``negolab evaluate --game bilateral`` is the same with a run folder.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from negolab.catalog import SAMPLE, Catalog, load_catalog
from negolab.episodes import Episode
from negolab.policies.base import Policy
from negolab.policies.registry import make_bilateral
from negolab.policies.scripted_bilateral import with_persona
from negolab.rollout import play
from negolab.scenario import BILATERAL, Schedule

LEARNER = BILATERAL.buyer_types[0]
"""The buyer's type in every bilateral scenario: who plays it is said beside the scenario."""

__all__ = ["LEARNER", "play_bilateral"]


def play_bilateral(
    n: int,
    buyer: str | Policy = "patient",
    seller: str | Policy = "persona",
    *,
    data: str | Path | Catalog = SAMPLE,
    split: str = "all",
    seed: int = 0,
    **knobs: Any,
) -> Iterator[Episode]:
    """Play ``n`` episodes and yield them as they end.

    ``buyer`` and ``seller``: players, or names as ``negolab evaluate`` takes them: ``naive``, ``lowballer``,
    ``conceder``, ``patient``; ``persona``, or one persona. ``knobs`` change the regime: ``reject=True``,
    ``personas=("begging", ...)``, ``budget_tiers``. The products of ``split`` come in turn, with other draws each time
    round. Raises ``NegolabError`` for a name or knob that does not exist.
    """
    if isinstance(seller, str):
        seller, knobs["personas"] = with_persona(seller, knobs.get("personas"))
    catalog = data if isinstance(data, Catalog) else load_catalog(data)
    products = catalog.split(split)
    rounds = max(1, -(-n // len(products)))
    schedule = Schedule(BILATERAL.override(**knobs), products, seed=seed, per_product=rounds)
    # Product by product would leave the last products out where n does not fill the rounds.
    order = (product * rounds + turn for turn in range(rounds) for product in range(len(products)))
    return play(
        (schedule[index] for index in islice(order, n)),
        make_bilateral("seller", seller) if isinstance(seller, str) else seller,
        {LEARNER: make_bilateral("buyer", buyer) if isinstance(buyer, str) else buyer},
    )
