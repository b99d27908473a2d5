"""``negolab show`` and ``negolab play``, as their users meet them."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time

import orjson
import pytest

from markets import openings_of
from negolab.catalog import SAMPLE, load_catalog
from negolab.cli import main
from negolab.scenario import Schedule, regime
from negolab.store import EPISODES, Run
from negolab.trainer import records
from runs import default_interrupt
from training_folders import write_run

ITEM = "audio-gear_1"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Twenty stored episodes of a seller that breaks rules now and then."""
    folder = tmp_path_factory.mktemp("show") / "run"
    code = main(["evaluate", "--seller", "random", "--products", "10", "--per-product", "2", "--out", str(folder)])
    assert code == 0
    return folder


@pytest.fixture
def copy(run_folder, tmp_path):
    """The same run, to be damaged."""
    return shutil.copytree(run_folder, tmp_path / "copy")


def call(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments, code=2):
    """The one line that a refused command says."""
    got, out, err = call(capsys, *arguments)
    assert got == code and out == "" and err.count("\n") == 1 and err.startswith("negolab: "), (got, out, err)
    return err


def rewards(folder):
    return {e.scenario.episode: (e.reward, e.outcome.kind) for e in Run(folder).episodes()}


# -- show -------------------------------------------------------------------------------------------------------


def test_show_prints_the_first_episode_by_default(run_folder, capsys):
    code, out, err = call(capsys, "show", run_folder)
    assert code == 0 and err == "" and out.startswith("Episode 0: ")
    assert "HIDDEN FROM THE SELLER" in out and "random (scripted stand-in)" in out
    assert "\x1b" not in out and max(map(len, out.split("\n"))) <= 100
    assert call(capsys, "show", run_folder, "--episode", 0)[1] == out


def test_show_takes_numbers_in_their_order_and_drops_doubles(run_folder, capsys):
    _, out, _ = call(capsys, "show", run_folder, "--episode", 3, 1, 3, "--episode", 2)
    assert re.findall(r"^Episode (\d+):", out, re.M) == ["3", "1", "2"]


