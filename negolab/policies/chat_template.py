"""Chat messages as token ids: the tokenizer, its chat template, and the exact tokens of a conversation so far.

A reply is sampled as tokens, and the next prompt should hold those very tokens: text that is tokenised again may come
out differently, and then caches are lost and a trainer sees what was never sampled. Whether a template allows it (the
prompt of turn n, the reply and its end-of-turn token are the beginning of the prompt of turn n + 1) is found out with
the real tokenizer, not assumed. Where it does not, prompts are rendered anew each time, which is always right.

Control tokens in what seats and listings say are broken twice: by pattern when prompts are written
(``prompts.untrusted``), and here by the tokenizer's own list, which no pattern can know.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

from negolab.errors import NegolabError
from negolab.prompts.multi_buyer import Message

_CLOCK = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(
        f" | replace('%{letter}', '{date(2024, 7, 26).strftime('%' + letter)}')" for letter in "dbBYmyaAjeHIMSpFDxXcTR"
    )
    + " }}{%- endmacro %}\n"
)
"""Put before a template that asks for today's date: a prompt must not depend on the day it is made. The day is the one
that Llama's templates fall back to where there is no clock."""

_SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates know the switch for thinking: the Qwen3 and GLM families', then DeepSeek's and
Granite's."""

Conversation = tuple[int, int]
"""Episode and seat."""


def load_tokenizer(model: str, revision: str = "", extra: str = "models") -> Any:
    """The tokenizer of a folder, a GGUF file or a name on the hub. Reads no weights.

    ``extra`` is the extra of negolab that installs what is needed. Raises ``NegolabError`` where a package is missing,
    there is no such model, its GGUF architecture is unknown to transformers, or it has no chat template.
    """
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise missing(extra, error) from None
    path = Path(model)
    options: dict[str, Any] = {"trust_remote_code": False}
    if path.is_file():
        check_gguf(path)
        name, options["gguf_file"] = str(path.parent), path.name
    elif path.is_dir():
        check_folder(path)
        name, options["local_files_only"] = str(path), True
    else:
        name = hub_name(model)
        options["revision"] = revision or None
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # warnings about lengths and special tokens are not for the user of a player
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except ImportError as error:
        raise missing(extra, error) from None
    except Exception as error:  # whatever a broken file makes of it
        raise NegolabError(f"the tokenizer of {model} cannot be loaded: {first_line(error)}") from None
    finally:
        logging.set_verbosity(verbosity)
    if not tokenizer.chat_template:
        raise NegolabError(f"{model} has no chat template; a model tuned for chat (instruct, it, chat) has one")
    return tokenizer


def missing(extra: str, error: ImportError) -> NegolabError:
    """The error for a package that is not installed."""
    what = error.name or first_line(error)
    return NegolabError(f"language models need the package {what}: pip install 'negolab[{extra}]'")


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def hub_name(model: str) -> str:
    """``model`` if it can be a name on the hub. Raises ``NegolabError`` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", model) or model.endswith((".gguf", ".safetensors", ".bin")):
        raise NegolabError(f"{model}: no such folder or file, and no name on the hub (OWNER/MODEL)")
    return model


def check_folder(folder: Path) -> None:
    """Raises ``NegolabError`` for a folder that holds no model in transformers' format."""
    if (folder / "config.json").is_file():
        return
    files = sorted(path.name for path in folder.glob("*.gguf"))
    hint = f"; it holds GGUF files: give one of them ({', '.join(files[:3])})" if files else ""
    if (folder / "adapter_config.json").is_file():
        hint = "; it holds a LoRA adapter: give the base model, and this folder as the option adapter"
    raise NegolabError(f"{folder} holds no model: there is no config.json in it{hint}")


def check_gguf(path: Path) -> str:
    """The architecture that a GGUF file names, if transformers reads it; only the file's beginning is read.

    Raises ``NegolabError`` for another one, or a file that is no GGUF file.
    """
    architecture = gguf_architecture(path)
    try:
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    except ImportError:
        return architecture  # an engine that has its own reader of these files
    known = sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"})
    # GGUF writes mixture-of-experts families in one word ("qwen3moe"), transformers with an underscore.
    if re.sub(r"[-_]", "", architecture) not in {re.sub(r"[-_]", "", name) for name in known}:
        raise NegolabError(
            f"{path.name}: GGUF models of architecture {architecture!r} cannot be read by transformers; "
            f"allowed: {', '.join(known)}"
        )
    return architecture


_GGUF_TYPES = "BbHhIif?  Qqd"  # struct's letters by the format's type numbers; 8 is text, 9 a list
_TEXT, _LIST = 8, 9


