"""Text to moves. Every parser is strict, total (it never raises) and linear in the length of the reply."""

from negolab.parser.lines import (
    parse_bilateral_seller,
    parse_buyer,
    parse_seller,
    render_buyer,
    render_seller,
)
from negolab.parser.shared import finish_of

__all__ = ["finish_of", "parse_bilateral_seller", "parse_buyer", "parse_seller", "render_buyer", "render_seller"]
