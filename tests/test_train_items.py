"""Training on markets of several items: units, splits, metrics, rows and steps, by the same code as with one item."""

import csv
import json
import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engines import FakeEngine
from item_words import buyer_words, seller_words
from negolab.catalog import load_catalog
from negolab.cli import main
from negolab.clusters import Cluster, load_clusters
from negolab.environment.base import SELLER, Request
from negolab.environment.market import Market
from negolab.episodes import Episode
from negolab.errors import NegolabError
from negolab.metrics import ITEM_METRICS, METRICS, Summary
from negolab.policies.base import Policy, Reply
from negolab.policies.engine import Completion
from negolab.policies.model import LanguageModel
from negolab.policies.spec import spec_of
from negolab.prompts import MarketPrompts
from negolab.scenario import IN_DISTRIBUTION, MULTI_PRODUCT, regime
from negolab.seeds import uniform
from negolab.trainer.markets import Weighted, unit_of
from negolab.trainer.settings import TrainSettings, load_profile
from negolab.trainer.task import SellerTask

ITEMS = {"multi_product": {}}


def task_of(groups: int = 4, group_size: int = 2, regimes: Any = (MULTI_PRODUCT,), **more: Any) -> SellerTask:
    weighted = [Weighted(chosen, 1.0) for chosen in regimes]
    given = {"seed": 0, "eval_products": 3, **more}
    return SellerTask(load_clusters("sample"), weighted, groups=groups, group_size=group_size, **given)


class Reader:
    """Buyers that read their prompts: a language model without weights."""

    def __init__(self) -> None:
        engine = FakeEngine(lambda p: Completion(buyer_words(p.messages, p.seed), "stop", 10, 5), window=64)
        self.model = LanguageModel(spec_of("openai:reader", {"base_url": "http://localhost:1/v1"}), engine)


def with_readers(task: SellerTask) -> SellerTask:
    """The task with buyers that read their prompts in the place of the scripted ones."""
    task._buyers = dict.fromkeys(task._buyers, Reader().model)
    return task


# -- what is drawn ---------------------------------------------------------------------------------------------------


def test_a_group_shares_items_valuations_and_openings_and_its_learners_word_differs():
    markets = task_of(groups=4, group_size=3).markets(2)
    assert [m.episode for m in markets] == list(range(12)) and {m.n_items for m in markets} == {3}
    for at in range(0, 12, 3):
        group = markets[at : at + 3]
        assert len({m._replace(episode=0, keys=m.keys[1:]) for m in group}) == 1
        assert len({m.keys[0] for m in group}) == 3


def test_markets_are_a_function_of_seed_and_step_and_an_epoch_shows_every_cluster_once():
    task, again = task_of(groups=7), task_of(groups=7)
    [task.markets(step) for step in range(4)]
    assert task.markets(13) == again.markets(13) != again.markets(12)
    assert task_of(groups=7, seed=1).markets(13) != again.markets(13)
    names = set(load_clusters("sample").splits["train"])
    whole = int(task.steps_per_epoch)
    assert whole == len(names) // 7 == 11
    items: dict[str, set[frozenset[str]]] = {}
    for epoch in range(3):
        seen = [m for step in range(epoch * whole, (epoch + 1) * whole) for m in task.markets(step)[::2]]
        assert len({m.unit for m in seen}) == len(seen) == 77 and {m.unit for m in seen} <= names
        for m in seen:
            items.setdefault(m.unit, set()).add(frozenset(p.listing.codename for p in m.products))
    assert any(len(drawn) > 1 for drawn in items.values())  # another epoch, other items of the cluster


