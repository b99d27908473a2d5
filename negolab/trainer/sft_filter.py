"""Which recorded conversations are learnt from: filters on how an episode ended, for whom, and by which rules.

What 2604.16472 keeps of its episodes is not published.
"""

from __future__ import annotations

from negolab.episodes import Episode
from negolab.metrics.trade import utility_cents, values_of
from negolab.reward import trade_reward
from negolab.trainer.sft_settings import SftSettings


def why_not(settings: SftSettings, episode: Episode, seat: int) -> str | None:
    """Why the conversation of ``seat`` is left out, in words that can be counted; None where it is kept."""
    outcome = episode.outcome
    if settings.outcomes and outcome.kind not in settings.outcomes:
        return f"ended in {outcome.kind}"
    if settings.min_reward is not None and _reward(episode, seat) < settings.min_reward:
        return f"with a reward below {settings.min_reward:g}"
    if settings.min_share is not None and not _gained(episode, seat, settings.min_share):
        return f"with less than {settings.min_share:g} of the surplus, or at a loss"
    broke = any(turn.seat == seat and _broke(episode, at) for at, turn in enumerate(episode.turns))
    return "broke a rule" if broke and not settings.violations else None


def _reward(episode: Episode, seat: int) -> float:
    """What the episode pays the seat that is learnt: where both sides are under test its own reward."""
    if episode.scenario.game != "trade":
        return episode.reward
    return trade_reward(*values_of(episode), episode.outcome, episode.turns, seat)


def _gained(episode: Episode, seat: int, share: float) -> bool:
    """Whether a trader got this share of the surplus, where there is one, and lost nothing."""
    if episode.scenario.game != "trade":
        return True
    (reserve, value), utility = values_of(episode), utility_cents(episode, seat)
    return utility >= max(0.0, share * (value - reserve))


def _broke(episode: Episode, at: int) -> bool:
    turn = episode.turns[at]
    return turn.violation is not None or turn.fallback or bool(episode.notes.get(at, {}).get("refused"))
