"""solve and solve_many: stopping, starting points, history, reproducibility, bad input."""

import warnings

import numpy as np
import pytest

import capo
from capo import CapoError, CapoWarning, StepSize, mdps
from capo.tabular.record import record_points


def best_values(mdp):
    """V* by plain policy iteration."""
    policy = np.zeros((mdp.n_states, mdp.n_actions))
    policy[:, 0] = 1
    while True:
        v = mdp.policy_values(policy)
        q = mdp.q_values(v)
        better = q.max(axis=1) > v + 1e-12 * np.maximum(1, np.abs(v))
        if not better.any():
            return v
        policy[better] = np.eye(mdp.n_actions)[q.argmax(axis=1)[better]]


ALL_RULES = [
    {"rule": "cyclic"},
    {"rule": "cyclic", "order": "action-major"},
    {"rule": "cyclic", "order": "permuted"},
    {"rule": "cyclic", "order": "almost-cyclic"},
    {"rule": "randomized"},
    {"rule": "batch"},
    {"rule": "behaviour"},
    {"rule": "behaviour", "behaviour": "epsilon-greedy", "epsilon": 0.5, "batch_size": 5},
    {"rule": "cyclic", "multiple": 3.0},
    {"rule": "cyclic", "stepsize": "clipped", "clip": 20.0},
]


@pytest.mark.parametrize("options", ALL_RULES, ids=str)
@pytest.mark.parametrize(
    "mdp",
    [
        mdps.chain(10),
        mdps.chain(6, 5, stochastic=True),
        mdps.garnet(30, 3, 4),
        mdps.forest(5),
        mdps.slippery_grid(6),
    ],
    ids=lambda m: m.name,
)
def test_every_rule_reaches_the_optimum_and_the_bound_is_a_bound(options, mdp):
    result = capo.solve(mdp, tol=1e-7, **options)
    assert result.converged
    gap = (best_values(mdp) - result.values)[result.covered]
    assert gap.max() <= result.gap_bound + 1e-10
    assert result.gap_bound <= 1e-7


@pytest.mark.parametrize("rule", ["cyclic", "randomized", "batch", "behaviour"])
def test_values_never_decrease(rule):
    result = capo.solve(
        mdps.garnet(15, 4, 4), rule=rule, stepsize="fixed", eta=0.3, iterations=2000, record_every=1
    )
    assert (np.diff(result.history["value"]) >= -1e-12).all()


def test_on_policy_with_its_own_step_size_converges_on_a_small_mdp():
    mdp = mdps.garnet(3, 2, 2, gamma=0.5)
    result = capo.solve(mdp, rule="on-policy", stepsize="on-policy", iterations=400_000)
    assert (best_values(mdp) - result.values).max() < 0.02


def test_iterations_without_tol_are_exact():
    for iterations in (1, 7, 100, 1001):
        result = capo.solve(mdps.chain(5), iterations=iterations)
        assert result.iterations == iterations == result.history["iteration"][-1]
        assert result.stopped == f"{iterations} iterations done"
        assert not result.converged
    assert capo.solve(mdps.chain(5), cycles=3).iterations == 3 * 12
    assert capo.solve(mdps.chain(5), rule="batch", cycles=3).iterations == 3


def test_tol_with_iterations_stops_at_whichever_comes_first():
    assert capo.solve(mdps.chain(5), tol=1e-6, iterations=5).stopped == "5 iterations done before V* - V <= 1e-06"
    assert capo.solve(mdps.chain(5), tol=1e-6, iterations=10_000).converged


def test_a_tolerance_out_of_reach_is_refused_with_the_attainable_one():
    with pytest.raises(CapoError, match=r"tol=1e-12 cannot be certified.*set tol >= 1e-09") as error:
        capo.solve(mdps.chain(10), tol=1e-12)
    attainable = float(str(error.value).split("tol >= ")[1].split(",")[0])
    assert capo.solve(mdps.chain(10), tol=attainable * 1.01).converged
    assert capo.solve(mdps.chain(10), tol=1e-9, sign_tol=1e-12).converged
    # The default is what can be had.
    hard = mdps.garnet(20, 3, 4, gamma=0.99999)
    assert capo.solve(hard).converged


