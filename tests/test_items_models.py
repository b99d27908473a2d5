"""Language models in markets of several items: the same players, engines, journals and checks as with one item."""

import signal
import subprocess
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engines import FakeEngine
from item_words import speak
from negolab.cli import main
from negolab.clusters import load_clusters
from negolab.environment.base import SELLER
from negolab.environment.market import Market
from negolab.episodes import Episode, replay
from negolab.policies.cast import Cast, longest_market, make_cast
from negolab.policies.engine import Completion
from negolab.policies.journal import PATTERN, Journal, read
from negolab.policies.model import LanguageModel
from negolab.policies.spec import TransformersSpec, spec_of
from negolab.prompts import MarketPrompts, sha256_of, shown_length
from negolab.rollout import play
from negolab.scenario import MULTI_PRODUCT, MULTI_PRODUCT_OOD, Schedule, regime
from negolab.store import EPISODES, METRICS_CSV, Run
from runs import command, environment
from servers import MODEL, ModelServer, reply

SPEC = spec_of("openai:fake", {"base_url": "http://localhost:1/v1"})


def answer(prompt):
    return Completion(speak(prompt.messages, prompt.seed), "stop", 100, 10, 90)


@pytest.fixture(scope="module")
def schedule():
    return Schedule(MULTI_PRODUCT, load_clusters("sample").split("test")[:4], seed=3, per_product=2)


def everybody(engine):
    """One model on every seat."""
    model = LanguageModel(SPEC, engine)
    return model, dict.fromkeys(MULTI_PRODUCT.buyer_types, model)


def played(schedule, engine, **options) -> list[Episode]:
    return sorted(play(schedule, *everybody(engine), **options), key=lambda e: e.scenario.episode)


def twice_in_a_row(episode) -> bool:
    return any(a.seat == b.seat == SELLER for a, b in pairwise(episode.turns))


@pytest.mark.parametrize("drawn", [MULTI_PRODUCT, *MULTI_PRODUCT_OOD], ids=lambda r: r.name)
def test_a_model_that_reads_its_prompts_can_play_every_seat_of_every_regime_without_a_fault(drawn):
    """What the prompts say is enough: no reply is refused, none breaks a rule, and things are sold."""
    schedule = Schedule(drawn, load_clusters("sample").split("test")[:6], seed=1, per_product=1)
    model = LanguageModel(SPEC, FakeEngine(answer, window=6))
    made = list(play(schedule, model, dict.fromkeys(drawn.buyer_types, model)))
    assert len(made) == 6 and {e.outcome.kind for e in made} == {"deal"}
    assert not any(turn.fallback or turn.violation for e in made for turn in e.turns)
    assert not any("refused" in note for e in made for note in e.notes.values())
    assert any(len(e.outcome.sales) > 1 for e in made) and any(twice_in_a_row(e) for e in made)
    assert all(e.reward > 0 and replay(e) == [] for e in made)


def test_replies_may_come_from_threads_and_in_any_order(schedule):
    lines = [e.to_line() for e in played(schedule, FakeEngine(answer))]
    assert [e.to_line() for e in played(schedule, FakeEngine(answer, threads=True))] == lines
    assert [e.to_line() for e in played(schedule, FakeEngine(answer), window=1)] == lines


def test_all_openings_are_one_batch_and_each_prompt_grows_out_of_the_one_before(schedule):
    engine = FakeEngine(answer)
    made = played(schedule[:1], engine)
    assert engine.batches[0] == 3
    notes = [note for _, note in sorted(made[0].notes.items())]
    assert [note["prompt_sha256"] for note in notes] == [sha256_of(prompt.messages) for prompt in engine.asked]
    by_seat: dict[int, list] = {}
    for prompt in played_prompts(schedule):
        by_seat.setdefault(prompt.conversation, []).append(prompt.messages)
    assert any(len(prompts) > 3 for prompts in by_seat.values())
    for prompts in by_seat.values():
        for before, after in pairwise(prompts):
            assert after[: len(before)] == before and len(after) == len(before) + 2
            assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]


def played_prompts(schedule):
    engine = FakeEngine(answer)
    played(schedule, engine)
    return engine.asked


def test_a_sellers_deal_is_answered_by_the_board_and_the_news_before_it_speaks_again(schedule):
    engine = FakeEngine(answer)
    episode = next(e for e in played(schedule, engine) if twice_in_a_row(e))
    at = next(i for i, (a, b) in enumerate(pairwise(episode.turns)) if a.seat == b.seat == SELLER)
    spoken = sum(turn.seat == SELLER for turn in episode.turns[: at + 1])
    prompts = [p.messages for p in engine.asked if p.conversation == (episode.scenario.episode, SELLER)]
    last = prompts[spoken][-1]
    item, _ = episode.turns[at].offers[0]
    buyer = episode.turns[at].buyer
    assert last["role"] == "user" and f"Deal: Buyer {buyer} bought Item_{item}" in last["content"]
    board = last["content"].split("=== Standing offers ===")[1]
    assert f"Item_{item} to Buyer {buyer} at" in board and f"- Buyer {buyer}: bought Item_{item}" in board


