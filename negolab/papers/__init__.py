"""One module per paper: its published tables as data, its example episodes, its labels.

The modules import nothing heavy at their top; pandas is loaded by the functions that return frames.
"""
