"""The pocket model: a language model of about one million parameters that speaks the whole protocol.

Small enough to be made and trained on two cores, and committed. It is a Qwen3 like the paper's seller, three orders of
magnitude smaller, with a tokenizer of its own (``tokenizer.py``), made from scratch on scripted play (``teacher.py``,
``corpus.py``, ``pretrain.py``). Nothing else in the package knows of it: it plays, is trained and is evaluated as any
other model is, from a folder in transformers' format.
"""
