"""A tokenizer that writes the trade game's prompts in few tokens, tiny models on it, and traders with tokens."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from negolab.catalog import SAMPLE, load_catalog
from negolab.conversations import conversations
from negolab.environment.base import Request
from negolab.episodes import Episode
from negolab.policies.base import Policy, Reply
from negolab.policies.chat_template import ChatFormat, Conversations
from negolab.policies.registry import make_trader
from negolab.prompts import MarketPrompts
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from tiny_models import CHATML


def traded(seller: str = "anchor", buyer: str = "taper", products: int = 6, gains: str = "gft") -> list[Episode]:
    """Scripted episodes, in order."""
    schedule = Schedule(
        regime("trade", gains=gains), load_catalog(SAMPLE).split("train")[:products], seed=1, per_product=1
    )
    made = play(schedule, make_trader("seller", seller), {"trader": make_trader("buyer", buyer)})
    return sorted(made, key=lambda e: e.scenario.episode)


@cache
def trade_tokens() -> Any:
    """Bytes, some merges, and what the game's prompts repeat between numbers and texts, each as one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    parts = Counter(
        part
        for gains in ("gft", "ngft")
        for episode in traded(products=12, gains=gains)
        for found in conversations(episode).values()
        for message in found.messages
        for part in re.split(r"[0-9]+|\n", message["content"])
    )
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
    )
    made.train_from_iterator(parts, trainer)
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


def save_trader(folder: Path, chat: Any = None) -> Path:
    """A folder with an untrained model of some 50,000 weights; ``chat``: its tokenizer, if not ``trade_tokens``."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    chat = chat or trade_tokens()
    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=len(chat),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=8192,
        eos_token_id=chat.eos_token_id,
        pad_token_id=chat.pad_token_id,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=chat.eos_token_id, pad_token_id=chat.pad_token_id)
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    return folder


class Tokens:
    """Says what another trader says, in tokens, to prompts that are built up as a language model's are."""

    def __init__(self, inner: Policy, chat: ChatFormat) -> None:
        self._inner, self._chat, self.name = inner, chat, "tokens"
        self._held, self._prompts = Conversations(chat), MarketPrompts()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        made = []
        for request, plain in zip(requests, self._inner.reply(requests), strict=True):
            key = (request.episode, request.seat)
            prompt = self._held.prompt_ids(key, self._prompts.messages(request))
            ids = [*self._chat.encode(plain.text), self._chat.end]
            self._held.said(key, plain.text, ids)
            made.append(Reply(plain.text, "stop", len(prompt), len(ids), None, None, ids, [-1.0] * len(ids), prompt))
        return made