def test_960_clusters_are_an_epoch_of_15_steps_of_64():
    from dataclasses import replace

    found = load_clusters("sample")
    clusters = tuple(
        Cluster(f"c{at:04d}", c.category, c.kind, tuple(_called(p, f"c{at:04d}_{i}") for i, p in enumerate(c.products)))
        for at, c in ((at, found.clusters[at % len(found.clusters)]) for at in range(1200))
    )
    names = [cluster.name for cluster in clusters]
    catalog = replace(found, clusters=clusters, splits={"train": tuple(names[:960]), "test": tuple(names[960:])})
    for cached in ("products", "by_codename", "by_name"):
        catalog.__dict__.pop(cached, None)
    task = SellerTask(catalog, [Weighted(MULTI_PRODUCT, 1.0)], seed=0, groups=64, group_size=8)
    assert task.steps_per_epoch == 15
    first = [m.unit for step in range(15) for m in task.markets(step)[::8]]
    assert sorted(first) == sorted(names[:960])
    (schedule,) = task.evaluations().values()
    assert len(schedule) == 2 * 240 and not {c.name for c in schedule.units} & set(first)


def _called(product: Any, codename: str) -> Any:
    from dataclasses import replace

    return replace(product, listing=replace(product.listing, codename=codename))


def test_train_and_eval_share_no_cluster_and_the_held_out_category_is_a_split(tmp_path):
    catalog = load_clusters("sample")
    task = task_of(eval_split="held_out", eval_products=None)
    held = {c.category for c in next(iter(task.evaluations().values())).units}
    trained = {m.products[0].listing.category for step in range(3) for m in task.markets(step)}
    assert len(held) == 1 and not held & trained
    with pytest.raises(NegolabError, match=r"19 clusters are in both splits \(.*, \.\.\.\)"):
        task_of(train_split="test", eval_split="train+test", eval_products=None)
    names = [*catalog.splits["train"][:3], catalog.splits["test"][0]]
    (tmp_path / "mine.json").write_text(json.dumps(names))
    with pytest.raises(NegolabError, match="1 clusters are in both splits"):
        task_of(train_split=str(tmp_path / "mine.json"))


def test_one_run_trains_in_one_kind_of_market():
    for other in ("in_distribution", "ood_diverse"):
        with pytest.raises(
            NegolabError, match=rf"multi_product \(3 items .* in tags\) and {other} \(one item, .*lines"
        ):
            task_of(regimes=[MULTI_PRODUCT, regime(other)])
    one = MULTI_PRODUCT.override(name="one", n_items=1)
    with pytest.raises(NegolabError, match=r"one \(one item, replies in tags\) cannot be trained in one run"):
        unit_of([MULTI_PRODUCT, one])
    assert unit_of([one]) == unit_of([IN_DISTRIBUTION]) == "product"
    both = [MULTI_PRODUCT, regime("multi_expanded"), regime("multi_buyer_heavy")]
    markets = task_of(groups=30, regimes=both).markets(0)
    assert {(m.n_items, m.n_buyers) for m in markets} == {(3, 3), (5, 5), (3, 5)}


def test_products_where_clusters_are_needed_are_refused():
    with pytest.raises(NegolabError, match="sells 3 items"):
        SellerTask(load_catalog("sample"), [Weighted(MULTI_PRODUCT, 1.0)], seed=0, groups=2, group_size=2)


def test_what_a_run_is_made_of_is_written_down():
    described = task_of().describe()
    assert described["train_clusters"] == 77 and "train_products" not in described
    assert described["regimes"] == [{**MULTI_PRODUCT.to_json(), "weight": 1.0}]
    assert described["data"]["sha256"] == load_clusters("sample").data_sha256
    assert described["buyers"]["iter-60"]["name"] == "iter-60"
    assert (
        "train_products"
        in SellerTask(
            load_catalog("sample"), [Weighted(IN_DISTRIBUTION, 1.0)], seed=0, groups=2, group_size=2
        ).describe()
    )