def test_a_model_sells_to_scripted_buyers_and_buys_from_it_by_type(schedule):
    """Who is a model and who is not is the cast's affair alone."""
    pytest.importorskip("openai")
    cast = make_cast(SPEC, {}, schedule)
    assert [model.name for model in cast.models] == ["fake"] and cast.buyers["iter-60"].name == "iter-60"
    varied = Schedule(regime("multi_varied"), schedule.units, seed=3)
    cast = make_cast(SPEC, {"iter-50": SPEC}, varied)
    assert cast.buyers["iter-50"] is cast.seller and cast.buyers["iter-70"].name == "iter-70"


# -- the longest conversation ---------------------------------------------------------------------------------------


class Measuring(FakeEngine):
    """Keeps what it is asked to check."""

    def check(self, conversations, max_tokens):
        self.checked = [sum(len(message["content"]) for message in messages) for messages in conversations]
        return []


def test_the_longest_conversations_are_those_of_the_longest_items_that_may_be_drawn():
    schedule = Schedule(MULTI_PRODUCT, load_clusters("sample").split("train"), seed=0, per_product=3)
    seller, buyer = (LanguageModel(replace(SPEC, name=name), Measuring(answer)) for name in ("s", "b"))
    Cast(seller, {"iter-60": buyer}).check(schedule)
    assert len(seller.engine.checked) == 4 and len(buyer.engine.checked) == 4 * 3
    # Whatever is drawn, no opening prompt is longer, and some that is drawn is nearly as long.
    prompts, seen = MarketPrompts(), []
    for scenario in schedule:
        seen += [sum(len(m["content"]) for m in prompts.messages(r)) for r in Market(scenario).requests()]
    assert 0.95 * max(buyer.engine.checked) < max(seen) <= max(buyer.engine.checked) + AMOUNTS


AMOUNTS = 20
"""Characters by which the amounts in two prompts may differ."""


def test_the_longest_market_holds_the_cluster_s_longest_items():
    cluster = load_clusters("sample").split("test")[0]
    schedule = Schedule(MULTI_PRODUCT, [cluster], seed=0, per_product=5)
    lengths = sorted((shown_length(p.listing) for p in cluster.products), reverse=True)
    for episode in range(5):
        found = longest_market(schedule, episode)
        assert [shown_length(p.listing) for p in found.products] == lengths[:3]
        assert found._replace(products=schedule[episode].products) == schedule[episode]


# -- the journal and stored runs -------------------------------------------------------------------------------------


def test_the_journal_gives_back_what_was_paid_for(schedule, tmp_path):
    class Killed(Exception):
        pass

    asked = []

    def dies(prompt):
        asked.append(prompt)
        return Killed() if len(asked) == 40 else answer(prompt)

    complete = FakeEngine(answer)
    whole = [e.to_line() for e in played(schedule, complete)]
    model, buyers = everybody(FakeEngine(dies))
    model.journal = Journal(tmp_path)
    with pytest.raises(Killed):
        list(play(schedule, model, buyers))
    (path,) = tmp_path.glob(PATTERN)
    answered = len(read(path))
    assert answered >= 39
    second = FakeEngine(answer)
    model, buyers = everybody(second)
    model.journal = Journal(tmp_path)
    again = sorted(play(schedule, model, buyers), key=lambda e: e.scenario.episode)
    assert [e.to_line() for e in again] == whole
    assert len(second.asked) == len(complete.asked) - answered


def evaluate_args(url: str, out: Path) -> list[str]:
    given = [f"base_url={url}", "concurrency=4"]
    options = [part for one in given for side in ("seller", "buyer") for part in (f"--{side}-option", one)]
    chosen = ["--seller", f"openai:{MODEL}", "--buyer-model", f"openai:{MODEL}", "--regime", "multi_product"]
    return ["evaluate", *chosen, *options, "--products", "3", "--out", str(out)]


def words_of(body):
    if len(body["messages"]) < 2:  # somebody asks whether the server lives
        return reply(body, content="OK")
    return reply(body, content=speak(body["messages"], body.get("seed")))


def test_a_killed_run_goes_on_to_equal_bytes_and_verifies(tmp_path, monkeypatch, capsys):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with ModelServer(delay=0.01, answer_with=words_of) as server:
        assert main(evaluate_args(server.url, tmp_path / "whole")) == 0
        needed = dict(server.answered)
        server.answered.clear()
        args = command(evaluate_args(server.url, tmp_path / "run"))
        process = subprocess.Popen(args, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and sum(server.answered.values()) < len(needed) // 2:
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL and list((tmp_path / "run").glob(PATTERN))
        assert main(evaluate_args(server.url, tmp_path / "run")) == 0
        assert server.answered.keys() == needed.keys()
        assert sum(server.answered.values()) - len(needed) <= 4  # what was under way
    for name in (EPISODES, METRICS_CSV):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "run")]) == 0
    assert "6 of 6 episodes replay" in capsys.readouterr().out
    forge_a_prompt(tmp_path / "run")
    assert main(["verify", str(tmp_path / "run")]) == 1
    assert "turn 3: the stored prompt hash is not that of the prompt this seat had" in capsys.readouterr().err


