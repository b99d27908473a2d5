"""Learning to bargain: a seat's own episodes become training rows, TRL keeps the loss (2607.05863, sections 3.2, 4, 9).

``task`` says what is learnt, ``sampler`` plays the learner, ``rows`` and ``advantages`` make training data of episodes,
``grpo`` is TRL's trainer fed with them, ``loop`` is the run. Nothing here loads torch or TRL until a run begins.
"""
