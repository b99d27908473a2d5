"""Models behind an OpenAI-compatible server, against real servers on this machine that behave and that do not."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from queue import SimpleQueue

import pytest

from negolab.catalog import load_catalog
from negolab.errors import NegolabError
from negolab.policies.base import Failed
from negolab.policies.engine import Completion, Prompt, Sampling
from negolab.policies.model import LanguageModel
from negolab.policies.registry import make_buyers
from negolab.policies.retry import Backoff
from negolab.policies.spec import spec_of
from negolab.rollout import play
from negolab.scenario import IN_DISTRIBUTION, Schedule
from runs import environment
from servers import MODEL, ModelServer, first_tries, reply

KEY = "sk-secret-4711-abcdef"
BUYERS = make_buyers(IN_DISTRIBUTION.buyer_types)
QUICK = Backoff(first=0.01, limited=0.01, most=0.05, told=0.2)
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
SAMPLING = Sampling(0.7, 1.0, 0, 64, None)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(scope="module")
def schedule():
    return Schedule(IN_DISTRIBUTION, load_catalog("sample").split("test")[:8], seed=3, per_product=2)


def make(url, **options):
    """An engine that waits for hundredths of seconds where a real one waits for seconds."""
    pytest.importorskip("openai")
    from negolab.policies.openai import make_engine

    options = {"timeout": 5.0, **options}
    return make_engine([spec_of(f"openai:{options.pop('model', MODEL)}", {"base_url": url, **options})], QUICK)


def prompts(n, sampling=SAMPLING):
    return [Prompt((i, 0), [*MESSAGES, {"role": "user", "content": str(i)}], i, sampling, "") for i in range(n)]


def outcomes(engine, asked, most=10.0):
    """What came of each prompt, in the order of the prompts; every ``done`` must come once, within ``most`` seconds."""
    inbox = SimpleQueue()
    engine.submit(asked, lambda prompt, outcome: inbox.put((prompt, outcome)))
    found, until = {}, time.monotonic() + most
    while len(found) < len(asked):
        prompt, outcome = inbox.get(timeout=max(0.01, until - time.monotonic()))
        assert prompt.conversation not in found
        found[prompt.conversation] = outcome
    return [found[prompt.conversation] for prompt in asked]


def one(url, sampling=SAMPLING, **options):
    """What comes of a single prompt, and the engine's report."""
    engine = make(url, **options)
    try:
        (outcome,) = outcomes(engine, prompts(1, sampling))
        return outcome, engine.report()
    finally:
        engine.close()


def lines(schedule, url, told=None, **options):
    """Every episode's stored line, in order, and the engine's report."""
    engine = make(url, **options)
    try:
        model = LanguageModel(spec_of(f"openai:{MODEL}", {"base_url": url}), engine)
        found = list(play(schedule, model, BUYERS, dropped=None if told is None else lambda *what: told.append(what)))
        return [e.to_line() for e in sorted(found, key=lambda e: e.scenario.episode)], engine.report()
    finally:
        engine.close()


@pytest.fixture(scope="module")
def undisturbed(schedule):
    """What a server that behaves makes of the schedule."""
    pytest.importorskip("openai")
    with ModelServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        found, report = lines(schedule, server.url)
    assert report["tries"] == report["answered"] == report["requests"] == len(server.bodies)
    assert sum(b'"kind":"deal"' in line for line in found) >= 5  # real bargaining
    return found


def of_first_product(schedule):
    """Whether a request is of the first product's two episodes."""
    code = f"Codename: {schedule[0].product.listing.codename},"
    return lambda body: code in body["messages"][0]["content"]


# -- a server that behaves ----------------------------------------------------------------------------------------


