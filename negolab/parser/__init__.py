"""Text to moves. Every parser is strict, total (it never raises) and linear in the length of the reply."""

from negolab.parser.lines import (
    parse_bilateral_seller,
    parse_buyer,
    parse_seller,
    render_buyer,
    render_seller,
)
from negolab.parser.native import NativeCall, parse_native, tools_for
from negolab.parser.shared import finish_of
from negolab.parser.tags import (
    item_name,
    parse_item_buyer,
    parse_item_seller,
    render_item_buyer,
    render_item_seller,
)
from negolab.parser.tools import parse_tools, render_tools

__all__ = [
    "NativeCall",
    "finish_of",
    "item_name",
    "parse_bilateral_seller",
    "parse_buyer",
    "parse_item_buyer",
    "parse_item_seller",
    "parse_native",
    "parse_seller",
    "parse_tools",
    "render_buyer",
    "render_item_buyer",
    "render_item_seller",
    "render_seller",
    "render_tools",
    "tools_for",
]
