"""What the notebooks share, so that they stay thin.

A notebook begins with ``begin(...)``, which checks every parameter and returns a ``Study``; it ends with
``Study.write(...)``, which writes its tables and figures and prints the line that tells a finished run from one whose
kernel died. The frames between the two come from ``frames``, single episodes from ``examples``; of several items from
``frames_items`` and ``examples_items``.
Notebooks on training begin with ``begin_training(...)`` instead and take their frames from ``training``.

Below the study's folder lie ``evaluations/<regime>-<seller>-seed<k>`` (run folders, resumed when they exist),
``tables``, ``figures`` and ``transcripts``. By default that folder's name holds a hash of settings, data and code: the
same notebook run again goes on where it stopped, and changed code never mixes with older results.
"""

from negolab.catalog import AUTO, find_data
from negolab.notebook import examples, frames
from negolab.notebook.parameters import PARAMETERS, ParameterError, check
from negolab.notebook.showing import Page, show
from negolab.notebook.study import FINISHED, Study, begin
from negolab.notebook.training_runs import TrainingStudy, begin_training

__all__ = [
    "AUTO",
    "FINISHED",
    "PARAMETERS",
    "Page",
    "ParameterError",
    "Study",
    "TrainingStudy",
    "begin",
    "begin_training",
    "check",
    "examples",
    "find_data",
    "frames",
    "show",
]
