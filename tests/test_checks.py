"""Checks of numbers: what passes comes back plain, what does not is named with what is allowed."""

import numpy as np
import pytest

from capo import CapoError, checks


def test_what_passes_is_plain():
    assert checks.whole("n", 1e6) == 1_000_000
    assert isinstance(checks.check_seed(np.int64(3)), int)
    assert checks.seeds_from(np.int64(3), np.int64(2)) == [3, 4]
    assert checks.seeds_from(0, np.array([5, 2])) == [5, 2]
    assert checks.seeds([4, 1]).tolist() == [4, 1]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.whole("n", 2.5), "n=2.5 must be a positive integer"),
        (lambda: checks.whole("n", "3", 2), "n='3' must be an integer of at least 2"),
        (lambda: checks.positive("eta", float("inf")), "eta=inf must be positive and finite"),
        (lambda: checks.between("gamma", 1.5, 0, 1), "gamma=1.5 must be between 0 and 1"),
        (lambda: checks.check_seed(-1), "seed=-1 must be an integer from 0 to"),
        (lambda: checks.check_seed(True), "seed=True must be an integer from 0 to"),
        (lambda: checks.check_seed(2**31), "seed=2147483648 must be"),
        (lambda: checks.seeds_from(2**31 - 1, 2), "seed=2147483648 must be"),
        (lambda: checks.seeds_from("1", 2), "seed='1' must be"),
        (lambda: checks.seeds_from(0, 0), "seeds=0 must be a positive integer"),
        (lambda: checks.seeds_from(0, []), "at least one seed and no duplicates"),
        (lambda: checks.seeds_from(0, [1, 1]), "no duplicates"),
        (lambda: checks.seeds([]), "must have at least one seed"),
    ],
)
def test_what_does_not_pass_is_named(check, message):
    with pytest.raises(CapoError, match=message):
        check()
