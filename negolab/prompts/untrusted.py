"""Text from another seat or from a listing, made harmless before it enters a prompt.

It must not be able to write a chat template's control tokens, open or close a thinking block, or, in one line of a
chat, forge a label or a standing-offers board. In the tag format nor may it write a tag of the protocol, and where
replies hold code neither a fence nor what else ends a block.
"""

import json
import re

# What could be a control token of some chat template: a tag without blanks inside, whatever its name, and the bracketed
# words of the Llama, Mistral, Gemma and GLM families (actions such as [SELL] are none of them). A blank after the first
# character keeps the text readable and breaks the token: tokenizers match these strings whole.
_CONTROL = re.compile(
    r"<(?=[/|｜]?[A-Za-z_][^<>\s]{0,60}\s?>)|<(?=</?SYS>>)|<(?=[|｜])|(?<=[|｜])>"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|MODEL_SETTINGS|AVAILABLE_TOOLS|TOOL_[A-Z]+|ARGS|CALL_ID|g?s?MASK|THINK|"
    r"IMG(?:_[A-Z]+)?|(?:BEGIN_)?AUDIO|TRANSCRIBE|PREFIX|MIDDLE|SUFFIX|multimodal|toxicity|@BOS@|"
    r"CLS|SEP|PAD|UNK|BOS|EOS)\])"
)
# A tag of the protocol, whole or cut off, however it is written: any case, with blanks or attributes, opening or
# closing. The first alternative takes a whole one, so that both of its brackets go.
_PROTOCOL = re.compile(
    r"<(?P<tag>\s{0,4}/?\s{0,4}(?:thought|target|talk|action)\b[^<>]{0,200})>"
    r"|<(?P<open>\s{0,4}/?\s{0,4}(?:thought|target|talk|action)\b)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"`(?=`)")
_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def neutralise(text: str) -> str:
    """Break every control token in ``text``; anything else is left as it is."""
    return _CONTROL.sub(lambda found: found[0] + " " if found[0] != ">" else " >", text)


def one_line(text: str) -> str:
    """``neutralise``, and join the lines: what another seat said is one line of the prompt."""
    return neutralise(_BREAKS.sub(" ", text))


def tag_line(text: str, longest: int | None = None) -> str:
    """``text`` as one line of a prompt in the tag format: white space collapsed, control tokens broken, and the
    brackets of the protocol's own tags round (``</Talk>`` becomes ``(/Talk)``); a lone ``<`` stays.

    ``longest``: the most characters that are kept; what is longer is cut at the end of a word and ends in " ...".
    """
    text = " ".join(text.split())
    if longest is not None and len(text) > longest:
        kept = text[: longest - 3]
        text = (kept[: kept.rfind(" ")] if " " in kept else kept[:-1]) + " ..."
    return neutralise(_PROTOCOL.sub(_rounded, text))


def quoted(text: str) -> str:
    """``text`` as one line in double quotes, whose own quotes and backslashes are escaped: nothing in it can end it.
    White space is collapsed, control tokens (``<end_code>`` among them) and rows of backticks are broken."""
    return json.dumps(neutralise(_FENCE.sub(lambda found: found[0] + " ", " ".join(text.split()))), ensure_ascii=False)


def _rounded(found: re.Match[str]) -> str:
    return f"({found['tag']})" if found["tag"] is not None else f"({found['open']}"
