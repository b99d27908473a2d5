"""Language models as players, up to the engine: streaming play, the journal, what stops a run. No model is needed."""

import re

import pytest

from engines import FakeEngine
from negolab.catalog import load_catalog
from negolab.environment.base import ABORTS
from negolab.errors import NegolabError
from negolab.policies.base import Failed, Streaming
from negolab.policies.engine import Completion, Prompt, split_reasoning
from negolab.policies.journal import Journal, read
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers
from negolab.policies.spec import spec_of
from negolab.prompts import sha256_of
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Schedule

SPEC = spec_of("openai:fake", {"base_url": "http://localhost:1/v1"})
BUYERS = make_buyers(IN_DISTRIBUTION.buyer_types)


@pytest.fixture(scope="module")
def schedule():
    return Schedule(IN_DISTRIBUTION, load_catalog("sample").split("test")[:6], seed=3, per_product=2)


def ask_list_price(prompt: Prompt) -> Completion:
    """Asks the first active buyer for the list price, and quits when the last message is left."""
    system, last = prompt.messages[0]["content"], prompt.messages[-1]["content"]
    code = re.search(r"Codename: (\S+),", system)[1]
    price = re.search(r"List price: (\$[0-9.,]+)\.", last)[1]
    buyer = re.search(r"- Buyer (\d+): active", last)[1]
    text = f"Thought: x\nTarget: Buyer {buyer}\nTalk: The price.\nAction: [SELL] {price} (1x {code})"
    return Completion(text, "stop", 100, 10, 90)


def lines(schedule, engine, **options):
    """Every episode's stored line, in order."""
    found = play(schedule, LanguageModel(SPEC, engine), BUYERS, **options)
    return [e.to_line() for e in sorted(found, key=lambda e: e.scenario.episode)]


def test_replies_may_come_from_threads_and_in_any_order(schedule):
    there = lines(schedule, FakeEngine(ask_list_price))
    assert len(there) == len(schedule)
    assert lines(schedule, FakeEngine(ask_list_price, threads=True)) == there
    assert lines(schedule, FakeEngine(ask_list_price, threads=True), window=1) == there
    assert isinstance(LanguageModel(SPEC, FakeEngine(ask_list_price)), Streaming)


def test_everything_asked_at_once_is_one_batch(schedule):
    engine = FakeEngine(ask_list_price, window=12)
    lines(schedule, engine)
    assert engine.batches[0] == 12
    assert sorted(engine.forgotten) == [(e, 0) for e in range(12)]


def test_seller_and_buyers_share_an_engine_and_a_batch(schedule):
    def speak(prompt):
        return ask_list_price(prompt) if prompt.conversation[1] == 0 else Completion("nonsense", "stop")

    engine = FakeEngine(speak)
    models = LanguageModel(SPEC, engine)
    episode = next(play([schedule[0]], models, {"iter-60": models}))
    assert engine.batches[0] == 3  # all openings at once
    assert all(turn.fallback for turn in episode.turns if turn.seat)
    assert next(len(note["refused"]) for at, note in episode.notes.items() if episode.turns[at].seat) == 6


def test_the_prompt_hash_is_of_the_messages_the_model_got(schedule):
    engine = FakeEngine(ask_list_price)
    (episode,) = play([schedule[0]], LanguageModel(SPEC, engine), BUYERS)
    notes = [note for at, note in sorted(episode.notes.items()) if episode.turns[at].seat == 0]
    assert [note["prompt_sha256"] for note in notes] == [sha256_of(prompt.messages) for prompt in engine.asked]
    assert notes[0]["tokens"] == [100, 10]


@pytest.mark.parametrize("kind", ABORTS)
@pytest.mark.parametrize("seat", [0, 2])
def test_a_seat_that_cannot_speak_ends_the_episode_without_blame(schedule, kind, seat):
    def speak(prompt):
        if prompt.conversation[1] == seat:
            return Completion(None, kind)
        return ask_list_price(prompt) if prompt.conversation[1] == 0 else Completion("nonsense", "stop")

    models = LanguageModel(SPEC, FakeEngine(speak))
    (episode,) = play([schedule[0]], models, {"iter-60": models})
    assert episode.outcome[:2] == ("aborted", kind) and episode.outcome.seat == seat
    assert episode.reward == 0.0


def test_a_model_that_says_nothing_violates_the_format(schedule):
    (episode,) = play([schedule[0]], LanguageModel(SPEC, FakeEngine(lambda p: Completion(None, "stop"))), BUYERS)
    assert episode.outcome[:2] == ("violation", "format") and episode.reward == -1.0


