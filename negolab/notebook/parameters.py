"""Notebook parameters: which there are and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from negolab.catalog import AUTO, SAMPLE
from negolab.errors import NegolabError
from negolab.policies.registry import SELLERS
from negolab.scenario import MAX_SEED

COMMITTED = "committed"
"""The parameter ``runs``: the training runs that are kept beside the code."""


class ParameterError(NegolabError):
    """A notebook parameter that cannot be used. Jupyter shows one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    def problem(self, value: object) -> str:
        """What is wrong with ``value``; empty when nothing is. True and False are no numbers here."""
        if type(value) is int and self.low <= value <= self.high:
            return ""
        return f"allowed: a whole number from {self.low} to {self.high:,}, without quotes"


@dataclass(frozen=True, slots=True)
class Text:
    """A text; ``empty`` says what the empty text means, and is itself empty where it is not allowed."""

    what: str
    empty: str = ""

    def problem(self, value: object) -> str:
        """What is wrong with ``value``; empty when nothing is."""
        if isinstance(value, str) and "\0" not in value and (value.strip() or self.empty):
            return ""
        return f"allowed: {self.what}, in quotes" + (f" ({self.empty})" if self.empty else "")


PARAMETERS: Mapping[str, Whole | Text] = {
    "data": Text(f"{SAMPLE!r}, {AUTO!r} or a catalogue folder"),
    "split": Text("'train', 'test', 'all' or a JSON file with codenames"),
    "sellers": Text(f"names such as {', '.join(SELLERS[:2])}, separated by commas", "empty: all scripted sellers"),
    "baseline": Text("the name of one of the sellers"),
    "weak": Text("the name of a seller"),
    "strong": Text("the name of a seller"),
    "model": Text("a language model as transformers:MODEL, vllm:MODEL or openai:MODEL", "empty: none"),
    "options": Text("options of the model such as 'max_tokens=160, temperature=0.7'", "empty: the defaults"),
    "panel": Text("a panel file, or the name of a packaged one", "empty: no language models"),
    "model_products": Whole(0, 1_000_000),
    "pocket": Text("a panel of small models that play all markets", "empty: none"),
    "per_product": Whole(1, 1_000_000),
    "products": Whole(0, 1_000_000),
    "seed": Whole(0, MAX_SEED),
    "seeds": Whole(1, 1000),
    "cluster_split": Text("'train', 'test', 'train+test', 'held_out', 'all' or a JSON file with names of clusters"),
    "per_cluster": Whole(1, 1_000_000),
    "clusters": Whole(0, 1_000_000),
    "model_clusters": Whole(0, 1_000_000),
    "item_panel": Text("a panel file of sellers of several items", "empty: no language models"),
    "runs": Text(f"training runs' folders separated by commas, or {COMMITTED!r}", "empty: a smoke run is made"),
    "episode": Whole(0, 1_000_000),
    "out": Text("a folder", "empty: a new one below runs/"),
}
"""Every parameter that a notebook may have. ``products = 0`` means all of the split; language models of ``panel`` play
the first ``model_products`` of them under the first seed (0: all of them), those of ``pocket`` what the others do;
``seeds`` are counted from ``seed``. ``episode`` is the number of the held-out market whose transcripts are read.
Notebooks on several items, whose markets are drawn from clusters of products, have ``cluster_split``, ``per_cluster``,
``clusters``, ``model_clusters`` and ``item_panel`` where the others have ``split``, ``per_product``, ``products``,
``model_products`` and ``panel``."""


def check(values: Mapping[str, Any]) -> None:
    """Check parameters by type and range, as Python values. Raises ``ParameterError`` for the first bad one."""
    for name, value in values.items():
        if name not in PARAMETERS:
            raise ParameterError(f"unknown parameter {name!r}; allowed: {', '.join(PARAMETERS)}")
        problem = PARAMETERS[name].problem(value)
        if problem:
            raise ParameterError(f"parameter {name} is {value!r}, of type {type(value).__name__}; {problem}")
