"""Which texts an episode is told in: for one item (``whole``), for several (``whole_items``), or for the trade game
(``whole_trade``)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from negolab.environment.base import Turn
from negolab.episodes import Episode
from negolab.transcripts import whole, whole_items, whole_trade
from negolab.transcripts.tables import Table


class Words(NamedTuple):
    """All that is said of an episode beside its replies and boards."""

    name: Callable[[Episode], str]
    """What is on sale, in a word."""
    headline: Callable[[Episode], str]
    listings: Callable[[Episode], list[tuple[str, str]]]
    """Title and description of what is on sale."""
    facts: Callable[[Episode, Mapping[str, str] | None], list[tuple[str, str]]]
    tables: Callable[[Episode], list[Table]]
    buyer: Callable[[Episode, int], str]
    """A buyer's name with what is hidden of it."""
    values: Callable[[Episode, Turn], str]
    """What is hidden of the items that a turn names; may be empty."""
    sale: Callable[[Episode, Turn], str]
    """The sale that a turn makes; may be empty where the outcome says it all."""
    event: Callable[[Turn], str]
    """The same for a title."""
    closing: Callable[[Episode], str]
    """What the last turn's title says of the end."""
    outcome: Callable[[Episode], str]
    reward: Callable[[Episode], str]
    engaged: Callable[[Episode], str]


ONE_ITEM = Words(
    whole.name_of,
    whole.headline_of,
    whole.listings_of,
    whole.facts,
    whole.tables,
    whole.buyer_name,
    lambda episode, turn: "",
    lambda episode, turn: "",
    lambda turn: "",
    whole.closing_title,
    whole.outcome_text,
    whole.reward_text,
    whole.engaged_text,
)
SEVERAL_ITEMS = Words(
    whole_items.name_of,
    whole_items.headline_of,
    whole_items.listings_of,
    whole_items.facts,
    whole_items.tables,
    whole_items.buyer_name,
    whole_items.values_text,
    whole_items.sale_text,
    whole_items.event_text,
    whole_items.closing_title,
    whole_items.outcome_text,
    whole_items.reward_text,
    whole_items.engaged_text,
)


TRADE = Words(
    whole_trade.name_of,
    whole_trade.headline_of,
    whole_trade.listings_of,
    whole_trade.facts,
    whole_trade.tables,
    whole_trade.buyer_name,
    lambda episode, turn: "",
    lambda episode, turn: "",
    whole_trade.event_text,
    whole_trade.closing_title,
    whole_trade.outcome_text,
    whole_trade.reward_text,
    whole_trade.engaged_text,
)


def words_of(episode: Episode) -> Words:
    """The texts for an episode, in whatever protocol it was played."""
    if episode.scenario.game == "trade":
        return TRADE
    return ONE_ITEM if episode.scenario.n_items == 1 else SEVERAL_ITEMS


def title_of(episode: Episode) -> str:
    """``Episode 12: baby-products_17``."""
    return f"Episode {episode.scenario.episode}: {words_of(episode).name(episode)}"


def outcome_text(episode: Episode) -> str:
    """How it ended."""
    return words_of(episode).outcome(episode)


def reward_text(episode: Episode) -> str:
    """The reward's formula with this episode's numbers."""
    return words_of(episode).reward(episode)


def engaged_text(episode: Episode) -> str:
    """Whom the seller wrote to, and what it could have found."""
    return words_of(episode).engaged(episode)
