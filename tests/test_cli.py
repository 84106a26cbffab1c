"""The command line as a user meets it: what it prints, writes and returns."""

import json
import subprocess
import sys

import numpy as np
import pytest

from capo import CapoError, cli, mdps
from capo.commands import reproduce


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_solve_reports_and_certifies(capsys):
    status, out, _ = run(capsys, "solve", "chain:6", "--rule", "cyclic", "--certificate")
    assert status == 0
    assert "cyclic CAPO on chain:6,1" in out
    assert "against policy iteration: values differ by at most" in out
    assert "Theorem 2 (cyclic), rate at rho, repaired" in out
    assert "FAILED" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("chain:5,4", "--rule", "batch"),
        ("FrozenLake-v1", "--gamma", "0.99", "--rule", "batch"),
        ("garnet:20,3,4", "--rule", "randomized", "--tol", "1e-6", "--seed", "3"),
        ("garnet:20,3,4", "--rule", "behaviour", "--behaviour", "epsilon-greedy", "--epsilon", "0.3"),
        ("forest", "--rule", "cyclic", "--order", "permuted", "--multiple", "2"),
        ("bandit", "--rule", "on-policy", "--stepsize", "on-policy", "--iterations", "2000"),
        ("slippery:10", "--rule", "batch", "--critic", "signs", "--tol", "1e-6"),
    ],
)
def test_every_rule_runs(capsys, arguments):
    status, out, _ = run(capsys, "solve", *arguments)
    assert status == 0
    assert "V* - V      at most" in out


def test_out_writes_everything_a_plot_needs(capsys, tmp_path):
    folder = tmp_path / "deep" / "run"
    status, out, _ = run(capsys, "solve", "chain:5", "--certificate", "--out", str(folder))
    assert status == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "result.json",
        "history.csv",
        "history.png",
        "policy.npz",
        "proof.npz",
        "certificate.json",
        "certificate.txt",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["converged"] is True
    assert "numpy" in result["versions"]
    assert (folder / "history.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "certificate.json").read_text())["held"] is True
    assert str(folder) in out


def test_a_tolerance_that_is_missed_is_an_exit_status(capsys):
    status, out, _ = run(capsys, "solve", "chain:10", "--tol", "1e-6", "--iterations", "3")
    assert status == 1
    assert "before V* - V <= 1e-06" in out


def test_a_violation_is_a_warning_when_allowed(capsys):
    arguments = (
        "solve",
        "bandit",
        "--rule",
        "on-policy",
        "--stepsize",
        "on-policy",
        "--zeta",
        "1",
        "--iterations",
        "9",
    )
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "zeta=1 > 1/|A|" in err
    status, _, err = run(capsys, *arguments, "--allow-violation")
    assert status == 0
    assert "capo: warning: step size outside the theorems" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("solve", "chian:10"), "did you mean 'chain'"),
        (("solve", "chain:10", "--rule", "cycle"), "did you mean 'cyclic'"),
        (("solve", "chain:10", "--stepsize", "fixd"), "did you mean 'fixed'"),
        (("solve", "chain:10", "--gamma", "1.5"), "gamma=1.5 must be above 0"),
        (("solve", "missing.npz"), "missing.npz does not exist"),
        (("reproduce", "bandits"), "did you mean 'bandit'"),
        (("bench", "tabluar"), "did you mean 'tabular'"),
    ],
)
def test_mistakes_are_one_line_and_status_two(capsys, arguments, words):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("capo: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = run(capsys, "solve", "chain:10", "--out", str(tmp_path / "file"))
    assert status == 2
    assert out == ""
    assert "is a file" in err


def test_files_are_solved(capsys, tmp_path):
    path = mdps.garnet(10, 3, 4).save(tmp_path / "g.npz")
    assert run(capsys, "solve", str(path))[0] == 0
    path.write_bytes(path.read_bytes()[:100])
    status, _, err = run(capsys, "solve", str(path))
    assert status == 2
    assert "damaged" in err


def test_help_explains_itself(capsys):
    for arguments in (["--help"], ["solve", "--help"], ["reproduce", "--help"], ["bench", "--help"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        assert "examples:" in capsys.readouterr().out


def test_the_installed_command_and_importing_are_light():
    """jax takes a second to import; the tabular half must not need it."""
    code = "import sys, capo; print('jax' in sys.modules, 'matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_a_result_is_there_before_its_certificate(tmp_path, monkeypatch):
    """A certificate may take long, and be interrupted."""
    from capo.tabular.solver import Result

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Result, "certificate", interrupted)
    assert cli.main(["solve", "chain:4", "--certificate", "--out", str(tmp_path / "run")]) == 130
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["mdp"], result["gamma"], result["states"], result["actions"]) == ("chain:4,1", 0.99, 5, 2)


def test_another_experiment_s_folder_is_refused(tmp_path, capsys):
    (tmp_path / "summary.json").write_text(json.dumps({"experiment": "bandit", "quick": True}))
    for more in ([], ["--quick"]):
        assert cli.main(["reproduce", "rates", "--out", str(tmp_path), *more]) == 2
        assert "is from the experiment bandit, not rates" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text('{"experiment": "rat')
    for name in ("curves.csv", "table.csv", "tight.csv"):
        (tmp_path / name).write_text("a\n1\n")
    assert cli.main(["reproduce", "rates", "--draw-only", "--out", str(tmp_path)]) == 2
    assert "summary.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "owner"),
    [
        ("breakout-ncapo-default.json", {"experiment": "minatar"}, "minatar"),
        ("breakout-base.json", {"experiment": "minatar", "variant": "base"}, "ablation"),
        ("breakout-ncapo-noise-3.json", {"experiment": "minatar", "variant": "ncapo-noise-3"}, "noise"),
        ("chain.json", {"experiment": "ablation, chain"}, "ablation"),
        ("breakout-clip-1.json", {"experiment": "ablation", "variant": "clip-1"}, "ablation"),
        ("summary.json", {"experiment": "noise"}, "noise"),
        ("notes.json", {"experiment": "my own"}, "anybody"),
        ("notes.json", [], "anybody"),
    ],
)
def test_every_file_says_whose_a_folder_is(tmp_path, file, content, owner):
    (tmp_path / file).write_text(json.dumps(content))
    for name in reproduce.EXPERIMENTS:
        if owner in (name, "anybody"):
            reproduce._refuse_another(tmp_path, name)
        else:
            with pytest.raises(CapoError, match=f", not {name}:"):
                reproduce._refuse_another(tmp_path, name)


def test_python_dash_m_is_the_same_command():
    command = [sys.executable, "-m", "capo", "solve", "no-such-thing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("capo: error: ")


def test_readme_interface_holds():
    """The few lines people copy first."""
    import capo

    mdp = capo.mdps.chain(10, up_actions=9)
    result = capo.solve(mdp, rule="cyclic", stepsize="log", iterations=None, tol=1e-8, seed=0)
    assert result.converged
    assert result.policy.shape == (11, 10)
    assert result.gap_bound <= 1e-8
    assert result.counts.min() > 0
    assert result.certificate().held
    assert len(result.history["iteration"]) == len(result.history["value"]) == len(result.history["gap_bound"])
    assert np.isclose(result.value, 92.274469, atol=1e-5)


def test_solve_leaves_the_folder_of_a_training_alone(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["solve", "chain:3", "--out", str(tmp_path)]) == 2
    assert "contains a training run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