def test_an_episode_that_fails_is_left_out_and_the_others_go_on(schedule):
    def speak(prompt):
        return Failed("the server is down") if prompt.conversation[0] == 4 else ask_list_price(prompt)

    told = []
    kept = lines(schedule, FakeEngine(speak), dropped=lambda *what: told.append(what))
    assert told == [(4, "the server is down")] and len(kept) == len(schedule) - 1
    with pytest.raises(NegolabError, match="episode 4 cannot be played: the server is down"):
        lines(schedule, FakeEngine(speak))


def test_an_engine_s_error_stops_the_run(schedule):
    with pytest.raises(NegolabError, match="no such model"):
        lines(schedule, FakeEngine(lambda prompt: NegolabError("no such model"), threads=True))


def test_reply_in_one_call(schedule):
    from negolab.environment.market import Market

    env = Market(schedule[0])
    requests = env.requests()
    model = LanguageModel(SPEC, FakeEngine(lambda p: Completion(str(p.conversation[1]), "stop"), threads=True))
    assert [reply.text for reply in model.reply(requests)] == ["1", "2", "3"]
    failing = LanguageModel(SPEC, FakeEngine(lambda p: Failed("gone")))
    with pytest.raises(NegolabError, match="fake: gone"):
        failing.reply(requests)


def test_the_journal_gives_back_what_was_paid_for(schedule, tmp_path):
    class Killed(Exception):
        pass

    asked = 0

    def dies(prompt):
        nonlocal asked
        asked += 1
        return Killed() if asked == 20 else ask_list_price(prompt)

    whole = lines(schedule, FakeEngine(ask_list_price))
    first = FakeEngine(dies)
    model = LanguageModel(SPEC, first)
    model.journal = Journal(tmp_path)
    with pytest.raises(Killed):
        list(play(schedule, model, BUYERS))
    (path,) = tmp_path.glob("replies-*.jsonl")
    answered = len(read(path))
    assert answered >= 19
    path.write_bytes(path.read_bytes() + b'{"key":"torn')
    model = LanguageModel(SPEC, second := FakeEngine(ask_list_price))
    model.journal = Journal(tmp_path)
    again = [e.to_line() for e in sorted(play(schedule, model, BUYERS), key=lambda e: e.scenario.episode)]
    assert again == whole
    complete = FakeEngine(ask_list_price)
    lines(schedule, complete)
    assert len(second.asked) == len(complete.asked) - answered == len(complete.asked) - len(second.recalled)
    assert len(read(path)) == len(complete.asked)  # nothing fused to the torn line, nothing twice


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("hello", False, (None, "hello")),
        ("<think>\na\n</think>\n\nhello", False, ("a", "hello")),
        ("a\n</think>\nhello", True, ("a", "hello")),
        ("<think>never closed", False, ("never closed", "")),
        ("never closed", True, ("never closed", "")),
        ("hello <think>a</think>", False, (None, "hello <think>a</think>")),
        ("a</think>hello", False, (None, "a</think>hello")),
    ],
)
def test_a_thinking_block_is_cut_only_where_there_is_one(text, opened, expected):
    assert split_reasoning(text, opened) == expected


def test_options_are_checked_by_name_type_and_range():
    spec = spec_of("transformers:some/model-1B", {"temperature": "0", "thinking": "off", "batch": "8"})
    assert (spec.temperature, spec.thinking, spec.batch, spec.label) == (0.0, False, 8, "model-1B")
    assert "batch" not in spec.deciding() and spec.deciding()["thinking"] is False
    for name, options, says in [
        ("llama:x", {}, "names no model; give ENGINE:MODEL"),
        ("openai:", {}, "names no model"),
        ("openai:x", {"temprature": "1"}, "unknown option 'temprature'; allowed: name, thinking"),
        ("openai:x", {"temperature": "hot"}, "temperature is 'hot'; allowed: a number from 0 to 10"),
        ("openai:x", {"temperature": 11}, "temperature is 11"),
        ("openai:x", {"thinking": "maybe"}, "thinking is 'maybe'; allowed: true or false"),
        ("openai:x", {"max_tokens": True}, "max_tokens is True"),
        ("openai:x", {"body": "[1]"}, "body is"),
        ("vllm:x", {"dtype": "int4"}, "dtype is 'int4'; allowed: auto or float32"),
    ]:
        with pytest.raises(NegolabError, match=re.escape(says)):
            spec_of(name, options)


def test_prompts_hash_alike_whatever_made_them():
    assert sha256_of([{"role": "user", "content": "é"}]) == sha256_of([{"content": "é", "role": "user"}])
