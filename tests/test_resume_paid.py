"""Nothing lost, nothing paid twice: runs that are killed or whose server dies, and the journal that makes it so."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import orjson
import pytest

from negolab.cli import main
from negolab.environment.base import BuyerView, Request
from negolab.errors import NegolabError
from negolab.evaluate import Settings, evaluate
from negolab.policies import journal as module
from negolab.policies.base import Reply
from negolab.policies.journal import PATTERN, USAGE, Journal, read, settle
from negolab.policies.spec import spec_of
from negolab.rollout import clean_text
from negolab.store import EPISODES, METRICS_CSV
from runs import command, environment, evaluate_args
from servers import MODEL, ModelServer

KEY = "sk-secret-4711-abcdef"
FACTS = {"player": "m", "cached_tokens": 2, "seconds": 0.5, "tries": 1}


def request(episode, own=0, seat=1, attempt=0):
    view = BuyerView(**{**dict.fromkeys(BuyerView._fields), "own": ("x",) * own})
    assert len(view.own) == own
    return Request(episode, seat, view, 0, 0, attempt)


def reply(text, sha256="s", **more):
    return Reply(text, "stop", 10, 5, sha256, **more)


def journal_of(folder, *replies):
    """The path of a journal that holds the replies, to episodes 0, 1, ..."""
    made = Journal(folder)
    for episode, one in enumerate(replies):
        made.add(request(episode), one, FACTS)
    made.close()
    (path,) = folder.glob(PATTERN)
    return path


# -- whole runs ---------------------------------------------------------------------------------------------------


def run_args(url, out, **options):
    given = {"base_url": url, "concurrency": 4, **options}
    chosen = [part for name, value in given.items() for part in ("--seller-option", f"{name}={value}")]
    return evaluate_args(out, *chosen, "--products", "8", seller=f"openai:{MODEL}")


def files_with(folder, secret):
    return [path for path in Path(folder).rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_killed_run_pays_again_only_for_what_was_under_way(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    env, draw, output = environment(OPENAI_API_KEY=KEY), random.Random(7), []
    with ModelServer(delay=0.05) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        assert main(run_args(server.url, tmp_path / "whole")) == 0
        needed = dict(server.answered)
        server.answered.clear()
        args, kills = command(run_args(server.url, tmp_path / "run")), 0
        for _ in range(3):
            until = sum(server.answered.values()) + draw.randint(1, len(needed) // 5)
            process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            while process.poll() is None and sum(server.answered.values()) < until:
                time.sleep(0.001)
            time.sleep(draw.random() / 50)
            process.kill()
            output.append(process.communicate()[0])
            kills += process.returncode == -signal.SIGKILL
        assert kills == 3 and list((tmp_path / "run").glob(PATTERN))
        assert not files_with(tmp_path / "run", KEY)
        last = subprocess.run(args, env=env, capture_output=True, text=True)
        assert last.returncode == 0, last.stderr
        assert server.answered.keys() == needed.keys() and server.peak <= 4
        assert sum(server.answered.values()) - len(needed) <= 4 * kills
        assert server.keys == {KEY}
    for name in (EPISODES, METRICS_CSV):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "run").glob(PATTERN))
    used, unbroken = (json.loads((tmp_path / d / USAGE).read_bytes())[MODEL] for d in ("run", "whole"))
    assert used["replies"] == unbroken["replies"] == len(needed) == sum(needed.values())
    assert used["prompt_tokens"] == unbroken["prompt_tokens"]
    assert not files_with(tmp_path, KEY)
    assert KEY not in "".join([*output, last.stdout, last.stderr])


def test_a_server_that_dies_in_the_middle_leaves_a_run_to_resume(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def settings(url):
        options = {"base_url": url, "timeout": 1.0, "retries": 0, "max_failures": 3, "concurrency": 4}
        return Settings(seller=spec_of(f"openai:{MODEL}", options), products=6)

    with ModelServer() as server:
        evaluate(settings(server.url), tmp_path / "whole")
        needed = set(server.answered)
    seen = []

    def dies(body, nth):
        seen.append(body)
        return "hang" if len(seen) > 30 else None

    with ModelServer(dies) as server, pytest.raises(NegolabError, match="3 requests in a row had no reply"):
        evaluate(settings(server.url), tmp_path / "run")
    paid = set(server.answered)
    assert len(paid) == 30 and b"timeout" not in (tmp_path / "run" / EPISODES).read_bytes()
    with ModelServer() as server:  # at another address
        evaluate(settings(server.url), tmp_path / "run")
    assert set(server.answered) == needed - paid  # nothing twice
    for name in (EPISODES, METRICS_CSV):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_no_folder_where_the_server_is_not_there(tmp_path):
    pytest.importorskip("openai")
    with ModelServer() as server:
        pass
    args = command(run_args(server.url, tmp_path / "run"))
    done = subprocess.run(args, env=environment(OPENAI_API_KEY=KEY), capture_output=True, text=True)
    assert done.returncode != 0 and "cannot be reached (connection refused)" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()


def test_an_interrupted_run_ends_at_once_and_quietly(tmp_path):
    pytest.importorskip("openai")
    from runs import default_interrupt

    with ModelServer(lambda body, nth: "hang") as server:
        process = subprocess.Popen(
            command(run_args(server.url, tmp_path / "run")),
            env=environment(OPENAI_API_KEY=KEY),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_interrupt,
        )
        while server.under_way < 4:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=10)
    assert time.monotonic() - began < 3 and process.returncode == 130
    assert "Traceback" not in errors and "Task" not in errors and "Unclosed" not in errors


# -- the journal --------------------------------------------------------------------------------------------------


def test_a_line_torn_anywhere_costs_one_reply_and_nothing_else(tmp_path):
    path = journal_of(tmp_path, reply("one"), reply("two\nlines"), reply("three", reasoning='hm "}'))
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(content) + 1):
        path.write_bytes(content[:cut])
        again = Journal(tmp_path)
        assert again.find(request(0), "s") == reply("one") and again.find(request(1), "s") == reply("two\nlines")
        whole = cut >= len(content) - 1
        assert (again.find(request(2), "s") is not None) is whole
        again.add(request(2, own=1), reply("four"), FACTS)
        again.close()
        found = [data["text"] for data in read(path)]
        assert found == ["one", "two\nlines", *["three"] * whole, "four"]
        assert Journal(tmp_path).find(request(2, own=1), "s") == reply("four")


def test_a_changed_byte_is_never_another_reply(tmp_path):
    path = journal_of(tmp_path, reply("one", ids=[1, 2], logprobs=[-0.5, -1.25]))
    content = path.read_bytes()
    start = content.index(b"\n") + 1
    for at in range(start, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        made = Journal(tmp_path)
        assert made.find(request(0), "s") is None and read(path) == []
        made.close()
    path.write_bytes(content)
    assert Journal(tmp_path).find(request(0), "s") == reply("one", ids=[1, 2], logprobs=[-0.5, -1.25])


def test_what_others_leave_in_a_journal_is_nothing(tmp_path):
    path = journal_of(tmp_path, reply("one"))
    good = path.read_bytes()
    junk = [
        *(
            b"",
            b"\0" * 50,
            b"\xff\xfe",
            b"null",
            b"[]",
            b"5",
            b"{}",
            b'{"key":"1:1:0:0","prompt_sha256":"s","text":"bad"}',
        ),
        *(b'{"key":"1:1:0:0","prompt_sha256":"s","finish_reason":"stop","text":5,"crc":"00000000"}', b"x" * 100_000),
    ]
    for wrong in ({"key": 5}, {"text": 5}, {"prompt_sha256": None}, {"finish_reason": 3}):  # with a fitting checksum
        data = {"key": "1:1:0:0", "text": "bad", "prompt_sha256": "s", "finish_reason": "stop", **wrong}
        junk.append(module._line(data, path).rstrip())
    path.write_bytes(b"\n".join(junk) + b"\n" + good + b"\n".join(junk))
    (tmp_path / "replies-elsewhere-1.jsonl").write_bytes(b"\r\n".join(junk))
    made = Journal(tmp_path)
    assert made.find(request(0), "s") == reply("one") and made.find(request(1), "s") is None
    made.close()
    settle(tmp_path)
    assert json.loads((tmp_path / USAGE).read_bytes())["m"]["replies"] == 1


def test_a_reply_belongs_to_its_request_and_its_prompt(tmp_path):
    made = Journal(tmp_path)
    made.add(request(3, own=2, seat=1, attempt=1), reply("one"), FACTS)
    made.close()
    again = Journal(tmp_path)
    assert again.find(request(3, own=2, seat=1, attempt=1), "s") == reply("one")
    for other in (request(4, 2, 1, 1), request(3, 1, 1, 1), request(3, 2, 2, 1), request(3, 2, 1, 0)):
        assert again.find(other, "s") is None
    assert again.find(request(3, own=2, seat=1, attempt=1), "another prompt") is None


def test_every_field_comes_back_as_it_was(tmp_path):
    numpy = pytest.importorskip("numpy")
    odd = "\0\u2028\x85\r\n\ufeff\U0001f600 \\u0000 " + '"crc":"00000000"}'
    given = [
        reply(odd, reasoning=odd),
        Reply(None, "timeout", prompt_sha256="s"),
        reply("x", ids=numpy.array([0, 2**31, 151_936]), logprobs=[-0.5, 0.0, -1e-30]),
    ]
    journal_of(tmp_path, *given)
    made = Journal(tmp_path)
    assert made.find(request(0), "s") == given[0] and made.find(request(1), "s") == given[1]
    assert made.find(request(2), "s") == given[2]._replace(ids=[0, 2**31, 151_936])


def test_half_a_surrogate_pair_is_kept_as_records_keep_it_and_what_cannot_be_kept_stops_the_run(tmp_path):
    text = "a\ud83db"
    journal_of(tmp_path, reply(text))
    made = Journal(tmp_path)
    assert made.find(request(0), "s") == reply(clean_text(text)) == reply("a\ufffdb")
    with pytest.raises(NegolabError, match=r"a reply cannot be kept in .*: Integer exceeds 64-bit range"):
        made.add(request(1), reply("x", ids=[1 << 70]), FACTS)
    made.add(request(2), reply("y"), FACTS)
    assert Journal(tmp_path).find(request(2), "s") == reply("y")


def test_a_full_disk_stops_the_run_and_spoils_no_line(tmp_path):
    resource = pytest.importorskip("resource")
    code = f"""
