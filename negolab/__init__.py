"""negolab: reproducible experiments on how language models bargain.

Light by design: importing the package loads neither torch nor pandas nor matplotlib nor any vendor SDK.
"""

__version__ = "0.1.0"