def test_metrics_are_those_of_the_game_and_pooled_ones_are_pooled():
    task = with_readers(task_of(groups=6, group_size=2))
    assert task.metrics == ITEM_METRICS != METRICS
    made = list(task.play(task.markets(0), Seller()))
    summary = Summary(task.metrics)
    for episode in made:
        summary.add(episode)
    found = summary.estimates()
    sold = [sale for e in made for sale in e.outcome.sales]
    assert found["item_deal_rate"].n == 3 * len(made) and found["top_buyer_rate"].n == len(sold)
    assert found["item_deal_rate"].mean == pytest.approx(len(sold) / (3 * len(made)))
    top = sum(e.scenario.rank(s.buyer, s.item) == 1 for e in made for s in e.outcome.sales)
    assert found["top_buyer_rate"].mean == pytest.approx(top / len(sold)) and 0 < top < len(sold)


class Seller:
    """Reads its prompts, without tokens."""

    name = "reader"

    def __init__(self) -> None:
        self._prompts = MarketPrompts()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def reply(self, requests: Iterable[Request]) -> list[Reply]:
        return [Reply(seller_words(self._prompts.messages(r), r.seed)) for r in requests]


# -- rows -------------------------------------------------------------------------------------------------------------


def rows_module() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    import training

    return training


def short(request: Request) -> list[dict[str, str]]:
    """The real prompt without its system message's and its boards' text: rows of some hundred tokens."""
    _, *messages = MarketPrompts().messages(request)
    for message in messages:
        if message["role"] == "user":
            news, board = message["content"].split("=== Standing offers ===")
            message["content"] = f"{news}=== Standing offers ==={board[-60:]}"
    return [{"role": "system", "content": "You are a seller."}, *messages]


@pytest.fixture(scope="module")
def lived() -> list[Episode]:
    """Episodes in which the seller speaks twice in a row, with tokens as a language model's replies carry them."""
    rows_module()
    from negolab.policies.chat_template import ChatFormat, Conversations
    from tiny_models import tokenizer

    chat = ChatFormat(tokenizer("chatml"))
    held, inner = Conversations(chat), Seller()

    class Tokens:
        name = "tokens"

        def describe(self) -> dict[str, Any]:
            return {"name": self.name}

        def reply(self, requests: list[Request]) -> list[Reply]:
            made = []
            for request, plain in zip(requests, inner.reply(requests), strict=True):
                prompt = held.prompt_ids((request.episode, request.seat), short(request))
                ids = [*chat.encode(plain.text), chat.end]
                held.said((request.episode, request.seat), plain.text, ids)
                logprobs = [-0.1 - uniform(request.seed, at) for at in range(len(ids))]
                made.append(Reply(plain.text, "stop", len(prompt), len(ids), "0" * 64, None, ids, logprobs, prompt))
            return made

    player: Policy = Tokens()
    task = with_readers(task_of(groups=2, group_size=2))
    return sorted(task.play(task.markets(0), player), key=lambda e: e.scenario.episode)


def test_a_seller_that_speaks_twice_in_a_row_makes_one_row_with_its_own_tokens_marked(lived):
    training = rows_module()
    from negolab.policies.chat_template import ChatFormat
    from negolab.trainer.rows import statistics_of
    from tiny_models import tokenizer

    chat, rows = ChatFormat(tokenizer("chatml")), training.rows_from(lived)
    twice = [e for e in lived if any(a.seat == b.seat == SELLER for a, b in pairwise(e.turns))]
    assert twice and len(rows) == len(lived)
    for episode, row in zip(lived, rows, strict=True):
        spoken = [(at, turn) for at, turn in enumerate(episode.turns) if turn.seat == SELLER]
        own = [token for token, mine in zip(row.ids, row.own, strict=True) if mine]
        assert chat.tokenizer.decode(own) == "".join(f"{turn.text}<|im_end|>" for _, turn in spoken)
        assert [p for p, mine in zip(row.logprobs, row.own, strict=True) if mine] == [
            p for at, _ in spoken for p in episode.notes[at]["logprobs"]
        ]
        assert all(p == 0 for p, mine in zip(row.logprobs, row.own, strict=True) if not mine)
        # What the environment said is all there, and none of it counts: boards, news of deals, buyers' words.
        others = chat.tokenizer.decode([t for t, mine in zip(row.ids, row.own, strict=True) if not mine])
        assert others.count("=== Standing offers ===") == len(spoken)
        assert others.count("\nDeal: Buyer ") <= len(episode.outcome.sales) and "<Thought>" not in others
        assert row.own[-1] and not row.own[0]
    found = statistics_of(rows, lived, SELLER)
    assert found.rows_per_episode == 1 and found.fork_fraction == 0


