"""Proofs: bounds against rational arithmetic, files that were changed, files from strangers, both checkers."""

import ast
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import capo
from capo import MDP, CapoError, mdps
from capo.cli import main
from capo.tabular import archive
from capo.tabular import proof as proofs

sys.path.insert(0, str(Path(__file__).parent))  # import-mode importlib does not find exact otherwise

from exact import ExactMDP

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "tools" / "check_proof.py"
GAMMAS = [0.1, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-9, 1 - 2**-40, 1 - 2**-53]

spec = importlib.util.spec_from_file_location("check_proof", CHECKER)
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)


def random_case(seed):
    """A small MDP, a policy and values, all of them as awkward as floating point allows."""
    rng = np.random.default_rng(seed)
    n_states, n_actions = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    p = rng.dirichlet(np.full(n_states, rng.choice([0.1, 1.0, 10.0])), (n_states, n_actions))
    p *= 1 + rng.choice([0, 1e-14, -3e-13]) * rng.random(p.shape)  # rows that sum to 1 only nearly
    p /= np.where(np.abs(p.sum(axis=2, keepdims=True) - 1) < 1e-9, 1, p.sum(axis=2, keepdims=True))
    r = rng.normal(size=(n_states, n_actions)) * 10.0 ** rng.integers(-8, 9)
    if rng.random() < 0.3:
        r = np.round(r)
    mask = rng.random((n_states, n_actions)) < 0.8
    mask[:, rng.integers(n_actions)] = True
    transition = sp.csr_array(p.reshape(-1, n_states)) if rng.random() < 0.5 else p
    mdp = MDP(transition, r, GAMMAS[seed % len(GAMMAS)], actions=mask)
    policy = mdp.uniform_policy
    kind = rng.integers(4)
    if kind == 1:
        policy = rng.random((n_states, n_actions)) ** 4 * mask
        policy[np.arange(n_states), mask.argmax(axis=1)] += 1e-3
        policy /= policy.sum(axis=1, keepdims=True)
    elif kind > 1:
        q = mdp.masked(mdp.reward)
        policy = (q == q.max(axis=1, keepdims=True)).astype(float)
        policy /= policy.sum(axis=1, keepdims=True)
    try:
        own = mdp.policy_values(policy)
    except CapoError:  # singular in floating point
        own = np.full(n_states, mdp.reward.max() / (1 - mdp.gamma))
    values = [
        own,
        rng.normal(size=n_states) * 10.0 ** rng.integers(-3, 12),
        np.zeros(n_states),
    ]
    return mdp, policy, np.asarray(values[rng.integers(3)])


@pytest.mark.parametrize("block", range(8))
def test_every_claim_is_true_in_rational_arithmetic(block):
    """400 MDPs, gamma up to 1 - 2^-53: V_pi, V* and their difference against their exact values."""
    for seed in range(block * 50, block * 50 + 50):
        mdp, policy, values = random_case(seed)
        proof = proofs.prove(mdp, policy, values)
        exact = ExactMDP(mdp)
        followed, best = exact.values(exact.policy(policy)), exact.optimal()
        for s in range(mdp.n_states):
            v = Fraction(float(values[s]))
            assert followed[s] >= v + Fraction(proof.lower), seed
            assert best[s] <= v + Fraction(proof.upper), seed
            assert best[s] - followed[s] <= Fraction(proof.gap_bound), seed


def test_bounds_enclose_the_exact_residuals_and_little_else():
    wrong = 0
    for seed in range(400):
        mdp, policy, values = random_case(seed)
        exact = ExactMDP(mdp)
        v, everywhere = [Fraction(x) for x in values.tolist()], np.ones(mdp.n_states, bool)
        low, high = exact.residuals(exact.policy(policy), v, everywhere)
        for room in (1.0, proofs.CLAIMED):
            found = proofs._residuals(mdp, policy, values, everywhere, room)
            assert found[0] <= low, seed
            assert found[1] >= high, seed
        tiny = Fraction(1, 2**990)
        size = Fraction(float(np.abs(mdp.reward).max() + np.ptp(values) + (1 - mdp.gamma) * np.abs(values).max()))
        assert found[1] - high <= Fraction(1, 10**13) * size + tiny, seed
        assert low - found[0] <= Fraction(1, 10**13) * size + tiny, seed
        bare = proofs._residuals(mdp, policy, values, everywhere, 0.0)
        wrong += bare[0] > low or bare[1] < high
    assert wrong > 20  # without the error bounds, floating point gets some of them wrong


