"""Episodes with tokens, rows with a model's own log-probabilities, and the gradient of one sub-step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from negolab.catalog import SAMPLE, load_catalog
from negolab.environment.base import Request
from negolab.episodes import Episode
from negolab.policies.base import Policy, Reply
from negolab.policies.chat_template import ChatFormat, Conversations
from negolab.prompts.multi_buyer import Message
from negolab.scenario import IN_DISTRIBUTION
from negolab.seeds import uniform
from negolab.trainer.rows import Row, rows_of
from negolab.trainer.settings import TrainSettings
from negolab.trainer.task import SellerTask, Weighted
from tiny_models import save_model, tokenizer


def short_messages(request: Request) -> list[Message]:
    """A conversation with a seller's own replies and few other words: rows of a few hundred tokens."""
    made: list[Message] = [{"role": "user", "content": f"Sell {request.view.product.listing.codename}."}]
    for at, text in enumerate(request.view.own):
        made += [{"role": "assistant", "content": text}, {"role": "user", "content": f"They answered {at}."}]
    return made


class TokenSeller:
    """What another seller says, with tokens: as a language model's replies carry them."""

    name = "tokens"

    def __init__(self, inner: Policy, chat: ChatFormat, spoil: Callable[[Request], str | None] = lambda r: None):
        self._inner, self._chat, self._spoil = inner, chat, spoil
        self._conversations = Conversations(chat)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        made = []
        for request, plain in zip(requests, self._inner.reply(requests), strict=True):
            said = self._spoil(request)
            text = plain.text if said is None else said
            conversation = (request.episode, request.seat)
            prompt = self._conversations.prompt_ids(conversation, short_messages(request))
            ids = [*self._chat.encode(text), self._chat.end]
            self._conversations.said(conversation, text, ids)
            logprobs = [-0.1 - uniform(request.seed, at) for at in range(len(ids))]
            made.append(Reply(text, "stop", len(prompt), len(ids), "0" * 64, None, ids, logprobs, prompt))
        return made


def seller_task(groups: int = 4, group_size: int = 4, seed: int = 0, **more: Any) -> SellerTask:
    """The seller's task on the bundled sample."""
    regimes = [Weighted(IN_DISTRIBUTION, 1.0)]
    return SellerTask(
        load_catalog(SAMPLE), regimes, seed=seed, groups=groups, group_size=group_size, eval_products=2, **more
    )


def episodes(inner: Policy, family: str = "chatml", template: str = "", **sizes: int) -> list[Episode]:
    """One step's episodes by ``inner`` with tokens, in order."""
    task = seller_task(**sizes)
    seller = TokenSeller(inner, ChatFormat(tokenizer(family, template)))
    return sorted(task.play(task.markets(0), seller), key=lambda e: e.scenario.episode)


def tiny(folder: Path) -> Any:
    """A random model in memory."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(save_model(folder, "qwen3", initializer_range=0.1))


def save_short(folder: Path) -> Path:
    """A folder with a random model whose tokens are whole phrases of the prompts: contexts of a few hundred."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    from negolab.pocket import tokenizer as pocket

    chat = pocket.build()
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=len(chat),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        eos_token_id=chat.eos_token_id,
        pad_token_id=chat.pad_token_id,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=chat.eos_token_id, pad_token_id=chat.pad_token_id)
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    return folder


def rows_from(made: Sequence[Episode], merge: bool = True) -> list[Row]:
    """The seller's rows."""
    return [row for at, episode in enumerate(made) for row in rows_of(episode, 0, at, merge=merge)]


def score(model: Any, rows: Sequence[Row]) -> None:
    """Give the rows the model's own log-probabilities, as if it had sampled them."""
    import torch

    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.ids])).logits[0].float().log_softmax(-1)
        for at, own in enumerate(row.own):
            if own:
                row.logprobs[at] = float(logits[at - 1, row.ids[at]])


def settings(**changes: Any) -> TrainSettings:
    """Small ones."""
    small: dict[str, Any] = {
        "model": "tiny",
        "steps": 1,
        "groups": 4,
        "group_size": 2,
        "sub_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.0,
        "micro_batch_tokens": 4096,
    }
    return TrainSettings(**{**small, **changes})


class Stop(Exception):
    """The gradient is there."""


def row_trainer(model: Any, rows: Sequence[Row], advantages: Sequence[float], folder: Path, **changes: Any) -> Any:
    """A trainer whose only step learns from ``rows``; ``advantages`` by episode."""
    from negolab.trainer.batches import sub_steps_of
    from negolab.trainer.grpo import RowTrainer

    chosen = settings(**changes)
    return RowTrainer(
        model,
        tokenizer("chatml"),
        chosen,
        folder,
        lambda step: sub_steps_of(rows, advantages, chosen.group_size, chosen.sub_steps),
    )


def gradient(trainer: Any) -> Any:
    """All gradients of the first optimiser step, in one vector."""
    import torch
    from transformers import TrainerCallback

    found = []

    class Catch(TrainerCallback):
        def on_pre_optimizer_step(self, *given: Any, **rest: Any) -> None:
            found.append(torch.cat([p.grad.detach().flatten() for p in trainer.model.parameters()]).clone())
            raise Stop

    trainer.add_callback(Catch())
    try:
        trainer.train()
    except Stop:
        trainer.model.zero_grad()
    return found[0]