def test_starting_points():
    mdp = mdps.garnet(4, 3, 2)
    theta = np.random.default_rng(0).normal(size=(4, 3))
    policy = np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)
    one, other = (capo.solve(mdp, iterations=10, **start) for start in ({"theta": theta}, {"init": policy}))
    np.testing.assert_allclose(one.policy, other.policy, rtol=1e-12)
    assert (one.policy != capo.solve(mdp, iterations=10).policy).any()
    with pytest.raises(CapoError, match="not both"):
        capo.solve(mdp, theta=theta, init=policy)
    with pytest.raises(CapoError, match="pass softmax parameters as theta"):
        capo.solve(mdp, init=theta)
    with pytest.raises(CapoError, match="theta of shape"):
        capo.solve(mdp, theta=theta.T)


def test_a_start_with_zeros_can_still_reach_the_optimum():
    mdp = mdps.bandit([1.0, 0.0])
    assert capo.solve(mdp, init=[[0.0, 1.0]]).converged


def test_many_results_print_in_a_line():
    text = repr(capo.solve_many(capo.mdps.chain(4), 3, iterations=100))
    assert text.startswith("<ManyResult: 3 seeds x 100 iterations on chain")
    assert "gap bounds " in text


def test_same_seed_same_run_and_solve_many_is_solve():
    mdp = mdps.garnet(6, 3, 3)
    for options in (
        {"rule": "randomized"},
        {"rule": "cyclic", "order": "permuted"},
        {"rule": "behaviour"},
        {"rule": "behaviour", "batch_size": 3},
        {"rule": "on-policy", "stepsize": "on-policy"},
    ):
        one = capo.solve(mdp, iterations=500, seed=3, **options)
        np.testing.assert_array_equal(
            one.log_policy, capo.solve(mdp, iterations=500, seed=3, **options).log_policy
        )
        other = capo.solve(mdp, iterations=500, seed=4, **options)
        assert (one.counts != other.counts).any() or (one.log_policy != other.log_policy).any()
        many = capo.solve_many(mdp, [3, 4], iterations=500, record=[0, 10, 500], track=(2, 1), **options)
        np.testing.assert_allclose(many.policies[0], one.policy, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(many.policies[1], other.policy, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(many.tracked[:, -1], many.policies[:, 2, 1])
        np.testing.assert_allclose(many.value[:, 0], mdp.start @ mdp.policy_values(np.full((6, 3), 1 / 3)))
        np.testing.assert_array_equal(many.counts[0], one.counts)


def test_seeds_go_on_after_the_last_record_point():
    mdp = mdps.chain(5)
    early = capo.solve_many(mdp, 3, "randomized", iterations=60, record=[10])
    whole = capo.solve_many(mdp, 3, "randomized", iterations=60, record=[10, 60])
    np.testing.assert_array_equal(early.policies, whole.policies)
    np.testing.assert_array_equal(early.gap_bound, whole.gap_bound)
    assert early.counts.sum(axis=(1, 2)).tolist() == [60] * 3
    assert early.iteration.tolist() == [10]
    assert "60 iterations" in repr(early)
    bandit = mdps.bandit([1.0, 0.5])
    short = capo.baselines.stochastic_npg(bandit, 0.1, 3, iterations=60, record=[10])
    full = capo.baselines.stochastic_npg(bandit, 0.1, 3, iterations=60, record=[10, 60])
    np.testing.assert_array_equal(short.policies, full.policies)


@pytest.mark.parametrize("record", [["a"], [2.7], [-1], [61], [], "many"])
def test_record_points_that_are_none_are_refused(record):
    with pytest.raises(CapoError, match="record"):
        capo.solve_many(mdps.chain(5), 2, "randomized", iterations=60, record=record)


def test_record_points_may_come_as_any_array():
    import jax.numpy as jnp

    for record in ([3, 6], (3, 6), np.array([3, 6]), jnp.array([3, 6]), range(3, 7, 3)):
        assert record_points(record, 6).tolist() == [3, 6]
    assert record_points(np.array(2), 6).tolist() == record_points(2, 6).tolist() == [0, 6]


def test_a_whole_batch_size_may_be_a_float():
    runs = [capo.solve(mdps.chain(5), "behaviour", batch_size=size, iterations=5) for size in (4, 4.0)]
    np.testing.assert_array_equal(runs[0].log_policy, runs[1].log_policy)


def test_solve_many_refuses_what_has_no_seeds():
    with pytest.raises(CapoError, match="uses no random numbers"):
        capo.solve_many(mdps.chain(4), 3, rule="batch", iterations=3)
    with pytest.raises(CapoError, match="at least one"):
        capo.solve_many(mdps.chain(4), [], iterations=3)
    with pytest.raises(CapoError, match=r"pair \(9, 0\) is outside"):
        capo.solve_many(mdps.chain(4), 2, iterations=3, track=(9, 0))
    with pytest.raises(CapoError, match="record must list"):
        capo.solve_many(mdps.chain(4), 2, iterations=3, record=[5])


def test_the_history_and_the_callback_see_the_same():
    seen = []
    result = capo.solve(mdps.chain(10), iterations=100, record_every=30, callback=seen.append)
    assert [snapshot.iteration for snapshot in seen] == [0, 30, 60, 90, 100]
    np.testing.assert_array_equal(result.history["iteration"], [0, 30, 60, 90, 100])
    np.testing.assert_array_equal(result.history["value"], [snapshot.value for snapshot in seen])
    assert set(result.history) == {"iteration", "value", "gap_bound", "seconds"}
    stopped = capo.solve(mdps.chain(10), iterations=100, record_every=30, callback=lambda s: s.iteration < 60)
    assert (stopped.iterations, stopped.stopped) == (60, "stopped by the callback")


def test_the_bound_covers_what_a_walk_can_meet():
    mdp = mdps.chain(10)
    late = capo.solve(mdp, rule="behaviour", restart=np.eye(11)[6], tol=1e-7)
    assert late.converged
    assert late.covered.nonzero()[0].tolist() == [0, 6, 7, 8, 9, 10]
    assert "the 6 reachable states of 11" in str(late)
    assert "never visited" in str(late)
    gap = best_values(mdp) - late.values
    assert gap[late.covered].max() <= late.gap_bound + 1e-10
    assert gap[1:6].min() > late.gap_bound


def test_the_result_prints_its_essentials():
    text = str(capo.solve(mdps.chain(10)))
    for words in (
        "cyclic CAPO on chain:10,1 (11 states, 2 actions, gamma 0.99)",
        "V* - V      at most",
        "every state",
        "92.27446944",
        "6 cycles",
        "visits      6 to 6 per pair",
    ):
        assert words in text


def test_the_repr_is_one_short_line():
    result = capo.solve(mdps.chain(10))
    text = repr(result)
    assert text.startswith("<Result: cyclic CAPO on chain:10,1: value 92.2745, V* - V <= ")
    assert text.endswith(" after 132 iterations>")
    assert "\n" not in text
    assert repr(capo.MDP(np.ones((1, 2, 1)), [[0.0, 1.0]], 0.5)) == "MDP(1 state, 2 actions, gamma 0.5, dense)"
    uniform = capo.theory.evaluate(mdps.bandit([1.0, 0.0]), [[0.5, 0.5]])
    assert repr(uniform) == "<PolicyValues on bandit:1,0: value 1>"


def test_results_are_saved(tmp_path):
    result = capo.solve(mdps.chain(10))
    result.save(tmp_path / "run")
    table = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["value"], result.history["value"])
    with np.load(tmp_path / "run" / "policy.npz") as archive:
        np.testing.assert_array_equal(archive["log_policy"], result.log_policy)
    text = (tmp_path / "run" / "result.json").read_text()
    assert '"gap_bound"' in text
    assert '"versions"' in text
    (tmp_path / "file").write_text("")
    with pytest.raises(CapoError, match="is a file"):
        result.save(tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stepsize": "logg"}, "did you mean 'log'"),
        ({"stepsize": "log", "eta": 1.0}, "does not take eta; it takes multiple"),
        ({"stepsize": "log", "multiple": 0.5}, "multiple=0.5 < 1.*allow_violation"),
        ({"stepsize": "on-policy", "beta": 0.5}, r"beta=0.5 > 1/\(\|A\|\+1\) = 0.333"),
        ({"stepsize": "on-policy", "zeta": 1.0}, r"zeta=1 > 1/\|A\| = 0.5"),
        ({"stepsize": StepSize("fixed"), "eta": 2.0}, "is already a StepSize"),
        ({"iterations": 0}, "iterations=0"),
        ({"iterations": 2.5}, "iterations=2.5"),
        ({"cycles": 2, "iterations": 3}, "not both"),
        ({"tol": -1.0}, "tol=-1.0 must be positive"),
        ({"sign_tol": 0.0}, "sign_tol=0.0"),
        ({"mu": [1.0]}, r"mu: shape \(1,\)"),
        ({"mu": np.eye(11)[0]}, "mu: entry 1 is 0"),
        ({"critic": "precise"}, "unknown critic 'precise'"),
        ({"record_every": 0}, "record_every=0"),
    ],
)
def test_bad_settings_are_refused_before_any_work(options, words):
    with pytest.raises(CapoError, match=words):
        capo.solve(mdps.chain(10), **options)