def test_rounding_up_is_exact():
    for number in (
        Fraction(1, 3),
        Fraction(2, 3),
        Fraction(1),
        Fraction(-1, 3),
        Fraction(1, 10**320),
        Fraction(0),
    ):
        up = proofs.rounded_up(number)
        assert Fraction(up) >= number
        assert Fraction(float(np.nextafter(up, -np.inf))) < number
    with pytest.raises(CapoError, match="too large"):
        proofs.rounded_up(Fraction(10) ** 400)


# --- files ----------------------------------------------------------------------------------------------------


def masked_mdp():
    rng = np.random.default_rng(5)
    mask = rng.random((8, 3)) < 0.7
    mask[:, 1] = True
    return MDP(rng.dirichlet(np.ones(8), (8, 3)), rng.normal(size=(8, 3)), 0.95, actions=mask)


CASES = {
    "dense": lambda: mdps.garnet(20, 3, 4),
    "sparse": lambda: mdps.slippery_grid(12),
    "terminal": lambda: mdps.chain(6),
    "action sets": masked_mdp,
}


def saved(tmp_path, mdp, **options):
    result = capo.solve(mdp, **({"rule": "batch"} | options))
    return result.save(tmp_path / "proof.npz"), mdp.save(tmp_path / "mdp.npz")


def stand_alone(*arguments):
    """Exit status of the stand-alone checker: 0 proved, anything else not."""
    try:
        return checker.main([str(argument) for argument in arguments])
    except Exception:
        return 2


@pytest.mark.parametrize("case", CASES)
def test_what_was_saved_is_proved_by_both_checkers(tmp_path, case, capsys):
    mdp = CASES[case]()
    path, mdp_path = saved(tmp_path, mdp)
    found = capo.verify(path, mdp)
    assert found
    assert found.gap_bound <= found.proof.gap_bound < 1e-7
    assert capo.verify(path, MDP.load(mdp_path)).held
    assert stand_alone(path, mdp_path) == 0
    assert stand_alone(path, mdp_path, "--exact") == 0
    assert capsys.readouterr().out.count("proved: V* - V_pi <= ") == 2
    assert main(["verify", str(path), str(mdp_path)]) == 0
    assert "every rounding error accounted for" in capsys.readouterr().out


def test_a_walk_proves_the_states_it_can_reach(tmp_path):
    mdp = mdps.chain(6).with_start(np.eye(7)[3])
    result = capo.solve(mdp, rule="on-policy", iterations=3000)
    assert not result.covered.all()
    path, mdp_path = result.save(tmp_path / "p.npz"), mdp.save(tmp_path / "m.npz")
    found = capo.verify(path, mdp)
    assert found
    assert found.gap_bound <= max(2 * result.gap_bound, 1e-9)
    assert stand_alone(path, mdp_path) == 0
    everywhere = proofs.prove(mdp, result.policy, result.values)
    assert everywhere.gap_bound > 1


def test_results_of_baselines_of_any_policy_and_of_finite_horizons_are_proved(tmp_path):
    mdp = mdps.forest(6)
    best = capo.baselines.policy_iteration(mdp)
    assert capo.verify(best.save(tmp_path / "b.npz"), mdp).gap_bound < 1e-10
    rough = capo.prove(mdp, mdp.uniform_policy, np.zeros(6))
    true = (best.values - mdp.policy_values(mdp.uniform_policy)).max()
    assert capo.verify(rough.save(tmp_path / "r"), mdp).gap_bound >= true
    steps = capo.solve(mdp, rule="batch", horizon=4)
    assert capo.verify(steps.save(tmp_path / "h.npz"), mdp.unroll(4))
    with pytest.raises(CapoError, match="another MDP: 25 states x 2 actions, but this one has 6 x 2"):
        capo.verify(tmp_path / "h.npz", mdp)


def rewrite(path, change, seal):
    """Change arrays and claims of a proof file; with ``seal`` the checksum is made to fit again."""
    with np.load(path) as archive:
        arrays = dict(archive)
    claims = json.loads(arrays.pop("manifest").tobytes())
    said = claims.pop("sha256")
    change(arrays, claims)
    if seal:
        said = proofs._checksum(claims, arrays["policy"], arrays["values"], arrays["covered"])
    np.savez(path, manifest=np.frombuffer(json.dumps(claims | {"sha256": said}).encode(), np.uint8), **arrays)