def gguf_architecture(path: Path) -> str:
    """``general.architecture`` of a GGUF file. The ``gguf`` package reads the whole vocabulary first, which takes
    seconds. Raises ``NegolabError`` for a file that is no GGUF file or does not say."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise NegolabError(f"{path} is no GGUF file; give a folder, a GGUF file or a name on the hub")
            _, _, count = struct.unpack("<IQQ", file.read(20))
            for _ in range(count):
                key = _gguf_text(file)
                (kind,) = struct.unpack("<I", file.read(4))
                value = _gguf_value(file, kind)
                if key == "general.architecture" and isinstance(value, str):
                    return value
    except OSError as error:
        raise NegolabError(f"cannot read {path}: {error.strerror or error}") from error
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError, MemoryError):
        pass
    raise NegolabError(f"{path} is damaged: its GGUF header names no architecture")


def _gguf_text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > 1 << 24:
        raise OverflowError
    return file.read(length).decode("utf-8")


def _gguf_value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _gguf_text(file)
    if kind == _LIST:
        item, length = struct.unpack("<IQ", file.read(12))
        if length > 1 << 24:
            raise OverflowError
        return [_gguf_value(file, item) for _ in range(length)]
    code = "<" + _GGUF_TYPES[kind]
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


class ChatFormat:
    """How one tokenizer writes a conversation, in one mode of thinking (None: the template's own).

    Raises ``NegolabError`` where the template cannot write a conversation of user and assistant.
    """

    def __init__(self, tokenizer: Any, thinking: bool | None = None) -> None:
        self.tokenizer = tokenizer
        template = tokenizer.get_chat_template()
        self.sha256 = hashlib.sha256(template.encode("utf-8")).hexdigest()
        """Of the template's text, for manifests."""
        self._template = (_CLOCK if "strftime_now" in template else "") + template
        self._options = {} if thinking is None else dict.fromkeys(_SWITCHES, thinking)
        self._deaf = thinking is not None and not any(re.search(rf"\b{name}\b", template) for name in _SWITCHES)
        texts = control_tokens(tokenizer)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        self.control_ids = frozenset(tokenizer.convert_tokens_to_ids(texts)) | frozenset(tokenizer.all_special_ids)
        """Ids that only the template and the model may write."""
        tags = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
        self._unread = frozenset(tokenizer.all_special_ids) - frozenset(tags)
        self._folds_system = not self._writes_system()
        prompt = self.text(_SAMPLE[:2])
        self.opened = prompt.rstrip().endswith("<think>")
        """A prompt ends by opening a thinking block."""
        self.end = self._end_of_turn()
        """The token that the template writes behind a reply; None where it writes none."""
        self.append_only = self._extends(_REPLY)
        """A plain reply's tokens can stay as they are in the next prompt."""
        self.keeps_blanks = self.append_only and self._extends(f"  {_REPLY} \n\n")
        """Also those of a reply that begins or ends with blanks."""

    def text(self, messages: Sequence[Message], prompt: bool = True) -> str:
        """The conversation as the template writes it, with the beginning of a reply where ``prompt``.

        Raises ``NegolabError`` where the template refuses it.
        """
        safe = [{"role": m["role"], "content": self.safe(m["content"])} for m in messages]
        if self._folds_system and safe and safe[0]["role"] == "system":
            safe[1:2] = [{**safe[1], "content": f"{safe[0]['content']}\n\n{safe[1]['content']}"}]
            del safe[0]
        try:
            made: str = self.tokenizer.apply_chat_template(
                safe,
                tokenize=False,
                return_dict=False,
                add_generation_prompt=prompt,
                chat_template=self._template,
                **self._options,
            )
        except Exception as error:  # whatever the template's author made of it
            raise NegolabError(f"the chat template refuses the conversation: {first_line(error)}") from None
        return made

    def encode(self, text: str) -> list[int]:
        """Token ids of text as the template writes it: nothing is put before or behind."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt that asks for the reply to ``messages``."""
        return self.encode(self.text(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids: without special tokens, the tags around thinking excepted."""
        kept = [token for token in ids if token not in self._unread]
        text: str = self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def safe(self, text: str) -> str:
        """``text`` that cannot be read as one of the tokenizer's control tokens: a blank breaks each that it holds."""
        return text if self._control is None else self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    @property
    def sentences(self) -> list[str]:
        """What a user should know of the template, in plain words."""
        found = []
        if self.append_only:
            found.append("Chat template: append-only, so a reply's own tokens stay in the prompts after it.")
            if not self.keeps_blanks:
                found.append("Blanks around a reply are cut by the chat template; prompts after such replies are new.")
        else:
            found.append("Chat template: rewrites earlier turns, so every prompt is written and computed anew.")
        if self.opened:
            found.append("Replies start with thinking, which is not part of later prompts.")
        if self._deaf:
            found.append("The chat template knows no switch for thinking; the option thinking changes nothing.")
        if self._folds_system:
            found.append("The chat template has no system message; it is put before the first user message.")
        return found

    def _writes_system(self) -> bool:
        self._folds_system = False
        try:
            return _SAMPLE[0]["content"] in self.text(_SAMPLE[:2])
        except NegolabError:
            return False

    def _end_of_turn(self) -> int | None:
        """The first token behind a reply."""
        whole = self.text([*_SAMPLE[:2], {"role": "assistant", "content": _REPLY}, *_SAMPLE[3:4]])
        _, found, rest = whole.rpartition(_REPLY)
        if not found:
            return None
        ids = self.encode(rest)
        written = ids and ids[0] in self.control_ids and rest.startswith(self.tokenizer.decode(ids[:1]))
        return ids[0] if written else None

    def _extends(self, reply: str) -> bool:
        """Whether each prompt is the one before, the reply's tokens, the end of its turn, and what is added then."""
        if self.end is None:
            return False
        messages = list(_SAMPLE[:2])
        for answer in (_SAMPLE[3], _SAMPLE[1]):
            before = self.text(messages)
            messages += [{"role": "assistant", "content": reply}, answer]
            after = self.text(messages)
            said = before + reply + self.tokenizer.decode([self.end])
            if not after.startswith(said):
                return False
            # A reply that begins with blanks may be cut into other tokens when it is read together with the prompt;
            # as sampled it is right all the same.
            rest = self.encode(after[len(said) :])
            held = [*self.encode(before), *self.encode(reply), self.end, *rest]
            if self.encode(after) != held and (
                reply == reply.strip() or self.encode(said) + rest != self.encode(after)
            ):
                return False
        return True


_REPLY = "Thought: a\nTarget: Buyer 1\nTalk: b\nAction: [SELL] $1,234.56 (1x toys_1)"
_SAMPLE: list[Message] = [
    {"role": "system", "content": "You bargain with 3 buyers."},
    {"role": "user", "content": "Buyer 1:\nTalk: hello\nAction: [BUY] $9.95 (1x toys_1)"},
    {"role": "assistant", "content": _REPLY},
    {"role": "user", "content": "Buyer 1:\nTalk: no\nAction: [BUY] $10.00 (1x toys_1)"},
]


def control_tokens(tokenizer: Any) -> list[str]:
    """Texts that the tokenizer reads as control tokens: the special ones, and added ones in brackets.

    Added tokens that are mere text (runs of blanks or line breaks) are none.
    """
    texts = set(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special or re.fullmatch(r"[<\[|｜]\S*[>\]|｜]", token.content):
            texts.add(token.content)
    return sorted((text for text in texts if len(text) > 1 and text.strip()), key=lambda text: (-len(text), text))


@dataclass(slots=True)
class _Held:
    """The last prompt of a conversation and what was said to it."""

    messages: Sequence[Message]
    text: str
    ids: list[int]
    replies: list[tuple[str, list[int]]] = field(default_factory=list)
    """Every reply to it: the guard may have refused some."""


class Conversations:
    """The exact tokens of every open conversation.

    Where the format is append-only, a prompt is the one before, the reply's sampled ids, and the tokens of what the
    template adds. Anything that does not line up (the guard put other words in the reply's place, thinking was cut,
    the reply did not end with the template's end-of-turn token, the conversation was not seen from its start) is
    rendered anew from the messages.

    Whatever decides between the two is a function of the messages and the sampled ids alone: a run that was killed
    plays on with the same tokens if each reply found in its journal is reported as if it had just been given
    (``prompt_ids``, then ``said``).
    """

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self.extended = 0
        """Prompts that hold the reply's own tokens."""
        self.rendered = 0
        """Later prompts that could not."""
        self._held: dict[Conversation, _Held] = {}

    def prompt_ids(self, conversation: Conversation, messages: Sequence[Message]) -> list[int]:
        """Token ids that ask for the reply to ``messages``; not to be changed. Raises ``NegolabError`` where the
        template refuses them."""
        held = self._held.get(conversation)
        if held is not None and held.messages == messages:
            return held.ids
        text = self.chat.text(messages)
        ids = None if held is None else self._extension(held, messages, text)
        if ids is None:
            self.rendered += held is not None
            ids = self.chat.encode(text)
        else:
            self.extended += 1
        self._held[conversation] = _Held(messages, text, ids)
        return ids

    def said(self, conversation: Conversation, text: str | None, ids: Sequence[int] | None) -> None:
        """The reply to the conversation's last prompt: its text without thinking, and all its sampled ids."""
        held = self._held.get(conversation)
        if held is not None and text is not None and ids:
            held.replies.append((text, list(ids)))

    def forget(self, conversation: Conversation) -> None:
        """The conversation is over."""
        self._held.pop(conversation, None)

    def _extension(self, held: _Held, messages: Sequence[Message], text: str) -> list[int] | None:
        """The prompt as a continuation of the last one, or None where it is none."""
        chat, n = self.chat, len(held.messages)
        if not chat.append_only or len(messages) <= n or list(messages[:n]) != list(held.messages):
            return None
        given = messages[n]
        for reply, ids in held.replies:
            if given["role"] != "assistant" or given["content"] != reply or ids[-1] != chat.end:
                continue
            # The sampled tokens are the reply and nothing else: no thinking before it, no control token inside.
            if chat.decode(ids) != reply or not chat.control_ids.isdisjoint(ids[:-1]):
                continue
            before = held.text + reply + chat.tokenizer.decode([ids[-1]])
            if text.startswith(before):
                return [*held.ids, *ids, *chat.encode(text[len(before) :])]
        return None
