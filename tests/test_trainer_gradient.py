"""Contracts with TRL: the gradient of ready-made rows is the one that TRL's own public way gives, by its own loss."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch

from negolab.errors import NegolabError
from negolab.policies.scripted_sellers import ProberSeller, SatisficerSeller
from negolab.trainer.advantages import advantages_of
from negolab.trainer.batches import packed, sub_steps_of
from negolab.trainer.rows import Row
from tiny_models import tokenizer
from training import episodes, gradient, row_trainer, rows_from, score, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def played(model: Any) -> tuple[list[Row], list[Row], list[float], list[float]]:
    """Merged rows, rows by turn, advantages and rewards of 8 episodes of two kinds of sellers."""
    made = episodes(ProberSeller(), groups=2, group_size=2) + episodes(SatisficerSeller(), groups=2, group_size=2)
    rewards = [0.25 * (at % 2) + episode.reward for at, episode in enumerate(made)]
    merged, apart = rows_from(made), rows_from(made, merge=False)
    score(model, merged)
    score(model, apart)
    return merged, apart, advantages_of(rewards, 2).values, rewards


def largest(difference: Any) -> float:
    return float(difference.abs().max())


def close(first: Any, second: Any) -> bool:
    """Equal up to the order of summation."""
    assert largest(first) > 1e-4
    return largest(first - second) < 1e-5 * largest(first) + 1e-8


def by_hand(model: Any, rows: list[Row], advantages: list[float], low: float, high: float) -> Any:
    """CISPO as the paper's source writes it, one row after the other: no padding, no TRL."""
    model.zero_grad()
    trained = sum(row.trained for row in rows)
    for row in rows:
        ids, own = torch.tensor(row.ids), torch.tensor(row.own[1:])
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[own, 0]
        ratio = (logprobs.detach() - torch.tensor(row.logprobs[1:])[own]).exp().clamp(low, high)
        (-(ratio * logprobs).sum() * advantages[row.episode] / trained).backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
    model.zero_grad()
    return found


@pytest.mark.parametrize("loss", ["cispo", "dapo", "grpo"])
def test_the_gradient_is_that_of_trls_own_rollouts_with_a_mask(model, played, loss, tmp_path):
    rows, _, advantages, rewards = played
    bounds = {"clip_low": 0.8, "clip_high": 6.0 if loss == "cispo" else 1.2}
    ours = gradient(row_trainer(model, rows, advantages, tmp_path / "ours", loss=loss, **bounds))
    assert close(ours, trls_own(model, rows, rewards, tmp_path / "theirs", loss))


