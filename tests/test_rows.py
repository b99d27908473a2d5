"""Episodes become rows: what is trained is what was sampled, behind what it was sampled behind."""

import math

import pytest

pytest.importorskip("transformers")

from negolab.environment.base import SELLER
from negolab.errors import NegolabError
from negolab.policies.chat_template import ChatFormat
from negolab.policies.scripted_sellers import ProberSeller, RandomSeller, SatisficerSeller
from negolab.trainer.advantages import advantages_of
from negolab.trainer.rows import Row, rows_of, statistics_of
from tiny_models import tokenizer
from training import TokenSeller, episodes, rows_from, seller_task


def own_text(row: Row, chat) -> str:
    return chat.tokenizer.decode([token for token, own in zip(row.ids, row.own, strict=True) if own])


def test_append_only_episodes_make_one_row_each_with_the_sellers_replies_and_nothing_else():
    made = episodes(ProberSeller())
    rows, chat = rows_from(made), ChatFormat(tokenizer("chatml"))
    assert len(rows) == len(made) == 16
    for episode, row in zip(made, rows, strict=True):
        spoken = [(at, t) for at, t in enumerate(episode.turns) if t.seat == SELLER]
        assert len(spoken) > 1
        assert own_text(row, chat) == "".join(f"{turn.text}<|im_end|>" for _, turn in spoken)
        assert row.trained == sum(len(episode.notes[at]["ids"]) for at, _ in spoken)
        kept = [p for at, _ in spoken for p in episode.notes[at]["logprobs"]]
        assert [p for p, own in zip(row.logprobs, row.own, strict=True) if own] == kept
        assert row.ids[: row.own.index(True)] == list(episode.prompt_ids[spoken[0][0]])
        assert row.own[-1] and not row.own[0]
    found = statistics_of(rows, made, SELLER)
    assert found.rows_per_episode == 1 and found.fork_fraction == 0
    assert found.trained == sum(row.trained for row in rows) and found.tokens == sum(map(len, rows))


def test_a_row_ends_with_the_sellers_last_token_where_the_buyer_has_the_last_word():
    made = episodes(SatisficerSeller(), groups=8)
    last = [e for e in made if e.turns[-1].seat != SELLER]
    assert last, "no episode of the sample ends on a buyer's words"
    for episode in last:
        (row,) = rows_of(episode, SELLER)
        said = max(at for at, turn in enumerate(episode.turns) if turn.seat == SELLER)
        ids = episode.notes[said]["ids"]
        assert row.ids[-len(ids) :] == ids and all(row.own[-len(ids) :])


def test_a_template_that_rewrites_earlier_turns_forks():
    # The empty block that switches thinking off stands in the last prompt only.
    task = seller_task()
    seller = TokenSeller(ProberSeller(), ChatFormat(tokenizer("qwen3"), thinking=False))
    made = list(task.play(task.markets(0), seller))
    rows = rows_from(made)
    turns = sum(turn.seat == SELLER for episode in made for turn in episode.turns)
    assert len(rows) == turns > len(made)
    found = statistics_of(rows, made, SELLER)
    assert found.fork_fraction == 1 and found.rows_per_episode == turns / len(made)


def test_rows_by_turn_hold_the_same_trained_tokens():
    made = episodes(ProberSeller())
    merged, apart = rows_from(made), rows_from(made, merge=False)
    assert len(apart) > len(merged)
    assert sum(row.trained for row in apart) == sum(row.trained for row in merged)
    assert all(row.own == sorted(row.own) for row in apart)  # one reply, behind its prompt


def test_a_reply_that_breaks_a_rule_is_trained_as_well():
    def cut(request):
        return None if request.view.turn != 1 else "Thought: x\nTarget: Buyer 1\nTalk: y\nAction: [SELL] $1.00 (1x z)"

    task = seller_task()
    seller = TokenSeller(ProberSeller(), ChatFormat(tokenizer("chatml")), cut)
    made = list(task.play(task.markets(0), seller))
    assert {e.outcome.kind for e in made} == {"violation"}  # the codename is wrong
    rows = rows_from(made)
    assert [row.trained for row in rows] == [len(e.notes[3]["ids"]) for e in made]


def test_a_seat_that_never_spoke_has_no_row():
    made = episodes(RandomSeller())
    silent = made[0]
    silent.turns[:] = [turn for turn in silent.turns if turn.seat != SELLER]
    assert rows_of(silent, SELLER) == []
    assert statistics_of([], [silent], SELLER).rows_per_episode == 0


def test_replies_without_tokens_cannot_be_trained():
    task = seller_task()
    (episode, *_) = task.play(task.markets(0), ProberSeller())
    with pytest.raises(NegolabError, match=r"episode \d+, turn 3: prober keeps no sampled tokens"):
        rows_of(episode, SELLER)


# -- advantages -----------------------------------------------------------------------------------------------------


def test_advantages_are_rewards_less_their_groups_mean():
    found = advantages_of([1.0, 0.0, -1.0, 0.0, 0.5, 0.5, 0.5, 0.5], 4)
    assert found.values == [1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert (found.equal_groups, found.groups) == (1, 2)


def test_scaled_advantages_by_hand():
    found = advantages_of([1.0, 0.0, 0.0, 0.0], 4, scale_by_std=True)
    assert found.values == pytest.approx([0.75 / (0.5 + 1e-4), *[-0.25 / (0.5 + 1e-4)] * 3])


@pytest.mark.parametrize("scale", [False, True])
def test_equal_rewards_have_advantages_of_exactly_zero_and_a_tiny_spread_stays_small(scale):
    assert advantages_of([0.35] * 8, 8, scale_by_std=scale).values == [0.0] * 8
    assert advantages_of([0.1 + 0.2] * 7, 7, scale_by_std=scale).values == [0.0] * 7
    assert all(abs(a) < 3 for a in advantages_of([0.35] * 7 + [0.95], 8, scale_by_std=scale).values)
    nearly = advantages_of([0.35, 0.35 + 1e-9, 0.35, 0.35], 4, scale_by_std=scale).values
    assert all(abs(a) < 1e-3 for a in nearly)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_stops_with_the_episode(bad):
    with pytest.raises(NegolabError, match="episode 5 of the batch has reward"):
        advantages_of([0.0] * 5 + [bad, 0.0, 0.0], 4)
