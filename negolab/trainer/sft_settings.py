"""What decides a run of supervised fine-tuning, read from a profile (YAML) and a command line.

The seller of 2607.05863 is not trained so; the agents of 2604.16472 are, before their reinforcement learning, and that
paper states no filter and no number of samples. Defaults are therefore ours, or TRL's where the docstring says so; what
that paper states (table 12) is in the profiles ``trade_8b`` and ``trade_14b``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from negolab.errors import NegolabError
from negolab.scenario import BILATERAL, TRADE, Regime
from negolab.trainer import options
from negolab.trainer.learning import SCHEDULES, LearningSettings
from negolab.trainer.options import MANY, names, number, one_of, or_nothing, setting, switch, text, whole
from negolab.trainer.settings import TrainSettings

SEATS = ("learner", "seller", "buyers", "all")
OUTCOMES = ("deal", "no_deal", "violation", "aborted")
SAMPLES = ("auto", "turn")
WORDS = ("auto", "plain", "pocket")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings(LearningSettings):
    """A run of supervised fine-tuning. Raises ``NegolabError`` for a value that is not allowed, or two that do not go
    together."""

    runs: tuple[str, ...] = setting((), names, "a list of run folders")
    """Finished run folders of any game whose episodes are learnt from."""
    teacher: str = setting("", text, "a seller's name, or module:factory")
    """Who sells in scripted markets (``negolab evaluate --seller``); nothing: no scripted markets."""
    bilateral_teacher: str = setting("patient", text, "a bilateral buyer's name, or module:factory")
    """Who buys in scripted bilateral games, from the scripted seller."""
    trade_seller: str = setting("anchor", text, "a trader's name, or module:factory")
    trade_buyer: str = setting("anchor", text, "a trader's name, or module:factory")
    """Who sells and who buys in scripted games of the trade game."""
    scripted: int = setting(512, whole(0, 10_000_000), "a whole number from 0 to 10,000,000")
    """Scripted episodes in all, divided among ``regimes`` by weight. 0: none, whatever a profile says of them."""
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Scripted games by name. Each may hold ``base`` (the named regime that it starts from, by default its own name),
    ``weight`` (1), and any knob of a regime. Mix numbers of buyers and messages: who has never seen five buyers breaks
    the rules with five. Empty: none, or with ``teacher`` in_distribution and ood_diverse."""
    words: str = setting("auto", one_of(WORDS), ", ".join(WORDS))
    """How scripted players speak: as they do, or in the few words that the pocket models know; auto: so that the model
    can write it."""
    data: str = setting("sample", text, "sample, auto, or a folder with the catalogue")
    """The products of scripted games."""
    split: str = setting("train", text, "a split")
    """``train``, ``test``, ``all``, or the path of a JSON list of codenames."""

    seats: str = setting(
        "learner",
        lambda v: isinstance(v, str) and (v in SEATS or re.fullmatch(r"buyer-[1-9][0-9]{0,3}", v) is not None),
        ", ".join(SEATS) + ", or buyer-1, buyer-2, ...",
    )
    """Whose replies are learnt; ``learner``: the seat that the game evaluates (market and trade: seller, bilateral:
    buyer). Both traders: ``all``."""
    learn_thinking: bool = setting(False, switch, "true or false")
    """Learn a reply together with the thinking that its record keeps beside it, as a think block before it. What was
    thought in earlier turns is no part of the context, as when the model plays (2604.16472, figure 14). Off: thinking
    is never learnt."""
    outcomes: tuple[str, ...] = setting(
        (), lambda v: names(v) and set(v) <= set(OUTCOMES), f"a list of {', '.join(OUTCOMES)}"
    )
    """Only episodes that ended so; empty: however they ended."""
    min_reward: float | None = setting(None, or_nothing(number(-1e9, 1e9)), "a number, or nothing")
    """Only episodes whose reward, the learner's of that game, is at least this; in the trade game the reward of the
    seat that is learnt."""
    min_share: float | None = setting(None, or_nothing(number(0, 1)), "a number from 0 to 1, or nothing")
    """The trade game: only conversations in which the seat got at least this share of what there was to gain, and lost
    nothing. Where there was nothing to gain, that it lost nothing is enough. Other games are not held against it."""
    violations: bool = setting(False, switch, "true or false")
    """Also conversations in which the seat broke a rule. What the guard said in its place is never learnt."""
    samples: str = setting("auto", one_of(SAMPLES), " or ".join(SAMPLES))
    """``auto``: one sample for a conversation as far as the chat template keeps what was said before, else one for
    each reply; ``turn``: one for each reply (2604.16472, figures 13 and 14)."""
    max_length: int | None = setting(None, or_nothing(whole(2, MANY)), "a whole number from 2")
    """Longer samples are left out, never cut; nothing: the model's context."""
    held_out: float = setting(0.0, number(0, 0.5), "a number from 0 to 0.5")
    """Share of products whose conversations are not trained on but measured; at least one product where above 0."""

    epochs: float = setting(1.0, lambda v: number(0, 10_000)(v) and v > 0, "a number above 0")
    """How often all samples are seen; what does not fill a whole number of steps is left out."""
    steps: int | None = setting(None, or_nothing(whole(1, MANY)), "a whole number from 1, or nothing")
    """Optimiser steps, in place of what ``epochs`` makes."""
    batch: int = setting(16, whole(1, 65_536), "a whole number from 1 to 65536")
    """Samples of one optimiser step."""
    micro_batch: int = setting(4, whole(1, 65_536), "a whole number from 1 to 65536")
    """Samples that go through the model at once; divides ``batch``. It changes memory and time, not the loss."""

    learning_rate: float = setting(2e-5, number(1e-12, 10), "above 0, at most 10")
    """TRL's default, for all weights of a model of billions; an adapter takes ten times as much, a tiny model more."""
    schedule: str = setting("linear", one_of(SCHEDULES), ", ".join(SCHEDULES))
    """Of the learning rate, after warm-up, to 0 at the last step unless constant."""
    warmup_ratio: float = setting(0.0, number(0, 1), "0 to 1")
    """Share of the steps in which the rate rises from 0, in place of ``warmup_steps``."""
    merge: bool = setting(True, switch, "true or false")
    """With an adapter: write the model with the adapter in its weights as well, to be played and trained further.
    Without one, all weights are written anyway."""

    eval_every: int = setting(50, whole(0, MANY), f"a whole number from 0 (never) to {MANY:,}")
    """Steps between measurements on held-out products; the first before step 0, and one after the last."""
    save_every: int = setting(100, whole(1, MANY), f"a whole number from 1 to {MANY:,}")
    """Steps between checkpoints; the last step is always followed by one."""

    def _check_together(self) -> None:
        if self.batch % self.micro_batch:
            raise NegolabError(f"micro_batch {self.micro_batch} does not divide batch {self.batch}")
        if self.steps is not None and self.warmup_steps > self.steps:
            raise NegolabError(f"warmup_steps {self.warmup_steps} is above steps {self.steps}")
        if self.warmup_ratio and self.warmup_steps:
            raise NegolabError("warmup_ratio and warmup_steps say the same thing in two ways; give one of them")
        if self.learn_thinking and self.thinking is False:
            raise NegolabError("learn_thinking is true and thinking false: what is learnt would never be asked for")
        self._check_used()

    def _check_used(self) -> None:
        """Raise ``NegolabError`` for a setting of which nothing would come beside the others: its user expects more."""
        games = [found.game for found, _ in self.weighted_regimes()]
        changed = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        for name in ("scripted", "words", "data", "split", "bilateral_teacher", "trade_seller", "trade_buyer"):
            if name in changed and self.runs and self.scripted and not games:
                raise NegolabError(
                    f"{name} is {getattr(self, name)!r}, but no games are scripted: give --teacher or regimes, or "
                    f"leave {name} out"
                )
        if "bilateral_teacher" in changed and self.scripted and "bilateral" not in games:
            raise NegolabError(
                f"bilateral_teacher is {self.bilateral_teacher!r}, but no regime is bilateral; the markets' is teacher"
            )
        for name in ("trade_seller", "trade_buyer"):
            if name in changed and self.scripted and "trade" not in games:
                raise NegolabError(f"{name} is {getattr(self, name)!r}, but no regime is of the trade game")
        if self.held_out and not self.eval_every:
            raise NegolabError(
                f"held_out is {self.held_out:g} and eval_every 0: what is held out would be neither learnt nor measured"
            )
        if not self.merge and self.lora is None:
            raise NegolabError(
                "merge is false, but there is no adapter that could stay alone: set lora, such as rank: 8"
            )

    def weighted_regimes(self) -> list[tuple[Regime, float]]:
        """The regimes of scripted games with their weights; empty where none are played.

        Raises ``NegolabError`` for a knob or weight that is not allowed, and for markets without a ``teacher``.
        """
        given = dict(self.regimes)
        if not given and self.teacher:
            given = {"in_distribution": {}, "ood_diverse": {}}
        if not given or not self.scripted:
            return []
        for name, knobs in given.items():
            if knobs is not None and not isinstance(knobs, Mapping):
                raise NegolabError(f"regimes, {name}: {knobs!r}; allowed: a regime's knobs by name")
            if name in (BILATERAL.name, TRADE.name):
                given[name] = {"base": name, **(knobs or {})}
        made = TrainSettings(regimes=given).weighted_regimes()
        markets = [found.name for found, _ in made if found.game == "market"]
        if markets and not self.teacher:
            raise NegolabError(f"teacher names nobody to sell in {', '.join(markets)}; give --teacher")
        return made