def test_show_picks_by_reward(run_folder, capsys):
    known = rewards(run_folder)
    values = sorted(reward for reward, _ in known.values())
    wanted = {"best": values[-1], "worst": values[0], "median": values[(len(values) - 1) // 2], "violation": -1.0}
    for pick, reward in wanted.items():
        _, out, _ = call(capsys, "show", run_folder, "--pick", pick)
        number = int(re.match(r"Episode (\d+):", out)[1])
        assert known[number][0] == reward, pick
    assert "VIOLATION (" in out
    assert re.match(r"Episode 0:", call(capsys, "show", run_folder, "--pick", "first")[1])


def test_a_pick_that_nothing_fits_is_left_out_of_several(tmp_path, capsys):
    folder = tmp_path / "run"
    call(capsys, "evaluate", "--seller", "prober", "--out", folder, "--products", 2)
    code, out, err = call(capsys, "show", folder, "--pick", "violation", "--pick", "best")
    assert code == 0 and out.startswith("Episode ") and "--pick violation left out" in err
    for picks in (["violation"], ["violation", "violation"]):
        code, out, err = call(capsys, "show", folder, *(word for pick in picks for word in ("--pick", pick)))
        assert code == 2 and out == "" and "no episode that ended in a violation" in err.splitlines()[-1]


def test_show_board_and_no_thought(run_folder, capsys):
    _, plain, _ = call(capsys, "show", run_folder, "--pick", "best")
    assert "=== Standing offers ===" not in plain and "Thought (private):" in plain
    _, out, _ = call(capsys, "show", run_folder, "--pick", "best", "--board", "--no-thought")
    assert "=== Standing offers ===" in out and "Thought (private):" not in out


def test_show_json_is_the_stored_record_and_more(run_folder, capsys):
    _, out, _ = call(capsys, "show", run_folder, "--episode", 4, 5, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["episode"] for record in records] == [4, 5]
    stored = orjson.loads((run_folder / EPISODES).read_bytes().splitlines()[4])
    assert all(records[0][name] == stored[name] for name in stored if name != "crc")
    assert sorted(records[0]["ranks"]) == [1, 2, 3] and records[0]["product"]["title"]


def test_show_writes_a_page_whole_and_replaces_only_pages(run_folder, tmp_path, capsys):
    page = tmp_path / "a page.html"
    code, out, _ = call(capsys, "show", run_folder, "--pick", "best", "--pick", "worst", "--html", page)
    assert code == 0 and out == f"written: {page} (2 episodes)\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert "run run, split test, seed 0, catalogue" in text and str(tmp_path) not in text
    assert call(capsys, "show", run_folder, "--html", page)[0] == 0
    assert [entry.name for entry in tmp_path.iterdir()] == [page.name]
    other = tmp_path / "notes.txt"
    other.write_text("mine", encoding="utf-8")
    assert "is not an .html file" in refused(capsys, "show", run_folder, "--html", other)
    assert other.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["manifest.json", "products.jsonl", "episodes.jsonl", "metrics.csv", "RUN.lock"])
def test_show_never_overwrites_a_runs_own_files(run_folder, name, capsys):
    before = {entry.name: entry.read_bytes() for entry in run_folder.iterdir()}
    assert "one of the run's own files" in refused(capsys, "show", run_folder, "--html", run_folder / name)
    assert {entry.name: entry.read_bytes() for entry in run_folder.iterdir()} == before


def test_show_refuses_in_one_line(run_folder, tmp_path, capsys):
    assert "holds no episode 99; it holds 0 to 19" in refused(capsys, "show", run_folder, "--episode", 99)
    assert "does not exist" in refused(capsys, "show", tmp_path / "nowhere")
    assert "is not a run folder" in refused(capsys, "show", tmp_path)
    assert "comes before --episode" in refused(capsys, "show", run_folder, "--episode", "-1")
    assert "comes before --episode" in refused(capsys, "show", "--episode", 1, run_folder)
    assert "is a folder" in refused(capsys, "show", run_folder, "--html", tmp_path)
    assert "make it first" in refused(capsys, "show", run_folder, "--html", tmp_path / "no" / "page.html")
    assert "give one of the two" in refused(capsys, "show", run_folder, "--json", "--html", tmp_path / "x.html")
    assert "not allowed with" in refused(capsys, "show", run_folder, "--episode", 1, "--pick", "best")
    assert "invalid choice" in refused(capsys, "show", run_folder, "--pick", "nicest")


def test_show_of_a_training_run_names_what_can_be_shown(run_folder, tmp_path, capsys):
    """Two real runs in the places where training puts its evaluations, and one that is still without an episode."""
    run = write_run(tmp_path / "my runs" / "seller", "seller", steps=4)
    where = f"{run} is a training run"
    told = refused(capsys, "show", run)
    assert f"{where}; it holds no evaluation" in told and "02_training_dynamics -p runs '" in told
    for step in (0, 4):
        shutil.copytree(run_folder, run / "evals" / f"step-{step:06d}" / "in_distribution")
    (run / "evals" / "step-000002" / "in_distribution").mkdir(parents=True)
    told = refused(capsys, "show", run)
    assert told.count("in_distribution") == 2 and "step-000002" not in told
    listed = told[told.index("look at: ") :].removeprefix("look at: ").partition(". Its curves")[0]
    for path in shlex.split(listed.replace(",", "")):
        assert main(["show", path]) == 0  # as it was printed
    capsys.readouterr()
    for step in range(10, 18):
        shutil.copytree(run_folder, run / "evals" / f"step-{step:06d}" / "in_distribution")
    told = refused(capsys, "show", run)
    assert told.count("in_distribution") == 6 and "..." in told and "step-000017" in told
    tuned = records.new_manifest({}, {"name": "sft"}, {})
    (tmp_path / "sft").mkdir()
    records.write_whole(tmp_path / "sft" / "manifest.json", orjson.dumps(tuned))
    assert f"Its curves are in {tmp_path / 'sft' / 'metrics.csv'}" in refused(capsys, "show", tmp_path / "sft")


def test_show_of_a_run_without_violations_says_so(tmp_path, capsys):
    folder = tmp_path / "run"
    main(["evaluate", "--seller", "prober", "--products", "1", "--out", str(folder)])
    assert "no episode that ended in a violation" in refused(capsys, "show", folder, "--pick", "violation")


def test_show_damage_elsewhere_does_not_matter_here_it_does(copy, capsys):
    path = copy / EPISODES
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"reward":', b'"rewarb":')
    lines[5] = lines[5].replace(b'"episode":', b'"epis')
    lines[-1] = lines[-1][:-20]
    path.write_bytes(b"".join(lines))
    assert call(capsys, "show", copy, "--episode", 4)[0] == 0
    assert call(capsys, "show", copy, "--pick", "best")[0] == 0
    assert "checksum" in refused(capsys, "show", copy, "--episode", 3, code=1)
    assert "torn" in refused(capsys, "show", copy, "--episode", 19, code=1)
    assert "it holds 0 to 4, 6 to 19" in refused(capsys, "show", copy, "--episode", 5)
    path.write_bytes(b"")
    assert "holds no episode yet" in refused(capsys, "show", copy)
    path.unlink()
    assert "it holds none" in refused(capsys, "show", copy, "--episode", 0)


def test_show_of_senseless_fields_under_a_good_checksum_is_one_line(copy, capsys):
    import zlib

    path = copy / EPISODES
    lines = path.read_bytes().splitlines()
    body = orjson.loads(lines[0])
    del body["crc"]
    body["turns"][0][0] = {"a": 1}
    raw = orjson.dumps(body)
    path.write_bytes(b'%s,"crc":"%08x"}\n' % (raw[:-1], zlib.crc32(raw)) + b"\n".join(lines[1:]) + b"\n")
    assert "episode 0 of" in refused(capsys, "show", copy, code=1)


def test_show_reads_only_what_is_asked_for(run_folder, tmp_path, capsys):
    """A big run: the peak of allocations stays far below the size of the file."""
    import shutil
    import tracemalloc

    big = shutil.copytree(run_folder, tmp_path / "big")
    path = big / EPISODES
    filler = path.read_bytes().splitlines(keepends=True)[1]
    with path.open("ab") as file:
        for _ in range(5000):
            file.write(filler)
    assert path.stat().st_size > 5_000_000
    call(capsys, "show", big)  # imports and caches
    tracemalloc.start()
    call(capsys, "show", big, "--pick", "best")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_500_000, peak


def shell(command, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options.pop("env", {})}
    return subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=120, **options)


