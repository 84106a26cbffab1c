"""Results are what they were when they were recorded; see golden_store for what that means where."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
from golden_cases import CLASSES, GROUPS, PRESETS, agent_class
from golden_store import (
    BITS,
    TOLERANCES,
    compare,
    describe,
    differences_of_environment,
    file_of,
    mode,
    read,
)

CASES = [pytest.param(group, name, id=f"{group}: {name}") for group, cases in GROUPS.items() for name in cases]


@pytest.mark.parametrize(("group", "name"), CASES)
def test_results_are_the_recorded_ones(group: str, name: str, tmp_path: Path) -> None:
    if group in ("neural", "games"):
        import jax

        if jax.default_backend() != "cpu":
            pytest.skip("recorded on a CPU")
    recorded = read(group)
    how = mode(recorded["environment"])
    if how == "tolerance":
        why = ", ".join(differences_of_environment(recorded["environment"]))
        warnings.warn(f"golden numbers are compared within a tolerance: {why}", stacklevel=1)
    told = compare(recorded["cases"][name], describe(GROUPS[group][name](tmp_path)), how, TOLERANCES[group])
    if told:
        shown = "\n".join(f"  {line}" for line in told[:40])
        pytest.fail(f"{group}: {name}: {len(told)} results differ ({how} comparison)\n{shown}", pytrace=False)


@pytest.mark.parametrize("group", GROUPS)
def test_every_recorded_case_is_still_computed(group: str) -> None:
    assert list(read(group)["cases"]) == list(GROUPS[group])
    assert file_of(group).stat().st_size < 1_000_000


@pytest.mark.parametrize("algorithm", CLASSES)
def test_every_preset_has_a_case(algorithm: str) -> None:
    config = agent_class(algorithm)("probe-action").config
    assert tuple(type(config).PRESETS) == PRESETS[algorithm]


# --- the comparison can fail ------------------------------------------------------------------------------------


def a_case() -> tuple[str, dict[str, Any]]:
    """A recorded case, and the name of one of its parameters."""
    case = read("neural")["cases"]["ncapo, certain signs, probe-both"]
    return next(name for name in case if "params" in name and name.endswith("head/kernel")), case


def changed(case: dict[str, Any], name: str, **values: Any) -> dict[str, Any]:
    """A copy of the case with other values in one entry."""
    copied = copy.deepcopy(case)
    copied[name] |= values
    return copied


@pytest.mark.parametrize("how", ["exact", "tolerance"])
def test_a_case_equals_itself(how: str) -> None:
    _, case = a_case()
    assert compare(case, copy.deepcopy(case), how, TOLERANCES["neural"]) == []


def test_another_digest_is_a_difference_in_the_exact_mode_only() -> None:
    name, case = a_case()
    other = changed(case, name, sha256="0" * 32)
    assert [line.split(":")[0] for line in compare(case, other, "exact", TOLERANCES["neural"])] == [name]
    assert compare(case, other, "tolerance", TOLERANCES["neural"]) == []


@pytest.mark.parametrize("what", ["sum", "abs_sum", "first"])
def test_a_number_beyond_the_tolerance_is_a_difference(what: str) -> None:
    name, case = a_case()
    before = case[name][what]
    after = [before[0] + 0.1, *before[1:]] if what == "first" else before + 0.1 * case[name]["abs_sum"] + 1
    told = compare(case, changed(case, name, sha256="0" * 32, **{what: after}), "tolerance", TOLERANCES["neural"])
    assert [line.split(":")[0] for line in told] == [name]


def test_integers_and_verdicts_have_no_tolerance() -> None:
    case = read("tabular")["cases"]["cyclic, log"]
    verdict = next(name for name in case if "certificate/" in name and case[name]["value"][0] == "held")
    other = changed(case, "chain/counts", sha256="0" * 32) | {verdict: {"value": ["FAILED", 1]}}
    told = compare(case, other, "tolerance", TOLERANCES["tabular"])
    assert len(told) == 2
    assert all(any(line.startswith(f"{name}: ") for line in told) for name in ("chain/counts", verdict))


def test_what_is_gone_or_new_is_a_difference() -> None:
    name, case = a_case()
    less = {key: entry for key, entry in case.items() if key != name}
    assert compare(case, less, "tolerance", TOLERANCES["neural"]) == [f"{name}: no longer there"]
    assert compare(less, case, "tolerance", TOLERANCES["neural"]) == [f"{name}: not recorded"]


def test_bits_are_compared_in_the_exact_mode_only() -> None:
    _, case = a_case()
    name = next(name for name in case if name.startswith(BITS))
    other = copy.deepcopy(case) | {name: "0" * 32}
    assert len(compare(case, other, "exact", TOLERANCES["neural"])) == 1
    assert compare(case, other, "tolerance", TOLERANCES["neural"]) == []


def test_another_version_or_processor_is_told() -> None:
    recorded = copy.deepcopy(read("neural")["environment"])
    recorded["packages"]["numpy"] = "0.1"
    recorded["processor"]["machine"] = "another"
    told = differences_of_environment(recorded)
    assert any(line.startswith("numpy 0.1 -> ") for line in told)
    assert "another processor" in told
    assert mode(recorded) == "tolerance"
