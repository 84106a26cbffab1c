"""Many trainings as jobs: on this machine or on a Ray cluster, resumed exactly after a loss.

From the bottom to the top:

    work      what all engines share: :class:`Task`, :class:`Work`, :class:`Outcome`
    local     processes on this machine, or this process itself
    mirror    a folder's files sent to another machine, for clusters without a shared disk
    ray       a task per piece of work on a Ray cluster (extra ``cluster``)
    engine    :func:`run_all`: pieces of work on one of them
    jobs      one training as a :class:`Task` with an id made of its content
    spec      what a user asks for, and the jobs it stands for
    plan      the jobs of a spec, checked as a whole before anything starts
    folder    a sweep's folder: sweep.toml, jobs/ID/, table.csv
    board     the live table
    sweep     :func:`sweep`, which puts all of it together

Tuning runs batches of trials on the same engines:

    batch, groups, trials             some trials side by side, and what they come to
    space, study                      what is searched, and Optuna, which proposes
    tuning_plan, tuning_folder        what is going to be done, and what is there
    tuning                            :func:`tune`, which puts all of it together

The interface of the engines is small. A task is a picklable object of an importable class with one method::

    class Task(Protocol):
        def run(self, folder: Path) -> None: ...

    work = [Work("a name", Path("out/a"), task, cpus=1, gpus=0), ...]
    outcomes = run_all(work, on="local", workers=2)          # or on="auto", "ray://HOST:PORT"

- ``folder`` is all that a task has: it finds there what an earlier attempt left, and writes everything there.
  What it prints goes to ``log.txt`` in it. On a cluster without a shared disk, the folder is a copy on the worker;
  its files come back to ``Work.folder`` of the process that started it, as they are written.
- A task has to be able to continue: if its process or machine is lost, :meth:`run` is called again elsewhere with
  what has come back. A training does so from its newest checkpoint.
- An exception means that the task itself failed; it is not repeated and stops nobody else. ``run_all`` returns one
  :class:`Outcome` per name; ``outcome.error`` is empty for those that succeeded.
"""