def test_show_into_a_pipe_is_plain_whatever_the_terminal_says(run_folder):
    ask = f'"{sys.executable}" -m negolab.cli show "{run_folder}"'
    wide = shell(f"{ask} | cat", env={"COLUMNS": "300", "TERM": "xterm-256color", "FORCE_COLOR": "1"})
    narrow = shell(f"{ask} | cat", env={"COLUMNS": "20", "TERM": "dumb", "NO_COLOR": "1"})
    assert wide.stdout == narrow.stdout and wide.stdout.startswith(b"Episode 0") and b"\x1b" not in wide.stdout
    closed = shell(f'{ask} --board | head -1; exit "${{PIPESTATUS[0]}}"')
    assert closed.returncode == 0 and closed.stderr == b"" and closed.stdout.count(b"\n") == 1
    assert shell(ask, env={"PYTHONIOENCODING": "ascii"}).returncode == 0


# -- play -------------------------------------------------------------------------------------------------------


def market(seed, kind="in_distribution", **knobs):
    """The market that ``negolab play --seed SEED --codename ITEM`` plays."""
    product = next(p for p in load_catalog(SAMPLE).products if p.listing.codename == ITEM)
    return Schedule(regime(kind, **knobs), [product], seed=seed)[0]


def cents(value):
    return f"{value // 100}.{value % 100:02d}"


@pytest.fixture
def game(tmp_path, capsys):
    """Play scripted entries and return exit code, what was shown before the end, at the end, and standard error."""

    def go(entries, *arguments, seed=7):
        script = tmp_path / "entries.txt"
        script.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
        code, out, err = call(
            capsys, "play", "--seed", seed, "--codename", ITEM, "--script", script, *[str(a) for a in arguments]
        )
        before, _, after = out.partition("--- The end ---")
        return code, before, after, err

    return go


