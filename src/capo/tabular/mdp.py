"""Finite Markov decision processes, dense or sparse: validation, importers, saving and loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg

from capo.checks import as_path, printable, whole
from capo.errors import CapoError
from capo.tabular import gymnasium_table, importers, mdp_files
from capo.tabular.mdp_checks import (
    SUM_TOLERANCE,
    Bools,
    Floats,
    Ints,
    action_mask,
    aligned_reward,
    as_floats,
    check_distribution,
    check_gamma,
    check_probabilities,
    drop_rows,
    expected_reward,
    make_absorbing,
    terminal_mask,
    transition_rows,
)

__all__ = [
    "MDP",
    "Bools",
    "Floats",
    "Ints",
    "RewardMap",
    "as_floats",
    "check_distribution",
    "require_discounted",
    "require_mdp",
]


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
            which the expectation is kept. If transitions and rewards are COO matrices with the same rows and
            columns, entry k of one belongs to entry k of the other, duplicates included.
        gamma: discount in (0, 1); or 1, for MDPs over a finite number of steps (see :meth:`unroll`).
        start: (S,) start distribution rho; uniform by default.
        terminal: states (indices or an (S,) mask) where an episode ends. They become absorbing with reward 0,
            whatever their rows contain. States that are already absorbing with reward 0 are found automatically.
        actions: which actions each state has: an (S, A) mask, or a list of pairs (state, action); all of them by
            default. Transitions and rewards of other pairs are ignored, whatever they are. Every state needs at
            least one action, except for terminal ones.
        name: for display; printable text.

    Attributes:
        n_states, n_actions: S and A, the most actions that a state could have.
        actions: (S, A) mask of the allowed pairs; None if all are allowed.
        reward: (S, A) expected rewards, 0 where the action is not allowed.
        terminal: (S,) mask.

    >>> import numpy as np
    >>> two = MDP(np.full((2, 2, 2), 0.5), np.eye(2), gamma=0.9)
    >>> two.n_states, two.n_actions, two.is_sparse
    (2, 2, False)
    >>> MDP(np.full((2, 2, 2), 0.5), np.eye(2), gamma=0.9, actions=[(0, 0), (1, 0), (1, 1)]).n_pairs
    3
    """

    def __init__(
        self,
        transition: Any,
        reward: Any,
        gamma: float,
        start: Any = None,
        *,
        terminal: Any = None,
        actions: Any = None,
        name: str = "",
    ) -> None:
        self.name = printable("name", name)
        self.gamma = check_gamma(gamma)
        self.reward_map = RewardMap()
        self._rows, shape = transition_rows(transition)
        self.n_states, self.n_actions = shape
        self.is_sparse = sp.issparse(self._rows)
        self._ends = ends = terminal_mask(terminal, self.n_states)
        self.actions: Bools | None = action_mask(actions, shape, ends)
        if ends is not None and ends.any():
            self._rows = make_absorbing(self._rows, ends, self.n_actions)
        if self.actions is not None:
            self._rows = drop_rows(self._rows, ~self.actions.ravel())
        single = getattr(transition, "dtype", None) in (np.float32, np.float16)
        tolerance = 1e-5 if single else SUM_TOLERANCE
        self._rows = check_probabilities(self._rows, self.n_actions, tolerance, self.actions)
        self._set_reward(aligned_reward(transition, reward))
        self.start: Floats = check_distribution(start, self.n_states, "start distribution")
        self._freeze()

    def _set_reward(self, reward: Any) -> None:
        """Check and keep rewards, and find the terminal states that follow from them."""
        shape = (self.n_states, self.n_actions)
        rewards = expected_reward(reward, self._rows, shape, self._ends, self.actions)
        self.reward: Floats = rewards
        self._check_size()
        found = self._absorbing() & (rewards == 0).all(axis=1)
        self.terminal: Bools = found if self._ends is None else (found | self._ends)

    def _check_size(self) -> None:
        """Refuse rewards whose values would overflow with this discount."""
        largest = float(np.abs(self.reward).max())
        if not np.isfinite(largest / (1 - self.gamma if self.gamma < 1 else 1.0) * 1e8):
            discount = f"gamma={self.gamma!r}"
            raise CapoError(f"rewards of size {largest:g} are too large with {discount}: values would overflow")

    def _freeze(self) -> None:
        """Make the arrays read-only, so that they stay as they were checked."""
        stored = (self._rows.data, self._rows.indices, self._rows.indptr) if self.is_sparse else (self._rows,)
        for array in (self.reward, self.start, self.terminal, self.actions, *stored):
            if array is not None:
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
        """Q(s, a) = r(s, a) + gamma * sum_s' P(s'|s, a) V(s'), as (S, A), from values (S,).

        0 where the action is not allowed: pass it through :meth:`masked` before taking a maximum.
        """
        expected = np.asarray(self._rows @ values).reshape(self.n_states, self.n_actions)
        return self.reward + self.gamma * expected

    # --- action sets -----------------------------------------------------------------------------------------

    def masked(self, scores: Floats, fill: float = -np.inf) -> Floats:
        """(S, A) scores with ``fill`` where the action is not allowed."""
        return scores if self.actions is None else np.where(self.actions, scores, fill)

    @cached_property
    def allowed(self) -> Bools:
        """(S, A) which actions each state has; all True where ``actions`` is None."""
        if self.actions is not None:
            return self.actions
        everything = np.ones((self.n_states, self.n_actions), bool)
        everything.flags.writeable = False
        return everything

    @property
    def n_pairs(self) -> int:
        """The number of allowed pairs (state, action)."""
        return self.n_states * self.n_actions if self.actions is None else int(self.actions.sum())

    @cached_property
    def max_actions(self) -> int:
        """The most actions that any state has."""
        return self.n_actions if self.actions is None else int(self.actions.sum(axis=1).max())

    @property
    def uniform_policy(self) -> Floats:
        """(S, A) each allowed action of a state with the same probability."""
        if self.actions is None:
            return np.full((self.n_states, self.n_actions), 1 / self.n_actions)
        return np.asarray(self.actions / self.actions.sum(axis=1, keepdims=True))

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest reward of the allowed pairs."""
        if self.actions is None:
            return float(self.reward.min()), float(self.reward.max())
        return float(self.masked(self.reward, np.inf).min()), float(self.masked(self.reward).max())

    # --- what a policy is worth ------------------------------------------------------------------------------

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
        """V_pi (S,), by one direct solve: the plain evaluation against which the fast ones are checked."""
        require_discounted(self)
        matrix = self.policy_transition(policy)
        reward = (policy * self.reward).sum(axis=1)
        try:
            if self.is_sparse:
                system = sp.csc_array(sp.eye_array(self.n_states) - self.gamma * matrix)
                return np.asarray(scipy.sparse.linalg.splu(system).solve(reward))
            return np.linalg.solve(np.eye(self.n_states) - self.gamma * matrix, reward)
        except (np.linalg.LinAlgError, RuntimeError):  # what splu raises
            raise singular(self) from None

    def reachable(self, origin: Floats | None = None) -> Bools:
        """(S,) mask of the states that some policy can reach from ``origin`` (default: the start distribution)."""
        origin = self.start if origin is None else as_floats("origin=", origin)
        if origin.shape != (self.n_states,):
            raise CapoError(f"origin of shape {origin.shape} must be (S,) = ({self.n_states},)")
        rows = self.csr()
        leads = sp.csr_array((np.ones(rows.nnz, np.int8), rows.indices, rows.indptr), shape=rows.shape)
        seen = np.asarray(origin > 0)
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
        low, high = self.reward_range
        scale = high - low if high > low else 1.0
        # Composed with an earlier map, so that values always map back to the MDP the user built.
        first = self.reward_map
        composed = RewardMap(scale * first.scale, first.shift + low * first.scale)
        return self._copy(reward=self.masked((self.reward - low) / scale, 0.0), reward_map=composed)

    def original_values(self, values: npt.ArrayLike) -> Floats:
        """Values of the rescaled MDP in the units of the rewards the MDP was built with."""
        require_discounted(self)
        return self.reward_map.scale * np.asarray(values, np.float64) + self.reward_map.shift / (1 - self.gamma)

    def with_gamma(self, gamma: float) -> MDP:
        """The same MDP with another discount."""
        changed = self._copy(gamma=check_gamma(gamma))
        changed._check_size()
        return changed

    def with_start(self, start: Any) -> MDP:
        """The same MDP with another start distribution (S,)."""
        return self._copy(start=check_distribution(start, self.n_states, "start distribution"))

    def with_reward(self, reward: Any) -> MDP:
        """The same transitions with other rewards: (S, A), (S, A, S) or sparse (S*A, S).

        The states that were given as terminal keep reward 0.
        """
        changed = self._copy(reward_map=RewardMap())
        changed._set_reward(reward)
        changed._freeze()
        return changed

    def unroll(self, horizon: int, final: Any = None) -> MDP:
        """The same MDP over ``horizon`` steps, as a sparse MDP with a copy of every state for every step.

        State h*S + s is state s at step h = 0, 1, ...; the last state, H*S, is the end. :func:`capo.solve` with
        ``horizon=`` solves this MDP.

        Without a discount (gamma = 1) it has the discount g = 1 - 1/(H + 1), and the rewards of step h are divided
        by g^h. Then its values and advantages at step h are g^-h <= e times those of the undiscounted MDP:
        policies, signs and values at the start are the same, and a bound on V* - V holds for both.

        Args:
            horizon: H, the number of steps.
            final: (S,) what the states are worth after the last step; 0 by default.
        """
        steps, n, rows = whole("horizon", horizon), self.n_states, self.csr()
        last = self.reward
        if final is not None:
            worth = as_floats("final=", final)
            if worth.shape != (n,) or not np.isfinite(worth).all():
                raise CapoError(f"final of shape {worth.shape} must be finite and of shape (S,) = ({n},)")
            last = self.masked(self.q_values(worth), 0.0)
        transition = importers.unrolled(rows, self.allowed.ravel(), self.n_actions, steps)
        reward = np.concatenate([np.tile(self.reward, (steps - 1, 1)), last, np.zeros((1, self.n_actions))])
        gamma = self.gamma
        if gamma == 1:
            gamma = 1 - 1 / (steps + 1)
            reward[:-1] /= np.repeat(gamma ** np.arange(steps), n)[:, None]
        mask = np.concatenate([np.tile(self.allowed, (steps, 1)), np.ones((1, self.n_actions), bool)])
        start = np.concatenate([self.start, np.zeros((steps - 1) * n + 1)])
        name = f"{self.label} over {steps} steps" + (" without discount" if self.gamma == 1 else "")
        return MDP(transition, reward, gamma, start, terminal=[steps * n], actions=mask, name=name)

    def _copy(self, **changes: Any) -> MDP:
        changed = object.__new__(MDP)
        changed.__dict__.update(self.__dict__ | changes)
        changed._freeze()
        return changed

    @property
    def has_unit_rewards(self) -> bool:
        """Whether every reward lies in [0, 1], as the rate theorems assume."""
        low, high = self.reward_range
        return low >= 0 and high <= 1

    # --- importers and exporters -----------------------------------------------------------------------------

    @classmethod
    def from_gymnasium(cls, env: Any, gamma: float, **make_options: Any) -> MDP:
        """The MDP of a Gymnasium toy-text environment: an id such as ``"FrozenLake-v1"``, or an environment.

        A transition flagged as terminated earns its reward and nothing after it. The states that such
        transitions lead to become terminal. If one of them can also be reached in mid-episode, those transitions
        lead to an extra absorbing state instead.
        """
        transition, reward, start, terminal, name = gymnasium_table.read(env, make_options)
        return cls(transition, reward, gamma, start, terminal=terminal, name=name)

    @classmethod
    def from_mdptoolbox(
        cls, transitions: Any, rewards: Any = None, gamma: float | None = None, start: Any = None
    ) -> MDP:
        """An MDP in pymdptoolbox's layout, with the action first, or from one of its solvers.

        Args:
            transitions: (A, S, S) array, or a list of A (S, S) arrays or sparse matrices; or a pymdptoolbox object
                such as ``mdptoolbox.mdp.ValueIteration(P, R, 0.9)``, which brings its own rewards and discount.
            rewards: (S,), (S, A), (A, S, S), or a list of A (S, S) arrays or sparse matrices.
            gamma: discount.
            start: start distribution.
        """
        return cls(**importers.from_mdptoolbox(transitions, rewards, gamma), start=start)

    @classmethod
    def from_quantecon(cls, problem: Any, gamma: float | None = None, start: Any = None) -> MDP:
        """The MDP of a quantecon ``DiscreteDP``, in either of its layouts.

        Pairs that it does not list, or whose reward is minus infinity, are not allowed.

        Args:
            problem: the ``DiscreteDP``.
            gamma: discount; by default its ``beta``.
            start: start distribution.
        """
        return cls(**importers.from_quantecon(problem, gamma), start=start)

    @classmethod
    def from_pairs(
        cls,
        states: Any,
        actions: Any,
        transition: Any,
        reward: Any,
        gamma: float,
        start: Any = None,
        *,
        n_actions: int | None = None,
        terminal: Any = None,
        name: str = "",
    ) -> MDP:
        """An MDP given pair by pair; only the pairs listed are allowed.

        Args:
            states, actions: (L,) indices: entry l is the pair (states[l], actions[l]).
            transition: (L, S), dense or sparse: the probabilities of each pair.
            reward: (L,); or (L, S), dense or sparse, one per transition.
            gamma: discount.
            start: (S,) start distribution.
            n_actions: A; by default the greatest action + 1.
            terminal, name: as for :class:`MDP`.

        >>> MDP.from_pairs([0, 0, 1], [0, 1, 1], [[1, 0], [0, 1], [0, 1]], [5, 10, -1], gamma=0.9).actions.tolist()
        [[True, True], [False, True]]
        """
        given = importers.from_pairs(states, actions, transition, reward, n_actions)
        return cls(**given, gamma=gamma, start=start, terminal=terminal, name=name)

    @classmethod
    def from_function(
        cls,
        n_states: int,
        n_actions: int,
        step: Callable[[Ints, Ints], tuple[Any, Any, Any]],
        gamma: float,
        start: Any = None,
        *,
        terminal: Any = None,
        actions: Any = None,
        block: int | None = None,
        name: str = "",
    ) -> MDP:
        """A sparse MDP from a function that is called with many pairs at once.

        Args:
            n_states, n_actions: S and A.
            step: called with states (n,) and actions (n,); returns next states, probabilities and rewards, each
                (n,) or (n, K) for K successors (a single number stands for all). Successors may repeat, and may
                have probability 0; rewards are averaged over the successors. It is not called for terminal states
                or for actions that are not allowed.
            gamma: discount.
            start: (S,) start distribution.
            terminal: as for :class:`MDP`.
            actions: as for :class:`MDP`; or a function of states (n,) that returns an (n, A) mask.
            block: pairs per call; about 260,000 by default.
            name: for display.

        >>> def walk(states, actions):  # left or right on a ring, 10 % of the time the other way
        ...     way = np.stack([2 * actions - 1, 1 - 2 * actions], axis=1)
        ...     return (states[:, None] + way) % 1000, [[0.9, 0.1]] * len(states), states == 7
        >>> MDP.from_function(1000, 2, walk, gamma=0.9)
        MDP(1000 states, 2 actions, gamma 0.9, sparse)
        """
        rows, reward, mask = importers.from_function(n_states, n_actions, step, terminal, actions, block)
        return cls(rows, reward, gamma, start, terminal=terminal, actions=mask, name=name)

    def save(self, path: str | Path) -> Path:
        """Write the MDP to ``path`` (.npz): plain arrays and a JSON manifest with a checksum, no pickle."""
        arrays = {"reward": self.reward, "start": self.start, "terminal": self.terminal}
        arrays |= {"actions": self.actions} if self.actions is not None else {}
        arrays |= {"ends": self._ends} if self._ends is not None else {}
        if self.is_sparse:
            arrays |= {"data": self._rows.data, "indices": self._rows.indices, "indptr": self._rows.indptr}
        else:
            arrays["transition"] = self.transition
        mapped = [self.reward_map.scale, self.reward_map.shift]
        return mdp_files.write(path, arrays, {"name": self.name, "gamma": self.gamma, "reward_map": mapped})

    @classmethod
    def load(cls, path: str | Path) -> MDP:
        """Read an MDP written by :meth:`save`, or any .npz with arrays transition, reward and gamma."""
        arguments, rest = mdp_files.read(as_path("MDP.load(path)", path))
        mdp = cls(**arguments)
        if rest:
            mdp._restore(path, **rest)
        return mdp

    def _restore(
        self, path: str | Path, terminal: Bools, ends: Bools | None, reward_map: tuple[float, float]
    ) -> None:
        """Take from a file what the constructor cannot be told, if it agrees with transitions and rewards."""
        said = terminal if ends is None else terminal | ends
        low, high = self.masked(self.reward, np.inf).min(axis=1), self.masked(self.reward).max(axis=1)
        single = low == high  # not always 0: rewards may have been rescaled
        wrong = np.flatnonzero(said & ~(terminal & self._absorbing() & single))
        if wrong.size:
            raise CapoError(
                f"{path} is damaged: state {wrong[0]} is marked as terminal, but an action leaves it or its "
                "actions differ in reward"
            )
        self.terminal, self._ends, self.reward_map = terminal, ends, RewardMap(*reward_map)
        self._freeze()

    # --- details ---------------------------------------------------------------------------------------------

    def _absorbing(self) -> Bools:
        """(S,) mask of the states that no action can leave."""
        own = np.repeat(np.arange(self.n_states), self.n_actions)
        stay = np.asarray(self._rows[np.arange(len(own)), own]).reshape(self.n_states, self.n_actions)
        return np.asarray(((stay == 1) | ~self.allowed).all(axis=1))

    @property
    def label(self) -> str:
        """The name, for a sentence."""
        return self.name or "an MDP"

    @property
    def summary(self) -> str:
        """The size, for a sentence."""
        states, actions = ("s" if n != 1 else "" for n in (self.n_states, self.n_actions))
        most = "" if self.actions is None else "up to "
        return f"{self.n_states} state{states}, {most}{self.n_actions} action{actions}, gamma {self.gamma:g}"

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        return f"MDP({f'{self.name}: ' if self.name else ''}{self.summary}, {kind})"


def require_mdp(given: Any) -> None:
    """Raise unless ``given`` is a discounted MDP; a name is the likeliest mistake."""
    if not isinstance(given, MDP):
        raise CapoError(f"{given!r} is not a capo.MDP; capo.mdps.parse makes one from a name such as 'chain:10'")
    require_discounted(given)


def singular(mdp: MDP) -> CapoError:
    """What to raise where floating point finds no values of a policy."""
    return CapoError(
        f"gamma={mdp.gamma!r} is too close to 1: the equations of this policy's values are singular in floating "
        "point; use a smaller gamma"
    )


def require_discounted(mdp: MDP) -> None:
    """Raise if values need not be finite."""
    if mdp.gamma == 1:
        raise CapoError(
            "gamma=1 needs a finite number of steps: capo.solve(mdp, horizon=H) or --horizon H with rule cyclic, "
            "randomized or batch, or mdp.unroll(H), which works with everything"
        )
