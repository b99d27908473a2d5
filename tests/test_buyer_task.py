"""The buyer's task: what a training step is drawn from, who plays it, and what its profile may say."""

import pytest

from bilateral_games import text_of
from engines import FakeEngine
from negolab.catalog import SAMPLE, load_catalog
from negolab.environment import BUYER, SELLER
from negolab.errors import NegolabError
from negolab.metrics import BILATERAL_METRICS, FOUR_PHASES, Summary
from negolab.policies import registry
from negolab.policies.engine import Completion
from negolab.policies.model import LanguageModel
from negolab.policies.scripted_bilateral import BilateralBuyer
from negolab.policies.spec import spec_of
from negolab.scenario import PERSONAS
from negolab.store import Run
from negolab.trainer import evaluation
from negolab.trainer.buyer_task import BuyerOptions, BuyerTask, make_buyer_task
from negolab.trainer.settings import TrainSettings
from negolab.verify import verify

CATALOG = load_catalog(SAMPLE)
MODEL = {"model": "openai:fake", "name": "fake", "base_url": "http://localhost:1/v1", "temperature": 0.7}


def task(groups=6, group_size=4, seed=0, **options) -> BuyerTask:
    return BuyerTask(
        CATALOG,
        BuyerOptions.from_mapping(options),
        seed=seed,
        groups=groups,
        group_size=group_size,
        eval_products=3,
        eval_per_product=2,
    )


def test_the_task_is_the_buyers():
    made = task()
    assert (made.name, made.seat, made.metrics) == ("buyer", BUYER, BILATERAL_METRICS)
    assert made.steps_per_epoch == len(CATALOG.split("train")) // 6


def test_a_step_depends_on_the_seed_and_its_number_alone():
    first, again = task(personas=list(PERSONAS)), task(personas=list(PERSONAS))
    later = again.markets(9)
    assert [first.markets(step) for step in (0, 9)] == [again.markets(0), later]
    assert first.markets(0) != first.markets(1) and first.markets(0) != task(seed=1).markets(0)
    assert [s.episode for s in later] == list(range(24))


def test_a_group_shares_all_but_the_buyers_own_randomness():
    made = task(personas=list(PERSONAS)).markets(2)
    for at in range(0, len(made), 4):
        group = made[at : at + 4]
        assert len({s.keys[BUYER] for s in group}) == 4
        blank = {s._replace(episode=0, keys=(s.keys[SELLER], 0)) for s in group}
        assert len(blank) == 1
    assert len({s.product.listing.codename for s in made}) == 6 and len({s.persona for s in made}) > 1


