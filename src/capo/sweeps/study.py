"""What Optuna does for a tuning: it proposes the next trials, keeps the study in a file, and ranks the settings.

Optuna is an optional extra and is imported only here. Every proposal is a function of the seed, the trial's number
and the trials before it, so a tuning that was stopped proposes what one that was not would have.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoError
from capo.sweeps.batch import Outcome
from capo.sweeps.space import Dimension, Space

NAME = "tuning"  # of the study in its file


def import_optuna() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import optuna
    except ImportError:
        raise CapoError("tuning needs Optuna, which is not installed: pip install 'capo-rl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Study:
    """The study of a tuning: tree-structured Parzen estimators over the space, in an SQLite file.

    Args:
        path: of the file; made if it is not there.
        space: what is searched.
        first: the settings of the first trial.
        seed: of the proposals.
    """

    def __init__(self, path: Path, space: Space, first: Mapping[str, Any], seed: int) -> None:
        self._optuna = import_optuna()
        self._space, self._seed = space, seed
        self._distributions = {_key(one): one.distribution(self._optuna) for one in space.values()}
        try:
            self._study = self._optuna.create_study(
                storage=f"sqlite:///{path.absolute()}", study_name=NAME, direction="maximize", load_if_exists=True
            )
        except Exception as error:  # SQLAlchemy's, which says what is wrong with the file
            raise CapoError(f"{path} is not the study of a tuning ({str(error).splitlines()[0]})") from None
        if not self._study.get_trials(deepcopy=False):
            self._study.enqueue_trial({_key(one): one.to_search(first[one.name]) for one in space.values()})

    def propose(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The settings of these trials, which are the next ones or have been proposed before."""
        found = []
        for number in numbers:
            stored = self._study.get_trials(deepcopy=False)
            asked = number < len(stored) and stored[number].state != self._optuna.trial.TrialState.WAITING
            params = stored[number].params if asked else self._ask(number)
            found.append({one.name: one.from_search(params[_key(one)]) for one in self._space.values()})
        return found

    def _ask(self, number: int) -> dict[str, Any]:
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        # The liar: trials that are proposed together keep away from each other.
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        trial = self._study.ask(self._distributions)
        if trial.number != number:
            raise CapoError(f"the study has {trial.number} trials where {number} were expected, so it was changed")
        return dict(trial.params)

    def tell(self, number: int, outcome: Outcome, stages: int) -> None:
        """What a trial came to, unless the study knows."""
        states = self._optuna.trial.TrialState
        stored = self._study.get_trials(deepcopy=False)[number]
        if stored.state != states.RUNNING:
            return
        trial = self._optuna.trial.Trial(self._study, stored._trial_id)
        for frames, score in zip(outcome.frames, outcome.scores, strict=True):
            trial.report(score, frames)
        if len(outcome.scores) == stages and not outcome.diverged:
            self._study.tell(trial, outcome.scores[-1])
        else:  # counts by its last score; without one (it diverged) as the worst
            self._study.tell(trial, state=states.PRUNED)

    def importances(self, scores: Mapping[int, float]) -> dict[str, float]:
        """How much of the difference between good and other trials each setting explains (PED-ANOVA); sums to 1.

        Args:
            scores: of trials, by number; all measured in the same way.

        Returns:
            The share of each setting, the largest first; nothing if there are too few trials.
        """
        if len(scores) < 4 or len(set(scores.values())) < 2:
            return {}
        optuna, stored = self._optuna, self._study.get_trials(deepcopy=False)
        trials = [
            optuna.trial.create_trial(params=stored[number].params, distributions=self._distributions, value=score)
            for number, score in scores.items()
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            everything = optuna.create_study(direction="maximize")
            everything.add_trials(trials)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(everything, evaluator=evaluator)
        names = {_key(one): one.name for one in self._space.values()}
        return {names[key]: float(share) for key, share in found.items()}


def _key(one: Dimension) -> str:
    """What a setting is called in the study."""
    return f"1 - {one.name}" if one.scale == "log-from-one" else one.name
