"""Training in the trade game: what is drawn, who is paid for what, evaluations, samples of fine-tuning, and both stages
one after the other."""

import csv
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import FakeEngine
from negolab.catalog import SAMPLE, load_catalog
from negolab.cli import main
from negolab.conversations import conversations
from negolab.environment.base import BUYER, SELLER
from negolab.errors import NegolabError
from negolab.metrics import TRADE_METRICS, Summary
from negolab.metrics.trade import utility_cents, values_of
from negolab.policies import registry
from negolab.policies.engine import Completion
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_trader
from negolab.policies.spec import spec_of
from negolab.reward import trade_parts, trade_reward
from negolab.store import Run
from negolab.trainer import evaluation
from negolab.trainer.rows import rows_of
from negolab.trainer.settings import TrainSettings, load_profile
from negolab.trainer.sft_filter import why_not
from negolab.trainer.sft_settings import SftSettings, load_sft
from negolab.trainer.trade_task import SEATS, TradeOptions, TradeTask, make_trade_task
from negolab.verify import verify
from trade_learners import Tokens, save_trader, trade_tokens, traded
from trade_words import speak

CATALOG = load_catalog(SAMPLE)
MODEL = {"model": "openai:fake", "name": "fake", "base_url": "http://localhost:1/v1", "temperature": 0.7}
BOTH = pytest.mark.parametrize("seat", SEATS)


def task(groups: int = 6, group_size: int = 4, seed: int = 0, **options: Any) -> TradeTask:
    made = TradeOptions.from_mapping(options)
    return TradeTask(CATALOG, made, seed=seed, groups=groups, group_size=group_size, eval_products=3)


def in_order(episodes):
    return sorted(episodes, key=lambda e: e.scenario.episode)


# -- what is drawn -----------------------------------------------------------------------------------------------------


@BOTH
def test_a_group_shares_the_game_and_differs_in_the_learners_word(seat):
    first, again = task(seat=seat), task(seat=seat)
    later = again.markets(5)
    assert [first.markets(0), first.markets(5)] == [again.markets(0), later] and first.markets(0) != later
    assert first.markets(0) != task(seat=seat, seed=1).markets(0)
    learner, other = SEATS[seat], 1 - SEATS[seat]
    for at in range(0, len(later), 4):
        group = later[at : at + 4]
        assert len({s.keys[learner] for s in group}) == 4 and len({s.keys[other] for s in group}) == 1
        assert len({s._replace(episode=0, keys=()) for s in group}) == 1


def test_the_mix_of_games_is_the_one_that_was_asked_for():
    def gains(**options):
        made = task(groups=90, group_size=2, **options).markets(0)[::2]
        return sum(s.valuations[0][0] > s.reserve for s in made)

    assert 50 <= gains() <= 70  # two thirds of 90
    assert gains(gft_share=1) == 90 and gains(gft_share=0) == 0
    assert 10 <= gains(gft_share=0.25) <= 35
    rounds = {s.message_budget for s in task(rounds=6).markets(0)}
    assert rounds == {6}


# -- who is paid for what ----------------------------------------------------------------------------------------------


@BOTH
def test_the_learner_is_paid_the_weighted_parts_of_its_own_seat(seat):
    weights = [0.1, 0.2, 0.3, 0.4]
    made = task(seat=seat, groups=12, weights=weights)
    played = in_order(made.play(made.markets(0), make_trader(seat, "irrational")))
    for e in played:
        parts = trade_parts(*values_of(e), e.outcome, e.turns, SEATS[seat])
        assert made.reward(e) == pytest.approx(sum(w * p for w, p in zip(weights, parts, strict=True)))
        assert e.reward == trade_reward(*values_of(e), e.outcome, e.turns, SELLER)
    assert any(made.reward(e) != pytest.approx(e.reward) for e in played)
    spreads = [len({made.reward(e) for e in played[at : at + 4]}) for at in range(0, len(played), 4)]
    assert sum(spread > 1 for spread in spreads) >= 4  # else there would be nothing to learn
    summary = Summary(made.metrics)
    for e in played:
        summary.add(e)
    found = summary.estimates()
    assert found["reward"].mean == pytest.approx(sum(map(made.reward, played)) / len(played))
    assert found["seller_reward"].mean == pytest.approx(sum(e.reward for e in played) / len(played))
    parts = [found[f"{seat}_reward_{part}"].mean for part in ("parsing", "execution", "constraints", "utility")]
    assert found["reward"].mean == pytest.approx(sum(w * p for w, p in zip(weights, parts, strict=True)))
    assert set(TRADE_METRICS) <= set(found)