def test_play_the_seller_to_a_deal(game, tmp_path):
    m, page = market(7), tmp_path / "game.html"
    rich = 1 + m.budgets.index(max(m.budgets))
    high = cents(m.product.listing.list_cents)
    code, before, _, _ = game([f"{rich} sell {high} Hello"] * 2)
    assert code == 130  # the script ends before the episode
    bid = int(re.findall(rf"Buyer {rich}: .*\[BUY\] \$([0-9.]+)", before)[-1].replace(".", ""))
    assert bid >= m.product.cost_cents, "choose another seed: this buyer does not rise above cost"
    code, before, after, _ = game([f"{rich} sell {high} Hello"] * 2 + [f"{rich} deal {cents(bid)} Fine"], "--out", page)
    assert code == 0
    assert f"Deal at ${cents(bid)} with Buyer {rich} (rank 1" in after and "the seller accepted its bid" in after
    cost, room = cents(m.product.cost_cents), m.product.listing.list_cents - m.product.cost_cents
    assert f"(${cents(bid)} - ${cost}) / (${high} - ${cost}) = {(bid - m.product.cost_cents) / room:.3f}" in after
    assert all(f"${cents(budget)}" in after for budget in m.budgets)
    assert "The oracle, a seller that knows every budget, against the same buyers:" in after
    text = page.read_text(encoding="utf-8")
    assert "human (a person)" in text and "scripted stand-in" in text and "Hello" in text


@pytest.mark.parametrize("seed", range(7, 12))
@pytest.mark.parametrize("kind", ["in_distribution", "ood_diverse"])
def test_the_seller_is_shown_no_budget_before_the_end(game, seed, kind):
    m = market(seed, kind)
    entries = ["help", "board", "item"]
    for buyer in range(1, m.n_buyers + 1):
        entries.append(f"{buyer} sell {cents(m.product.listing.list_cents)} Hello there")
    code, before, after, _ = game([*entries, "quit"], "--regime", kind, seed=seed)
    assert code == 0 and "No deal: the seller quit." in after
    # A buyer may bid its whole budget, and then the seller does see that number: as a bid.
    silent = re.sub(r"(?m)^Buyer \d+: .*$|\[BUY\] \$[0-9.]+", "", before)
    for budget in m.budgets:
        assert cents(budget) not in silent
        assert cents(budget) in after
    assert "rank" not in before and "iter-" not in before and "Thought" not in before
    assert f"Your cost:  ${cents(m.product.cost_cents)}" in before


def test_a_buyer_is_shown_neither_cost_nor_others(game):
    m = market(7)
    assert len({*m.budgets, *openings_of(m), m.product.cost_cents}) == 7
    for slot in (1, 2, 3):
        entries = ["hello from me", "help", "board", "buy 1 no more", "buy 2 still no more", "quit bye"]
        code, before, after, _ = game(entries, "--seat", "buyer", "--slot", slot)
        if code == 130:  # the market ended the script early, or the script ended first: what was shown counts
            after = ""
        assert f"You are Buyer {slot}." in before and f"Your budget: ${cents(m.budgets[slot - 1])}" in before
        assert f"[BUY] ${cents(openings_of(m)[slot - 1])}" in before
        assert cents(m.product.cost_cents) not in before
        for other in {1, 2, 3} - {slot}:
            assert f"Buyer {other}" not in before
            assert cents(m.budgets[other - 1]) not in before and cents(openings_of(m)[other - 1]) not in before
        assert "Thought" not in before and "Target" not in before
        assert not after or f"the seller's cost was ${cents(m.product.cost_cents)}" in after


