"""What a seat is shown, as chat messages rendered from its view alone."""

from negolab.prompts.multi_buyer import MarketPrompts, board

__all__ = ["MarketPrompts", "board"]
