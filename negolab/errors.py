"""The one exception that means "the user can mend this": the command line prints it as one line and exits with 2."""


class NegolabError(Exception):
    """A mistake in a setting, file or argument. The message says what is wrong, where, and what is allowed."""


class DamagedRun(NegolabError):
    """A run folder holds records that cannot be trusted; the command line exits with 1, not 2: nothing was mistyped."""