def change_policy(arrays, _):
    arrays["policy"][3] = arrays["policy"][3][::-1].copy()


def change_value(arrays, _):
    arrays["values"][3] += 1e-3


def change_covered(arrays, _):
    arrays["covered"][3] = False


def change_gap(_, claims):
    claims["gap_bound"] *= 0.1


def change_upper(_, claims):
    claims["upper"] -= 1e-9


def change_lower(_, claims):
    claims["lower"] += 1e-9


CHANGES = [change_policy, change_value, change_covered, change_gap, change_upper, change_lower]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seal", [False, True], ids=["as is", "with a new checksum"])
def test_one_number_changed_is_found(tmp_path, change, seal):
    mdp = mdps.garnet(20, 3, 4)
    path, mdp_path = saved(tmp_path, mdp)
    rewrite(path, change, seal)
    if seal and change is not change_covered:
        found = capo.verify(path, mdp)
        assert not found.held
        assert "can be proved" in found.problem
        assert main(["verify", str(path), str(mdp_path)]) == 1
    else:
        with pytest.raises(CapoError, match="was changed" if not seal else "covered states can be left"):
            capo.verify(path, mdp)
        assert main(["verify", str(path), str(mdp_path)]) == 2
    assert stand_alone(path, mdp_path) != 0
    assert stand_alone(path, mdp_path, "--exact") != 0


def test_the_last_bit_of_any_number_matters(tmp_path):
    mdp = mdps.chain(4)
    path, mdp_path = saved(tmp_path, mdp)
    whole = path.read_bytes()
    for name in ("policy", "values"):
        size = getattr(capo.verify(path, mdp).proof, name).size
        for i in range(size):

            def change(arrays, _, name=name, i=i):
                arrays[name].ravel()[i] = np.nextafter(arrays[name].ravel()[i], 2)

            rewrite(path, change, seal=False)
            with pytest.raises(CapoError, match="was changed"):
                capo.verify(path, mdp)
            assert stand_alone(path, mdp_path) != 0
            path.write_bytes(whole)


def test_a_policy_that_leaves_the_action_set_is_refused(tmp_path):
    mdp = masked_mdp()
    path, mdp_path = saved(tmp_path, mdp)

    def change(arrays, _):
        s, a = np.argwhere(~mdp.actions)[0]
        arrays["policy"][s] = 0
        arrays["policy"][s, a] = 1

    rewrite(path, change, seal=True)
    with pytest.raises(CapoError, match="not allowed in state"):
        capo.verify(path, mdp)
    assert stand_alone(path, mdp_path) != 0


def test_another_mdp_is_refused(tmp_path, capsys):
    mdp = mdps.garnet(20, 3, 4)
    path, _ = saved(tmp_path, mdp)
    other = mdp.with_reward(np.nextafter(mdp.reward, 9))
    with pytest.raises(CapoError, match="rewards or action sets differ"):
        capo.verify(path, other)
    assert stand_alone(path, other.save(tmp_path / "o.npz")) != 0
    with pytest.raises(CapoError, match=r"is for gamma 0\.95, but this MDP has 0\.9"):
        capo.verify(path, mdp.with_gamma(0.9))
    sparse = MDP(sp.csr_array(mdp.rows), mdp.reward, mdp.gamma)
    assert proofs.digest(sparse) == proofs.digest(mdp)
    assert main(["verify", str(path), "garnet:20,3,4"]) == 0
    assert main(["verify", str(path), "garnet:20,3,4", "--gamma", "0.9"]) == 2
    assert "gamma" in capsys.readouterr().err


def test_covered_states_must_not_be_left():
    mdp = mdps.garnet(20, 3, 4)
    some = np.arange(20) < 3
    with pytest.raises(CapoError, match="covered states can be left"):
        proofs.prove(mdp, mdp.uniform_policy, np.zeros(20), some)
    with pytest.raises(CapoError, match="at least one state"):
        proofs.prove(mdp, mdp.uniform_policy, np.zeros(20), np.zeros(20, bool))
    with pytest.raises(CapoError, match="finite"):
        proofs.prove(mdp, mdp.uniform_policy, np.full(20, np.nan))
    with pytest.raises(CapoError, match="overflow"):
        proofs.prove(mdp, mdp.uniform_policy, np.where(np.arange(20) % 2, 1.7e308, -1.7e308))