@BOTH
def test_a_side_that_speaks_twice_in_a_row_stays_in_one_row(seat):
    pytest.importorskip("transformers")
    from negolab.policies.chat_template import ChatFormat

    chat = ChatFormat(trade_tokens())
    made = task(seat=seat, groups=4, group_size=2)
    learner, twice = SEATS[seat], 0
    for e in made.play(made.markets(0), Tokens(make_trader(seat, "anchor"), chat)):
        twice += any(a.seat == b.seat == learner for a, b in pairwise(e.turns))
        (row,) = rows_of(e, learner)
        own = [i for i, mine in zip(row.ids, row.own, strict=True) if mine]
        said = [[*chat.encode(turn.text), chat.end] for turn in e.turns if turn.seat == learner]
        assert own == [token for ids in said for token in ids]
        assert row.trained == sum(map(len, said)) and not row.own[0]
    assert twice == 8  # it looks up the prices first


# -- evaluations -------------------------------------------------------------------------------------------------------


@BOTH
def test_evaluations_meet_the_opponent_and_an_unseen_one_in_both_kinds_and_verify(tmp_path, seat):
    made = task(seat=seat, opponent="walk-away", unseen=["accommodating"])
    rows = evaluation.evaluate(made, make_trader(seat, "taper"), tmp_path, 3, "f" * 64)
    names = {"trade_gft", "trade_ngft", "trade_gft_accommodating", "trade_ngft_accommodating"}
    assert {row["regime"] for row in rows} == names == set(made.evaluations())
    assert {row["metric"] for row in rows} == set(made.metrics)
    same = {}
    for name in names:
        folder = tmp_path / "evals" / "step-000003" / name
        assert verify(folder).ok
        episodes = in_order(Run(folder).episodes(complete=True))
        against = "accommodating" if name.endswith("accommodating") else "walk-away"
        assert len(episodes) == 3 and {e.players[1 - SEATS[seat]] for e in episodes} == {against}
        gft = [e.scenario.valuations[0][0] > e.scenario.reserve for e in episodes]
        assert all(gft) if "_gft" in name else not any(gft)
        same.setdefault("_gft" in name, []).append([e.scenario._replace(regime="") for e in episodes])
        told = next(row for row in rows if row["regime"] == name and row["metric"] == "reward")
        assert told["mean"] == pytest.approx(sum(map(made.reward, episodes)) / 3)
    assert all(first == second for first, second in same.values())  # everybody on the same games


@BOTH
def test_a_language_model_may_be_the_opponent(monkeypatch, seat):
    engine = FakeEngine(lambda p: Completion(speak(p.messages, p.seed), "stop", 1, 1))
    monkeypatch.setattr(registry, "make_engine", lambda specs: engine)
    made = task(seat=seat, opponent=MODEL, unseen=["anchor"], groups=2, group_size=2)
    played = list(made.play(made.markets(0), make_trader(seat, "taper")))
    assert len(played) == 4 and {e.players[1 - SEATS[seat]] for e in played} == {"fake"}
    assert all(t.violation is None for e in played for t in e.turns)
    learner = LanguageModel(spec_of("openai:me", {"base_url": "http://localhost:1/v1"}), FakeEngine(lambda p: None))
    learner.engine.check = lambda found, most: [f"{len(found)} conversations"]
    assert made.check(learner)[0] == "me: 4 conversations"
    told = made.manifest("trade_gft", make_trader(seat, "taper"))["settings"]["seller"]
    assert told == ("openai:fake" if seat == "buyer" else "learner:taper")
    told = made.manifest("trade_gft_anchor", make_trader(seat, "taper"))["settings"]["seller"]
    assert told == ("anchor" if seat == "buyer" else "learner:taper")
    assert [player.name for player in made.opponents] == ["fake", "anchor"]
    made.close()
    assert engine.closed == 1


# -- what a profile may say --------------------------------------------------------------------------------------------


def test_what_it_describes_decides_it():
    base = task().describe()
    assert base["name"] == "trade" and base["seat"] == BUYER and base["opponent"]["name"] == "taper"
    for options in (
        {"seat": "seller"},
        {"opponent": "hasty"},
        {"unseen": []},
        {"gft_share": 0.5},
        {"trade_draw": "conditional"},
        {"rounds": 8},
        {"weights": [0, 0, 0, 1]},
    ):
        assert task(**options).describe() != base