def test_violations_run_when_asked_for_with_a_warning():
    with pytest.warns(CapoWarning, match="zeta=1 > 1/"):
        capo.solve(
            mdps.bandit(), rule="on-policy", stepsize="on-policy", zeta=1.0, iterations=10, allow_violation=True
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capo.solve(mdps.bandit(), rule="on-policy", stepsize="on-policy", iterations=10)


def test_frozen_lake_agrees_with_policy_iteration():
    mdp = capo.MDP.from_gymnasium("FrozenLake-v1", gamma=0.99)
    np.testing.assert_allclose(capo.solve(mdp, rule="batch").values, best_values(mdp), atol=1e-8)


def test_a_run_that_leaves_the_range_of_floats_is_no_solution():
    with pytest.raises(CapoError, match="too large"):
        capo.MDP(np.full((2, 2, 2), 0.5), [[1e308, 0], [0, 1e308]], 0.99)
    with pytest.raises(CapoError, match="eta=1e\\+308 must be between"):
        capo.baselines.natural_policy_gradient(mdps.bandit(), eta=1e308)
    with pytest.raises(CapoError, match="no longer finite"):
        capo.tabular.critic.greatest_advantage(np.array([[0.0, np.nan]]))


def test_the_advised_tolerance_is_accepted():
    for seed in range(10):
        mdp = mdps.random(10, 4, gamma=0.9, seed=seed)
        with pytest.raises(CapoError, match="set tol >=") as error:
            capo.solve(mdp, tol=1e-30)
        advised = float(str(error.value).split("tol >= ")[1].split(",")[0])
        assert capo.solve(mdp, tol=advised).converged


def test_a_default_that_cannot_be_had_is_raised_with_a_warning():
    with pytest.warns(CapoWarning, match="default tol of 1e-08 cannot be certified"):
        result = capo.solve(mdps.garnet(20, 3, 4, gamma=0.99999))
    assert result.converged


def test_callbacks_may_answer_with_numpy_booleans():
    stopped = capo.solve(mdps.chain(10), callback=lambda s: s.log_policy.max() > 1)
    assert stopped.stopped == "stopped by the callback"


def test_an_iterable_that_ends_at_a_record_point_is_recorded_once():
    every = [(s, a) for s in range(11) for a in range(2)]
    result = capo.solve(mdps.chain(10), rule=every * 3, iterations=1000)
    assert result.history["iteration"].tolist() == [0, 22, 44, 66]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: capo.solve("chain:10"), "is not a capo.MDP"),
        (lambda m: capo.solve(m, seed=-1), "seed=-1"),
        (lambda m: capo.solve(m, iterations=float("nan")), "iterations=nan"),
        (lambda m: capo.solve(m, cycles=float("inf")), "cycles=inf"),
        (lambda m: capo.solve(m, tol="1e-3"), "tol='1e-3'"),
        (lambda m: capo.solve(m, theta="x"), "theta='x'"),
        (lambda m: capo.solve(m, callback=3), "must be callable"),
        (lambda m: capo.solve(m, critic="signs"), "applies to rule='batch' only"),
        (lambda m: capo.solve(m, rule="behaviour", epsilon=0.3), "applies to behaviour='epsilon-greedy' only"),
        (lambda m: capo.solve(m, rule="cyclic", behaviour="epsilon-greedy"), "does not take behaviour"),
        (
            lambda m: capo.solve(m, rule="randomized", d_gen=np.full((2, 11), 1 / 22)),
            r"must be \(S, A\) = \(11, 2\)",
        ),
        (lambda m: capo.solve(m, rule=[[(0, 1), (1,)]]), "pairs"),
        (lambda m: capo.solve(m, stepsize=["log"]), "unknown step size"),
        (lambda m: capo.solve_many(m, [-1], iterations=3), "seed=-1"),
        (lambda m: capo.solve_many(m, 2, iterations=3, threads=0), "threads=0"),
        (lambda _: mdps.chain("x"), "n='x'"),
        (lambda _: mdps.parse("chain:nan"), "must be finite"),
        (lambda _: mdps.parse("garnet:10,2,2,-1"), "seed=-1"),
        (lambda _: mdps.parse("chain:10,9,0.5"), "stochastic must be 0 or 1"),
        (lambda _: mdps.bandit(["a"]), "vector of numbers"),
    ],
)
def test_odd_values_get_an_error_that_names_them(call, words):
    with pytest.raises(CapoError, match=words):
        call(mdps.chain(10))


