"""Small tokenizers and models for tests, made on the spot: the families' special tokens and manners of writing a chat,
on a vocabulary of bytes and a few merges; weights are random."""

import random
from functools import cache
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Thinking is cut out of earlier replies, and switched off by an empty block that only the last prompt has.
HYBRID = (
    "{% for m in messages %}{% set text = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content %}"
    "{{ '<|im_start|>' + m.role + '\n' + (text.lstrip('\n') if m.role == 'assistant' else text) + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
# Always opens a block.
THINKER = HYBRID.replace(
    "{% if enable_thinking is defined", "{{ '<think>\n' }}{% if false and enable_thinking is defined"
)
HEADERS = (
    "{{ bos_token }}{% if strftime_now is defined %}{{ 'Today: ' + strftime_now('%d %b %Y') + '\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim"
    " + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{% elif m.role == 'user' %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
# No system message, and user and assistant must alternate.
TURNS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
BARS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "{{ '<｜User｜>' + m.content }}{% else %}{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)

FAMILIES: dict[str, tuple[str, str, str, list[str], list[str]]] = {
    # template, first token, last token, special tokens, added tokens that count as text
    "chatml": (CHATML, "", "<|im_end|>", "<|im_start|> <|endoftext|> <repo_name> <file_sep>".split(), []),
    "qwen3": (
        HYBRID,
        "",
        "<|im_end|>",
        (
            "<|endoftext|> <|im_start|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
            "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
        ).split(),
        (
            "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
            "<|file_sep|> <tool_response> </tool_response> <think> </think>"
        ).split(),
    ),
    "llama3": (
        HEADERS,
        "<|begin_of_text|>",
        "<|eot_id|>",
        (
            "<|end_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|python_tag|> "
            "<|reserved_special_token_0|> <|finetune_right_pad_id|>"
        ).split(),
        [],
    ),
    "mistral": (
        INST,
        "<s>",
        "</s>",
        (
            "<unk> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] "
            "[TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CONTENT] [IMG] [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
            "[ARGS] [CALL_ID] [THINK] [/THINK] [AUDIO] [BEGIN_AUDIO] <pad> <SPECIAL_20>"
        ).split(),
        [],
    ),
    "gemma": (
        TURNS,
        "<bos>",
        "<end_of_turn>",
        "<pad> <eos> <unk> <mask> <start_of_turn> <start_of_image> <end_of_image> [multimodal] <unused0>".split(),
        ["<table>", "<h1>", "</h1>", "<blockquote>", "\n\n", "\n\n\n", "  ", "[@BOS@]"],
    ),
    "deepseek": (
        BARS,
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        (
            "<｜▁pad▁｜> <｜User｜> <｜Assistant｜> <|EOT|> <｜fim▁hole｜> <｜tool▁calls▁begin｜> <｜tool▁sep｜> "
            "<｜place▁holder▁no▁0｜>"
        ).split(),
        ["<think>", "</think>"],
    ),
}


@cache
def tokenizer(family: str, template: str = "") -> Any:
    """A tokenizer with a family's special tokens and way of writing a chat, or another ``template``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    written, first, last, special, text = FAMILIES[family]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    corpus = [
        "Thought: any reasoning you like\nTarget: Buyer 1\nTalk: a short message; the buyer sees it\n",
        "Action: [SELL] $1,234.56 (1x toys_1)\nAction: [BUY] $9.95 (1x toys_1)\n=== Standing offers ===\n",
        "You are a seller who bargains with 3 buyers. Seller messages remaining (T): 7. List price: $34.99.",
    ]
    made.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
        ),
    )
    made.add_tokens([AddedToken(name, normalized=False) for name in text])
    found = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=last,
        pad_token=last,
        bos_token=first or None,
        additional_special_tokens=[name for name in special if name not in (first, last)],
        clean_up_tokenization_spaces=False,
    )
    found.chat_template = template or written
    return found


def save_model(folder: Path, kind: str = "llama", family: str = "chatml", **changes: Any) -> Path:
    """A folder with a random model of about 50,000 weights and its tokenizer."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        Gemma3TextConfig,
        GenerationConfig,
        Lfm2Config,
        LlamaConfig,
        MistralConfig,
        Qwen3Config,
    )

    chat = tokenizer(family)
    options: dict[str, Any] = {
        "vocab_size": len(chat),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "eos_token_id": chat.eos_token_id,
        "pad_token_id": chat.pad_token_id,
        "tie_word_embeddings": False,
        "initializer_range": 0.4,
        **changes,
    }
    kinds = {
        "llama": LlamaConfig,
        "qwen3": Qwen3Config,
        "mistral": MistralConfig,
        "gemma3": Gemma3TextConfig,
        "lfm2": Lfm2Config,
    }
    config = kinds[kind](**options)
    torch.manual_seed(random.Random(kind).randrange(1 << 30))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=chat.pad_token_id)
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    return folder