def test_the_seller_says_the_same_to_the_same_words():
    """Within a group, episodes in which the buyer has bid and said the same so far got the same answer."""

    class Fixed:
        name = "fixed"

        def reply(self, requests):
            from negolab.policies.base import Reply

            made = []
            for r in requests:
                text = text_of(BUYER, "BUY", r.view.limit // 2 + 10 * len(r.view.own))
                made.append(Reply(text.replace("baby-products_17", r.view.listing.codename)))
            return made

    made = task()
    played = sorted(made.play(made.markets(0), Fixed()), key=lambda e: e.scenario.episode)
    for at in range(0, len(played), 4):
        assert len({tuple(e.turns) for e in played[at : at + 4]}) == 1


def test_rewards_differ_within_groups_for_a_buyer_that_varies():
    made = task(groups=16)
    played = sorted(made.play(made.markets(0), BilateralBuyer("naive")), key=lambda e: e.scenario.episode)
    spreads = [len({made.reward(e) for e in played[at : at + 4]}) for at in range(0, len(played), 4)]
    assert sum(spread > 1 for spread in spreads) >= 14  # the others cannot reach the seller's least
    summary = Summary(made.metrics)
    for episode in played:
        summary.add(episode)
    assert all(summary.estimates()[name].n for name in FOUR_PHASES)


def test_evaluations_are_stored_runs_that_verify(tmp_path):
    made = task(eval_personas=["neutral", "unyielding"], reject=True, turns=4)
    rows = evaluation.evaluate(made, BilateralBuyer("patient"), tmp_path, 3, "f" * 64)
    assert {row["regime"] for row in rows} == {"bilateral", "bilateral_unyielding"} == set(made.evaluations())
    for name, persona in (("bilateral", "neutral"), ("bilateral_unyielding", "unyielding")):
        folder = tmp_path / "evals" / "step-000003" / name
        assert verify(folder).ok
        episodes = list(Run(folder).episodes(complete=True))
        assert len(episodes) == 6 and {e.scenario.persona for e in episodes} == {persona}
        assert all(e.scenario.reject and e.scenario.message_budget == 4 for e in episodes)


def test_a_language_model_may_be_the_seller(monkeypatch):
    engine = FakeEngine(lambda prompt: Completion("no format at all", "stop", 1, 1))
    monkeypatch.setattr(registry, "make_engine", lambda specs: engine)
    made = task(seller=MODEL, groups=2, group_size=2)
    played = list(made.play(made.markets(0), BilateralBuyer("conceder")))
    assert len(played) == 4 and {e.players[SELLER] for e in played} == {"fake"}
    assert all(t.fallback for e in played for t in e.turns if t.seat == SELLER)
    learner = LanguageModel(spec_of("openai:me", {"base_url": "http://localhost:1/v1"}), FakeEngine(lambda p: None))
    learner.engine.check = lambda conversations, most: [f"{len(conversations)} conversations"]
    assert made.check(learner)[0] == "me: 4 conversations"
    assert made.manifest("bilateral", BilateralBuyer("naive"))["settings"]["seller"] == "openai:fake"
    assert [player.name for player in made.opponents] == ["fake"]
    made.close()
    assert engine.closed == 1


def test_what_it_describes_decides_it():
    base = task().describe()
    assert base["seller"]["name"] == "persona" and base["regimes"][0]["personas"] == ("neutral",)
    for options in ({"turns": 5}, {"reject": True}, {"budget": 0.7}, {"personas": ["begging"]}):
        assert task(**options).describe()["regimes"] != base["regimes"]


@pytest.mark.parametrize(
    "options, says",
    [
        ({"sellers": "persona"}, "unknown option 'sellers'; allowed: budget, eval_personas"),
        ({"personas": ["sad"]}, "neutral, begging"),
        ({"personas": []}, "neutral, begging"),
        ({"eval_personas": ["sad"]}, "allowed: neutral, begging"),
        ({"eval_personas": []}, "a list of personas"),
        ({"eval_personas": "neutral"}, "a list of personas"),
        ({"eval_personas": ["neutral", "neutral"]}, "each persona once"),
        ({"turns": 0}, "whole number from 1"),
        ({"turns": 2.5}, "whole number from 1"),
        ({"budget": 0}, "as fractions of the list price"),
        ({"budget": "much"}, "two numbers"),
        ({"reject": "yes"}, "true or false"),
        ({"seller": 3}, "a name, or model"),
        ({"seller": {"name": "x"}}, "give model"),
        ({"seller": {"model": "vllm:x", "warmth": 1}}, "unknown option 'warmth'"),
        ({"seller": "prober"}, "unknown seller 'prober'"),
        ({"seller": "begging"}, "is a persona; give personas"),
        ({1: "persona", "turns": 3, "x": 2}, "unknown option '1'"),
    ],
)
def test_bad_options(options, says):
    with pytest.raises(NegolabError, match=says):
        task(**options) if all(isinstance(name, str) for name in options) else BuyerOptions.from_mapping(options)


def test_settings_of_the_other_task():
    settings = TrainSettings(task="buyer", groups=4, group_size=2, eval_products=2, task_options={"turns": 3})
    made = make_buyer_task(settings, CATALOG)
    assert made.markets(0)[0].message_budget == 3 and len(made.markets(0)) == 8
    with pytest.raises(NegolabError, match="task_options, seller"):
        make_buyer_task(settings.changed({"buyers": {"*": {"model": "vllm:x"}}}), CATALOG)
    with pytest.raises(NegolabError, match="regimes are the seller's"):
        make_buyer_task(settings.changed({"regimes": {"ood_diverse": {}}}), CATALOG)


def test_splits_must_not_share_products():
    with pytest.raises(NegolabError, match="in both splits"):
        BuyerTask(CATALOG, seed=0, groups=2, group_size=2, train_split="all")


def test_a_buyer_model_learns_end_to_end(tmp_path):
    """A step of real training of a tiny random model: rows are the buyer's, evaluations verify."""
    for package in ("torch", "trl", "datasets"):
        pytest.importorskip(package)
    import csv

    from negolab.trainer.loop import train
    from tiny_models import save_model

    model = save_model(tmp_path / "model", "qwen3", initializer_range=0.1)
    settings = TrainSettings(
        model=str(model),
        task="buyer",
        steps=1,
        groups=2,
        group_size=2,
        sub_steps=1,
        max_tokens=16,
        eval_products=1,
        eval_per_product=1,
        eval_every=1,
    )
    train(settings, tmp_path / "run", progress=False)
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [row["step"] for row in rows] == ["0"] and all(name in rows[0] for name in FOUR_PHASES)
    assert all(float(row["trained_tokens"]) > 0 and float(row["violation_rate"]) == 1.0 for row in rows)
    for folder in (tmp_path / "run" / "evals").glob("*/bilateral"):
        assert verify(folder).ok
