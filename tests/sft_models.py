"""A tokenizer that writes the market's prompts in few tokens, tiny models on it, and runs of fine-tuning."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from negolab.conversations import conversations
from negolab.episodes import Episode
from negolab.policies.registry import make_buyers, make_seller
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, OOD_DIVERSE, Regime, Schedule
from negolab.trainer.sft_settings import SftSettings
from tiny_models import CHATML


def played(catalog: Any, seller: str = "prober", *regimes: Regime, products: int = 4, seed: int = 1) -> list[Episode]:
    """Scripted episodes, in order."""
    made: list[Episode] = []
    for regime in regimes or (IN_DISTRIBUTION, OOD_DIVERSE):
        schedule = Schedule(regime, catalog.split("train")[:products], seed=seed)
        buyers = make_buyers(regime.buyer_types)
        made += sorted(play(schedule, make_seller(seller, schedule), buyers), key=lambda e: e.scenario.episode)
    return made


@cache
def compact() -> Any:
    """Bytes, some merges, and what prompts and scripted players repeat between numbers, each as one token of plain
    text: a conversation is some hundreds of tokens, and every text comes back."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from negolab.catalog import SAMPLE, load_catalog

    parts = Counter(
        part
        for episode in played(load_catalog(SAMPLE), products=12)
        for found in conversations(episode).values()
        for message in found.messages
        for part in re.split(r"[0-9]+|\n|(?<=\(1x )[a-z-]+_", message["content"])
    )
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        parts,
        trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
        ),
    )
    repeated = sorted(part for part, n in parts.items() if n >= 12 and len(part) >= 4)
    made.add_tokens([AddedToken(part, normalized=False) for part in repeated])
    found = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    found.chat_template = CHATML
    return found


@cache
def pocket() -> Any:
    """The pocket models' tokenizer: conversations are short, in its own words only."""
    from negolab.pocket import corpus, words
    from negolab.pocket.tokenizer import learn

    return learn(corpus.shown(12), words.SPOKEN)


def save_pocket(folder: Path, hidden: int = 32) -> Path:
    """A folder with an untrained small model on ``pocket``."""
    from negolab.pocket.pretrain import PocketSettings, new_model

    chat = pocket()
    model = new_model(PocketSettings(hidden=hidden, layers=2, heads=2, kv_heads=1, feed_forward=2 * hidden), chat)
    model.generation_config.eos_token_id = chat.eos_token_id
    model.generation_config.pad_token_id = chat.pad_token_id
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    return folder


def settings(
    model: Path | str,
    regimes: Sequence[str] = ("in_distribution", "ood_diverse"),
    words: str = "pocket",
    **changes: Any,
) -> SftSettings:
    """A run of a few steps on scripted markets."""
    small: dict[str, Any] = {
        "model": str(model),
        "teacher": "prober",
        "words": words,
        "regimes": {name: {} for name in regimes},
        "scripted": 16,
        "batch": 4,
        "micro_batch": 2,
        "steps": 4,
        "learning_rate": 1e-3,
        "schedule": "constant",
        "save_every": 100,
    }
    return SftSettings(**{**small, **changes})
