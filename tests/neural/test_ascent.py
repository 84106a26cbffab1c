"""Algorithm 2 as a public function: against plain loops, the experiments' program, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import capo
from capo import ascent
from capo.experiments import algorithm2 as a2
from capo.tabular.theory import PolicyValues


@pytest.fixture(autouse=True)
def exact_floats():
    with jax.enable_x64(True):
        yield


def softmax(theta):
    weights = np.exp(theta - theta.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def table(shape, theta=None):
    """theta in float64."""
    start = np.zeros(shape) if theta is None else np.array(theta, float)
    return ascent.Policy({"theta": start}, ascent.table_logits)


def plain_loop(mdp, batches, rate, kl, steps):
    """Algorithm 2 on a table with plain gradient steps, pair by pair."""
    theta = np.zeros((mdp.n_states, mdp.n_actions))
    for states, actions in batches:
        pi = softmax(theta)
        advantage = PolicyValues(mdp, np.log(pi)).advantage
        raised = {}
        for s, a in zip(states.tolist(), actions.tolist(), strict=True):
            raised.setdefault(s, {})[a] = -np.log(pi[s, a]) * np.sign(advantage[s, a])
        targets = {}
        for s, changes in raised.items():
            row = np.log(pi[s])
            for a, change in changes.items():
                row[a] += change
            targets[s] = softmax(row)
        for _ in range(steps):
            now = softmax(theta)
            for s, target in targets.items():
                difference = np.log(now[s]) - np.log(target)
                if kl == "policy-to-target":
                    slope = now[s] * (difference - now[s] @ difference)
                else:
                    slope = now[s] - target
                theta[s] -= rate * slope
    return theta


@pytest.mark.parametrize("kl", ["policy-to-target", "target-to-policy"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_table_against_a_plain_loop(kl, steps):
    mdp = capo.mdps.random(4, 3, gamma=0.8, seed=1)
    rng = np.random.default_rng(0)
    batches = [(rng.integers(4, size=6), rng.integers(3, size=6)) for _ in range(25)]
    found = capo.coordinate_ascent(
        table((4, 3)), batches, ascent.exact_advantages(mdp),
        optimiser=optax.sgd(0.3), rule=ascent.AscentRule(kl=kl, steps=steps),
    )  # fmt: skip
    expected = plain_loop(mdp, batches, 0.3, kl, steps)
    np.testing.assert_allclose(softmax(found.params["theta"]), softmax(expected), atol=1e-9)
    assert found.iterations == 25
    assert not np.allclose(softmax(expected), 1 / 3, atol=0.05)


def test_the_chain_experiments_program_is_the_same_algorithm():
    mdp, sizes = capo.mdps.chain(5, 2), a2.RunSizes(iterations=20, batch=8, replay=30, record_every=20)
    pairs = a2.batches_from("cyclic replay", [mdp], sizes)
    batches = [np.divmod(batch, mdp.n_actions) for batch in pairs[0]]
    for name, policy in (
        ("table", ascent.table_policy(mdp.n_states, mdp.n_actions)),
        ("network", ascent.network_policy(mdp.n_states, mdp.n_actions, rng=np.random.default_rng([0, 0]))),
    ):
        rule = a2.UpdateRule(policy=name)

        def logits(params, states, policy=policy):  # in double precision, as in the experiments
            return policy.logits(params, states).astype(jnp.float64)

        policy = ascent.Policy(policy.params, logits)
        found = ascent.coordinate_ascent(policy, batches, ascent.exact_advantages(mdp), learning_rate=0.02)
        _, returns = a2.run_all(rule, [mdp], pairs, [0.02], sizes)
        own = a2.plain_return(mdp, np.exp(found.log_policy(np.arange(mdp.n_states))))
        assert own == pytest.approx(returns[0, 0, -1], rel=1e-6)
        assert own > 1.2 * returns[0, 0, 0]


def test_a_policy_and_an_evaluator_of_ones_own():
    """Vectors for observations, a linear policy, advantages from sampled rewards: no MDP anywhere."""
    rng = np.random.default_rng(0)

    def logits(params, observations):
        return jnp.asarray(observations) @ params["w"]

    def batches():
        for _ in range(200):
            observations = rng.choice([-1.0, 1.0], size=(16, 1))
            yield observations, rng.integers(2, size=16)

    def sampled(log_policy, observations, actions):
        reward = np.where((actions == 1) == (observations[:, 0] > 0), 1.0, 0.0)
        value = np.exp(log_policy(observations))[np.arange(len(actions)), (observations[:, 0] > 0).astype(int)]
        return reward + rng.normal(0, 0.3, len(actions)) - value

    seen = []
    policy = ascent.Policy({"w": np.zeros((1, 2))}, logits)
    found = capo.coordinate_ascent(policy, batches(), sampled, learning_rate=0.05, callback=seen.append)
    np.testing.assert_array_equal(found.log_policy([[-1.0], [1.0]]).argmax(axis=1), [0, 1])
    assert np.exp(found.log_policy([[1.0]]))[0, 1] > 0.9
    assert [one.iterations for one in seen[-1:]] == [200]
    stopped = capo.coordinate_ascent(policy, batches(), sampled, callback=lambda now: now.iterations < 7)
    assert stopped.iterations == 7


def test_a_repeated_pair_counts_once_with_the_mean_of_its_advantages():
    theta = np.array([[0.3, -0.2, 0.0], [0.0, 0.5, 0.1]])
    given = {"once": [1.0, -2.0], "twice": [3.0, -1.0, -2.0], "negative": [1.0, -3.0, -2.0]}
    ends = {}
    for name, advantage in given.items():
        pairs = (
            (np.array([0, 1]), np.array([2, 1])) if name == "once" else (np.array([0, 0, 1]), np.array([2, 2, 1]))
        )
        rule = ascent.AscentRule()
        ends[name] = capo.coordinate_ascent(
            table((2, 3), theta), [pairs], lambda *_, a=advantage: np.array(a), optimiser=optax.sgd(0.5), rule=rule
        ).params["theta"]
    np.testing.assert_allclose(ends["once"], ends["twice"], atol=1e-15)
    assert ends["negative"][0, 2] < theta[0, 2] < ends["once"][0, 2]


def test_rows_outside_the_batch_stay():
    theta = np.random.default_rng(0).normal(size=(3, 4))
    batch = (np.array([1, 1]), np.array([0, 3]))
    end = capo.coordinate_ascent(
        table((3, 4), theta), [batch], lambda *_: np.array([1.0, -1.0]), optimiser=optax.sgd(0.5)
    ).params["theta"]
    np.testing.assert_array_equal(np.asarray(end)[[0, 2]], theta[[0, 2]])
    assert (np.asarray(end)[1] != theta[1]).all()


def test_the_target_in_single_precision_has_no_nan():
    with jax.enable_x64(False):
        rule = ascent.AscentRule(by_advantage=True)
        log_pi = jnp.log(jnp.array([[0.5, 0.5]], jnp.float32))
        target = ascent.target_distribution(log_pi, jnp.zeros((1, 2)), jnp.ones((1, 2)), rule)
        np.testing.assert_allclose(target, log_pi)


@pytest.mark.parametrize(
    ("batch", "evaluate", "message"),
    [
        (([0, 1], [0]), None, "a batch must be observations"),
        (([0], [0.5]), None, "integer actions"),
        (([0], [3]), None, "actions must be from 0 to 1"),
        (([], []), None, "n >= 1"),
        (([0, 1], [0, 1]), lambda *_: [1.0], "2 finite advantages"),
        (([0, 1], [0, 1]), lambda *_: [1.0, np.nan], "not finite"),
    ],
)
def test_bad_batches_and_evaluators_are_refused(batch, evaluate, message):
    evaluate = evaluate or (lambda _, where, __: np.ones(len(where)))
    with pytest.raises(capo.CapoError, match=message):
        capo.coordinate_ascent(table((2, 2)), [batch], evaluate)


def test_bad_rules_are_refused():
    with pytest.raises(capo.CapoError, match="kl"):
        ascent.AscentRule(kl="forward")
    with pytest.raises(capo.CapoError, match="counts no visits"):
        ascent.AscentRule(step=capo.StepSize("on-policy"))
    with pytest.raises(capo.CapoError, match="steps"):
        ascent.AscentRule(steps=0)
