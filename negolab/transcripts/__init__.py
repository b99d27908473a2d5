"""Transcripts of finished episodes, laid out as in section 14 of 2607.05863: for the terminal and as one HTML page.

Both show what no player saw as a whole (budgets, ranks, everybody's Thought) and say whose secret each thing is. Text
that a player or a catalogue wrote is only ever shown: control and direction-changing characters are spelled out, the
page is escaped by its template engine, and its one script is allowed by hash, so that no other could run.

``turns`` says what stands at each turn, ``whole`` what is said of the episode as a whole; ``terminal`` and ``page`` lay
it out.

Where this departs from section 14: rank and budget stand beside a buyer's name at every turn, not only at the first.
"""

from negolab.transcripts.page import to_html
from negolab.transcripts.terminal import WIDTH, buyer_colour, to_text, wrap
from negolab.transcripts.turns import Step, printable, sections, split_reply, steps
from negolab.transcripts.whole import (
    HIDDEN_COLUMNS,
    buyer_name,
    engaged_text,
    facts,
    hidden_rows,
    outcome_text,
    reward_text,
    title_of,
)

__all__ = [
    "HIDDEN_COLUMNS",
    "WIDTH",
    "Step",
    "buyer_colour",
    "buyer_name",
    "engaged_text",
    "facts",
    "hidden_rows",
    "outcome_text",
    "printable",
    "reward_text",
    "sections",
    "split_reply",
    "steps",
    "title_of",
    "to_html",
    "to_text",
    "wrap",
]
