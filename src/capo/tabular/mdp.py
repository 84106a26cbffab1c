"""Finite Markov decision processes, dense or sparse: validation, importers, saving and loading."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg

from capo.errors import CapoError
from capo.files import atomic_file
from capo.reading import free_memory
from capo.tabular import gymnasium_table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SUM_TOLERANCE = 1e-8  # how far the sum of a row of probabilities may be from 1; more in single precision
FORMAT = "capo-mdp-1"


@dataclass(frozen=True)
class RewardMap:
    """The affine map reward = scale * rescaled + shift that :meth:`MDP.rescale_rewards` applied."""

    scale: float = 1.0
    shift: float = 0.0


class MDP:
    """A finite, discounted MDP with S states and A actions.

    Args:
        transition: probabilities P(s' | s, a): an (S, A, S) array, or a scipy.sparse (S*A, S) matrix whose row
            ``s * A + a`` belongs to (s, a). Duplicate sparse entries are summed.
        reward: (S, A); or (S, A, S), one per transition (for sparse transitions also a sparse (S*A, S) matrix), of
            which the expectation is kept.
        gamma: discount in (0, 1).
        start: (S,) start distribution rho; uniform by default.
        terminal: states (indices or an (S,) mask) where an episode ends. They become absorbing with reward 0,
            whatever their rows say. States that are already absorbing with reward 0 are found automatically.
        name: for display.

    >>> import numpy as np
    >>> two = MDP(np.full((2, 2, 2), 0.5), np.eye(2), gamma=0.9)
    >>> two.n_states, two.n_actions, two.is_sparse
    (2, 2, False)
    """

    def __init__(
        self,
        transition: Any,
        reward: Any,
        gamma: float,
        start: Any = None,
        *,
        terminal: Any = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.gamma = _check_gamma(gamma)
        self.reward_map = RewardMap()
        self._rows, shape = _transition_rows(transition)
        self.n_states, self.n_actions = shape
        self.is_sparse = sp.issparse(self._rows)
        ends = _terminal_mask(terminal, self.n_states)
        if ends is not None and ends.any():
            self._rows = _make_absorbing(self._rows, ends, self.n_actions)
        single = getattr(transition, "dtype", None) in (np.float32, np.float16)
        self._rows = _check_probabilities(self._rows, self.n_actions, 1e-5 if single else SUM_TOLERANCE)
        rewards = _expected_reward(reward, self._rows, shape, ends)
        largest = float(np.abs(rewards).max())
        if not np.isfinite(largest / (1 - self.gamma) * 1e8):
            raise CapoError(f"rewards of size {largest:g} are too large: values would overflow")
        self.reward: Floats = rewards
        self.start: Floats = check_distribution(start, self.n_states, "start distribution")
        found = self._absorbing() & (rewards == 0).all(axis=1)
        self.terminal: Bools = found if ends is None else (found | ends)
        self._freeze()

    def _freeze(self) -> None:
        """Make the arrays read-only, so that they stay as they were checked."""
        stored = (self._rows.data, self._rows.indices, self._rows.indptr) if self.is_sparse else (self._rows,)
        for array in (self.reward, self.start, self.terminal, *stored):
            array.flags.writeable = False

    # --- what algorithms read --------------------------------------------------------------------------------

    @property
    def transition(self) -> Any:
        """(S, A, S) array, or the sparse (S*A, S) matrix when the MDP is sparse."""
        if self.is_sparse:
            return self._rows
        return self._rows.reshape(self.n_states, self.n_actions, self.n_states)

    @property
    def rows(self) -> Any:
        """Transitions as (S*A, S): a dense array or a CSR matrix."""
        return self._rows

    def csr(self) -> sp.csr_array:
        """Transitions as a CSR array (S*A, S), however they are stored."""
        return self._rows if self.is_sparse else sp.csr_array(self._rows)

    def q_values(self, values: Floats) -> Floats:
        """Q(s, a) = r(s, a) + gamma * sum_s' P(s'|s, a) V(s'), as (S, A), from values (S,)."""
        expected = np.asarray(self._rows @ values).reshape(self.n_states, self.n_actions)
        return self.reward + self.gamma * expected

    def policy_transition(self, policy: Floats) -> Any:
        """P_pi (S, S): dense or CSR like the MDP itself."""
        if not self.is_sparse:
            return np.einsum("sa,sat->st", policy, self.transition)
        weights = sp.csr_array(
            (policy.ravel(), np.arange(policy.size), np.arange(0, policy.size + 1, self.n_actions)),
            shape=(self.n_states, policy.size),
        )
        return weights @ self._rows

    def policy_values(self, policy: Floats) -> Floats:
        """V_pi (S,), by one direct solve: the plain evaluation that the fast ones are checked against."""
        matrix = self.policy_transition(policy)
        reward = (policy * self.reward).sum(axis=1)
        if self.is_sparse:
            system = sp.csc_array(sp.eye_array(self.n_states) - self.gamma * matrix)
            return np.asarray(scipy.sparse.linalg.splu(system).solve(reward))
        return np.linalg.solve(np.eye(self.n_states) - self.gamma * matrix, reward)

    def reachable(self, origin: Floats | None = None) -> Bools:
        """(S,) mask of the states that some policy can reach from ``origin`` (default: the start distribution)."""
        origin = self.start if origin is None else origin
        rows = self.csr()
        leads = sp.csr_array((np.ones(rows.nnz, np.int8), rows.indices, rows.indptr), shape=rows.shape)
        seen = np.asarray(origin) > 0
        frontier = seen.copy()
        while frontier.any():
            pairs = np.repeat(frontier, self.n_actions).astype(np.int32)
            reached = np.asarray(leads.T @ pairs) > 0
            frontier = reached & ~seen
            seen |= reached
        return seen

    # --- rewards in [0, 1] -----------------------------------------------------------------------------------

    def rescale_rewards(self) -> MDP:
        """The same MDP with rewards mapped affinely onto [0, 1]; :meth:`original_values` maps values back.

        The map also shifts the reward of absorbing states; otherwise it would change which policy is best.
        """
        low, high = float(self.reward.min()), float(self.reward.max())
        scale = high - low if high > low else 1.0
        # Composed with an earlier map, so that values always map back to the MDP the user built.
        first = self.reward_map
        composed = RewardMap(scale * first.scale, first.shift + low * first.scale)
        return self._copy(reward=(self.reward - low) / scale, reward_map=composed)

    def original_values(self, values: npt.ArrayLike) -> Floats:
        """Values of the rescaled MDP in the units of the rewards the MDP was built with."""
        return self.reward_map.scale * np.asarray(values, np.float64) + self.reward_map.shift / (1 - self.gamma)

    def with_gamma(self, gamma: float) -> MDP:
        """The same MDP with another discount."""
        return self._copy(gamma=_check_gamma(gamma))

    def with_start(self, start: Any) -> MDP:
        """The same MDP with another start distribution (S,)."""
        return self._copy(start=check_distribution(start, self.n_states, "start distribution"))

    def _copy(self, **changes: Any) -> MDP:
        changed = object.__new__(MDP)
        changed.__dict__.update(self.__dict__ | changes)
        changed._freeze()
        return changed

    @property
    def has_unit_rewards(self) -> bool:
        """Whether every reward lies in [0, 1], as the rate theorems assume."""
        return bool(self.reward.min() >= 0 and self.reward.max() <= 1)

    # --- importers and exporters -----------------------------------------------------------------------------

    @classmethod
    def from_gymnasium(cls, env: Any, gamma: float, **make_options: Any) -> MDP:
        """The MDP of a Gymnasium toy-text environment: an id such as ``"FrozenLake-v1"``, or an environment.

        A transition flagged as terminated is worth its reward and nothing after it. The states that such
        transitions lead to become terminal. If one of them can also be reached in mid-episode, an extra absorbing
        state takes the endings instead.
        """
        transition, reward, start, terminal, name = gymnasium_table.read(env, make_options)
        return cls(transition, reward, gamma, start, terminal=terminal, name=name)

    @classmethod
    def from_mdptoolbox(cls, transitions: Any, rewards: Any, gamma: float, start: Any = None) -> MDP:
        """An MDP in pymdptoolbox's layout, with the action first.

        Args:
            transitions: (A, S, S) array, or a list of A (S, S) arrays or sparse matrices.
            rewards: (S,), (S, A), (A, S, S), or a list of A (S, S) arrays or sparse matrices.
            gamma: discount.
            start: start distribution.
        """
        matrices = _action_matrices(transitions, "transitions")
        n_actions, n_states = len(matrices), matrices[0].shape[0]
        # Row a*S + s of the stacked matrices becomes row s*A + a.
        order = np.arange(n_actions * n_states).reshape(n_actions, n_states).T.ravel()
        sparse = any(sp.issparse(matrix) for matrix in matrices)

        def by_state(parts: Sequence[Any]) -> Any:
            if sparse:
                return sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts]))[order]
            return np.stack([part.toarray() if sp.issparse(part) else part for part in parts], axis=1)

        listed = isinstance(rewards, list | tuple) and any(sp.issparse(part) for part in rewards)
        reward: Any = rewards.toarray() if sp.issparse(rewards) else rewards
        reward = reward if listed else _floats(reward, "rewards")
        if not listed and reward.ndim == 1:
            reward = np.repeat(reward[:, None], n_actions, axis=1)
        elif listed or reward.ndim != 2:
            parts = _action_matrices(rewards, "rewards")
            if len(parts) != n_actions or parts[0].shape != matrices[0].shape:
                raise CapoError(
                    f"rewards: {len(parts)} matrices of shape {parts[0].shape}, but the transitions have "
                    f"{n_actions} of shape {matrices[0].shape}"
                )
            reward = by_state(parts)
        return cls(by_state(matrices), reward, gamma, start)

    def save(self, path: str | Path) -> Path:
        """Write the MDP to ``path`` (.npz): plain arrays and a JSON manifest with a checksum, no pickle."""
        target = Path(path)
        if target.suffix != ".npz":
            target = target.with_name(target.name + ".npz")
        arrays = {"reward": self.reward, "start": self.start, "terminal": self.terminal}
        if self.is_sparse:
            arrays |= {"data": self._rows.data, "indices": self._rows.indices, "indptr": self._rows.indptr}
        else:
            arrays["transition"] = self.transition
        manifest = {
            "format": FORMAT,
            "name": self.name,
            "gamma": self.gamma,
            "reward_map": [self.reward_map.scale, self.reward_map.shift],
            "sha256": _checksum(arrays),
        }
        encoded = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
        with atomic_file(target) as file:
            np.savez_compressed(file, manifest=encoded, **arrays)  # type: ignore[arg-type]
        return target

    @classmethod
    def load(cls, path: str | Path) -> MDP:
        """Read an MDP written by :meth:`save`, or any .npz with arrays transition, reward and gamma."""
        target = Path(path)
        if not target.exists() and target.with_name(target.name + ".npz").exists():
            target = target.with_name(target.name + ".npz")  # the name `save` gave it
        if not target.is_file():
            raise CapoError(f"{target} does not exist")
        try:
            _check_sizes(target)
            with np.load(target, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
        except CapoError:
            raise
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
            raise CapoError(f"{target} is damaged or not an .npz file: {error}") from error
        except Exception as error:  # zlib.error and struct.error: damaged archives raise various types
            raise CapoError(f"{target} is damaged: {type(error).__name__}: {error}") from error
        if "manifest" not in arrays:
            return cls._from_foreign(arrays, target)
        return cls._from_saved(arrays, target)

    @classmethod
    def _from_saved(cls, arrays: dict[str, Any], target: Path) -> MDP:
        try:
            manifest = json.loads(arrays.pop("manifest").tobytes())
            if manifest["format"] != FORMAT:
                raise CapoError(f"{target} has format {manifest['format']!r}; this version reads {FORMAT!r}")
            if manifest["sha256"] != _checksum(arrays):
                raise CapoError(f"{target} is damaged: its checksum does not match its arrays")
            scale, shift = (float(number) for number in manifest["reward_map"])
            terminal = arrays["terminal"]
            if terminal.shape != arrays["start"].shape:
                raise CapoError(f"{target} is damaged: it marks {terminal.shape} states as terminal or not")
            transition = arrays.get("transition")
            if transition is None:
                shape = (arrays["reward"].size, len(arrays["start"]))
                transition = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
                transition.check_format(full_check=True)  # an index outside would read memory of others
            mdp = cls(transition, arrays["reward"], manifest["gamma"], arrays["start"], name=str(manifest["name"]))
        except CapoError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CapoError(f"{target} is damaged: {type(error).__name__}: {error}") from error
        mdp.terminal = terminal.astype(bool)
        mdp.reward_map = RewardMap(scale, shift)
        mdp._freeze()
        return mdp

    @classmethod
    def _from_foreign(cls, arrays: dict[str, Any], target: Path) -> MDP:
        missing = [key for key in ("transition", "reward", "gamma") if key not in arrays]
        if missing:
            raise CapoError(
                f"{target} has no {', '.join(missing)}: an .npz needs arrays transition (S, A, S), reward "
                f"(S, A) or (S, A, S) and gamma, and optionally start and terminal; it has {sorted(arrays)}"
            )
        known = ("transition", "reward", "gamma", "start", "terminal")
        return cls(**{key: arrays[key] for key in known if key in arrays}, name=target.stem)

    # --- details ---------------------------------------------------------------------------------------------

    def _absorbing(self) -> Bools:
        """(S,) mask of the states that no action can leave."""
        own = np.repeat(np.arange(self.n_states), self.n_actions)
        stay = np.asarray(self._rows[np.arange(len(own)), own]).reshape(self.n_states, self.n_actions)
        return np.asarray((stay == 1).all(axis=1))

    @property
    def label(self) -> str:
        """The name, for a sentence."""
        return self.name or "an MDP"

    @property
    def summary(self) -> str:
        """The size, for a sentence."""
        states, actions = ("s" if n != 1 else "" for n in (self.n_states, self.n_actions))
        return f"{self.n_states} state{states}, {self.n_actions} action{actions}, gamma {self.gamma:g}"

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return f"MDP({f'{self.name}: ' if self.name else ''}{self.summary}, {kind})"


def _check_sizes(path: Path) -> None:
    """Raise before memory is taken, if an .npz does not hold what its headers say or does not fit."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                reader = np.lib.format.read_array_header_1_0
                shape, _, dtype = (reader if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
                size = math.prod(shape) * dtype.itemsize
                if dtype.hasobject or size != member.file_size - file.tell():
                    raise CapoError(f"{path} is damaged: the array {member.filename} is not as long as it says")
            total += size
    free = free_memory()
    if free is not None and total > free / 2:  # checking them takes copies
        raise CapoError(
            f"{path} holds {total / 1e6:,.0f} MB of arrays, but at most half of the free memory is used for them: "
            f"{free / 2e6:,.0f} MB"
        )


# --- validation ----------------------------------------------------------------------------------------------


def _check_gamma(gamma: float) -> float:
    try:
        value = float(np.asarray(gamma).reshape(()))
    except (TypeError, ValueError):
        raise CapoError(f"gamma={gamma!r} must be a number strictly between 0 and 1") from None
    if not 0 < value < 1:
        raise CapoError(f"gamma={value!r} must be strictly between 0 and 1")
    return value


def _floats(given: Any, what: str) -> Floats:
    """An array of float64, or a CapoError; complex numbers are refused rather than truncated."""
    try:
        array = np.asarray(given)
        if np.iscomplexobj(array):
            raise CapoError(f"{what} are complex numbers; they must be real")
        return np.ascontiguousarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, CapoError):
            raise
        raise CapoError(f"{what} are not an array of numbers: {error}") from None


def _transition_rows(transition: Any) -> tuple[Any, tuple[int, int]]:
    """Transitions as float64 (S*A, S) rows, dense or CSR with duplicates merged, and (S, A)."""
    if sp.issparse(transition):
        if transition.ndim != 2:
            raise CapoError(f"sparse transitions must be a matrix (S*A, S), got shape {transition.shape}")
        n_pairs, n_states = transition.shape
        if n_states == 0 or n_pairs == 0 or n_pairs % n_states:
            raise CapoError(
                f"sparse transitions of shape {transition.shape} must be (S*A, S): {n_pairs} rows is not a "
                f"positive multiple of {n_states} columns"
            )
        # COO first: that conversion keeps duplicates, which the one to CSR then sums.
        rows = sp.csr_array(sp.coo_array(transition), dtype=np.float64)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows, (n_states, n_pairs // n_states)
    dense = _floats(transition, "transitions")
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2]:
        raise CapoError(f"transitions of shape {dense.shape} must be (S, A, S), or scipy.sparse (S*A, S)")
    n_states, n_actions, _ = dense.shape
    if n_states == 0 or n_actions == 0:
        raise CapoError(f"transitions of shape {dense.shape}: an MDP needs at least one state and one action")
    return dense.reshape(n_states * n_actions, n_states).copy(), (n_states, n_actions)


def _check_probabilities(rows: Any, n_actions: int, tolerance: float) -> Any:
    """The rows, refused if they are not distributions, and scaled where rounding keeps the sum from 1."""
    entries = rows.data if sp.issparse(rows) else rows
    if not np.isfinite(entries).all() or (entries < 0).any():
        bad = sp.coo_array(rows)
        first = np.flatnonzero(~np.isfinite(bad.data) | (bad.data < 0))[0]
        (s, a), value = divmod(int(bad.row[first]), n_actions), float(bad.data[first])
        raise CapoError(
            f"P(s'={bad.col[first]} | s={s}, a={a}) = {value!r} is {'negative' if value < 0 else 'not finite'}: "
            "probabilities must be finite and at least 0"
        )
    sums = np.asarray(rows.sum(axis=1)).ravel()
    wrong = np.flatnonzero(np.abs(sums - 1) > tolerance)
    if wrong.size:
        pair = int(wrong[0])
        more = f"; {wrong.size - 1} other rows do not either" if wrong.size > 1 else ""
        raise CapoError(
            f"the probabilities of state {pair // n_actions}, action {pair % n_actions} sum to {sums[pair]:.12g}, "
            f"off by {sums[pair] - 1:+.3g}: each row must sum to 1 within {tolerance:g}{more}"
        )
    if np.abs(sums - 1).max() < 1e-12:
        return rows
    return sp.csr_array(sp.diags_array(1 / sums) @ rows) if sp.issparse(rows) else rows / sums[:, None]


def _expected_reward(reward: Any, rows: Any, shape: tuple[int, int], ends: Bools | None) -> Floats:
    """(S, A) expected rewards; 0 at terminal states, whatever was given there."""
    n_states = shape[0]
    ended = np.zeros(n_states, bool) if ends is None else ends
    if sp.issparse(reward) and reward.shape == shape != rows.shape:
        reward = reward.toarray()
    if sp.issparse(reward):
        if reward.shape != rows.shape:
            raise CapoError(f"sparse rewards of shape {reward.shape} must be (S*A, S) = {rows.shape}")
        expected = np.asarray(sp.csr_array(rows).multiply(sp.csr_array(reward)).sum(axis=1)).reshape(shape)
    else:
        expected = _floats(reward, "rewards").copy()
        if expected.shape not in (shape, per_transition := (*shape, n_states)):
            raise CapoError(
                f"rewards of shape {expected.shape} must be (S, A) = {shape} or (S, A, S) = {per_transition}"
            )
        expected[ended] = 0.0
        if expected.ndim == 3:
            if not np.isfinite(expected).all():
                s, a, t = np.argwhere(~np.isfinite(expected))[0]
                raise CapoError(f"reward r(s={s}, a={a}, s'={t}) = {float(expected[s, a, t])!r} is not finite")
            flat = expected.reshape(-1, n_states)
            product = rows.multiply(flat) if sp.issparse(rows) else rows * flat
            expected = np.asarray(product.sum(axis=1)).reshape(shape)
    expected[ended] = 0.0
    if not np.isfinite(expected).all():
        s, a = np.argwhere(~np.isfinite(expected))[0]
        raise CapoError(f"reward r(s={s}, a={a}) = {float(expected[s, a])!r} is not finite")
    return expected


def as_floats(what: str, given: Any, rule: str = "is not an array of numbers") -> Floats:
    """An array of float64, or a CapoError: ``what``, what was given, ``rule``."""
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise CapoError(f"{what}{given!r} {rule}") from None


def require_mdp(given: Any) -> None:
    """Raise unless ``given`` is an MDP; a name is the likeliest mistake."""
    if not isinstance(given, MDP):
        raise CapoError(f"{given!r} is not a capo.MDP; capo.mdps.parse makes one from a name such as 'chain:10'")


def check_distribution(given: Any, size: int, what: str, *, positive: bool = False) -> Floats:
    """A probability vector (size,), uniform for None, or a CapoError that says why ``given`` is not one."""
    if given is None:
        return np.full(size, 1 / size)
    vector = as_floats(f"{what}: ", given, "is not a vector of numbers").copy()
    if vector.shape != (size,):
        raise CapoError(f"{what}: shape {vector.shape} must be ({size},)")
    if not np.isfinite(vector).all() or (vector < 0).any():
        index = int(np.flatnonzero(~np.isfinite(vector) | (vector < 0))[0])
        raise CapoError(f"{what}: entry {index} is {vector[index]:g}; entries must be finite and at least 0")
    if positive and (vector == 0).any():
        index = int(np.flatnonzero(vector == 0)[0])
        raise CapoError(f"{what}: entry {index} is 0; every entry must be positive")
    total = float(vector.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise CapoError(f"{what}: sums to {total:.12g}, must sum to 1 within {SUM_TOLERANCE:g}")
    return vector if abs(total - 1) < 1e-12 else np.asarray(vector / total)


def _terminal_mask(terminal: Any, n_states: int) -> Bools | None:
    if terminal is None:
        return None
    try:
        given = np.asarray(terminal)
    except ValueError:
        raise CapoError(f"terminal={terminal!r} must be state indices or an ({n_states},) mask") from None
    if given.dtype == np.bool_:
        if given.shape != (n_states,):
            raise CapoError(f"terminal mask of shape {given.shape} must be ({n_states},)")
        return given.copy()
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise CapoError(f"terminal={terminal!r} must be state indices or an ({n_states},) mask")
    if given.size and (given.min() < 0 or given.max() >= n_states):
        raise CapoError(f"terminal={terminal!r} names states outside 0..{n_states - 1}")
    if len(np.unique(given)) != given.size:
        raise CapoError(f"terminal={terminal!r} repeats states: give each index once, or a mask of booleans")
    mask = np.zeros(n_states, bool)
    mask[given.astype(int).ravel()] = True
    return mask


def _make_absorbing(rows: Any, ends: Bools, n_actions: int) -> Any:
    """Rows (S*A, S), where the states in ``ends`` (S,) stay where they are."""
    pairs = np.repeat(ends, n_actions)
    targets = np.repeat(np.arange(len(ends)), n_actions)
    if not sp.issparse(rows):
        rows = rows.copy()
        rows[pairs] = 0
        rows[pairs, targets[pairs]] = 1
        return rows
    ones = sp.csr_array((np.ones(int(pairs.sum())), (np.flatnonzero(pairs), targets[pairs])), shape=rows.shape)
    clean = rows.copy()
    clean.data[np.repeat(pairs, np.diff(rows.indptr))] = 0  # whatever it was, even NaN
    result = sp.csr_array(clean + ones)
    result.eliminate_zeros()
    return result


# --- details of importers and exporters ----------------------------------------------------------------------


def _checksum(arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _action_matrices(given: Any, what: str) -> list[Any]:
    """(A, S, S) or a list of A square (S, S) matrices, checked."""
    parts: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if not parts:
        raise CapoError(f"{what}: no actions; give (A, S, S) or a list of A matrices (S, S)")
    matrices = [part if sp.issparse(part) else np.asarray(part) for part in parts]
    for action, matrix in enumerate(matrices):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape != matrices[0].shape:
            raise CapoError(
                f"{what}: the matrix of action {action} has shape {matrix.shape}; all must be (S, S), S the same"
            )
    return matrices