def overflowing(mdp):
    """The worst policy, with values 1.7e308 in one state and -1.7e308 in a successor that it does not move to."""
    best = capo.baselines.policy_iteration(mdp)
    worst = capo.baselines.policy_iteration(mdp.with_reward(-mdp.reward))
    policy, values, rows = worst.policy.copy(), best.values.copy(), mdp.csr()
    state = mdp.n_states - 2
    pair = state * mdp.n_actions
    other = min(rows.indices[rows.indptr[pair] : rows.indptr[pair + 1]])
    policy[state], policy[state + 1 :] = np.eye(mdp.n_actions)[-1], best.policy[state + 1 :]
    values[state], values[other] = 1.7e308, -1.7e308
    return policy, values


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("case", [mdps.slippery_grid(5), mdps.garnet(20, 3, 2)], ids=["slippery", "garnet"])
def test_an_overflow_is_not_forgotten_after_finite_residuals(tmp_path, case):
    policy, values = overflowing(case)
    with pytest.raises(CapoError, match="residuals overflow in state"):
        capo.prove(case, policy, values)
    path, mdp_path = saved(tmp_path, case)

    def change(arrays, claims):
        arrays["policy"], arrays["values"] = policy, values
        claims.update(lower=-1e-12, upper=1e-12, gap_bound=1e-12)

    rewrite(path, change, seal=True)
    with pytest.raises(CapoError, match="residuals overflow in state"):
        capo.verify(path, case)
    assert main(["verify", str(path), str(mdp_path)]) == 2
    assert stand_alone(path, mdp_path) != 0


def test_states_that_are_not_covered_may_overflow():
    transition = np.zeros((3, 2, 3))
    transition[0, :, 0] = transition[1, :, 1] = transition[2, 0, 0] = transition[2, 1, 1] = 1
    mdp = MDP(transition, np.zeros((3, 2)), 0.9)
    values = np.array([0.0, -1.7e308, 1.7e308])
    assert capo.prove(mdp, mdp.uniform_policy, values, [True, False, False]).gap_bound < 1e-290
    with pytest.raises(CapoError, match="residuals overflow in state 2"):
        capo.prove(mdp, mdp.uniform_policy, values)


# --- files from strangers -------------------------------------------------------------------------------------


def member(shape, descr="<f8", data=b""):
    """The bytes of an .npy that claims a shape, whatever follows."""
    head = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def hostile(kind, manifest):
    good = io.BytesIO()
    np.save(good, manifest)
    deep = b"[" * 100_000
    return {
        "huge shape": [("manifest.npy", good.getvalue()), ("policy.npy", member((10**6, 10**6)))],
        "huge manifest": [("manifest.npy", member((10**12,), "|u1"))],
        "bomb": [("manifest.npy", member((1 << 28,), "|u1", bytes(1 << 28)))],
        "pickle": [("manifest.npy", member((1,), "|O", b"x"))],
        "deep json": [("manifest.npy", member((len(deep),), "|u1", deep))],
        "not a proof": [("a.npy", good.getvalue())],
        "twice": [("manifest.npy", good.getvalue()), ("manifest.npy", good.getvalue())],
        "negative": [("manifest.npy", member((-1,), "|u1"))],
        "code": [("manifest.npy", b"\x93NUMPY\x01\x00\x0a\x00__import__")],
    }[kind]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "kind",
    ["huge shape", "huge manifest", "bomb", "pickle", "deep json", "not a proof", "twice", "negative", "code"],
)
def test_hostile_files_are_refused_before_memory_is_taken(tmp_path, kind):
    import tracemalloc

    mdp = mdps.chain(4)
    path, mdp_path = saved(tmp_path, mdp)
    with np.load(path) as archive:
        manifest = archive["manifest"]
    write_zip(path, hostile(kind, manifest))
    tracemalloc.start()
    with pytest.raises(CapoError):
        capo.verify(path, mdp)
    with pytest.raises(CapoError):
        MDP.load(path) if kind not in ("bomb",) else capo.verify(path, mdp)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20
    if kind != "bomb":
        assert stand_alone(path, mdp_path) != 0


