"""The pocket model's tokenizer: phrases of the protocol, whole dollars and cents as single tokens.

Why a tokenizer of its own: a model of a million parameters does not learn to compare prices that are spelt digit by
digit, and cannot afford a thousand tokens of prompt. So each fixed piece of a prompt (found in rendered prompts), each
phrase that the model may say, each whole number up to 999 and each ``.00`` to ``.99`` is one token. A
codename's number is spelt digit by digit: a thousand tokens more, each seldom seen, are not copied well (measured).
Numbers above 999 are cut into groups of three digits from the right ("1299" is "1" and "299").

What the pocket model does not read: titles, descriptions and the other side's Talk are dropped before tokenising, and
any other text that is no phrase is one unknown token, however long. It bargains by prices. What it writes is decoded
exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

CATEGORIES = (
    *("automotive", "baby-products", "beauty", "books", "electronics", "health-personal-care", "home-kitchen"),
    *("industrial-scientific", "movies-tv", "music", "other", "patio-lawn-garden", "pet-supplies", "software"),
    *("sports-outdoors", "tools-home-improvement", "toys-games", "video-games"),
    *("audio-gear", "bike-parts", "board-games", "camera-optics", "camp-trail", "craft-paper", "garden-power"),
    *("hand-tools", "kitchenware", "office-desk", "pet-corner", "vinyl-film"),
)
"""Codenames that the model can write begin with one of these: the published categories and the sample's."""

N_BUYERS = 9
"""Buyers up to this number have their own tokens; later ones are spelt with a number."""
TURNS = 60
"""Turn labels up to this number have tokens of their own."""

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

# Phrases for each buyer; {} is its number. They share what they have in common in the first embeddings.
_BY_BUYER = (
    "Buyer {}:\nTalk: ",
    "\n\nBuyer {}:\nTalk: ",
    "\n- Buyer {}: active, you can send ",
    "\n- Buyer {}: quit.\n  Buyer {}'s action history: ",
    "\n- Buyer {}: capped.\n  Buyer {}'s action history: ",
    " more messages to this buyer.\n  Buyer {}'s action history: ",
    "\n  Your messages history to Buyer {}: ",
    "Thought: Best bid: Buyer {} at $",
    "\nTarget: Buyer {}\nTalk: ",
)
_PHRASES = (
    *("Thought: ", "\nTarget: Buyer ", "\nTarget: [QUIT]\nTalk: ", "\nTalk: ", "Talk: "),
    *("\nAction: [SELL] $", "\nAction: [BUY] $", "\nAction: [DEAL] $", "\nAction: [QUIT]", "\nAction: [REJECT]"),
    *(" (1x ", ")", ") \n\n"),
    *("\n\n=== Standing offers ===", "(none yet)"),
    *("[SELL] $", "[BUY] $", "[DEAL] $", ", [SELL] $", ", [BUY] $", ", [DEAL] $", ", [QUIT]"),
    *("\nSeller messages remaining (T): ", ". List price: $", ". Your cost (do not sell below this): $"),
    *("\n- Buyer ", ": active, you can send ", " more messages to this buyer.\n  Buyer ", "'s action history: "),
    *(": quit.\n  Buyer ", ": capped.\n  Buyer ", "\n  Your messages history to Buyer ", "\n\nBuyer "),
    "Thought: Best bid: Buyer ",
)