def profiles() -> dict[str, Path]:
    """The profiles that come with negolab, by name."""
    return options.profiles("sft")


def load_sft(
    name: str = "",
    changes: Sequence[str] = (),
    over: Mapping[str, Any] | None = None,
    regimes: Sequence[str] | None = None,
) -> SftSettings:
    """A packaged profile by its name, or a YAML file by its path ("": the defaults), with ``over`` (plain data) and
    then ``KEY=VALUE`` texts in place of what it says. ``regimes``: only these; of a profile's own their knobs are kept.

    Raises ``NegolabError`` for whatever is wrong, with the names that are allowed.
    """
    given: dict[str, Any] = {}
    where = "settings"
    if name:
        given, where = options.read_profile(name, "sft", "epochs: 1")
    given |= over or {}
    if regimes is not None:
        there = given.get("regimes") or {}
        if not isinstance(there, Mapping):
            raise NegolabError(f"{where}: regimes is {there!r}; allowed: names with their settings")
        given["regimes"] = {name: there.get(name) or {} for name in regimes}
    options.put(given, changes, SftSettings)
    made = SftSettings(**options.values(given, where, SftSettings))
    games = [found.game for found, _ in made.weighted_regimes()]
    named = "teacher" in (over or {}) or any(change.partition("=")[0].strip() == "teacher" for change in changes)
    if made.teacher and named and games and "market" not in games:  # a profile's own may be of no use
        raise NegolabError(
            f"teacher is {made.teacher!r}, but no regime is a market; who buys in bilateral games is bilateral_teacher"
        )
    return made