@pytest.mark.parametrize(
    "options, says",
    [
        ({"side": "buyer"}, "unknown option 'side'; allowed: gft_share, opponent, rounds"),
        ({"seat": "both"}, "seat is 'both'; allowed: seller, buyer"),
        ({"opponent": "nobody"}, "unknown seller 'nobody' of the trade game; allowed: anchor"),
        ({"opponent": 3}, "opponent: 3; allowed: a name, or model: ENGINE:NAME"),
        ({"opponent": {"name": "x"}}, "opponent: give model"),
        ({"opponent": {"model": "vlm:x"}}, "vlm"),
        ({"unseen": "anchor"}, "unseen is 'anchor'; allowed: a list of players"),
        ({"unseen": ["taper"]}, "who is trained against is not unseen"),
        ({"unseen": ["hasty", "hasty"]}, "a name of its own"),
        ({"gft_share": 1.5}, "gft_share is 1.5; allowed: a number from 0 to 1"),
        ({"gft_share": True}, "a number from 0 to 1"),
        ({"weights": [1, 1, 1]}, "four numbers from 0 for parsing, execution, constraints, utility"),
        ({"weights": [1, 1, 1, -1]}, "four numbers from 0"),
        ({"weights": [0, 0, 0, 0]}, "nothing to learn"),
        ({"weights": 1}, "four numbers from 0"),
        ({"trade_draw": "once"}, "allowed: redraw, conditional"),
        ({"rounds": 0}, "whole number from 1"),
    ],
)
def test_options_that_are_not_allowed(options, says):
    with pytest.raises(NegolabError) as refused:
        task(**options)
    assert says in str(refused.value)


def test_settings_of_the_market_are_refused():
    for changes, says in (
        ({"buyers": {"*": MODEL}}, "give task_options, opponent"),
        ({"regimes": {"ood_diverse": {}}}, "such as gft_share"),
    ):
        with pytest.raises(NegolabError, match=says):
            make_trade_task(TrainSettings(task="trade", **changes), CATALOG)
    assert make_trade_task(TrainSettings(task="trade", eval_products=2), CATALOG).name == "trade"
    with pytest.raises(NegolabError, match="allowed: seller, buyer, trade"):
        TrainSettings(task="traders")


def test_the_profiles_hold_the_papers_tables(capsys):
    rl = {name: load_profile(name) for name in ("trade_8b", "trade_14b")}
    sft = {name: load_sft(name, ["model=x"]) for name in rl}
    assert [s.learning_rate for s in rl.values()] == [3e-6, 2e-6] and {s.steps for s in rl.values()} == {200}
    assert {s.warmup_steps for s in rl.values()} == {20} and all(s.task == "trade" for s in rl.values())
    assert rl["trade_8b"].lora is None and rl["trade_14b"].lora.rank == 64
    assert {s.groups * s.group_size / s.sub_steps % 16 for s in rl.values()} == {0}
    assert [s.learning_rate for s in sft.values()] == [2e-5, 1e-5] and [s.batch for s in sft.values()] == [32, 16]
    for s in sft.values():
        assert (s.schedule, s.warmup_ratio, s.epochs, s.weight_decay, s.lora) == ("cosine", 0.1, 3, 0.01, None)
        assert s.samples == "turn" and s.learn_thinking and s.seats == "all"
        assert {(r.game, r.gains, w) for r, w in s.weighted_regimes()} == {("trade", "gft", 2), ("trade", "ngft", 1)}
    for name, gpus in (("trade_8b", "4"), ("trade_14b", "1")):
        command = ["train", "--profile", name, "--set", "data=sample", "--dry-run", "--gpu", "h200", "--gpus", gpus]
        assert main(command) == 0
        told = capsys.readouterr().out
        assert "200 steps of 8 markets x 8 rollouts" in told and "Evaluations: 5 of 96 episodes" in told
    assert "0.568% of the model's 14,768,307,200" in told
    assert main(["train", "--profile", "trade_8b", "--set", "task_options.opponent=nobody", "--dry-run"]) == 2
    assert "unknown seller 'nobody'" in capsys.readouterr().err


# -- fine-tuning: what is learnt from ----------------------------------------------------------------------------------