# What is not read, in this order: what others wrote goes first, so that none of it can begin or end what follows.
# Lookbehinds of one length each, as the regular expressions of tokenizers want them. Spans of text that may hold their
# own beginning again are bounded, so that the time is linear in the text.
_UNREAD = (
    r'(?<=\nTitle: ")[^\n]*(?="\n)',
    # To the last place that could be its end: a description may hold others; behind the true one nobody else writes.
    r'(?<=\nDescription: ")[\s\S]*(?="\n(?:\n# |List Price: |Cost: ))',
    *(rf"(?<=Buyer {'[0-9]' * digits}:\nTalk: )[^\n]+" for digits in (1, 2, 3, 4)),
    r"(?<=\n\nTalk: )[^\n]+",
    r"\ATalk: [^\n]+",
    # The rules are the same in every prompt; what differs between prompts is kept: N, K, T, prices, [REJECT], persona.
    r"# Output format\n[\s\S]{0,4000}?(?=# Constants for this episode\n)",
    r"\n\n# Conversation mechanics\n[\s\S]*\z",
    r"(?<=\A)You are a (?:buyer|seller)\. I am the [\s\S]*?(?=It must be \[)",
    r"(?<= or \[QUIT\]\.)\n1\. [\s\S]{0,4000}?(?=\n\nYour manner: |\n\nKeep STRICTLY)",
    r"\n\nKeep STRICTLY[\s\S]*\z",
    r" \((?:buyers, none of|the most messages you may|your private reserv|public list price)[^\n]*(?=\n)",
    r", List Price: \$[0-9.,]+, Cost: \$[0-9.,]+(?=\nTitle: )",
    # What the heard bids are for: one product is sold.
    r" \(1x [a-z-]+_[0-9]+\)(?=\n\n(?:Buyer [0-9]|=== Standing ))",
)
_NUMBER = r"_[0-9]|(?<=_[0-9])[0-9]|(?<=_[0-9][0-9])[0-9]|\.[0-9]{2}(?![0-9])|[0-9]{1,3}(?=(?:[0-9]{3})*(?![0-9]))"


def phrases(spoken: Sequence[str] = ()) -> list[str]:
    """The tokens that are phrases and known beforehand; ``spoken``: those of the players."""
    made = [*_PHRASES, *spoken]
    made += [phrase.replace("{}", str(buyer)) for phrase in _BY_BUYER for buyer in range(1, N_BUYERS + 1)]
    made += [f" @ turn {turn}" for turn in range(1, TURNS + 1)]
    made += CATEGORIES
    return list(dict.fromkeys(made))


def numbers() -> list[str]:
    """All tokens that are numbers: 0 to 999, three digits with leading zeros, cents, a codename's first digit."""
    return [
        *(str(value) for value in range(1000)),
        *(f"{value:03d}" for value in range(100)),
        *(f".{cents:02d}" for cents in range(100)),
        *(f"_{digit}" for digit in range(10)),
    ]


def learn(shown: Iterable[str], spoken: Sequence[str] = (), least: int = 5) -> Any:
    """The tokenizer for prompts like ``shown``: what is left over between known tokens in at least ``least`` messages
    becomes a phrase of its own. ``spoken``: phrases of the players."""
    known = build(spoken)
    counts: Counter[str] = Counter()
    normalizer = known.backend_tokenizer.normalizer
    for text in shown:
        text = normalizer.normalize_str(text)  # less what is not read, which would make each phrase another
        found = known(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces = zip(found["input_ids"], found["offset_mapping"], strict=True)
        counts.update({text[a:b] for token, (a, b) in pieces if token == known.unk_token_id})
        # A text in brackets would be taken for a control token by whoever guards prompts against those.
    kept = sorted(text for text, n in counts.items() if n >= least and not re.fullmatch(r"[<\[|｜]\S*[>\]|｜]", text))
    return build([*spoken, *kept])


def build(spoken: Sequence[str] = ()) -> Any:
    """The tokenizer with these phrases beside its own, as transformers uses it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, UNKNOWN, END, *ROLES]
    vocabulary = {text: at for at, text in enumerate([*special, *numbers(), "."])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(pattern), "Talk: " if "ATalk" in pattern else "") for pattern in _UNREAD]
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_NUMBER), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    core.add_tokens([AddedToken(text, normalized=True) for text in phrases(spoken) if text not in vocabulary])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def alike(tokenizer: Any) -> Iterator[tuple[int, list[str]]]:
    """For each token that says something of a buyer, its id and the names of what it shares with others (used for the
    first embeddings)."""
    vocabulary = tokenizer.get_vocab()
    for text, token in sorted(vocabulary.items(), key=lambda pair: pair[1]):
        for kind, phrase in enumerate(_BY_BUYER):
            for buyer in range(1, N_BUYERS + 1):
                if text == phrase.replace("{}", str(buyer)):
                    yield token, [f"phrase {kind}", f"buyer {buyer}"]