def forge_a_prompt(folder: Path) -> None:
    """Put another hash in the place of one reply's prompt, with a checksum that fits."""
    (first, *_) = Run(folder).episodes()
    position = next(at for at, turn in enumerate(first.turns) if turn.seat == SELLER)
    first.notes[position]["prompt_sha256"] = "0" * 64
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    (folder / EPISODES).write_bytes(first.to_line() + b"\n" + b"".join(lines[1:]))


# -- a real model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_models import save_model

    return save_model(tmp_path_factory.mktemp("llama") / "tiny", max_position_embeddings=16_384)


def test_a_real_model_held_to_the_format_sells_whole_episodes_from_its_cache(tiny, schedule, tmp_path):
    """Its weights are random, so its words are given to it token by token; all else is the engine's own doing. The
    system prompt is one of the user's own, and short."""
    from negolab.policies.transformers import make_engine

    reader = LanguageModel(SPEC, FakeEngine(answer))
    seen = {e.scenario.episode: e for e in played(schedule, FakeEngine(answer))}
    chosen = next(scenario for scenario in schedule if twice_in_a_row(seen[scenario.episode]))

    (tmp_path / "item_seller_system.j2").write_text("You are a seller of {{ m }} items, {{ n }} buyers, {{ margin }}.")

    def whole(**options):
        spec = TransformersSpec(model=str(tiny), max_tokens=600, device="cpu", **options)
        engine = make_engine([spec])
        chat = engine.conversations(None).chat

        def allowed(prompt, out):
            wanted = chat.encode(speak(prompt.messages, prompt.seed))
            return [wanted[len(out)]] if len(out) < len(wanted) else [chat.end]

        engine.allowed = allowed
        model = LanguageModel(spec, engine, MarketPrompts(tmp_path))
        cast = Cast(model, dict.fromkeys(MULTI_PRODUCT.buyer_types, reader))
        told = cast.check(schedule)
        (episode,) = play([chosen], model, cast.buyers)
        return episode, engine, told

    episode, engine, told = whole()
    assert "of a context of 16,384" in told[-1]
    assert [turn.text for turn in episode.turns] == [turn.text for turn in seen[chosen.episode].turns]
    held: list[int] = []
    for at in sorted(episode.prompt_ids):  # each prompt begins with the one before and the reply to it
        ids = list(episode.prompt_ids[at])
        assert ids[: len(held)] == held
        held = [*ids, *episode.notes[at]["ids"]]
    report = engine.report()
    spoken = sum(turn.seat == SELLER for turn in episode.turns)
    assert (report["prompts_rendered_anew"], report["prompts_extended"]) == (0, spoken - 1)
    assert report["reused"] > report["computed"]
    again, _, _ = whole(cache_gb=0.0)
    assert again.to_line() == episode.to_line()


def test_a_real_model_that_does_not_know_the_protocol_breaks_it_and_its_run_verifies(tiny, tmp_path, capsys):
    seller = ["--seller", f"transformers:{tiny}", "--seller-option", "max_tokens=8", "--seller-option", "device=cpu"]
    seller += ["--seller-option", "batch=1"]  # who is computed together decides how the last digits are rounded
    args = ["evaluate", *seller, "--regime", "multi_product", "--products", "2", "--out", str(tmp_path / "run")]
    assert main(args) == 0
    episodes = list(Run(tmp_path / "run").episodes(complete=True))
    assert {e.outcome.kind for e in episodes} == {"violation"} and {e.reward for e in episodes} == {-1.0}
    assert main(["verify", str(tmp_path / "run")]) == 0
    before = (tmp_path / "run" / EPISODES).read_bytes()
    lines = before.splitlines(keepends=True)
    (tmp_path / "run" / EPISODES).write_bytes(b"".join(lines[:2]))
    (tmp_path / "run" / METRICS_CSV).unlink()
    assert main(args) == 0 and (tmp_path / "run" / EPISODES).read_bytes() == before


def test_a_context_that_the_first_prompt_fills_is_told_before_anything_is_played(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_models import save_model

    small = save_model(tmp_path / "small", max_position_embeddings=1024)
    args = ["evaluate", "--seller", f"transformers:{small}", "--regime", "multi_product", "--products", "1"]
    assert main([*args, "--seller-option", "device=cpu", "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "the model's context of 1,024" in told.splitlines()[-1] and "Traceback" not in told
    assert not (tmp_path / "run").exists()


def test_the_pocket_model_plays_and_knows_nothing_of_it(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    out = tmp_path / "run"
    args = ["evaluate", "--seller", "transformers:pocket-base", "--seller-option", "max_tokens=16"]
    assert main([*args, "--regime", "multi_product", "--products", "1", "--out", str(out)]) == 0
    assert {e.outcome.kind for e in Run(out).episodes(complete=True)} == {"violation"}