def test_requests_carry_what_the_prompt_says(schedule):
    sampling = Sampling(0.25, 0.9, 20, 77, False)
    with ModelServer(answer_with=lambda body: reply(body, content="hi")) as server:
        made, _ = one(server.url, sampling)
        assert made[:5] == ("hi", "stop", 0, 40, 0) and made.tries == 1 and made.seconds > 0
        one(server.url, body='{"chat_template_kwargs": {"x": 1}, "min_p": 0.1, "temperature": null}', thinking="on")
        one(server.url, body='{"max_completion_tokens": 9}', seeded="off")
    first, second, third = server.bodies
    assert first["model"] == MODEL and first["messages"][:2] == MESSAGES
    sent = {name: first[name] for name in ("temperature", "top_p", "top_k", "max_tokens", "seed")}
    assert sent == {"temperature": 0.25, "top_p": 0.9, "top_k": 20, "max_tokens": 77, "seed": 0}
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert second["chat_template_kwargs"] == {"x": 1} and second["min_p"] == 0.1
    assert not second.keys() & {"temperature", "top_k"}
    assert third["max_completion_tokens"] == 9 and not third.keys() & {"max_tokens", "seed"}
    assert server.keys == {KEY}


def test_seeds_are_their_own_and_fit_31_bits():
    asked = [Prompt((i, 0), MESSAGES, (1 << 63) + 7919 * i, SAMPLING, "") for i in range(50)]
    with ModelServer(answer_with=lambda body: reply(body, content=str(body["seed"]))) as server:
        engine = make(server.url)
        seeds = [int(found.text) for found in outcomes(engine, asked)]
        engine.close()
    assert len(set(seeds)) == 50 and max(seeds) < 1 << 31


def test_no_more_requests_than_allowed_and_none_waits_for_another(schedule, undisturbed):
    mine = of_first_product(schedule)

    def late(body, nth):
        return "wait:0.3" if mine(body) else None  # all others must be over long before these

    with ModelServer(late, delay=0.02) as server:
        engine = make(server.url, concurrency=4)
        model = LanguageModel(spec_of(f"openai:{MODEL}", {"base_url": server.url}), engine)
        found, ended = [], []
        for episode in play(schedule, model, BUYERS):
            found.append(episode)
            ended.append(episode.scenario.product.listing.codename)
        engine.close()
    assert [e.to_line() for e in sorted(found, key=lambda e: e.scenario.episode)] == undisturbed
    assert server.peak <= engine.report()["most_under_way"] == 4
    assert set(ended[-2:]) == {schedule[0].product.listing.codename}


def test_submit_returns_at_once_and_works_inside_a_running_loop():
    import asyncio

    async def cell(url):
        engine = make(url)
        began = time.monotonic()
        inbox = SimpleQueue()
        engine.submit(prompts(3), lambda prompt, outcome: inbox.put(outcome))
        took = time.monotonic() - began
        found = [await asyncio.to_thread(inbox.get) for _ in range(3)]
        assert engine.check([], 10) == []
        engine.close()
        return took, found

    with ModelServer(delay=0.3, answer_with=lambda body: reply(body, content="x")) as server:
        one(server.url)  # the package is loaded by now
        took, found = asyncio.run(cell(server.url))
    assert took < 0.2 and [f.text for f in found] == ["x"] * 3


# -- a server that does not ---------------------------------------------------------------------------------------

PASSING = (
    "limit limit-silent overloaded broken page page-200 truncated short empty no-choices error-200 aborted reset"
).split()


@pytest.mark.parametrize("fault", [*PASSING, "408 x", "409 x", "425 x", "504 x", "529 x"])
def test_what_passes_is_tried_again_and_counted(fault):
    with ModelServer(
        lambda body, nth: fault if nth < 2 else None, answer_with=lambda b: reply(b, content="x")
    ) as server:
        found, report = one(server.url)
    assert isinstance(found, Completion) and (found.text, found.tries) == ("x", 3)
    assert report["tries"] == 3 and report["requests"] == 1 and sum(report["retries"].values()) == 2
    assert report["completion_tokens"] == 40  # only what can be used is counted


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_try_that_takes_too_long_is_tried_again(fault):
    with ModelServer(
        lambda body, nth: fault if nth < 1 else None, answer_with=lambda b: reply(b, content="x")
    ) as server:
        found, report = one(server.url, timeout=0.3)
    assert (found.text, found.tries) == ("x", 2) and report["retries"] == {"no answer in time": 1}