def test_play_a_buyer_to_a_deal_with_the_sellers_ask(game):
    m = market(7)
    rich = 1 + m.budgets.index(max(m.budgets))
    entries = ["", "buy 100000", "deal 1", "deal Fine", "buy", "sell 3", "", "deal"]
    code, before, after, _ = game(entries, "--seat", "buyer", "--slot", rich, "--seller", "prober")
    assert code == 0
    assert f"over your budget of ${cents(m.budgets[rich - 1])}" in before
    assert "a deal repeats the seller's latest ask" in before and "'Fine' is not a price" in before
    assert "the price is missing" in before and "an entry is such as: buy 18" in before
    assert (
        "the buyer accepted the seller's ask" in after and "You paid $" in after and "your share of the room" in after
    )
    assert re.search(rf"Buyer {rich}\s+human", after)


def test_a_buyers_first_offer_is_filled_in_and_cannot_be_changed(game):
    m = market(7)
    fixed = cents(openings_of(m)[0])
    code, before, _, _ = game(
        ["buy 1.23 less", "quit", "deal", f"buy {fixed} hi"], "--seat", "buyer", "--seller", "greedy"
    )
    assert code in (0, 130)
    assert f"your first offer is fixed at ${fixed}" in before
    assert before.count("your first action must be a bid") == 2


def test_a_free_opening_must_be_typed(game):
    entries = ["hello", "buy 5.00 five", "quit"]
    _, before, _, _ = game(entries, "--seat", "buyer", "--first-offer", "free", "--seller", "greedy")
    assert "Your first offer is fixed" not in before and "an entry is such as: buy 18" in before


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        ("", "nothing typed"),
        ("sell 2 30", "'sell' is no buyer's number"),
        ("2", "after the buyer's number comes sell or deal"),
        ("2 buy 30", "comes sell or deal, not 'buy'"),
        ("2 sell", "the price is missing"),
        ("2 sell 34,99", "'34,99' is not a price"),
        ("2 sell -3", "'-3' is not a price"),
        ("2 sell 1e3", "'1e3' is not a price"),
        ("2 sell 0", "'0' is not a price"),
        ("2 sell " + "9" * 30, "is not a price"),
        ("2 sell \u0663\u0660", "is not a price"),
        ("\u0662 sell 30", "is no buyer's number"),
        ("02 sell 30", "'02' is no buyer's number"),
    ],
)
def test_a_mistyped_entry_is_explained_and_asked_again(game, entry, answer):
    code, before, after, _ = game([entry, "quit"])
    assert code == 0 and answer in before and "No deal: the seller quit." in after


def test_breaking_a_rule_asks_first(game):
    m = market(7)
    cost = cents(m.product.cost_cents)
    code, before, after, _ = game(["1 sell 0.01 cheap", "n", "9 sell 99999", "", "1 deal 99999", "no", "quit"])
    assert code == 0 and "No deal" in after
    assert before.count("This ends the episode with -1; really? y/N") == 3
    assert f"(below_cost): [SELL] $0.01 is below the cost ${cost}" in before
    assert "(target): there is no Buyer 9 among 3" in before and "(deal): $99999.00 is none of Buyer 1's bids" in before


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("1 sell 0.01 cheap", "below_cost"),
        ("9 sell 99999", "target"),
        ("1 deal 99999", "deal"),
        ("1 sell 99999 Deal at $5.00!", "format"),
        ("1 sell 99999 <think>", "format"),
    ],
)
def test_a_confirmed_violation_ends_with_minus_one(game, entry, kind):
    code, _, after, _ = game([entry, "y"])
    assert code == 0 and f"Violation by the seller ({kind})" in after
    assert "reward = -1 (the seller broke a rule)" in after


def test_another_entry_instead_of_yes_or_no_means_no(game):
    code, _, after, _ = game(["1 sell 0.01 cheap", "quit enough"])
    assert code == 0 and "No deal: the seller quit." in after


def test_leaving_early_writes_nothing(game, tmp_path):
    page = tmp_path / "page.html"
    code, _, after, err = game(["help"], "--out", page)
    assert code == 130 and after == "" and "abandoned" in err and not page.exists()


