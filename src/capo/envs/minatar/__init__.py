"""The five MinAtar games inside jax, fast on a GPU and the same to the bit as pgx's.

``games.py`` is the environment that learners see. Three games have a step of our own that works on whole lists of
things instead of looping over them: ``asterix.py``, ``freeway.py`` and ``seaquest.py``, on top of ``lists.py``.
Space Invaders keeps pgx's step with its loops unrolled (``unrolled.py``); Breakout is pgx's as it is.
"""