def test_the_same_episodes_from_a_server_that_misbehaves(schedule, undisturbed):
    with ModelServer(first_tries([*PASSING, "hang", "drip"]), delay=0.001) as server:
        found, report = lines(schedule, server.url, timeout=1.0, concurrency=8)
    assert found == undisturbed
    requests = sum(line.count(b'"prompt_sha256"') for line in found)
    assert report["requests"] == requests == sum(server.answered.values())
    assert set(server.answered.values()) == {1}  # nothing was paid twice
    assert report["failed"] == report["timed_out"] == 0
    assert report["tries"] == len(server.bodies) == requests + sum(report["retries"].values())
    tokens = re.findall(rb'"tokens":\[(\d+),(\d+)\]', b"\n".join(found))
    assert report["prompt_tokens"] == sum(int(a) for a, _ in tokens)
    assert report["completion_tokens"] == sum(int(b) for _, b in tokens) == 40 * requests


def test_a_request_that_fails_every_time_is_left_owed_and_the_others_go_on(schedule, undisturbed):
    mine = of_first_product(schedule)
    told = []
    with ModelServer(lambda body, nth: "broken" if mine(body) else None) as server:
        found, report = lines(schedule, server.url, told, retries=2)
    assert {number for number, _ in told} == {0, 1}  # one product's two episodes
    assert all(reason == "HTTP 500 (try 3 of 3)" for _, reason in told) and report["failed"] == 2
    assert found == undisturbed[2:]


def test_a_wait_that_the_server_asks_for_is_kept_by_all():
    seen = []

    def fault(body, nth):
        seen.append(time.monotonic())
        return "limit" if len(seen) == 1 else None

    with ModelServer(fault, answer_with=lambda b: reply(b, content="x")) as server:
        engine = make(server.url, concurrency=1)
        outcomes(engine, prompts(4))
        report = engine.report()
        engine.close()
    assert seen[1] - seen[0] >= 0.05 and report["retries"] == {"HTTP 429": 1}
    assert report["seconds"]["waiting_for_limits"] >= 0.05


# -- what no second try can mend ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("401 Incorrect API key provided: KEY", "HTTP 401: Incorrect API key provided: ***; see the key in the env"),
        ("403 no access", "HTTP 403: no access; see the key in the environment variable OPENAI_API_KEY"),
        ("404 The model does not exist", "HTTP 404: The model does not exist; the server offers: a, fake-1b"),
        ("400 top_k is not allowed", "HTTP 400: top_k is not allowed"),
        ("422 temperature: too hot", "HTTP 422: temperature: too hot"),
        ("quota", "HTTP 429: You exceeded your quota; the account's quota is used up"),
        ("400 " + "long\n" * 300, "HTTP 400: long long"),
    ],
)
def test_what_does_not_pass_stops_the_run_with_one_line(fault, says):
    with ModelServer(lambda body, nth: fault, models=["a", MODEL]) as server:
        engine = make(server.url, concurrency=1)
        found = outcomes(engine, prompts(3))
        assert all(outcome is found[0] for outcome in found) and isinstance(found[0], NegolabError)
        (later,) = outcomes(engine, prompts(1))  # and nothing is asked any more
        engine.close()
    told = str(found[0])
    assert told.startswith(f"openai:{MODEL}: {says}") and "\n" not in told and len(told) < 400 and KEY not in told
    assert later is found[0] and len(server.bodies) == 1


# -- replies of all kinds -----------------------------------------------------------------------------------------