def trls_own(model: Any, rows: list[Row], rewards: list[float], folder: Path, loss: str) -> Any:
    """The gradient by TRL's ``rollout_func`` and ``env_mask``."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        assert prompts == [f"market {at // 2}" for at in range(8)]
        first = [row.own.index(True) for row in rows]
        return {
            "prompt_ids": [row.ids[:at] for row, at in zip(rows, first, strict=True)],
            "completion_ids": [row.ids[at:] for row, at in zip(rows, first, strict=True)],
            "logprobs": [row.logprobs[at:] for row, at in zip(rows, first, strict=True)],
            "env_mask": [[int(own) for own in row.own[at:]] for row, at in zip(rows, first, strict=True)],
            "paid": list(rewards),
        }

    def reward(paid: list[float], **rest: Any) -> list[float]:
        return paid

    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=2,
        gradient_accumulation_steps=1,
        loss_type=loss,
        epsilon=0.2,
        epsilon_high=6.0 if loss == "cispo" else 0.2,
        beta=0.0,
        scale_rewards="none",
        max_grad_norm=0.0,
        shuffle_dataset=False,
        activation_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": [f"market {at}" for at in range(4)]})
    with pytest.warns(UserWarning, match="rollout_func"):
        trainer = GRPOTrainer(
            model,
            reward_funcs=reward,
            args=config,
            train_dataset=data,
            processing_class=tokenizer("chatml"),
            rollout_func=rollout,
        )
    return gradient(trainer)


def off_policy(rows: list[Row]) -> list[Row]:
    """The same rows as if an older policy had drawn them: some tokens far less likely, some far likelier."""
    moved = []
    for row in rows:
        shifts = [(-3.0, 2.0, 0.1)[at % 3] if own else 0.0 for at, own in enumerate(row.own)]
        logprobs = [p + shift for p, shift in zip(row.logprobs, shifts, strict=True)]
        moved.append(Row(row.episode, row.ids, row.own, logprobs))
    return moved


def test_cispo_bounds_the_ratio_on_both_sides(model, played, tmp_path):
    rows, _, advantages, _ = played
    moved = off_policy(rows)
    ours = gradient(row_trainer(model, moved, advantages, tmp_path, clip_low=0.8, clip_high=6.0))
    assert close(ours, by_hand(model, moved, advantages, 0.8, 6.0))
    # Each bound acts: without it, or with TRL's upper one alone, the gradient is another.
    for low, high in ((0.0, 6.0), (0.8, 1e6), (0.0, 1e6)):
        assert not close(ours, by_hand(model, moved, advantages, low, high))


def test_how_often_the_bounds_act_and_how_far_the_policy_moved_is_counted(model, played, tmp_path):
    rows, _, advantages, _ = played
    trainer = row_trainer(model, off_policy(rows), advantages, tmp_path, learning_rate=1e-12)
    seen: list[dict[str, float]] = []
    trainer._finished = lambda step, numbers: seen.append(numbers) or numbers
    trainer.train()
    (numbers,) = seen
    assert numbers["clip_high_fraction"] == pytest.approx(1 / 3, abs=0.02)  # e^3 is above 6
    assert numbers["clip_low_fraction"] == pytest.approx(1 / 3, abs=0.02)  # e^-2 is below 0.8
    assert numbers["ratio_max"] == pytest.approx(2.718281828**3, rel=1e-3)
    assert numbers["ratio_min"] == pytest.approx(2.718281828**-2, rel=1e-3)
    assert numbers["mismatch_max"] == pytest.approx(3.0, rel=1e-3)
    assert numbers["mismatch_mean"] == pytest.approx((3.0 + 2.0 + 0.1) / 3, rel=0.02)


def test_on_policy_nothing_is_clipped_and_the_sampler_agrees(model, played, tmp_path):
    rows, _, advantages, _ = played
    trainer = row_trainer(model, rows, advantages, tmp_path, learning_rate=1e-12)
    seen: list[dict[str, float]] = []
    trainer._finished = lambda step, numbers: seen.append(numbers) or numbers
    trainer.train()
    (numbers,) = seen
    assert numbers["clip_low_fraction"] == numbers["clip_high_fraction"] == 0
    assert numbers["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert numbers["mismatch_max"] < 1e-4 and numbers["kl_sampler"] < 1e-8
    assert 0 < numbers["entropy"] < 7


def test_a_first_sub_step_without_anything_to_learn_says_nothing_of_the_sampler(model, played, tmp_path):
    rows, _, advantages, _ = played
    half = [*[0.0] * 4, *advantages[4:]]
    trainer = row_trainer(model, rows, half, tmp_path, sub_steps=2, learning_rate=1e-12)
    seen: list[dict[str, float]] = []
    trainer._finished = lambda step, numbers: seen.append(numbers) or numbers
    trainer.train()
    (numbers,) = seen
    assert numbers["mismatch_max"] == numbers["mismatch_mean"] == 0  # not minus infinity
    assert numbers["ratio_max"] == pytest.approx(1, abs=1e-3)


def test_a_models_own_dropout_is_no_noise_in_the_ratios(model, played, tmp_path):
    rows, _, advantages, _ = played
    quiet = gradient(row_trainer(model, rows, advantages, tmp_path / "quiet"))
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert close(gradient(row_trainer(model, rows, advantages, tmp_path / "dropping")), quiet)


def test_what_others_said_has_no_gradient_of_its_own(model, played, tmp_path):
    """Only own tokens are in the hand-written sum; with their marks taken away nothing is left, and with marks on all
    tokens something else comes out."""
    rows, _, advantages, _ = played
    ours = gradient(row_trainer(model, rows, advantages, tmp_path / "a"))
    assert close(ours, by_hand(model, rows, advantages, 0.8, 6.0))
    silent = [Row(row.episode, row.ids, [False] * len(row), [0.0] * len(row)) for row in rows]
    assert largest(gradient(row_trainer(model, silent, advantages, tmp_path / "b"))) == 0
    everything = [Row(row.episode, row.ids, [False] + [True] * (len(row) - 1), row.logprobs[:]) for row in rows]
    score(model, everything)
    assert not close(ours, gradient(row_trainer(model, everything, advantages, tmp_path / "c")))


def test_one_row_for_an_episode_and_one_for_each_turn_have_the_same_gradient(model, played, tmp_path):
    merged, apart, advantages, _ = played
    assert len(apart) > 2 * len(merged)
    for loss in ("cispo", "dapo"):
        bounds = {"clip_high": 6.0 if loss == "cispo" else 1.2}
        first = gradient(row_trainer(model, merged, advantages, tmp_path / f"{loss}-1", loss=loss, **bounds))
        assert close(
            first, gradient(row_trainer(model, apart, advantages, tmp_path / f"{loss}-2", loss=loss, **bounds))
        )


def test_a_loss_that_averages_by_row_refuses_several_rows_of_one_episode(model, played, tmp_path):
    _, apart, advantages, _ = played
    with pytest.raises(NegolabError, match="episode 0 of the batch makes several"):
        gradient(row_trainer(model, apart, advantages, tmp_path, loss="grpo", clip_high=1.2))


@pytest.mark.parametrize("loss", ["cispo", "dapo", "grpo"])
def test_how_rows_are_packed_changes_nothing_but_rounding(model, played, loss, tmp_path):
    rows, _, advantages, _ = played
    bounds = {"loss": loss, "clip_high": 6.0 if loss == "cispo" else 1.2}
    moved = off_policy(rows)
    one = gradient(row_trainer(model, moved, advantages, tmp_path / "a", micro_batch_tokens=1 << 20, **bounds))
    for tokens in (1, 4000):
        many = gradient(
            row_trainer(model, moved, advantages, tmp_path / str(tokens), micro_batch_tokens=tokens, **bounds)
        )
        assert close(one, many)


def test_a_sub_step_learns_from_its_own_groups_only(model, played, tmp_path):
    rows, _, advantages, _ = played
    first = gradient(row_trainer(model, rows, advantages, tmp_path / "a", sub_steps=2))
    alone = [row for row in rows if row.episode < 4]
    assert close(first, by_hand(model, alone, advantages, 0.8, 6.0))


def test_groups_with_equal_rewards_teach_nothing_but_count_in_the_average(model, played, tmp_path):
    rows, _, advantages, _ = played
    half = [*advantages[:4], *[0.0] * 4]
    assert close(gradient(row_trainer(model, rows, half, tmp_path / "a")), by_hand(model, rows, half, 0.8, 6.0))
    nothing = gradient(row_trainer(model, rows, [0.0] * 8, tmp_path / "b"))
    assert largest(nothing) == 0


def test_a_batch_in_which_nobody_spoke_changes_nothing(model, tmp_path):
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    trainer = row_trainer(model, [], [0.0] * 8, tmp_path, steps=1, sub_steps=3)
    trainer.train()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert trainer.steps_done == 1 and torch.equal(before, after)


def test_gradient_checkpointing_gives_the_same(model, played, tmp_path):
    rows, _, advantages, _ = played
    first = gradient(row_trainer(model, rows, advantages, tmp_path / "a"))
    again = gradient(row_trainer(model, rows, advantages, tmp_path / "b", gradient_checkpointing=True))
    model.gradient_checkpointing_disable()
    assert close(first, again)


# -- how batches are cut ----------------------------------------------------------------------------------------------


def test_sub_steps_are_whole_groups_as_equal_as_can_be():
    rows = [Row(at, [1, 2], [False, True], [0.0, -1.0]) for at in range(64 * 8)]
    parts = sub_steps_of(rows, [float(at) for at in range(64 * 8)], 8, 3)
    assert [len(part.rows) for part in parts] == [22 * 8, 21 * 8, 21 * 8]
    assert [row.episode for part in parts for row in part.rows] == list(range(512))
    assert all(part.advantages == [float(row.episode) for row in part.rows] for part in parts)
    assert parts[0].trained == 22 * 8
    with pytest.raises(ValueError, match="2 groups cannot be split into 3"):
        sub_steps_of(rows[:16], [0.0] * 16, 8, 3)


def test_packing_keeps_to_the_limit_and_loses_no_row():
    lengths = [5, 100, 7, 7, 50, 51, 1000, 3]
    packs = packed(lengths, 110)
    assert sorted(place for pack in packs for place in pack) == list(range(len(lengths)))
    assert packs[0] == [6]  # longer than the limit: alone
    assert all(len(pack) == 1 or max(lengths[p] for p in pack) * len(pack) <= 110 for pack in packs)
    assert packed([], 110) == []
