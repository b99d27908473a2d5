"""What the scripted traders say. No line names a price: prices are offers, and an offer is made by its tool."""

from collections.abc import Mapping

from negolab.environment.base import BUYER, SELLER

Lines = tuple[str, ...]

TALK: Mapping[int, Mapping[str, Lines]] = {
    SELLER: {
        "open": (
            "This is a sought-after item, and my price shows it.",
            "Thanks for looking. Here is what I have in mind.",
            "It is in fine condition and ready to go.",
        ),
        "hold": (
            "I have already come a long way; I will stay here.",
            "Others have asked about it, so I will hold my price.",
        ),
        "step": (
            "I can meet you a little closer.",
            "This is a smaller step than the last, and there are not many left.",
            "Let us see whether this works for both of us.",
        ),
        "accept": ("Agreed, it is yours.", "That works for me."),
        "quit": (
            "We are too far apart. Good luck with your search.",
            "I would rather keep it. Thank you for your time.",
        ),
    },
    BUYER: {
        "open": (
            "I like it, but I have seen it for much less.",
            "Hello! This is what I had planned to spend.",
            "For one that is not new, this seems fair to start with.",
        ),
        "hold": (
            "I do not see a reason to go higher yet.",
            "There are other sellers, so I will stay where I am.",
        ),
        "step": (
            "I can stretch a little further.",
            "Each step gets harder for me, but here is one more.",
            "Let us find a price that suits us both.",
        ),
        "accept": ("Agreed, I will take it.", "That works for me."),
        "quit": ("That is beyond what I can do. Thank you anyway.", "I will look elsewhere then. All the best."),
    },
}
"""By seat, then by what is done."""

SIDE_OFFERS: Mapping[int, Lines] = {
    SELLER: ("I will pack it well and post it today.", "With the original box."),
    BUYER: ("I can collect it today.", "I will leave a good review."),
}
"""By seat: what may come with an offer."""

THOUGHTS: Mapping[str, str] = {
    "search": "First see what it has cost before.",
    "open": "Open far enough from my limit to have room for concessions.",
    "hold": "What they offer is already a gain; give up little and wait.",
    "step": "A step towards a deal, still on the right side of my limit.",
    "accept": "Better than what I would get by going on.",
    "quit": "Nothing here leaves me a gain; no deal is better than a bad one.",
}
"""By what is done: the private Thought. ``accept`` is the same at a loss: who does that believes it."""