def test_thinking_and_silence_are_counted_and_the_key_is_blotted_out():
    said = iter(["<think>t</think>a", None, f"my key is {KEY}"])

    def speak(body):
        content = next(said)
        return reply(body, content=content, reasoning="r") if content is None else reply(body, content=content)

    with ModelServer(answer_with=speak) as server:
        engine = make(server.url, concurrency=1)
        found = outcomes(engine, prompts(3))
        report = engine.report()
        engine.close()
    assert [f.text for f in found] == ["a", None, "my key is ***"]
    assert (report["thinking_cut"], report["reasoning_given"], report["without_text"]) == (1, 1, 1)


def test_another_model_than_asked_for_is_told_once_and_counted(caplog):
    with ModelServer(answer_with=lambda b: reply(b, content="x", model="other-7b")) as server:
        engine = make(server.url)
        with caplog.at_level(logging.WARNING, "negolab"):
            outcomes(engine, prompts(5))
        assert engine.report()["other_models"] == {"other-7b": 5}
        engine.close()
    assert [r.getMessage() for r in caplog.records] == [
        f"openai:{MODEL}: the server says that the replies are from other-7b"
    ]


# -- the context --------------------------------------------------------------------------------------------------


def context_of(tokens, prompt, at_least=False):
    """A server whose context holds ``tokens``, asked with prompts of ``prompt`` tokens."""

    def fault(body, nth):
        asked = body.get("max_tokens", body.get("max_completion_tokens"))
        if prompt + asked <= tokens:
            return None
        count = f"at least {tokens - asked + 1}" if at_least else prompt
        return (
            f"400 This model's maximum context length is {tokens} tokens. However, you requested {asked} output tokens "
            f"and your prompt contains {count} input tokens, for a total of {tokens + 1} tokens."
        )

    return fault


def test_a_reply_is_shortened_to_what_fits():
    def speak(body):
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        return reply(body, content="x" * limit, finish_reason="length" if limit < 50 else "stop")

    for at_least, expected in ((False, 30), (True, 16)):
        with ModelServer(context_of(100, 70, at_least), answer_with=speak) as server:
            found, report = one(server.url)
            assert (found.text, found.finish_reason) == ("x" * expected, "context_limit")  # not our limit cut it
            assert report["shortened"] == 1 and report["retries"] == {}
            found, _ = one(server.url, body='{"max_completion_tokens": 64}')
            assert len(found.text) == expected
    with ModelServer(context_of(100, 40), answer_with=speak) as server:
        found, _ = one(server.url)
        assert (len(found.text), found.finish_reason) == (60, "stop")
    for at_least in (False, True):
        with ModelServer(context_of(100, 120, at_least), answer_with=speak) as server:
            found, report = one(server.url)
            assert found[:2] == (None, "context_limit") and sum(server.answered.values()) == 0


# -- time-outs and dead servers -----------------------------------------------------------------------------------


def test_a_time_out_ends_its_episode_where_the_server_lives(schedule, undisturbed):
    mine = of_first_product(schedule)
    with ModelServer(lambda body, nth: "hang" if mine(body) else None) as server:
        found, report = lines(schedule, server.url, timeout=1.0, retries=1, concurrency=4)
    aborted = [line for line in found if b'"kind":"aborted"' in line]
    assert len(aborted) == 2 and all(b'"reason":"timeout"' in line for line in aborted)
    assert [line for line in found if line not in aborted] == undisturbed[2:] and report["timed_out"] == 2


def test_the_last_time_outs_are_confirmed_by_a_probe():
    with ModelServer(
        lambda body, nth: None if body["max_tokens"] == 1 else "hang", answer_with=lambda b: reply(b, content="OK")
    ) as server:
        found, report = one(server.url, timeout=0.1, retries=1)
    assert found[:2] == (None, "timeout") and found.tries == 2
    assert report["probes"] == 1 and len(server.bodies) == 3


