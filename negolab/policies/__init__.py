"""Players. Scripted ones need nothing; those that load a model import their vendor only when they are made."""
