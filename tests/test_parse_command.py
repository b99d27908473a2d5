"""``negolab parse``: the 71 seller replies with known verdicts, and files of every kind."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from negolab.cli import main
from runs import ROOT, command, environment, one_line, run_command

CASES = [json.loads(line) for line in (ROOT / "tests/cases/seller_replies.jsonl").read_text("utf-8").splitlines()]
MARKET = ["--buyers", "3", "--bids", "1:22.00,2:27.50", "--codename", "baby-products_17"]
PRICES = ["--list-price", "34.99", "--cost", "18.75"]
GOOD = "Thought: t\nTarget: Buyer 2\nTalk: x\nAction: [SELL] $32.00 (1x baby-products_17)"
SELL = {"ok": True, "target": 2, "action": "SELL", "price_cents": 3200}


def reply(text: str | None = GOOD, reason: str | None = "stop", **more) -> str:
    """One line of input."""
    return json.dumps({"text": text, "finish_reason": reason, **more}) + "\n"


def judge(capsys, content: str | bytes, folder: Path, *more: str) -> tuple[int, list[dict], str]:
    """Exit code, verdicts and errors for a file with this content."""
    file = folder / "replies.jsonl"
    file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    capsys.readouterr()
    code = main(["parse", "--jsonl", str(file), *MARKET, *PRICES, *more])
    out, err = capsys.readouterr()
    assert out.isascii()
    return code, [json.loads(line) for line in out.splitlines()], err


def agrees(verdict: dict, expected: dict) -> bool:
    """Whether a verdict is the expected one; ``detail`` is free."""
    return {name: value for name, value in verdict.items() if name != "detail"} == expected


def test_all_cases_through_the_command():
    done = run_command(["parse", "--jsonl", str(ROOT / "tests/cases/seller_replies.jsonl"), *MARKET, *PRICES])
    assert done.returncode == 0 and done.stderr == ""
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    right = [agrees(verdict, case["expect"]) for verdict, case in zip(verdicts, CASES, strict=True)]
    assert (sum(right), len(right)) == (71, 71), [c["id"] for c, ok in zip(CASES, right, strict=True) if not ok]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case, tmp_path, capsys):
    code, verdicts, err = judge(capsys, reply(case["text"], case["finish_reason"]), tmp_path)
    assert code == 0 and err == "" and len(verdicts) == 1
    assert agrees(verdicts[0], case["expect"]), case["title"]
    assert verdicts[0]["ok"] or verdicts[0]["detail"]


def test_order_is_kept(tmp_path, capsys):
    prices = [1900 + 7 * n % 1500 for n in range(2000)]
    lines = [reply(GOOD.replace("32.00", f"{p // 100}.{p % 100:02d}")) for p in prices]
    code, verdicts, _ = judge(capsys, "".join(lines), tmp_path)
    assert code == 0 and [verdict["price_cents"] for verdict in verdicts] == prices


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (reply(None), "format"),
        (reply(""), "format"),
        (reply(GOOD, "length"), "truncated"),
        (reply(None, "length"), "truncated"),
        (reply(GOOD.replace("Talk: x", "Talk: \ud800")), None),
        (reply("\udcff" * 10), "format"),
        (reply(GOOD.replace("Talk: x", "Talk: " + "y" * 20_000_000)), None),
        (reply(GOOD, None), None),
        (json.dumps({"text": GOOD}) + "\n", None),
        (reply(GOOD, "content_filter"), None),
        (reply(GOOD, more={"nested": [1]}), None),
        (reply(GOOD.replace("Buyer 2", "Buyer " + "9" * 100_000)), "target"),
        (reply(GOOD.replace("Buyer 2", "Buyer 4")), "target"),
        (reply(GOOD.replace("[SELL] $32.00", "[SELL] $18.74")), "below_cost"),
        (reply(GOOD.replace("[SELL] $32.00", "[DEAL] $27.51")), "deal"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_odd_replies_get_a_verdict(line, kind, tmp_path, capsys):
    code, verdicts, err = judge(capsys, line, tmp_path)
    assert code == 0 and err == "" and len(verdicts) == 1
    assert verdicts[0].get("kind") == kind


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("not json\n", "line 3: not JSON"),
        ('{"text": "a"\n', "line 3: not JSON"),
        ('{"text": "a"} {}\n', "line 3: not JSON"),
        ("[" * 100_000 + "\n", "line 3: not JSON"),
        ('{"text": ' + "9" * 5000 + "}\n", "line 3: not JSON"),
        ("[1]\n", 'line 3: expected an object with "text"'),
        ("null\n", 'line 3: expected an object with "text"'),
        ('"text"\n', 'line 3: expected an object with "text"'),
        ("{}\n", 'line 3: expected an object with "text"'),
        ('{"text": 7}\n', 'line 3: expected an object with "text"'),
        ('{"text": NaN}\n', 'line 3: expected an object with "text"'),
        ('{"text": "a", "finish_reason": 1}\n', 'line 3: "finish_reason" must be a string'),
        (b'{"text": "\xff"}\n', "line 3: not UTF-8 at byte 10 of the line"),
        ('{"text": "a"}\n'.encode("utf-16"), "line 3: not UTF-8"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_lines_that_are_no_reply_are_named(line, told, tmp_path, capsys):
    line = line.encode() if isinstance(line, str) else line
    code, verdicts, err = judge(capsys, reply().encode() * 2 + line + reply().encode(), tmp_path)
    assert code == 2 and told in one_line(err)
    assert verdicts == [SELL, SELL], "what came before is judged"


@pytest.mark.parametrize(
    "content",
    [
        reply() + reply(),
        reply() + reply().rstrip("\n"),
        (reply() + reply()).replace("\n", "\r\n"),
        "\ufeff" + reply() + reply(),
        "\n" + reply() + "  \r\n\n" + reply() + "\n\n",
    ],
    ids=["lines", "no last newline", "CRLF", "BOM", "blank lines"],
)
def test_files_as_editors_leave_them(content, tmp_path, capsys):
    assert judge(capsys, content, tmp_path) == (0, [SELL, SELL], "")


@pytest.mark.parametrize("content", ["", "\n", " \r\n\n", "\ufeff"])
def test_an_empty_file_gives_nothing(content, tmp_path, capsys):
    assert judge(capsys, content, tmp_path) == (0, [], "")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--buyers", "0"], "argument --buyers: '0' is not allowed"),
        (["--buyers", "-3"], "argument --buyers"),
        *[
            (["--bids", bids], "is not BUYER:PRICE with BUYER from 1 to 3, such as 2:27.50")
            for bids in (
                "1",
                "1:",
                ":5",
                "1:x",
                "0:5",
                "4:5",
                "01x:5",
                "1:-5",
                "1:nan",
                "1:1e3",
                "1;5",
                "1:5:6",
                "１:5",
            )
        ],
        (["--bids", "1:" + "9" * 5000], "is not BUYER:PRICE"),
        (["--bids", "1:99999999999999"], "is not BUYER:PRICE"),
        (["--inactive", "4"], "'4' is not a buyer from 1 to 3"),
        (["--inactive", "x"], "'x' is not a buyer from 1 to 3"),
        (["--cost", "34.99"], "--cost must be below --list-price"),
        (["--cost", "nan"], "argument --cost: not a price"),
        (["--cost", "-1"], "argument --cost: not a price"),
        (["--list-price", "1.234"], "argument --list-price: not a price"),
        (["--list-price", "9" * 5000], "is above the largest amount"),
        (["--list-price", "99999999999"], "is above the largest amount"),
        (["--codename", ""], "a codename has no blanks and no brackets"),
        (["--codename", "a b"], "a codename has no blanks and no brackets"),
        (["--codename", "a)"], "a codename has no blanks and no brackets"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_markets_that_are_none(args, told, tmp_path, capsys):
    code, verdicts, err = judge(capsys, reply(), tmp_path, *args)
    assert code == 2 and verdicts == []
    assert told in one_line(err) and len(err) < 400


def test_files_that_cannot_be_read(tmp_path, capsys):
    for path, told in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "s a directory"),
        (tmp_path / "x" / "y", "No such"),
    ):
        assert main(["parse", "--jsonl", str(path), *MARKET, *PRICES]) == 2
        assert told in one_line(capsys.readouterr().err)


def test_several_bids_of_one_buyer_all_stand(tmp_path, capsys):
    deals = [reply(GOOD.replace("[SELL] $32.00", f"[DEAL] ${price}")) for price in ("27.50", "29.00", "28.00")]
    code, verdicts, _ = judge(capsys, "".join(deals), tmp_path, "--bids", " 2:27.50 , 2:$29 ,1:28.00,")
    assert code == 0 and [verdict["ok"] for verdict in verdicts] == [True, True, False]
    assert verdicts[2]["kind"] == "deal"


def test_who_has_left_cannot_be_spoken_to_and_no_bids_are_fine(tmp_path, capsys):
    code, verdicts, _ = judge(capsys, reply(), tmp_path, "--inactive", "1, 2")
    assert code == 0 and verdicts[0]["kind"] == "target"
    assert judge(capsys, reply(), tmp_path, "--bids", "") == (0, [SELL], "")


def test_thinking_is_an_option(tmp_path, capsys):
    line = reply("<think>hm</think>\n" + GOOD)
    assert judge(capsys, line, tmp_path)[1][0]["kind"] == "format"
    assert judge(capsys, line, tmp_path, "--thinking")[1] == [SELL]


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("\ufeff" + reply()).encode()), encoding="ascii"))
    assert main(["parse", "--jsonl", "-", *MARKET, *PRICES]) == 0
    assert json.loads(capsys.readouterr().out) == SELL
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["parse", "--jsonl", "-", *MARKET, *PRICES]) == 2
    assert "standard input is closed" in one_line(capsys.readouterr().err)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    assert main(["parse", "--jsonl", "-", *MARKET, *PRICES]) == 2
    assert "standard input, line 1: expected an object" in one_line(capsys.readouterr().err)


def test_standard_input_of_a_process_in_a_plain_locale():
    env = environment(LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    text = json.dumps({"text": GOOD.replace("Talk: x", "Talk: très 商品")}, ensure_ascii=False) + "\n"
    args = command(["parse", "--jsonl", "-", *MARKET, *PRICES])
    done = subprocess.run(args, input=text.encode(), env=env, capture_output=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout) == SELL
    closed = subprocess.run(
        ["bash", "-c", '"$@" <&-', "bash", *args], env=env, capture_output=True, text=True, timeout=60
    )
    assert closed.returncode == 2 and "standard input is closed" in one_line(closed.stderr)


TAGS = ["--protocol", "tags", "--buyers", "3", "--cost", "55.99,100.00,42.07", "--bids", "1:3:45.66,2:1:100.00"]


def in_tags(action: str, target: str = "Buyer 1") -> str:
    return f"<Thought>t</Thought>\n<Target>{target}</Target>\n<Talk>x</Talk>\n<Action>{action}</Action>"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("[SELL] $150.00 (1x Item_2); $60.00 (1x Item_1)", [(2, 15000), (1, 6000)]),
        ("[DEAL] $45.66 (1x Item_3)", [(3, 4566)]),
        ("[QUIT]", []),
        ("[DEAL] $45.67 (1x Item_3)", "deal"),
        ("[DEAL] $100.00 (1x Item_1)", "deal"),
        ("[SELL] $55.98 (1x Item_1)", "below_cost"),
        ("[SELL] $60.00 (1x Item_4)", "item"),
        ("[SELL] $60.00", "format"),
    ],
)
def test_replies_with_tags_are_held_against_the_markets_rules(action, expected, tmp_path, capsys):
    file = tmp_path / "replies.jsonl"
    file.write_text(reply(in_tags(action)))
    assert main(["parse", "--jsonl", str(file), *TAGS]) == 0
    (verdict,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    if isinstance(expected, str):
        assert (verdict["ok"], verdict["kind"]) == (False, expected)
    else:
        assert verdict["ok"] and [(o["item"], o["price_cents"]) for o in verdict["offers"]] == expected


def test_a_sold_item_is_gone_and_an_inactive_buyer_is_told_first(tmp_path, capsys):
    file = tmp_path / "replies.jsonl"
    file.write_text(
        reply(in_tags("[SELL] $150.00 (1x Item_2)")) + reply(in_tags("[SELL] $150.00 (1x Item_2)", "Buyer 3"))
    )
    assert main(["parse", "--jsonl", str(file), *TAGS, "--sold", "2", "--inactive", "3"]) == 0
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["item", "target"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--codename", "x"], "go with --protocol lines"),
        (["--bids", "1:45.66"], "BUYER:ITEM:PRICE"),
        (["--bids", "1:4:45.66"], "BUYER:ITEM:PRICE"),
        (["--sold", "4"], "--sold: '4' is not an item from 1 to 3"),
        (["--protocol", "lines"], "needs --codename and --list-price"),
        (["--protocol", "lines", "--codename", "x", "--list-price", "60"], "lines sell one"),
    ],
)
def test_options_that_do_not_go_together(options, words, tmp_path, capsys):
    file = tmp_path / "replies.jsonl"
    file.write_text(reply())
    assert main(["parse", "--jsonl", str(file), *TAGS, *options]) == 2
    assert words in one_line(capsys.readouterr().err)