def test_merged_rows_and_a_row_for_each_reply_have_the_same_gradient(lived, tmp_path):
    training = rows_module()
    from negolab.trainer.advantages import advantages_of
    from test_trainer_gradient import by_hand, close

    model = training.tiny(tmp_path / "tiny")
    merged, apart = training.rows_from(lived), training.rows_from(lived, merge=False)
    assert len(apart) > 2 * len(merged)
    for rows in (merged, apart):
        training.score(model, rows)
    advantages = advantages_of([episode.reward + 0.1 * (at % 2) for at, episode in enumerate(lived)], 2).values
    first = training.gradient(training.row_trainer(model, merged, advantages, tmp_path / "a", groups=2))
    assert close(first, training.gradient(training.row_trainer(model, apart, advantages, tmp_path / "b", groups=2)))
    assert close(first, by_hand(model, merged, advantages, 0.8, 6.0))


# -- steps ------------------------------------------------------------------------------------------------------------

SMALL = ("steps=2", "groups=2", "group_size=2", "sub_steps=2", "max_tokens=6", "eval_every=2", "eval_products=1")
SAME = ("metrics.csv", "eval.csv", "model/model.safetensors")


def even_tokens(self: SellerTask, episode: Any) -> float:
    """A reward in which a random model's replies differ: how many of the first one's tokens are even."""
    first = next(at for at, turn in enumerate(episode.turns) if turn.seat == SELLER)
    ids = episode.notes[first]["ids"]
    return sum(token % 2 == 0 for token in ids) / len(ids)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rows_module().save_short(tmp_path_factory.mktemp("base") / "tiny")


