"""Language models in the trade game: the same players, engines, journals and checks as in the other games."""

import signal
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from engines import FakeEngine
from negolab.catalog import load_catalog
from negolab.cli import main
from negolab.environment.base import BUYER, SELLER
from negolab.episodes import Episode, replay
from negolab.policies.cast import Cast
from negolab.policies.engine import Completion
from negolab.policies.journal import PATTERN, Journal, read
from negolab.policies.model import LanguageModel
from negolab.policies.spec import TransformersSpec, spec_of
from negolab.prompts import MarketPrompts, sha256_of
from negolab.rollout import play
from negolab.scenario import Schedule, regime
from negolab.store import EPISODES, METRICS_CSV, Run
from runs import command, environment
from servers import MODEL, ModelServer, reply
from trade_words import draw_of, speak

SPEC = spec_of("openai:fake", {"base_url": "http://localhost:1/v1"})


def answer(prompt):
    return Completion(speak(prompt.messages, prompt.seed), "stop", 100, 10, 90)


def stumbling(prompt):
    """Every fourth reply has something wrong with it, in one of the ways there are; some never end."""
    messages, draw = prompt.messages, draw_of(prompt.messages, prompt.seed)
    good, wrong = speak(messages, prompt.seed), draw >> 8
    if draw % 4:
        return Completion(good, "stop", 100, 10)
    broken = (
        "I would like to buy it.",
        good.replace("```python\n", "```python\nhaggle()\n", 1),
        good.replace("```python\n", "```python\nx = 1\n", 1),
        good.removesuffix("\n```") + "\nsearch_price()" * 4 + "\n```",
        "",
    )
    if wrong % 6 == 5:
        return Completion(good[: len(good) // 2], "length", 100, 10)
    return Completion(broken[wrong % 6], "stop", 100, 10)


def schedule_of(gains="gft", products=12, per_product=2):
    return Schedule(
        regime("trade", gains=gains), load_catalog("sample").products[:products], seed=3, per_product=per_product
    )


@pytest.fixture(scope="module")
def schedule():
    return schedule_of()


def everybody(engine):
    """One model on both seats."""
    model = LanguageModel(SPEC, engine)
    return model, {"trader": model}


def played(schedule, engine, **options) -> list[Episode]:
    return sorted(play(schedule, *everybody(engine), **options), key=lambda e: e.scenario.episode)


def by_seat(engine):
    """Every conversation's prompts, in the order in which they were asked for."""
    found: dict[tuple[int, int], list] = {}
    for prompt in engine.asked:
        found.setdefault(prompt.conversation, []).append(prompt.messages)
    return found


@pytest.mark.parametrize("gains", ["gft", "ngft"])
def test_a_model_that_reads_its_prompts_can_play_either_side_without_a_fault(gains):
    """What the prompts say is enough: no call is lost, nobody loses, all tools are used, and deals are made where there
    is something to gain."""
    made = played(schedule_of(gains, 30), FakeEngine(answer))
    assert len(made) == 60 and not any(turn.violation for e in made for turn in e.turns)
    assert all(replay(e) == [] for e in made)
    used = Counter(verb for e in made for turn in e.turns for verb in (turn.verb or "nothing").split("+"))
    assert {"offer", "message", "search", "wait", "quit", "reject"} <= used.keys()
    deals = [e for e in made if e.outcome.kind == "deal"]
    assert (len(deals) > 30) == (gains == "gft") and bool(deals) == (gains == "gft")
    for e in deals:
        assert e.scenario.reserve <= e.outcome.price <= e.scenario.valuations[0][0]
    assert gains == "ngft" or {e.outcome.seat for e in deals} == {SELLER, BUYER}


def test_replies_may_come_from_threads_and_in_any_order(schedule):
    lines = [e.to_line() for e in played(schedule, FakeEngine(answer))]
    assert [e.to_line() for e in played(schedule, FakeEngine(answer, threads=True))] == lines
    assert [e.to_line() for e in played(schedule, FakeEngine(answer), window=1)] == lines


@pytest.mark.parametrize("speaks", [answer, stumbling])
def test_each_prompt_grows_out_of_the_one_before_and_its_hash_is_kept(schedule, speaks):
    engine = FakeEngine(speaks)
    made = {e.scenario.episode: e for e in played(schedule, engine)}
    twice = 0
    for (episode, seat), prompts in by_seat(engine).items():
        for before, after in pairwise(prompts):
            assert after[: len(before)] == before and len(after) == len(before) + 2
            assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]
        spoken = [at for at, turn in enumerate(made[episode].turns) if turn.seat == seat]
        twice += any(b - a == 1 for a, b in pairwise(spoken))
        hashes = [made[episode].notes[at]["prompt_sha256"] for at in spoken]
        assert hashes == [sha256_of(messages) for messages in prompts]
    assert twice > 3


def test_what_goes_wrong_is_told_to_who_did_it_and_ends_nothing(schedule):
    engine = FakeEngine(stumbling)
    made = {e.scenario.episode: e for e in played(schedule, engine)}
    kinds = Counter(turn.violation for e in made.values() for turn in e.turns)
    assert {"unparseable", "unknown_tool", "too_many_calls", "truncated"} <= kinds.keys()
    assert {e.outcome.kind for e in made.values()} <= {"deal", "no_deal"}
    assert all(replay(e) == [] for e in made.values())
    told = 0
    for (episode, seat), prompts in by_seat(engine).items():
        turns = [turn for turn in made[episode].turns if turn.seat == seat]
        for turn, after in zip(turns, prompts[1:], strict=False):
            last = after[-1]["content"]
            assert ("Something was wrong with your last reply" in last) == (turn.violation is not None)
            assert turn.violation is None or f"- {turn.violation}: " in last
            told += turn.violation is not None
    assert told > 20


def test_no_prompt_holds_the_other_sides_limit_thought_or_unasked_price_history(schedule):
    def thinks(prompt):
        episode, seat = prompt.conversation
        said = speak(prompt.messages, prompt.seed).replace("Thought: draw", f"Thought: mind-{episode}-{seat}", 1)
        return Completion(said, "stop", reasoning=f"mind-{episode}-{seat}")

    engine = FakeEngine(thinks)
    made = {e.scenario.episode: e.scenario for e in played(schedule, engine)}
    searched = 0
    for prompt in engine.asked:
        episode, seat = prompt.conversation
        scenario, found = made[episode], "\n".join(m["content"] for m in prompt.messages)
        limits = {SELLER: scenario.reserve, BUYER: scenario.valuations[0][0]}
        assert f"${limits[seat] / 100:.2f}" in found
        assert f"bottom line is ${limits[1 - seat] / 100:.2f}" not in found
        assert f"mind-{episode}-{1 - seat}" not in found
        asked = any("search_price()\n" in m["content"] for m in prompt.messages if m["role"] == "assistant")
        assert ("Price history of the item" in found) == asked
        searched += asked
    assert 0 < searched < len(engine.asked)


def test_a_model_trades_with_a_scripted_trader_on_either_seat(schedule):
    scripted = pytest.importorskip("negolab.policies.scripted_traders")
    model = LanguageModel(SPEC, FakeEngine(answer))
    for seat in (SELLER, BUYER):
        other = scripted.Trader("taper")
        seller, buyer = (model, other) if seat == SELLER else (other, model)
        made = list(play(schedule, seller, {"trader": buyer}))
        assert len(made) == len(schedule) and not any(turn.violation for e in made for turn in e.turns)
        assert {e.outcome.kind for e in made} >= {"deal"}


# -- the journal and stored runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("speaks", [answer, stumbling])
def test_the_journal_gives_back_what_was_paid_for(schedule, tmp_path, speaks):
    class Killed(Exception):
        pass

    asked = []

    def dies(prompt):
        asked.append(prompt)
        return Killed() if len(asked) == 90 else speaks(prompt)

    complete = FakeEngine(speaks)
    whole = [e.to_line() for e in played(schedule, complete)]
    model, buyers = everybody(FakeEngine(dies))
    model.journal = Journal(tmp_path)
    with pytest.raises(Killed):
        list(play(schedule, model, buyers))
    (path,) = tmp_path.glob(PATTERN)
    answered = len(read(path))
    assert answered >= 80
    second = FakeEngine(speaks)
    model, buyers = everybody(second)
    model.journal = Journal(tmp_path)
    again = sorted(play(schedule, model, buyers), key=lambda e: e.scenario.episode)
    assert [e.to_line() for e in again] == whole
    assert len(second.asked) == len(complete.asked) - answered


def evaluate_args(url: str, out: Path) -> list[str]:
    given = [f"base_url={url}", "concurrency=4"]
    options = [part for one in given for side in ("seller", "buyer") for part in (f"--{side}-option", one)]
    chosen = ["--game", "trade", "--seller", f"openai:{MODEL}", "--buyer", f"openai:{MODEL}"]
    return ["evaluate", *chosen, *options, "--products", "4", "--out", str(out)]


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
    forge_a_prompt(tmp_path / "run")
    assert main(["verify", str(tmp_path / "run")]) == 1
    assert "the stored prompt hash is not that of the prompt this seat had" in capsys.readouterr().err


def forge_a_prompt(folder: Path) -> None:
    """Put another hash in the place of one reply's prompt, with a checksum that fits."""
    (first, *_) = Run(folder).episodes()
    position = next(at for at, turn in enumerate(first.turns) if turn.seat == BUYER)
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


SHORT = (
    "You negotiate for the {{ role }}. Your bottom line is {{ limit }}. {{ rounds }} rounds, {{ calls }} calls a turn."
)
"""A system prompt of the user's own, for models that read byte by byte."""


@pytest.mark.parametrize("seat", [SELLER, BUYER])
def test_a_real_model_held_to_the_format_trades_from_its_cache(tiny, tmp_path, seat):
    """Its weights are random, so its words are given to it token by token; all else is the engine's own doing. It plays
    a negotiation in which its side speaks twice in a row, so that its prompts grow by its own turns as well."""
    from negolab.policies.transformers import make_engine

    def two_in_a_row(episode):
        seats = [turn.seat for turn in episode.turns]
        return (seat, seat) in pairwise(seats) and seats.count(seat) > 3

    schedule = schedule_of()
    seen = {e.scenario.episode: e for e in played(schedule, FakeEngine(answer))}
    chosen = next(scenario for scenario in schedule if two_in_a_row(seen[scenario.episode]))
    (tmp_path / "trade_system.j2").write_text(SHORT)
    reader = LanguageModel(SPEC, FakeEngine(answer))

    def whole(**options):
        spec = TransformersSpec(model=str(tiny), max_tokens=400, device="cpu", **options)
        engine = make_engine([spec])
        chat = engine.conversations(None).chat

        def allowed(prompt, out):
            wanted = chat.encode(speak(prompt.messages, prompt.seed))
            return [wanted[len(out)]] if len(out) < len(wanted) else [chat.end]

        engine.allowed = allowed
        model = LanguageModel(spec, engine, MarketPrompts(tmp_path))
        seller, buyer = (model, reader) if seat == SELLER else (reader, model)
        cast = Cast(seller, {"trader": buyer})
        told = cast.check(schedule)
        (episode,) = play([chosen], cast.seller, cast.buyers)
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
    spoken = sum(turn.seat == seat for turn in episode.turns)
    assert (report["prompts_rendered_anew"], report["prompts_extended"]) == (0, spoken - 1)
    assert report["reused"] > report["computed"]
    again, _, _ = whole(cache_gb=0.0)
    assert again.to_line() == episode.to_line()


def test_a_real_model_that_does_not_know_the_tools_trades_nothing_and_its_run_verifies(tiny, tmp_path):
    player = f"transformers:{tiny}"
    args = ["evaluate", "--game", "trade", "--seller", player, "--buyer", player, "--rounds", "3", "--products", "1"]
    for side in ("seller", "buyer"):
        for option in ("max_tokens=8", "device=cpu", "batch=1"):
            args += [f"--{side}-option", option]
    args += ["--out", str(tmp_path / "run")]
    assert main(args) == 0
    episodes = list(Run(tmp_path / "run").episodes(complete=True))
    assert {(e.outcome.kind, e.outcome.reason) for e in episodes} == {("no_deal", "turns_exhausted")}
    assert {turn.violation for e in episodes for turn in e.turns} <= {"unparseable", "truncated"}
    assert all(len(e.turns) == 3 for e in episodes)
    assert main(["verify", str(tmp_path / "run")]) == 0
    before = (tmp_path / "run" / EPISODES).read_bytes()
    lines = before.splitlines(keepends=True)
    (tmp_path / "run" / EPISODES).write_bytes(b"".join(lines[:1]))
    (tmp_path / "run" / METRICS_CSV).unlink()
    assert main(args) == 0 and (tmp_path / "run" / EPISODES).read_bytes() == before
