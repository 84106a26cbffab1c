"""Bounds on V* - V that hold in floating point, and proofs of them as files that a stranger can check.

What the MDP is: gamma, the rewards and the weights p(s, a, s') are the stored doubles, exactly. The probabilities
are p(s, a, s') / sum of p(s, a, .), in exact arithmetic, so that they sum to 1; likewise a policy is w(s, a) / sum
of w(s, .). For any v and any policy, with A(s, a) = Q(v)(s, a) - v(s) and gamma < 1,

    V_pi >= v + min_s (T_pi v - v)(s) / (1 - gamma)    and    V* <= v + max_{s, a} A(s, a) / (1 - gamma).

The kernel below evaluates A(s, a) = r + gamma sum p (v(s') - v(s)) / sum p - (1 - gamma) v(s) with a bound on all
its rounding errors: n successors make 2n + 4 of them, each at most 2^-53 of the sizes that are added up. The last
steps, with a handful of numbers, are done in rational arithmetic. ``tools/check_proof.py`` does the same without
this package.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from capo.checks import as_path, printable
from capo.errors import CapoError
from capo.files import atomic_file
from capo.tabular.archive import MOST_MANIFEST, manifest_bytes, read_arrays, read_manifest
from capo.tabular.coordinates import check_policy
from capo.tabular.mdp import MDP, Bools, Floats, as_floats, require_mdp
from capo.tabular.mdp_files import with_suffix

FORMAT = "capo-proof-1"
UNIT = 2.0**-53  # the greatest relative error of one operation
TINY = 2.0**-1000  # more than all underflows of a sum together
# A checker may add numbers up in another order. Its bound and the one here are each within one error bound of the
# exact number, so claims that leave four times as much room are confirmed by every checker.
CLAIMED = 4.0
_CHUNK = 1 << 22


@dataclass(frozen=True, repr=False, eq=False)
class Proof:
    """A policy, v, and what they prove about an MDP at the covered states.

    Attributes:
        mdp: the MDP's digest.
        name, states, actions, gamma: of the MDP.
        algorithm: what made the policy.
        policy: (S, A) weights, at least 0; the policy is these divided by their sum in each state.
        values: (S,) v, any numbers.
        covered: (S,) the states that the claims are about; no allowed action leads out of them.
        lower: V_pi(s) >= v(s) + lower.
        upper: V*(s) <= v(s) + upper.
        gap_bound: V*(s) - V_pi(s) <= gap_bound.
    """

    mdp: str
    name: str
    states: int
    actions: int
    gamma: float
    algorithm: str
    policy: Floats
    values: Floats
    covered: Bools
    lower: float
    upper: float
    gap_bound: float

    def __repr__(self) -> str:
        where = "every state" if self.covered.all() else f"{int(self.covered.sum())} of {self.states} states"
        return f"<Proof: V* - V <= {self.gap_bound:.3g} at {where} of {self.name or 'an MDP'}>"

    def save(self, path: str | Path) -> Path:
        """Write the proof to ``path`` (.npz); returns the path."""
        target = with_suffix(path)
        claims = {key: getattr(self, key) for key in _CLAIMS} | {"format": FORMAT}
        manifest = claims | {"sha256": _checksum(claims, self.policy, self.values, self.covered)}
        arrays = {"policy": self.policy, "values": self.values, "covered": self.covered}
        with atomic_file(target) as file:
            np.savez(file, manifest=manifest_bytes(manifest), **arrays)  # type: ignore[arg-type]
        return target


_CLAIMS = ("mdp", "name", "states", "actions", "gamma", "algorithm", "lower", "upper", "gap_bound")


@dataclass(frozen=True, eq=False)
class Verification:
    """What :func:`verify` found.

    Attributes:
        held: whether every claim of the file was confirmed.
        proof: the file's content.
        lower, upper, gap_bound: the bounds computed again; at least as tight as the claims if these held.
        problem: which claim was not confirmed; empty if all were.
    """

    held: bool
    proof: Proof
    lower: float
    upper: float
    gap_bound: float
    problem: str = ""

    def __bool__(self) -> bool:
        return self.held


def prove(
    mdp: MDP, policy: Any, values: Any, covered: Bools | None = None, *, algorithm: str = "a given policy"
) -> Proof:
    """Prove bounds on V_pi, V* and their difference that hold despite rounding.

    Args:
        mdp: the MDP.
        policy: (S, A).
        values: (S,) any v; the closer to V_pi, the tighter the bounds.
        covered: (S,) states that no allowed action leads out of; all by default.
        algorithm: what made the policy, for display.

    >>> import capo
    >>> mdp = capo.mdps.chain(5)
    >>> best = capo.baselines.policy_iteration(mdp)
    >>> prove(mdp, best.policy, best.values).gap_bound < 1e-9
    True
    """
    require_mdp(mdp)
    printable("algorithm", algorithm)
    check_policy(policy, mdp, "policy")
    weights = np.array(policy, np.float64, order="C")  # as given: dividing by the sum would change the policy
    v = as_floats("values=", values, "is not a vector of numbers").copy()
    if v.shape != (mdp.n_states,) or not np.isfinite(v).all():
        raise CapoError(f"values of shape {v.shape} must be finite and of shape (S,) = ({mdp.n_states},)")
    inside = np.ones(mdp.n_states, bool) if covered is None else np.array(covered, bool)
    if inside.shape != (mdp.n_states,):
        raise CapoError(f"covered of shape {inside.shape} must be (S,) = ({mdp.n_states},)")
    low, high = _residuals(mdp, weights, v, inside, CLAIMED)
    left = 1 - Fraction(mdp.gamma)
    return Proof(
        digest(mdp),
        mdp.name,
        mdp.n_states,
        mdp.n_actions,
        mdp.gamma,
        algorithm,
        weights,
        v,
        inside,
        lower=-rounded_up(-low / left),
        upper=rounded_up(high / left),
        gap_bound=rounded_up((high - low) / left),
    )


def verify(path: str | Path, mdp: MDP) -> Verification:
    """Check a proof file against an MDP: is it for this MDP, and do its policy and v prove its claims?

    Args:
        path: written by :meth:`capo.Result.save` or :meth:`Proof.save`.
        mdp: the MDP that the proof should be for.

    Raises:
        CapoError: if the file is damaged, is not a proof, or is for another MDP.

    >>> import capo
    >>> mdp = capo.mdps.chain(5)
    >>> verify(capo.solve(mdp).save("chain.npz"), mdp).held
    True
    """
    require_mdp(mdp)
    proof = _read(as_path("verify(path, mdp)", path), mdp)
    low, high = _residuals(mdp, proof.policy, proof.values, proof.covered, 1.0)
    left = 1 - Fraction(mdp.gamma)
    lower, upper, gap_bound = -rounded_up(-low / left), rounded_up(high / left), rounded_up((high - low) / left)
    problem = ""
    for name, claimed, found, held in (  # claims are doubles, so rounding outward changes no comparison
        ("lower", proof.lower, lower, proof.lower <= lower),
        ("upper", proof.upper, upper, proof.upper >= upper),
        ("gap_bound", proof.gap_bound, gap_bound, proof.gap_bound >= gap_bound),
    ):
        if not held:
            problem = f"{name} is claimed to be {claimed!r}, but only {found!r} can be proved"
    return Verification(not problem, proof, lower, upper, gap_bound, problem)


def rounded_up(number: Fraction) -> float:
    """The least double that is at least ``number``."""
    try:
        near = float(number)
    except OverflowError:
        raise CapoError("the bound is too large for a floating-point number") from None
    return near if Fraction(near) >= number else math.nextafter(near, math.inf)


# --- reading ----------------------------------------------------------------------------------------------------


def _read(path: Path, mdp: MDP) -> Proof:
    """The proof in a file, whose sizes, types, checksum and MDP have been checked."""
    head = read_arrays(path, {"manifest": ("u", None)}, MOST_MANIFEST)
    if "manifest" not in head:
        raise CapoError(f"{path} is not a proof: it has no manifest")
    manifest = read_manifest(path, head["manifest"], (FORMAT,))
    said = manifest.pop("sha256", None)
    _check_claims(path, manifest)
    _check_mdp(path, manifest, mdp)
    shape = (mdp.n_states, mdp.n_actions)
    wanted = {"policy": ("f", shape), "values": ("f", shape[:1]), "covered": ("b", shape[:1])}
    arrays = read_arrays(path, wanted, 8 * (shape[0] + 1) * (shape[1] + 2))
    if missing := sorted(set(wanted) - set(arrays)):
        raise CapoError(f"{path} is not a proof: it has no {', '.join(missing)}")
    policy, values, covered = arrays["policy"], arrays["values"], arrays["covered"]
    if not policy.dtype == values.dtype == np.float64:
        raise CapoError(f"{path}: policy and values must be float64, not {policy.dtype} and {values.dtype}")
    if said != _checksum(manifest, policy, values, covered):
        raise CapoError(f"{path} was changed: its checksum does not match its contents")
    total = policy.sum(axis=1)
    if not (np.isfinite(values).all() and (policy >= 0).all() and ((total > 0.5) & (total < 2)).all()):
        raise CapoError(f"{path}: values that are not finite, or a policy that is not a distribution")
    return Proof(**{key: manifest[key] for key in _CLAIMS}, policy=policy, values=values, covered=covered)


def _check_claims(path: Path, manifest: dict[str, Any]) -> None:
    kinds = {"mdp": str, "name": str, "algorithm": str, "states": int, "actions": int}
    for key in _CLAIMS:
        kind = kinds.get(key, float)
        value = manifest.get(key)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise CapoError(f"{path} is not a proof: {key} is {value!r}, it must be a {kind.__name__}")
        if isinstance(value, str) and not value.isprintable():
            raise CapoError(f"{path} is not a proof: {key} is {value!a}, it must be printable text")


def _check_mdp(path: Path, manifest: dict[str, Any], mdp: MDP) -> None:
    size = (manifest["states"], manifest["actions"])
    if size != (mdp.n_states, mdp.n_actions):
        raise CapoError(
            f"{path} is for another MDP: {size[0]} states x {size[1]} actions, but this one has "
            f"{mdp.n_states} x {mdp.n_actions}"
        )
    if manifest["gamma"] != mdp.gamma:
        raise CapoError(f"{path} is for gamma {manifest['gamma']!r}, but this MDP has {mdp.gamma!r}")
    if manifest["mdp"] != digest(mdp):
        raise CapoError(f"{path} is for another MDP: transitions, rewards or action sets differ from this one's")


# --- digests ----------------------------------------------------------------------------------------------------


def digest(mdp: MDP) -> str:
    """SHA-256 of gamma, rewards, action sets and transitions; dense and sparse storage give the same.

    The start distribution and the names of things do not enter: no claim depends on them.
    """
    rows = mdp.csr()
    rows = rows if rows.has_sorted_indices else rows.sorted_indices()
    head = f"capo-mdp-digest-1:{mdp.n_states}:{mdp.n_actions}:{mdp.gamma.hex()}:".encode()
    columns = (
        (mdp.reward + 0.0, "<f8"),  # -0.0 is 0.0
        (mdp.allowed, "|b1"),
        (np.diff(rows.indptr), "<i8"),
        (rows.indices, "<i8"),
        (rows.data, "<f8"),
    )
    return hashlib.sha256(head + b"".join(_sha256(*column) for column in columns)).hexdigest()


def _sha256(array: npt.NDArray[Any], dtype: str) -> bytes:
    """Of the numbers in row-major order, in pieces, so that no second copy of all of them is made."""
    flat, hashed = array.reshape(-1), hashlib.sha256()
    for first in range(0, len(flat), _CHUNK):
        hashed.update(np.ascontiguousarray(flat[first : first + _CHUNK], dtype).view(np.uint8).data)
    return hashed.digest()


def _checksum(claims: dict[str, Any], policy: Floats, values: Floats, covered: Bools) -> str:
    text = json.dumps(claims, sort_keys=True).encode()
    parts = ((policy, "<f8"), (values, "<f8"), (covered, "|b1"))
    return hashlib.sha256(text + b"".join(_sha256(*part) for part in parts)).hexdigest()


# --- bounds with every rounding error --------------------------------------------------------------------------


def _residuals(mdp: MDP, policy: Floats, values: Floats, covered: Bools, room: float) -> tuple[Fraction, Fraction]:
    """At most min (T_pi v - v) and at least max A over the covered states, with ``room`` times the error bound."""
    if not covered.any():
        raise CapoError("a proof must cover at least one state")
    rows = mdp.csr()
    low, high, left, barred, broken = _residual_bounds(
        rows.indptr, rows.indices, rows.data, mdp.reward, mdp.gamma, mdp.allowed, policy, values, covered, room
    )
    if left >= 0:
        raise CapoError(
            f"the covered states can be left: state {left} is covered, but one of its successors is not"
        )
    if barred >= 0:
        raise CapoError(f"the policy takes an action that is not allowed in state {barred}")
    if broken >= 0:
        raise CapoError(f"the values are too large: their residuals overflow in state {broken}")
    return Fraction(low), Fraction(high)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _residual_bounds(indptr, indices, data, reward, gamma, allowed, policy, values, covered, room):  # type: ignore[no-untyped-def]
    """Bounds of T_pi v - v from below and of A from above; then three states, each -1 if there is none.

    These are the first covered state with a successor outside, the first with a barred action in the policy, and
    the first covered one where something overflows: only if there is none, the bounds are finite and hold.

    Not compiled with fastmath: the error bound holds for any order of the sums, but not for other shortcuts.
    """
    n_states, n_actions = reward.shape
    lowest, highest = np.inf, -np.inf
    left, barred, broken = -1, -1, -1
    for s in range(n_states):
        followed, size, total = 0.0, 0.0, 0.0
        for a in range(n_actions):
            weight = policy[s, a]
            if not allowed[s, a]:
                if weight != 0.0 and barred < 0:
                    barred = s
                continue
            pair = s * n_actions + a
            p_sum, moved, moved_size = 0.0, 0.0, 0.0
            for k in range(indptr[pair], indptr[pair + 1]):
                change = data[k] * (values[indices[k]] - values[s])
                p_sum += data[k]
                moved += change
                moved_size += abs(change)
                if covered[s] and not covered[indices[k]] and left < 0:
                    left = s
            own = (1.0 - gamma) * values[s]
            advantage = reward[s, a] + gamma * (moved / p_sum) - own
            roundings = 2 * (indptr[pair + 1] - indptr[pair]) + 6
            sizes = abs(reward[s, a]) + gamma * moved_size / p_sum + abs(own)
            error = room * (1.001 * roundings * UNIT * sizes + TINY)
            above = np.nextafter(advantage + error, np.inf)
            below = np.nextafter(advantage - error, -np.inf)
            if covered[s]:
                if not math.isfinite(above) and broken < 0:  # NaN would be lost in a comparison
                    broken = s
                highest = max(highest, above)
            followed += weight * below
            size += weight * abs(below)
            total += weight
        error = room * (1.001 * (2 * n_actions + 2) * UNIT * (size / total) + TINY)
        followed = np.nextafter(followed / total - error, -np.inf)
        if covered[s]:
            if not math.isfinite(followed) and broken < 0:
                broken = s
            lowest = min(lowest, followed)
    return lowest, highest, left, barred, broken