import resource, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from negolab.errors import NegolabError
from negolab.policies.journal import Journal
from test_resume_paid import FACTS, reply, request
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
made, failed = Journal(Path(sys.argv[1])), []
for episode in range(40):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500 if episode < 30 else soft, hard))  # then there is room again
    try:
        made.add(request(episode), reply(f"reply {{episode}}"), FACTS)
    except NegolabError as error:
        failed.append(episode)
        assert "cannot write to" in str(error) and "File too large" in str(error)
print(*failed)
"""
    assert resource
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=environment(), capture_output=True, text=True)
    failed = {int(n) for n in done.stdout.split()}
    assert failed and failed == set(range(min(failed), 30)) and min(failed) >= 3, done.stderr
    made = Journal(tmp_path)
    for episode in range(40):
        found = made.find(request(episode), "s")
        assert found == (None if episode in failed else reply(f"reply {episode}"))


def test_several_processes_and_threads_write_at_once(tmp_path):
    code = f"""
import sys, threading
sys.path[:0] = {sys.path!r}
from pathlib import Path
from negolab.policies.journal import Journal
from test_resume_paid import FACTS, reply, request
made, base = Journal(Path(sys.argv[1])), int(sys.argv[2])
def work(at):
    for n in range(50):
        made.add(request(base + 50 * at + n), reply("x" * (n * 300)), FACTS)
threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(base)], env=environment())
        for base in (0, 1000)
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(list(tmp_path.glob(PATTERN))) == 2
    made = Journal(tmp_path)
    for base in (0, 1000):
        for n in range(200):
            assert made.find(request(base + n), "s") == reply("x" * (n % 50 * 300))
    made.close()
    settle(tmp_path)
    assert json.loads((tmp_path / USAGE).read_bytes())["m"]["replies"] == 400


def test_a_large_journal_needs_little_memory(tmp_path):
    n, ids, logprobs = 2000, list(range(100_000, 100_300)), [-0.123456] * 300
    path = journal_of(
        tmp_path, *[reply(f"{episode} " + "word " * 200, ids=ids, logprobs=logprobs) for episode in range(n)]
    )
    assert path.stat().st_size > 5000 * n
    tracemalloc.start()
    made = Journal(tmp_path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500 * n and peak < 1000 * n
    assert made.find(request(n - 1), "s").text.startswith(f"{n - 1} word")


# -- the account --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def _settle_killed(folder, monkeypatch, step):
    """``settle``, killed before its n-th change of the disk; False: it came to its end before."""
    left = [step]

    def count(original):
        def counted(*args, **kwargs):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", count(Path.replace))
        patch.setattr(Path, "unlink", count(Path.unlink))
        patch.setattr(Path, "open", count(Path.open))
        patch.setattr(os, "fsync", count(os.fsync))
        try:
            settle(folder)
        except Killed:
            return True
    return False


def _three_journals(folder):
    for host, n in (("a", 3), ("b", 2), ("c", 1)):
        made = journal_of(folder, *[reply("x")] * n)
        made.rename(folder / f"replies-{host}-1.jsonl.tmp")
    for path in list(folder.glob("*.tmp")):
        path.rename(path.with_suffix(""))


def test_settling_may_be_killed_anywhere(tmp_path, monkeypatch):
    expected = {
        "replies": 6,
        "prompt_tokens": 60,
        "cached_tokens": 12,
        "completion_tokens": 30,
        "tries": 6,
        "seconds": 3.0,
    }
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        _three_journals(folder)
        killed = _settle_killed(folder, monkeypatch, step)
        for more in range(0, 6, 2):  # the next attempts do not live long either
            _settle_killed(folder, monkeypatch, more)
        settle(folder)
        account = json.loads((folder / USAGE).read_bytes())["m"]
        assert {name: account[name] for name in expected} == expected
        assert [path.name for path in folder.iterdir()] == [USAGE]
        if not killed:
            break
    assert step >= 7


def test_episodes_that_are_played_again_add_to_the_account(tmp_path, monkeypatch):
    journal_of(tmp_path, reply("x"), reply("y"))
    assert _settle_killed(tmp_path, monkeypatch, 5)  # written, but the journal is still there
    assert (tmp_path / USAGE).exists() and list(tmp_path.glob(PATTERN))
    journal_of(tmp_path, reply("z"))  # the same process number, in the same file
    settle(tmp_path)
    assert json.loads((tmp_path / USAGE).read_bytes())["m"]["replies"] == 3
    journal_of(tmp_path, reply("w"))  # the same name, another file
    settle(tmp_path)
    settle(tmp_path)
    assert json.loads((tmp_path / USAGE).read_bytes())["m"]["replies"] == 4


def test_an_account_that_somebody_spoiled_is_begun_anew(tmp_path):
    for spoiled in (b"", b"[]", b'{"m": 5}', b'{"m": {"replies": 1}}', b"\xff"):
        (tmp_path / USAGE).write_bytes(spoiled)
        journal_of(tmp_path, reply("x"))
        settle(tmp_path)
        assert orjson.loads((tmp_path / USAGE).read_bytes())["m"]["replies"] == 1


def test_a_journal_s_name_tells_nothing_but_host_and_process(tmp_path, monkeypatch):
    monkeypatch.setattr(module.platform, "node", lambda: "a/b c" + "x" * 300)
    path = journal_of(tmp_path, reply("x"))
    assert re.fullmatch(rf"replies-a_b_cx{{55}}-{os.getpid()}\.jsonl", path.name)