def test_a_server_that_dies_poisons_nothing(schedule, undisturbed):
    asked = Counter()

    def dies(body, nth):
        asked["n"] += 1
        return "hang" if asked["n"] > 25 else None

    told = []
    with ModelServer(dies) as server:
        engine = make(server.url, timeout=0.4, retries=0, concurrency=3, max_failures=4)
        model = LanguageModel(spec_of(f"openai:{MODEL}", {"base_url": server.url}), engine)
        found = []
        with pytest.raises(NegolabError, match=r"4 requests in a row had no reply \(the last: no answer in time\)"):
            for episode in play(schedule, model, BUYERS, dropped=lambda *what: told.append(what)):
                found.append(episode.to_line())
        engine.close()
    assert found and set(found) <= set(undisturbed)  # no episode ended by a time-out
    assert all("the server has not answered since" in reason for _, reason in told)


def test_a_dead_server_is_given_up_also_where_only_probes_are_left():
    with ModelServer(lambda body, nth: "hang") as server:
        engine = make(server.url, timeout=0.05, retries=0, max_failures=5)
        found = outcomes(engine, prompts(2))
        report = engine.report()
        engine.close()
    assert sorted(type(f).__name__ for f in found) == ["Failed", "NegolabError"] and report["probes"] == 3
    with ModelServer() as server:
        gone = server.url
    engine = make(gone, retries=1, max_failures=3, concurrency=1)
    found = outcomes(engine, prompts(5))
    engine.close()
    assert [isinstance(f, Failed) for f in found] == [True, True, False, False, False]
    assert str(found[2]).endswith(
        "3 requests in a row had no reply (the last: connection refused (try 2 of 2)); what was answered is kept, run "
        "the same command again to go on"
    )