def test_play_refuses_in_one_line(tmp_path, capsys):
    script = tmp_path / "s"
    script.write_text("quit\n", encoding="utf-8")
    assert "--script FILE" in refused(capsys, "play")  # pytest's standard input is no terminal
    play = ("play", "--script", script)
    assert "No such file" in refused(capsys, "play", "--script", tmp_path / "none")
    assert "Is a directory" in refused(capsys, "play", "--script", tmp_path)
    assert "go with --seat buyer" in refused(capsys, *play, "--slot", 2)
    assert "has buyers 1 to 3" in refused(capsys, *play, "--seat", "buyer", "--slot", 4)
    assert "no product 'audio-gear_0'" in refused(capsys, *play, "--codename", "audio-gear_0")
    assert "not allowed" in refused(capsys, *play, "--seed", "-1")
    assert "unknown regime" in refused(capsys, *play, "--regime", "none")
    assert "make it first" in refused(capsys, *play, "--out", tmp_path / "no" / "x.html")
    got, _, err = call(capsys, *play, "--seat", "buyer", "--seller", "nobody")
    assert got == 2 and "unknown seller" in err
    (tmp_path / "latin").write_bytes(b"quit \xe9\n")
    assert "not UTF-8" in refused(capsys, "play", "--script", tmp_path / "latin")


def test_the_seed_is_told_and_repeats_the_market(tmp_path, capsys):
    script = tmp_path / "s"
    script.write_text("quit\n", encoding="utf-8")
    _, first, _ = call(capsys, "play", "--script", script)
    again = re.search(r"--seed \d+ --codename \S+", first)[0].split()
    assert call(capsys, "play", "--script", script, *again)[1] == first


def converse(command, dialogue, timeout=60):
    """Run a command on a pseudo-terminal: wait for each text, then send the answer. Returns exit code and output."""
    child, terminal = pty.fork()
    if child == 0:
        default_interrupt()
        os.environ.update(TERM="dumb", PYTHONPATH=os.pathsep.join(sys.path))
        os.execv(command[0], command)
    seen, at, until = b"", 0, time.monotonic() + timeout
    pending = list(dialogue)
    answer, heard = b"", time.monotonic()
    while time.monotonic() < until:
        if pending and pending[0][0] in seen[at:]:
            at = seen.index(pending[0][0], at) + len(pending[0][0])
            answer = pending.pop(0)[1]
            os.write(terminal, answer)
        elif len(answer) == 1 and time.monotonic() > heard + 2:
            # An interrupt between the prompt and the wait for a key is only noticed at the next key, in any Python.
            os.write(terminal, answer)
            heard = time.monotonic()
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                more = os.read(terminal, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not more:
                break
            seen += more
            heard = time.monotonic()
    else:
        os.kill(child, 9)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not pending, (pending, seen.decode(errors="replace"))
    return code, seen.decode(errors="replace")


PLAY = [sys.executable, "-m", "negolab.cli", "play", "--seed", "7", "--codename", ITEM]


def test_a_person_at_a_terminal():
    prompt = b"left> "
    code, seen = converse(
        PLAY,
        [(prompt, b"hm\n"), (prompt, b"\xff\xfe\n"), (prompt, b"1 sell 1\n"), (b"y/N ", b"n\n"), (prompt, b"quit\n")],
    )
    assert code == 0 and "'hm' is no buyer's number" in seen and "No deal: the seller quit." in seen
    assert "Traceback" not in seen


def test_ctrl_c_and_ctrl_d_leave_cleanly():
    for key in (b"\x03", b"\x04"):
        code, seen = converse(PLAY, [(b"left> ", key)])
        assert code == 130 and "abandoned" in seen and "Traceback" not in seen and "--- The end ---" not in seen


def test_show_on_a_terminal_is_in_colour(run_folder):
    command = [sys.executable, "-c"]
    code = "import os,sys; os.environ['TERM']='xterm'; from negolab.cli import main; sys.exit(main(sys.argv[1:]))"
    done, seen = converse([*command, code, "show", str(run_folder)], [])
    assert done == 0 and "\x1b[1;34mBuyer 1 (rank" in seen
    plain = "import os,sys; os.environ['NO_COLOR']='1'; from negolab.cli import main; sys.exit(main(sys.argv[1:]))"
    assert "\x1b" not in converse([*command, plain, "show", str(run_folder)], [])[1]
