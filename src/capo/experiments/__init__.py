"""One file per figure of the paper; each writes data first, then draws it. See :mod:`capo.experiments.common`."""
