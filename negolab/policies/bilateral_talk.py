"""What the scripted players of the bilateral game say: sentences without prices, which stand in the Action alone.

A buyer's reason is of one of a few kinds, and a scripted seller recognises the kind by words (``reasons``). So what a
buyer says can move a seller, within the limits of its rules; it is never read as a move.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

REASONS: Mapping[str, re.Pattern[str]] = {
    "rival": re.compile(r"\b(elsewhere|another (?:seller|shop|store)|other (?:sellers|shops|stores|offers))\b", re.I),
    "means": re.compile(r"\b(budget|afford|money is (?:tight|short)|all I (?:have|can spend))\b", re.I),
    "value": re.compile(r"\b(used to sell|sold for less|price history|not worth|worth less|older model)\b", re.I),
    "ease": re.compile(r"\b(right away|today|at once|right now|no delay|pick it up)\b", re.I),
    "warmth": re.compile(r"\b(please|thank you|thanks|appreciate|kind of you|meet me halfway)\b", re.I),
}
"""Kinds of reason a buyer may give for a low price, and the words that show one."""


def reasons(talks: Iterable[str]) -> int:
    """How many kinds of reason were given in all of ``talks``; saying one again adds nothing."""
    said = "\n".join(talks)
    return sum(pattern.search(said) is not None for pattern in REASONS.values())


BUYER_REASONS: Mapping[str, tuple[str, ...]] = {
    "rival": ("I have seen it cheaper elsewhere.", "Another seller would let it go for less."),
    "means": ("My budget does not reach further.", "It is all I can spend on it."),
    "value": ("It used to sell for much less.", "To me it is an older model by now."),
    "ease": ("I would pay right away.", "We could close it today."),
    "warmth": ("Would you meet me halfway, please?", "I would really appreciate it."),
}
"""Two wordings of every kind. A test holds them against ``REASONS``."""
PLAIN_OFFERS = ("I would like to buy it.", "Here is what I offer.", "What do you say to this?", "Can we agree on this?")
"""Offers without a reason."""
BUYER_ACCEPTS = ("Agreed, I take it.", "Good, that works for me.", "Fine, it is a deal.", "All right, let us do that.")
BUYER_QUITS = ("We are too far apart, goodbye.", "That is more than I can do. Goodbye.")
BUYER_REFUSES = ("No, that is too much.", "I cannot say yes to that.")

SELLER_TALK: Mapping[str, Mapping[str, Sequence[str]]] = {
    "neutral": {
        "ask": (
            "I can do it at this price.",
            "For this it is yours.",
            "It is in good shape, this is fair.",
            "My offer.",
        ),
        "firm": ("I would have to stay here for now.", "That is too low for me to move.", "I need more than that."),
        "deal": ("Agreed, thank you.", "You have a deal.", "Sold.", "That works for me."),
        "quit": ("I am afraid we will not agree. Goodbye.", "Then it stays on the shelf. Goodbye."),
        "reject": ("No, I cannot take that.", "That does not work for me."),
    },
    "begging": {
        "ask": (
            "I need this sale badly, have a heart.",
            "My rent is due, I beg you.",
            "You would save my week, please.",
        ),
        "firm": ("That breaks my heart, I beg you to give more.", "I can hardly sleep, please do not do this to me."),
        "deal": ("Bless you, take it.", "With tears in my eyes, it is yours."),
        "quit": ("Then I am lost. Goodbye.", "I have nothing left to give. Goodbye."),
        "reject": ("I beg you, not that little.", "Please, I cannot live on that."),
    },
    "insulting": {
        "ask": ("Pay up or get lost.", "Even you can understand this number.", "Stop wasting my time and take it."),
        "firm": ("What a pathetic offer.", "Are you joking, cheapskate?", "I do not haggle with beggars."),
        "deal": ("Finally. Take it and go.", "Fine, now get out of my sight."),
        "quit": ("Get lost, you are not worth my time.", "I am done with you."),
        "reject": ("Ridiculous. No.", "Do not insult me with that."),
    },
    "unyielding": {
        "ask": (
            "This is what it is worth, every cent.",
            "My position is fair and it stands.",
            "I know what I have here.",
        ),
        "firm": ("I will not move.", "My price is right, yours is not.", "No. The price stands."),
        "deal": ("As I said, it is worth it. Sold.", "Very well, at last. Sold."),
        "quit": ("Then you will not have it. Goodbye.", "I do not bend. Goodbye."),
        "reject": ("No.", "Out of the question."),
    },
}
"""By persona and kind of message."""