def test_numpy_numbers_are_numbers():
    mdp = mdps.chain(5)
    result = capo.solve(mdp, iterations=np.int64(24), seed=np.int32(1), multiple=np.float32(2))
    assert result.iterations == 24
    many = capo.solve_many(mdp, np.int64(3), iterations=10, record=np.int64(5), track=[1, 0])
    assert many.value.shape[0] == 3
    assert many.tracked.shape == many.value.shape


@pytest.mark.parametrize("critic", ["exact", "k-step"])
@pytest.mark.parametrize("option", ["critic", "k", "sweeps", "threads", "device"])
def test_arrays_are_no_options(critic, option):
    with pytest.raises(CapoError, match=option):
        capo.solve(mdps.chain(5), **{"critic": critic, option: np.array([1, 2])})


def test_arrays_are_no_rules_seeds_or_step_sizes():
    with pytest.raises(CapoError, match="rule="):
        capo.solve(mdps.chain(5), rule=np.array("gpu"))
    with pytest.raises(CapoError, match="seeds="):
        capo.solve_many(mdps.chain(5), rule="randomized", seeds=np.array("gpu"), iterations=3)
    with pytest.raises(CapoError, match="step size"):
        capo.baselines.policy_gradient(mdps.chain(5), stepsize=np.array([1, 2]))


@pytest.mark.parametrize("option", ["init", "theta", "mu"])
def test_integers_beyond_floating_point_are_refused(option):
    with pytest.raises(CapoError, match="too large"):
        capo.solve(mdps.chain(5), iterations=2, **{option: 10**400})