def stretches(sample):
    """The stretches of own tokens."""
    edges = np.flatnonzero(np.diff(np.r_[0, sample.own.astype(int), 0]))
    return [sample.ids[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]


def built(monkeypatch, episodes, chat, **changes):
    from negolab.trainer import sft_data

    monkeypatch.setattr(sft_data, "sources_of", lambda settings: [sft_data.Source(episodes, {})])
    return sft_data.build(SftSettings(model="x", runs=("x",), **changes), chat, 100_000)


def test_every_turn_is_a_sample_behind_all_that_was_said_before(monkeypatch):
    pytest.importorskip("transformers")
    from negolab.policies.chat_template import ChatFormat
    from tiny_models import tokenizer

    for chat in (ChatFormat(trade_tokens()), ChatFormat(tokenizer("qwen3"))):
        (episode, *_) = traded("anchor", "anchor")
        data = built(monkeypatch, [episode], chat, samples="turn", seats="all")
        expected = []
        for conversation in conversations(episode).values():
            for at, message in enumerate(conversation.messages):
                if message["role"] == "assistant":
                    expected.append(
                        (chat.ids(conversation.messages[:at]), [*chat.encode(message["content"]), chat.end])
                    )
        assert len(data.train) == len(expected) == len(episode.turns) > 4
        for sample, (context, target) in zip(data.train, expected, strict=True):
            assert sample.ids.tolist() == context + target
            assert sample.own.tolist() == [False] * len(context) + [True] * len(target)


@pytest.mark.parametrize("samples", ["turn", "auto"])
@pytest.mark.parametrize("opened", [False, True])
def test_the_target_keeps_its_thinking_and_the_context_has_none(monkeypatch, samples, opened):
    pytest.importorskip("transformers")
    from negolab.policies.chat_template import ChatFormat
    from tiny_models import THINKER, tokenizer

    chat = ChatFormat(tokenizer("qwen3", THINKER) if opened else tokenizer("qwen3"))
    (episode, *_) = traded("taper", "anchor")
    for at in range(len(episode.turns)):
        episode.notes[at] = {"reasoning": f"\nSecret number {at}<|im_end|>\n"}
    data = built(monkeypatch, [episode], chat, samples=samples, seats="buyers", learn_thinking=True)
    mine = [at for at, turn in enumerate(episode.turns) if turn.seat == BUYER]
    assert len(data.train) == len(mine) > 2
    for at, sample in zip(mine, data.train, strict=True):
        (own,) = stretches(sample)
        said = ("" if opened else "<think>\n") + f"Secret number {at}< |im_end|>\n</think>\n\n" + episode.turns[at].text
        assert chat.decode(own[:-1]) == said and own[-1] == chat.end
        context = chat.decode(sample.ids[: len(sample) - len(own)].tolist())
        assert "Secret" not in context and context.count("<think>") == (1 if opened else 0)
        assert all(episode.turns[earlier].text in context for earlier in mine if earlier < at)
    if opened:
        with pytest.raises(NegolabError, match="learn_thinking: true if the episodes hold it"):
            built(monkeypatch, [episode], chat, samples=samples)
        del episode.notes[mine[1]]  # there the prompt would open a block that the reply lacks
        assert len(built(monkeypatch, [episode], chat, seats="buyers", learn_thinking=True).train) == len(mine) - 1
    else:
        plain = built(monkeypatch, [episode], chat, samples="turn", seats="buyers")
        assert not any("Secret" in chat.decode(sample.ids.tolist()) for sample in plain.train)


def test_conversations_are_chosen_by_what_the_seat_itself_got():
    episodes = [
        *traded("irrational", "irrational", products=40),
        *traded("irrational", "irrational", products=40, gains="ngft"),
        *traded("anchor", "accommodating", products=20),
        *traded("accommodating", "anchor", products=20),
    ]
    kinds = {"share": 0, "loss": 0, "nothing": 0}
    for e in episodes:
        reserve, value = values_of(e)
        for seat in (SELLER, BUYER):
            gain, room = utility_cents(e, seat), value - reserve
            half = why_not(SftSettings(min_share=0.5, violations=True), e, seat)
            rational = why_not(SftSettings(min_share=0, violations=True), e, seat)
            assert (rational is None) == (gain >= 0)
            if gain < 0:
                assert half == "with less than 0.5 of the surplus, or at a loss"
                kinds["loss"] += 1
            elif room <= 0:
                assert half is None
                kinds["nothing"] += 1
            else:
                assert (half is None) == (gain / room >= 0.5)
                kinds["share"] += half is None
            paid = trade_reward(reserve, value, e.outcome, e.turns, seat)
            assert (why_not(SftSettings(min_reward=0.8, violations=True), e, seat) is None) == (paid >= 0.8)
            assert (why_not(SftSettings(outcomes=("deal",), violations=True), e, seat) is None) == (gain != 0) or (
                e.outcome.kind == "deal"
            )
    assert all(kinds.values()), kinds


@pytest.mark.parametrize(
    "changes, says",
    [
        (["min_share=2"], "min_share is 2; allowed: a number from 0 to 1"),
        (["warmup_ratio=0.1", "warmup_steps=2"], "warmup_ratio and warmup_steps"),
        (["warmup_ratio=1.5"], "warmup_ratio is 1.5"),
        (["learn_thinking=true", "thinking=false"], "would never be asked for"),
        (["teacher=prober", "trade_seller=hasty"], "no regime is of the trade game"),
        (["runs=[x]", "trade_buyer=hasty"], "no games are scripted"),
    ],
)
def test_fine_tuning_settings_that_go_nowhere(changes, says):
    with pytest.raises(NegolabError) as refused:
        load_sft("", changes)
    assert says in str(refused.value)


def test_warm_up_as_a_share_of_the_steps_is_rounded_up():
    from negolab.trainer.sft import warmed

    settings = SftSettings(warmup_ratio=0.1)
    assert [warmed(settings, steps).warmup_steps for steps in (1, 10, 11, 200, 375)] == [1, 1, 2, 20, 38]
    assert warmed(SftSettings(warmup_steps=3), 10).warmup_steps == 3


def test_pocket_models_are_told_that_they_lack_the_words(tmp_path):
    pytest.importorskip("transformers")
    from negolab.trainer import sft
    from sft_models import save_pocket

    settings = SftSettings(model=str(save_pocket(tmp_path / "m")), regimes={"trade": {}}, scripted=2)
    with pytest.raises(NegolabError, match="pocket models have no words for the trade game's tools"):
        sft.read(settings)


# -- both stages, one after the other ----------------------------------------------------------------------------------


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model after some steps of fine-tuning on scripted games, both seats."""
    pytest.importorskip("trl")
    from negolab.trainer import sft

    place = tmp_path_factory.mktemp("trade")
    settings = SftSettings(
        model=str(save_trader(place / "base")),
        regimes={"trade_gft": {"base": "trade", "gains": "gft"}, "trade_ngft": {"base": "trade", "gains": "ngft"}},
        scripted=24,
        seats="all",
        samples="turn",
        steps=12,
        batch=8,
        micro_batch=4,
        learning_rate=3e-3,
        warmup_ratio=0.1,
        save_every=100,
    )
    found = sft.tune(settings, place / "sft", progress=False)
    assert found.steps == 12 and found.last_loss < 0.9 * found.first_loss
    rates = [float(row["learning_rate"]) for row in table(place / "sft" / "metrics.csv")]
    assert rates[:3] == [0.0, 0.0015, 0.003] and rates[3] < 0.003  # a tenth of 12 steps is two
    return place / "sft" / "model"


@BOTH
def test_sft_then_grpo_on_a_tiny_model_and_resumed_to_the_same_bytes(tuned, tmp_path, monkeypatch, seat):
    """The machinery only: in seconds nobody learns to trade."""
    from negolab.trainer import checkpoints, loop

    # Replies of a model that has hardly learnt anything are all wrong and worth the same: paid for tokens they differ.
    def of_tokens(self, episode):
        ids = [
            i for at in episode.notes for i in episode.notes[at].get("ids", ()) if episode.turns[at].seat == self.seat
        ]
        return sum(token % 2 == 0 for token in ids) / max(1, len(ids))

    monkeypatch.setattr(TradeTask, "reward", of_tokens)
    changes = [
        *("steps=2", "groups=2", "group_size=2", "sub_steps=1", "max_tokens=12", "eval_every=2", "eval_products=1"),
        *("eval_per_product=1", "learning_rate=0.003", "keep_checkpoints=0", "loss=dapo", "clip_high=1.28"),
        *("task=trade", f"model={tuned}", f"task_options.seat={seat}", "task_options.rounds=4"),
    ]
    settings = load_profile("smoke", changes)
    whole, part = tmp_path / "whole", tmp_path / "part"
    told: list[str] = []
    loop.train(settings, whole, say=told.append, progress=False)
    rows = table(whole / "metrics.csv")
    assert [row["step"] for row in rows] == ["0", "1"]
    for row in rows:
        assert float(row["mismatch_max"]) < 1e-4 and float(row["grad_norm"]) > 0 and float(row["reward_se"]) > 0
        assert all(row[f"{seat}_reward_{part}"] for part in ("parsing", "execution", "constraints", "utility"))
    evaluated = {row["regime"] for row in table(whole / "eval.csv")}
    assert evaluated == {"trade_gft", "trade_ngft", "trade_gft_anchor", "trade_ngft_anchor"}
    for name in evaluated:
        assert verify(whole / "evals" / "step-000002" / name).ok

    shutil.copytree(whole, part)
    shutil.rmtree(checkpoints.complete(part)[2])
    shutil.rmtree(part / "model")
    assert loop.train(settings, part, progress=False).steps_now == 1
    for name in ("metrics.csv", "eval.csv", "model/model.safetensors"):
        assert (whole / name).read_bytes() == (part / name).read_bytes(), name