# -- options, keys, checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'; allowed: http://HOST:PORT/v1"),
        ({"base_url": "ftp://x/v1"}, "base_url is 'ftp://x/v1'"),
        ({"base_url": "http:///v1"}, "base_url is 'http:///v1'"),
        ({"base_url": "http://h:99999/v1"}, "base_url is no address"),
        ({"base_url": "http://me:hunter2@h/v1"}, "base_url holds a user or password"),
        ({"base_url": "http://h/v1?key=abc"}, "base_url holds a query"),
        ({"base_url": "http://h/v1/chat/completions"}, "give the part before /chat/completions"),
        ({"body": '{"model": "x"}'}, "body sets model; allowed: every field but model, messages, stream, n"),
        ({"body": '{"stream": null, "n": 2}'}, "body sets stream, n;"),
        ({"body": '{"max_tokens": "9"}'}, "body sets max_tokens to '9'"),
        ({"body": json.dumps({"user": KEY})}, "the key stands in an option"),
        ({"key_env": "NO_SUCH_KEY"}, "needs a key in the environment variable NO_SUCH_KEY"),
    ],
)
def test_options_are_checked_before_anything_starts(options, says):
    before = threading.active_count()
    with pytest.raises(NegolabError, match=re.escape(says)) as caught:
        make(**{"url": options.pop("base_url", ""), **options})
    assert threading.active_count() == before and KEY not in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_key_that_no_header_can_hold(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ключ")
    with pytest.raises(NegolabError, match="holds characters no key has"):
        make("")


def test_what_is_told_of_a_server():
    assert make("").describe() == {"model": MODEL, "server": "api.openai.com"}
    for url in ("http://localhost:1/v1", "http://10.1.2.3:8000/v1", "http://node7:8000/v1", "http://[::1]:8/v1"):
        assert make(url).describe() == {"model": MODEL, "server": "local"}
    assert make("https://llm.example.org/x/v1").describe()["server"] == "llm.example.org"
    assert KEY not in repr(make("")) and KEY not in repr(make("")._server)


def test_a_server_s_name_for_a_model_is_never_a_path():
    from negolab.policies.registry import make_models

    pytest.importorskip("openai")
    spec = spec_of("openai:smollm2-135m")  # which is also the name of a bundled file
    assert make_models([spec])[spec].describe()["model"] == "smollm2-135m"


def test_a_server_is_looked_at_before_a_run():
    conversation = [[{"role": "user", "content": "x" * 4000}]]
    with ModelServer() as server:
        engine = make(server.url)
        assert engine.check(conversation, 100) == [] and server.bodies == []
        engine.close()
    with ModelServer(models=None) as server:
        engine = make(server.url)
        assert engine.check(conversation, 100) == [] and server.bodies == []
        engine.close()
    before = set(threading.enumerate())  # other tests' engines may still be on their way out
    refused = pytest.raises(NegolabError, match="HTTP 404: no such model; the server offers: a, b")
    with ModelServer(lambda b, n: "404 no such model", models=["a", "b"]) as server, refused:
        make(server.url).check(conversation, 100)
    with ModelServer(models=["/models/fake.gguf"], answer_with=lambda b: reply(b, content="OK")) as server:
        engine = make(server.url)
        assert engine.check(conversation, 100) == ["the server does not list this model; it offers: /models/fake.gguf"]
        assert len(server.bodies) == 1 and server.bodies[0]["max_tokens"] == 1
        engine.close()
    with pytest.raises(
        NegolabError, match=r"the server at http://127.0.0.1:\d+/v1 cannot be reached \(connection refused\)"
    ):
        make(server.url).check(conversation, 100)
    assert not [t for t in threading.enumerate() if t.name.startswith("openai:") and t not in before]


def test_closing_is_quick_and_quiet_whatever_is_under_way():
    code = """
import sys, time
from negolab.policies.engine import Prompt, Sampling
from negolab.policies.openai import make_engine
from negolab.policies.spec import spec_of
engine = make_engine([spec_of("openai:fake-1b", {"base_url": sys.argv[1], "concurrency": 8})])
told = []
asked = [Prompt((i, 0), [{"role": "user", "content": str(i)}], i, Sampling(0, 1, 0, 9, None), "") for i in range(20)]
engine.submit(asked, lambda *what: told.append(what))
until = time.monotonic() + 30
while engine.report()["most_under_way"] < 8 and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.2)
if sys.argv[2] == "close":
    began = time.monotonic()
    engine.close(); engine.close()
    assert time.monotonic() - began < 2, "slow"
    assert not told
print(engine.report()["most_under_way"])
if sys.argv[2] == "raise":
    raise KeyboardInterrupt
"""
    pytest.importorskip("openai")
    with ModelServer(lambda body, nth: "hang") as server:
        for how, err in (("close", ""), ("leave", ""), ("raise", "KeyboardInterrupt\n")):
            command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, server.url, how]
            done = subprocess.run(
                command, env=environment(OPENAI_API_KEY=KEY), capture_output=True, text=True, timeout=60
            )
            assert done.stdout == "8\n", done
            noise = re.sub(r"(?m)^Executing .* seconds\n", "", done.stderr)  # asyncio's own, about the import
            assert noise.endswith(err) and "Task" not in noise and "Warning" not in noise, noise
            assert err or not noise


def test_a_closed_engine_starts_anew():
    with ModelServer(answer_with=lambda b: reply(b, content="x")) as server:
        engine = make(server.url)
        for _ in range(2):
            assert [f.text for f in outcomes(engine, prompts(2))] == ["x", "x"]
            engine.close()
    assert engine.report()["answered"] == 4


def test_a_reply_that_cannot_be_taken_stops_the_run_instead_of_hanging_it():
    inbox = SimpleQueue()

    def done(prompt, outcome):
        if isinstance(outcome, Completion):
            raise TypeError("no place for it")
        inbox.put(outcome)

    with ModelServer(answer_with=lambda b: reply(b, content="x")) as server:
        engine = make(server.url)
        engine.submit(prompts(1), done)
        assert str(inbox.get(timeout=5)) == "no place for it"
        engine.close()
