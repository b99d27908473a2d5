"""The transcript as one self-contained HTML page."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from negolab.environment.base import SELLER
from negolab.episodes import Episode
from negolab.transcripts.characters import cut, printable
from negolab.transcripts.turns import PRIVATE, sections
from negolab.transcripts.words import title_of, words_of

_SHOWN_HTML = 20_000


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent.parent / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode()
    env.filters["shown"] = lambda text: printable(cut(text, _SHOWN_HTML))
    return env.get_template("transcript.html.j2")


def to_html(
    episodes: Episode | Iterable[Episode],
    *,
    boards: bool = False,
    thoughts: bool = True,
    kinds: Mapping[str, str] | None = None,
    source: str = "",
) -> str:
    """One self-contained page. ``boards``: boards are open at first; ``source`` says where the episodes come from."""
    chosen = [episodes] if isinstance(episodes, Episode) else list(episodes)
    made = [_shown(episode, kinds) for episode in chosen]
    return str(_template().render(episodes=made, boards=boards, thoughts=thoughts, source=source, private=PRIVATE))


def _shown(episode: Episode, kinds: Mapping[str, str] | None) -> dict[str, Any]:
    """What the template shows of an episode."""
    words = words_of(episode)
    return {
        "number": episode.scenario.episode,
        "title": title_of(episode),
        "name": words.name(episode),
        "headline": words.headline(episode),
        "listings": words.listings(episode),
        "facts": words.facts(episode, kinds),
        "tables": words.tables(episode),
        "sections": sections(episode),
        "kind": episode.outcome.kind,
        "outcome": words.outcome(episode),
        "reward": words.reward(episode),
        "reward_number": f"{episode.reward:.3f}",
        "engaged": words.engaged(episode),
        "seller": episode.players[SELLER],
    }
