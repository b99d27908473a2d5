"""The settings of ``negolab pocket pretrain``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PocketSettings:
    """What decides the base model, to the last bit on one machine and number of threads."""

    seed: int = 0
    episodes: int = 27_000
    """Numbers of the stream of examples: scripted episodes, each read once, and drills."""
    drills: int = 1_024
    """Before this number, at most an eighth of all, there are only drills, three each: boards and Thoughts about them
    (``corpus.drill``)."""
    drill_every: int = 2
    """After that, a drill beside every so many scripted episodes."""
    hidden: int = 128
    """Width of the model."""
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    feed_forward: int = 384
    batch_tokens: int = 4_000
    """Most tokens in one step, padding included."""
    muon_lr: float = 0.02
    """First learning rate of the matrices; it falls linearly to zero."""
    adamw_lr: float = 3e-3
    """First learning rate of the embeddings and norms."""
    told: float = 0.2
    """Weight in the loss of what a seat is told, beside 1 for what it says."""

    @property
    def first_played(self) -> int:
        """The first number that is a scripted episode: a small run must not be drills alone."""
        return min(self.drills, self.episodes // 8)