def test_arrays_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    path = mdps.garnet(20, 3, 4).save(tmp_path / "m.npz")
    monkeypatch.setattr(archive, "memory_limit", lambda: 1000)
    with pytest.raises(CapoError, match="GB of arrays; at most"):
        MDP.load(path)


def test_the_command_line_proves_and_verifies(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["solve", "chain:5", "--rule", "batch", "--horizon", "4", "--out", str(folder)]) == 0
    assert "proven      V* - V <= " in capsys.readouterr().out
    assert main(["verify", str(folder / "proof.npz"), "chain:5", "--horizon", "4"]) == 0
    assert "proved: " in capsys.readouterr().out
    assert main(["verify", str(folder / "proof.npz"), "chain:5"]) == 2
    assert "another MDP" in capsys.readouterr().err
    assert json.loads((folder / "result.json").read_text())["proven_gap_bound"] < 1e-7


def test_an_index_outside_the_mdp_is_refused(tmp_path):
    from capo.tabular.mdp_files import checksum

    path = mdps.slippery_grid(4).save(tmp_path / "m.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    manifest = json.loads(arrays.pop("manifest").tobytes())
    for name, place, value in (("indices", 3, 10**6), ("indices", 3, -5), ("indptr", 2, 10**6), ("indptr", 5, 0)):
        broken = {key: array.copy() for key, array in arrays.items()}
        broken[name][place] = value
        text = json.dumps(manifest | {"sha256": checksum(broken)}).encode()
        np.savez(path, manifest=np.frombuffer(text, np.uint8), **broken)
        with pytest.raises(CapoError, match="damaged"):
            MDP.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gap_bound", None),
        ("gap_bound", "1e-9"),
        ("gap_bound", float("nan")),
        ("upper", float("inf")),
        ("states", 2.0),
    ],
)
def test_claims_must_be_numbers(tmp_path, key, value):
    mdp = mdps.chain(4)
    path, mdp_path = saved(tmp_path, mdp)
    rewrite(path, lambda _, claims: claims.update({key: value}), seal=True)
    with pytest.raises(CapoError, match=f"{key} is"):
        capo.verify(path, mdp)
    if not isinstance(value, str) and key != "states":  # text that reads as a true number does no harm there
        assert stand_alone(path, mdp_path) != 0


@pytest.mark.parametrize("key", ["algorithm", "name"])
def test_claims_cannot_control_the_screen(tmp_path, key, capsys):
    mdp = mdps.chain(4)
    path, mdp_path = saved(tmp_path, mdp)
    rewrite(path, lambda _, claims: claims.update({key: "\x1b[2J\x1b[Hproved: everything"}), seal=True)
    assert main(["verify", str(path), str(mdp_path)]) == 2
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert f"{key} is '\\x1b[2J" in told.err
    with pytest.raises(CapoError, match="must be printable text"):
        capo.prove(mdp, mdp.uniform_policy, np.zeros(mdp.n_states), algorithm="one\ntwo")


def test_a_proof_that_is_no_file_and_an_mdp_that_is_no_mdp(tmp_path):
    with pytest.raises(CapoError, match="does not exist"):
        capo.verify(tmp_path / "none.npz", mdps.chain(3))
    with pytest.raises(CapoError, match=r"is not a capo\.MDP"):
        capo.verify(tmp_path / "none.npz", "chain:3")
    for path in (5, None, b"x"):
        with pytest.raises(CapoError, match="is not the name of a file or folder"):
            capo.verify(path, mdps.chain(3))
        with pytest.raises(CapoError, match="is not the name of a file or folder"):
            capo.solve(mdps.chain(3)).save(path)
    with pytest.raises(CapoError, match="capo-proof-1"):
        capo.verify(mdps.chain(3).save(tmp_path / "m.npz"), mdps.chain(3))


# --- the stand-alone checker -------------------------------------------------------------------------------------