def chosen(base: Path, *more: str) -> TrainSettings:
    changes = [f"model={base}", "regimes={multi_product: {}}", "learning_rate=0.003", "save_every=1", *SMALL, *more]
    return load_profile("smoke", changes)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that nobody stopped."""
    from negolab.trainer import loop

    out = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SellerTask, "reward", even_tokens)
        told: list[str] = []
        loop.train(chosen(base), out, say=told.append)
    assert "2 steps of 2 markets x 2 episodes, 77 clusters of sample to learn from" in told
    return out


def test_a_step_learns_and_writes_the_metrics_of_the_game(whole, base):
    import torch
    from safetensors.torch import load_file

    rows = table(whole / "metrics.csv")
    assert [row["step"] for row in rows] == ["0", "1"] and ITEM_METRICS.keys() <= rows[0].keys()
    for row in rows:
        assert row["episodes"] == "4" and float(row["rows_per_episode"]) == 1
        assert float(row["violation_rate"]) == 1 and row["surplus_ratio"] == "n/a"  # nobody taught it the tags
        assert float(row["item_deal_rate"]) == 0 and row["top_buyer_rate"] == "n/a"
        assert float(row["mismatch_max"]) < 1e-4 and float(row["grad_norm"]) > 0
    evaluated = {(row["step"], row["metric"]): row for row in table(whole / "eval.csv")}
    assert {step for step, _ in evaluated} == {"0", "2"}
    assert evaluated["2", "item_deal_rate"]["n"] == "6"  # two episodes of three items
    first, last = (load_file(folder / "model.safetensors") for folder in (base, whole / "model"))
    assert any(not torch.equal(first[name], last[name]) for name in last)


def test_an_evaluation_of_training_verifies_as_any_run(whole, capsys):
    assert main(["verify", str(whole / "evals" / "step-000002" / "multi_product")]) == 0
    assert "2 of 2 episodes replay" in capsys.readouterr().out


def test_a_run_is_shown_with_its_evaluations_and_without_a_notebook_that_cannot_draw_it(whole, capsys):
    assert main(["show", str(whole)]) == 2
    told = capsys.readouterr().err
    assert str(whole / "evals" / "step-000002" / "multi_product") in told
    assert told.endswith(f"Its curves are in {whole / 'metrics.csv'}\n") and "notebooks run" not in told
    from negolab.notebook.training_runs import ParameterError, begin_training

    with pytest.raises(ParameterError, match="none of the 1 runs trains the seller; give others"):
        begin_training("02_training_dynamics", "seller", runs=str(whole))


def test_a_run_that_was_cut_off_goes_on_to_equal_numbers(whole, base, tmp_path, monkeypatch):
    from negolab.trainer import checkpoints, loop

    monkeypatch.setattr(SellerTask, "reward", even_tokens)
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(checkpoints.complete(out)[2])
    shutil.rmtree(out / "model")
    assert loop.train(chosen(base), out).steps_now == 1
    for name in SAME:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    told: list[str] = []
    assert loop.train(chosen(base), out, say=told.append).steps_now == 0 and told == [f"{out} is complete: 2 steps"]


def test_mixed_regimes_are_one_line_before_anything_is_loaded(tmp_path, capsys):
    rows_module()
    changes = ["--set", "regimes={multi_product: {}, in_distribution: {}}"]
    for more in (["--out", str(tmp_path / "run")], ["--dry-run"]):
        assert main(["train", "--profile", "smoke", *changes, *more]) == 2
        told = capsys.readouterr().err
        assert "cannot be trained in one run" in told and told.count("\n") == 1 and not (tmp_path / "run").exists()


# -- the GPU profile ---------------------------------------------------------------------------------------------------


def test_the_gpu_profile_is_what_is_known_of_the_papers_training():
    """Written out by hand: facts of 2609.33289, and of 2607.05863 (tables 5 and 6) where it says nothing."""
    profile, single = load_profile("gpu_items"), load_profile("gpu")
    assert (profile.loss, profile.clip_low, profile.clip_high) == ("cispo", 0.8, 6.0)
    assert (profile.learning_rate, profile.groups, profile.group_size, profile.sub_steps) == (3e-5, 64, 8, 3)
    assert profile.steps * profile.groups == 960  # one epoch of the paper's clusters
    assert (profile.temperature, profile.eval_temperature) == (1.0, 0.7)
    ((drawn, weight),) = profile.weighted_regimes()
    assert (drawn, weight) == (MULTI_PRODUCT, 1.0)
    (buyer,) = profile.opponents().values()
    assert buyer.model == profile.model == single.model and buyer.temperature == 0.7
    assert (profile.lora, profile.sampler_options) == (single.lora, single.sampler_options)


def test_the_dry_run_reads_clusters_and_counts_the_prompts_of_several_items(capsys, tmp_path):
    from negolab.trainer.lengths import lengths_of

    for profile in ("gpu_items", "gpu"):
        args = ["train", "--profile", profile, "--set", "data=sample", "--dry-run", "--gpu", "h200"]
        assert main([*args, "--out", str(tmp_path / "none")]) == 0
    told = capsys.readouterr().out
    assert "Clusters: 77 to train on, 15 times over." in told and "Products: 96 to train on" in told
    assert "15 steps of 64 markets x 8 rollouts = 512 episodes, 7,680 in all; 3 optimiser steps each, 45 in all" in told
    assert "Evaluations: 4 of 19 episodes, every 5 steps." in told and not (tmp_path / "none").exists()
    several, one = (lengths_of(load_profile(name, ["data=sample"])) for name in ("gpu_items", "gpu"))
    prompts, seen = MarketPrompts(), []
    for market in task_of(groups=77, group_size=2).markets(0)[::2]:
        seen += [sum(len(m["content"]) for m in prompts.messages(r)) / 4 for r in Market(market).requests()]
    assert several.longest > max(seen) and several.learner_conversation > one.learner_conversation
    assert several.longest + 1024 < load_profile("gpu_items").sampler_options["max_model_len"]


# -- fine-tuning ------------------------------------------------------------------------------------------------------


def test_recorded_runs_of_several_items_are_learnt_from(tmp_path, capsys):
    rows_module()
    from negolab.policies.chat_template import ChatFormat
    from negolab.trainer.sft_data import build
    from negolab.trainer.sft_settings import SftSettings
    from tiny_models import tokenizer

    run = record(tmp_path / "run", 4)
    chat = ChatFormat(tokenizer("chatml"))
    settings = SftSettings(model="m", runs=(str(run),), outcomes=("deal",), held_out=0.25)
    made = build(settings, chat, 32_768)
    kinds = {(kind.seat, kind.buyers, kind.items, kind.messages): n for kind, n in made.conversations.items()}
    assert kinds == {("seller", 3, 3, 7): 8}
    assert len(made.train) == 6 and len(made.held_out) == 2
    assert not {s.codename for s in made.train} & {s.codename for s in made.held_out}  # clusters, whole
    for sample in made.train:
        own = chat.decode([int(t) for t, mine in zip(sample.ids, sample.own, strict=True) if mine])
        assert own.count("<Action>") == own.count("</Action>") >= 1 and "=== Standing offers ===" not in own
    assert made.manifest()["kinds"][0]["items"] == 3
    assert made.lines()[1].split()[:5] == ["game", "seat", "N", "M", "T"]


@pytest.mark.parametrize("teacher", ["screener", "satisficer"])
def test_scripted_teachers_of_several_items_are_learnt_from(teacher):
    """Also beside single items, where a teacher of that name sells these too."""
    rows_module()
    from negolab.policies.chat_template import ChatFormat
    from negolab.trainer.sft_data import build
    from negolab.trainer.sft_settings import SftSettings
    from tiny_models import tokenizer

    chat, other = ChatFormat(tokenizer("chatml")), "in_distribution" if teacher == "satisficer" else "multi_expanded"
    given = {"teacher": teacher, "scripted": 12, "words": "plain", "seats": "all", "violations": True}
    made = build(SftSettings(model="m", regimes={"multi_product": {}, other: {"weight": 0.5}}, **given), chat, 32_768)
    found = {(kind.seat, kind.buyers, kind.items): n for kind, n in made.conversations.items()}
    n, m = (3, 1) if teacher == "satisficer" else (5, 5)
    assert found["seller", 3, 3] == 8 and found["seller", n, m] == 4
    assert found["buyer", 3, 3] <= 8 * 3 and found["buyer", n, m] <= 4 * n
    assert [source["data"]["fingerprint"] for source in made.sources] == [
        load_clusters("sample").fingerprint,
        (load_catalog if m == 1 else load_clusters)("sample").fingerprint,
    ]
    with pytest.raises(NegolabError, match="unknown seller 'prober'"):
        build(SftSettings(model="m", regimes=ITEMS, **{**given, "teacher": "prober"}), chat, 32_768)


def record(out: Path, clusters: int) -> Path:
    """A finished run of sellers and buyers that read their prompts."""
    from negolab.plan import Settings, plan
    from negolab.store import seal
    from negolab.writer import RunWriter

    made = plan(Settings(seller="random", regime="multi_product", products=clusters), "sample")
    writer = RunWriter(out, seal(made.manifest()), made.schedule.units)
    task = with_readers(task_of())
    with writer:
        for episode in task.play(made.schedule, Seller()):
            writer.append([episode.scenario.episode], [episode.to_line()])
        writer.finish()
    return out
