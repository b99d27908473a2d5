"""Transcripts of the trade game: what was hidden, what was called, what was lost, what both sides got."""

import pytest

from negolab.catalog import load_catalog
from negolab.cli import main
from negolab.policies.base import Reply
from negolab.policies.registry import make_trader
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.transcripts import to_html, to_text

OFFER = "Thought: hold\nCode:\n```python\nmake_offer(price=9999.50)\n```"


class Says:
    """Says the same at every turn."""

    name = "says"

    def __init__(self, text: str) -> None:
        self.text = text

    def describe(self):
        return {"name": self.name}

    def reply(self, requests):
        return [Reply(self.text) for _ in requests]


def played(seller, buyer, gains="gft"):
    schedule = Schedule(regime("trade", gains=gains), load_catalog("sample").products[:1], seed=0)
    (episode,) = play([schedule[0]], seller, {"trader": buyer})
    return episode


def test_a_deal_with_both_secrets_and_both_rewards():
    episode = played(make_trader("seller", "accommodating"), make_trader("buyer", "anchor"))
    reserve, value, price = episode.scenario.reserve, episode.scenario.budgets[0], episode.outcome.price
    text = to_text(episode)
    for cents in (reserve, value, price - reserve, value - price):
        assert f"${cents / 100:.2f}" in text
    assert f"Deal at ${price / 100:.2f}" in text and "gains from trade" in text and "make_offer(price=" in text
    assert f"seller's reward = (1.000 + 1.000 + 1.000 + {(price - reserve) / (value - reserve):.3f}) / 4" in text
    assert f"Deal at ${price / 100:.2f}" in to_html(episode)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("I would like to sell.", "unparseable"),
        (OFFER.replace("make_offer", "make_bid"), "unknown_tool"),
        (OFFER.replace("make_offer(price=9999.50)", "respond_to_offer(True)"), "no_pending_offer"),
    ],
)
def test_what_is_lost_is_named_and_ends_nothing(reply, kind):
    text = to_text(played(Says(reply), Says(reply), "ngft"))
    assert f"LOST ({kind})" in text and "VIOLATION" not in text
    assert "No deal: the 10 turns are over" in text and "no gains from trade" in text


def test_a_loss_is_told():
    accepts = OFFER.replace("make_offer(price=9999.50)", "respond_to_offer(response=True)")
    text = to_text(played(Says(OFFER), Says(accepts)))
    assert "Deal at $9999.50" in text and "The buyer agreed to a loss." in text


def test_show_of_a_stored_run(tmp_path, capsys):
    out = str(tmp_path / "run")
    more = ["--buyer", "taper", "--gains", "gft", "--products", "2", "--out", out]
    assert main(["evaluate", "--game", "trade", "--seller", "anchor", *more]) == 0
    capsys.readouterr()
    assert main(["show", out, "--pick", "best"]) == 0
    assert "BOTH SIDES" in capsys.readouterr().out
