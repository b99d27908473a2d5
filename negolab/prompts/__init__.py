"""What a seat is shown, as chat messages rendered from its view alone."""

from negolab.prompts.multi_buyer import MarketPrompts, board, sha256_of

__all__ = ["MarketPrompts", "board", "sha256_of"]
