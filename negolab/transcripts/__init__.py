"""Transcripts of finished episodes, laid out as in section 14 of 2607.05863: for the terminal and as one HTML page.

Both show what no player saw as a whole (budgets, ranks, everybody's Thought) and say whose secret each thing is. Text
that a player or a catalogue wrote is only ever shown: control and direction-changing characters are spelled out, the
page is escaped by its template engine, and its one script is allowed by hash, so that no other could run.

``turns`` says what stands at each turn, ``whole`` what is said of the episode as a whole, ``whole_items`` the same
where there are several items, and ``words`` which of the two it is; ``terminal`` and ``page`` lay it out.

Where this departs from section 14: rank and budget stand beside a buyer's name at every turn, not only at the first.
"""

from negolab.transcripts.characters import printable
from negolab.transcripts.page import to_html
from negolab.transcripts.tables import Table, table_lines
from negolab.transcripts.terminal import WIDTH, buyer_colour, to_text, wrap
from negolab.transcripts.turns import Step, sections, split_reply, split_tags, steps
from negolab.transcripts.whole import HIDDEN_COLUMNS, hidden_rows
from negolab.transcripts.words import engaged_text, outcome_text, reward_text, title_of, words_of

__all__ = [
    "HIDDEN_COLUMNS",
    "WIDTH",
    "Step",
    "Table",
    "buyer_colour",
    "engaged_text",
    "hidden_rows",
    "outcome_text",
    "printable",
    "reward_text",
    "sections",
    "split_reply",
    "split_tags",
    "steps",
    "table_lines",
    "title_of",
    "to_html",
    "to_text",
    "words_of",
    "wrap",
]
