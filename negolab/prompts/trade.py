"""Prompts of bilateral trade by tool calls (2604.16472, figure 2)."""

from typing import Any

from negolab.environment.base import TradeView
from negolab.prompts.shared import Message


def trade_messages(templates: dict[str, Any], view: TradeView) -> list[Message]:
    """The whole conversation of one side so far, ending with the message to answer."""
    raise NotImplementedError
