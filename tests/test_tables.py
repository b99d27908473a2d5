"""Tables in Markdown and LaTeX: what a name may hold, which cells are marked, and what does not exist."""

import math
import re

import pytest

from negolab.papers import tables
from negolab.papers.tables import Cell, Grid, escape_latex, grid, latex, markdown

NASTY = '50% & $1_{a}^b ~ #3 \\cmd <x> | "q" [y] -- --- é ± ↑ −\t*b*\n\\\\'


def tokens(text: str) -> list[str]:
    """LaTeX as a strict reader sees it: control words, control symbols, and single characters."""
    return re.findall(r"\\[A-Za-z]+|\\.|.", text, re.DOTALL)


def printed(text: str) -> str:
    """What LaTeX prints of an escaped text. Raises for anything that would be a command or break a row."""
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "pm": "±", "times": "×"}
    words |= {"textless": "<", "textgreater": ">", "textbar": "|", "textquotedbl": '"', "uparrow": "↑"}
    words |= {"downarrow": "↓"}
    out, depth, maths = [], 0, False
    for token in tokens(text):
        if token in ("{", "}"):
            depth += 1 if token == "{" else -1
            assert depth >= 0
        elif token == "$":
            maths = not maths
        elif token.startswith("\\") and token[1:] in words:
            out.append(words[token[1:]])
        elif token.startswith("\\"):
            assert token[1:] in "&%$#_{}", f"{token} is a command"
            out.append(token[1:])
        else:
            assert token not in "&%#_^~", f"{token} means something to LaTeX"
            out.append("−" if maths and token == "-" else token)
    assert depth == 0 and not maths
    return "".join(out)


@pytest.mark.parametrize("text", [NASTY, *"&%$#_{}~^\\<>|[]-", "--", "----", "\\\\[2pt]", "$\\pm$", "{}", "a{}b"])
def test_latex_prints_every_text_as_it_stands(text):
    escaped = escape_latex(text)
    assert printed(escaped) == re.sub(r"[\t\n]", " ", text)
    assert "--" not in escaped and "\\\\" not in escaped  # no dash, no end of row


def test_control_characters_cannot_reach_a_file():
    assert escape_latex("a\x00\x01\x03\u202eb") == "ab"


def table(**changes):
    rows = [
        {"seller": "a|b", "source": "x", "reward": 0.1, "reward_se": 0.01, "reward_n": 4},
        {"seller": "<b>", "source": "x", "reward": 0.3, "reward_se": None, "reward_n": 1},
        {"seller": "c", "source": "x", "reward": math.nan, "reward_n": 0},
        {"seller": "d", "source": "y", "reward": 0.2, "reward_se": 0.02},
    ]
    return grid(rows, ["reward"], {"seller": "Seller"}, **changes)


def test_best_and_second_are_judged_within_a_group_and_one_alone_is_neither():
    assert [line[1].place for line in table().body] == [2, 1, 0, 0]
    assert [line[1].place for line in table(group="nothing").body] == [0, 1, 0, 2]
    assert table().rules == {3}


def test_markdown_keeps_its_columns():
    lines = markdown(table()).splitlines()
    assert lines[0] == "| Seller | Reward ↑ |" and lines[1] == "| --- | ---: |"
    assert lines[2] == r"| a\|b | <u>+0.100 ± 0.010 (4)</u> |"
    assert lines[3] == "| &lt;b> | **+0.300 ± n/a (1)** |"
    assert lines[4] == "| c | n/a |" and lines[5] == "| d | +0.200 ± 0.020 |"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines)
    assert r"\*\*" in markdown(Grid(["h"], [[Cell("**")]]))


def test_latex_is_a_booktabs_tabular_with_a_line_between_groups():
    text = latex(table(), ["50% of\nit"])
    assert text.splitlines() == [
        "% 50% of it",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Seller & Reward $\uparrow$ \\",
        r"\midrule",
        r"a\textbar{}b & \underline{+0.100 $\pm$ 0.010 (4)} \\",
        r"\textless{}b\textgreater{} & \textbf{+0.300 $\pm$ n/a (1)} \\",
        r"c & n/a \\",
        r"\midrule",
        r"d & +0.200 $\pm$ 0.020 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_lower_is_better_for_violations_and_equal_in_print_is_equal():
    assert tables.places([0.0, 0.0, 0.1, math.nan], "violation_rate") == [1, 1, 2, 0]
    assert tables.places([0.50001, 0.5, 0.4], "reward") == [1, 1, 2]
