"""A tokenizer that writes the market's prompts in few tokens, tiny models on it, and runs of fine-tuning."""

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
    """Byte-level BPE learnt from prompts: ten times fewer tokens than bytes, and every text comes back."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from negolab.catalog import SAMPLE, load_catalog

    texts = [
        message["content"]
        for episode in played(load_catalog(SAMPLE), products=12)
        for found in conversations(episode).values()
        for message in found.messages
    ]
    made = Tokenizer(models.BPE())
    # Whole lines are one word: the instructions become a handful of tokens.
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=5000,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
            special_tokens=[],
        ),
    )
    found = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    found.chat_template = CHATML
    return found


def save_compact(folder: Path, hidden: int = 32, seed: int = 0, **changes: Any) -> Path:
    """A folder with a random small model on ``compact``."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    chat = compact()
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": len(chat),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": hidden // 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": chat.eos_token_id,
        "pad_token_id": chat.pad_token_id,
        "bos_token_id": None,
        **changes,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**options))
    model.generation_config = GenerationConfig(eos_token_id=chat.eos_token_id, pad_token_id=chat.pad_token_id)
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    return folder


def settings(
    model: Path | str, regimes: Sequence[str] = ("in_distribution", "ood_diverse"), **changes: Any
) -> SftSettings:
    """A run of a few steps on scripted markets."""
    small: dict[str, Any] = {
        "model": str(model),
        "teacher": "prober",
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