def test_the_stand_alone_checker_stands_alone(tmp_path):
    source = CHECKER.read_text("utf-8")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"numpy"}
    assert len(source.splitlines()) <= 150
    path, mdp_path = saved(tmp_path, masked_mdp())
    command = [sys.executable, str(CHECKER), path, mdp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("proved: V* - V_pi <= ")
    rewrite(path, change_value, seal=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("NOT PROVED")


def test_the_stand_alone_checker_refuses_weights_that_underflow(tmp_path):
    """5e-324 times a difference of values is 0, although the probability is a third."""
    from capo.tabular import mdp_files

    transition = np.array([[[1e-323, 5e-324]], [[0.0, 1.0]]])
    arrays = {"reward": np.array([[0.0], [0.045]]), "start": np.array([0.5, 0.5]), "terminal": np.zeros(2, bool)}
    facts = {"name": "tiny", "gamma": 0.9, "reward_map": [1.0, 0.0]}
    mdp_path = mdp_files.write(tmp_path / "m", arrays | {"transition": transition}, facts)
    gamma, *_, digest = checker.read_mdp(mdp_path)
    proof = proofs.Proof(
        digest, "tiny", 2, 1, gamma, "none", np.ones((2, 1)), np.array([0.0, 0.45]), np.ones(2, bool),
        lower=-1e-12, upper=1e-12, gap_bound=2e-12,
    )  # fmt: skip
    path = proof.save(tmp_path / "p")
    assert stand_alone(path, mdp_path) != 0
    assert stand_alone(path, mdp_path, "--exact") != 0
    with pytest.raises(CapoError, match="sum to"):
        MDP.load(mdp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("gamma", -0.95), ("states", 21), ("states", 20.0), ("actions", 2), ("mdp", "0")]
)
def test_the_stand_alone_checker_compares_what_the_proof_says_of_the_mdp(tmp_path, key, value):
    path, mdp_path = saved(tmp_path, mdps.garnet(20, 3, 4))
    rewrite(path, lambda _, claims: claims.update({key: value}), seal=True)
    assert stand_alone(path, mdp_path) != 0
    assert main(["verify", str(path), str(mdp_path)]) == 2


def test_the_stand_alone_checker_leaves_other_arrays_alone(tmp_path):
    import tracemalloc

    path, mdp_path = saved(tmp_path, mdps.garnet(20, 3, 4))
    junk = member((1 << 26,), "|u1", bytes(1 << 26))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as proof:
        proof.writestr("junk.npy", junk)
        parts = [(name, proof.read(name)) for name in proof.namelist() if name not in ("junk.npy", "policy.npy")]
    large = tmp_path / "large.npz"
    write_zip(large, [*parts, ("policy.npy", member((1 << 23,), "<f8", bytes(1 << 26)))])
    del junk
    tracemalloc.start()
    assert stand_alone(path, mdp_path) == 0
    assert stand_alone(large, mdp_path) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_both_checkers_enclose_the_same_residuals(tmp_path, seed):
    mdp, policy, values = random_case(seed)
    path = capo.prove(mdp, policy, values).save(tmp_path / "p")
    mdp_path = mdp.save(tmp_path / "m")
    read = checker.read_mdp(mdp_path)
    assert read[-1] == proofs.digest(mdp)
    everywhere = np.ones(mdp.n_states, bool)
    exact = ExactMDP(mdp)
    low, high = exact.residuals(exact.policy(policy), [Fraction(x) for x in values.tolist()], everywhere)
    assert checker.exact_residuals(read, policy, values, everywhere) == (low, high)
    found = checker.residuals(read, policy, values, everywhere)
    assert found[0] <= low
    assert found[1] >= high
    assert stand_alone(path, mdp_path) == 0


def test_blocks_of_the_stand_alone_checker_do_not_change_its_answer(tmp_path, monkeypatch):
    mdp = mdps.slippery_grid(9)
    path, mdp_path = saved(tmp_path, mdp)
    read = checker.read_mdp(mdp_path)
    arrays = checker.read_proof(path, read[0], read[2], read[-1])[:3]
    whole = checker.residuals(read, *arrays)
    for block in (1, 7, 100):
        monkeypatch.setattr(checker, "BLOCK", block)
        assert checker.residuals(read, *arrays) == whole


def test_the_checker_is_printed_in_the_docs():
    page = (ROOT / "docs" / "explanation" / "proofs.md").read_text("utf-8")
    assert "\n<!-- generated: checker -->\n" in page
    spec = importlib.util.spec_from_file_location("generated", ROOT / "tools" / "generated.py")
    generated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated)
    assert CHECKER.read_text("utf-8") in generated.GENERATED["checker"]()
