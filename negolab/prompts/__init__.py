"""What a seat is shown, as chat messages rendered from its view alone."""

from negolab.prompts.multi_buyer import MarketPrompts, board, sha256_of
from negolab.prompts.multi_item import item_board, shown_length

__all__ = ["MarketPrompts", "board", "item_board", "sha256_of", "shown_length"]
