"""The jitted suites, each against the original step by step, and a short training on each.

A suite that is not installed is skipped; ``make test-suites`` installs them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_envs import Counting
from helpers_shell import TINY_640

import capo
from capo import envs
from capo.cli import main
from capo.commands.envs import GROUPS
from capo.envs import catalogue, ids, suites
from capo.envs.suites.common import Adapter, Bounds, part_encoding
from capo.envs.validation import check_jitted
from capo.errors import CapoError

KEY = jax.random.PRNGKey(0)


def needs(suite: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(suites.installed(suite) is None, reason=f"{suite} is not installed")


def steps(env: Any, actions: list[int], seed: int = 0) -> list[tuple[Any, ...]]:
    """What ``env`` returns for these actions: observation, reward, terminated, truncated."""
    key = jax.random.PRNGKey(seed)
    state, _ = jax.jit(env.reset)(key)
    step, found = jax.jit(env.step), []
    for i, action in enumerate(actions):
        state, *rest = step(jax.random.fold_in(key, i), state, jnp.int32(action))
        found.append(tuple(map(np.asarray, rest)))
    return found


def state_of(agent: Any) -> list[bytes]:
    """The whole training state of an agent, typed random keys included."""
    leaves = jax.tree.leaves(agent._states.tree())
    return [
        np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ).tobytes()
        for leaf in leaves
    ]


def check_training(env: Any, tmp_path: Path, seeds: int = 2, **settings: Any) -> Any:
    """Train, save in the middle and continue: the same bits as without a break. Then evaluate."""
    settings = TINY_640 | settings
    whole = capo.NCAPO(env, seeds=seeds, **settings).learn(64)
    half = capo.NCAPO(env, seeds=seeds, **settings).learn(32)
    half.save(tmp_path / "half")
    resumed = capo.load(tmp_path / "half", env=None if isinstance(env, str) else env).learn(32)
    assert state_of(resumed) == state_of(whole)
    assert np.isfinite(whole.evaluate(episodes=2).returns).all()
    return whole


# Without any suite ---------------------------------------------------------------------------------------------


def test_the_lists_of_suites_agree():
    assert tuple(suites.SUITES) == ids.SUITES == GROUPS[4:]


def test_a_suite_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(suites, "installed", lambda _: None)
    with pytest.raises(CapoError, match=r"'gymnax:CartPole-v1' needs the extra 'gymnax': pip install"):
        envs.make("gymnax:CartPole-v1")


def test_a_file_may_name_a_suite_but_neither_another_module_nor_an_opponent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "navix.py").write_text("raise SystemExit('a stranger took over')")
    if suites.installed("navix") is None:
        with pytest.raises(CapoError, match="needs the extra 'navix'"):
            envs.prepare_named_in_file("navix:Navix-Empty-5x5-v0", trust=False)
    for name in ("own_module_y:gymnax", "pgx:tic_tac_toe,opponent=x", "pgx:tic_tac_toe,opponent=/tmp/x"):
        with pytest.raises(CapoError, match="allow it with --allow-import"):
            envs.prepare_named_in_file(name, trust=False)


def test_capo_envs_lists_spaces_and_says_what_is_missing(capsys, monkeypatch):
    present = catalogue.version
    monkeypatch.setattr(catalogue, "version", lambda group: None if group == "navix" else present(group))
    assert main(["envs", "minatar", "navix"]) == 0
    output = capsys.readouterr().out
    assert "minatar-breakout        bool[10, 10, 4]; 3 actions\n" in output
    assert "navix is not installed: pip install 'capo-rl[navix]'" in output
    assert main(["envs", "gymnasium"]) == 0
    output = capsys.readouterr().out
    assert "Taxi-v4                   bool[500]; 6 actions, masked\n" in output
    assert "MiniGrid" not in output
    assert main(["envs", "gymnx"]) == 2
    assert "unknown group 'gymnx': did you mean 'gymnax'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "dtype", "bounds", "stored"),
    [
        ((), "float64", None, ((1,), "float32")),
        ((3,), "int8", None, ((3,), "int32")),
        ((3,), "bool", None, ((3,), "bool")),
        ((2, 2), "int32", Bounds(-1, 8), ((2, 2), "uint8")),
        ((), "int32", Bounds(0, 4000), ((1,), "float32")),
        ((), "int32", Bounds(0, 5, categories=True), ((6,), "bool")),
        ((2,), "float32", Bounds(0, 1), ((2,), "float32")),
    ],
)
def test_how_parts_are_stored(shape, dtype, bounds, stored):
    encoding = part_encoding("x", shape, dtype, bounds)
    assert (encoding.part.shape, encoding.part.dtype) == stored
    value = encoding(jnp.full(shape, bounds.high if bounds else 1, dtype))
    assert (value.shape, value.dtype) == (stored[0], np.dtype(stored[1]))


def test_bounded_integers_keep_their_order_and_amounts_are_scaled():
    assert part_encoding("x", (3,), "int32", Bounds(-1, 8))(jnp.array([-1, 0, 8])).tolist() == [0, 1, 9]
    assert part_encoding("x", (), "int32", Bounds(0, 4000))(jnp.int32(1000)).tolist() == [0.25]
    assert part_encoding("x", (), "int32", Bounds(0, 3, True))(jnp.int32(2)).tolist() == [0, 0, 1, 0]


class Tree(Adapter):
    """Observes a tree of two parts; a typed key and Python numbers are in its state."""

    def __init__(self) -> None:
        super().__init__("tree", 2)

    def start(self, key):
        return {"key": jax.random.wrap_key_data(key), "t": 0}, {"a": jnp.zeros(2), "b": (jnp.int32(0),)}

    def advance(self, key, env_state, action):
        del key
        drawn = jax.random.bernoulli(env_state["key"], 0.2)
        state = {"key": jax.random.split(env_state["key"])[0], "t": env_state["t"] + 1}
        seen = {"a": jnp.full(2, state["t"], jnp.float32), "b": (action,)}
        return state, seen, action, drawn, state["t"] >= 5


def test_trees_and_typed_keys_train_and_resume_to_the_bit(tmp_path):
    env = Tree()
    check_jitted(env)
    assert [part.name for part in env.layout.parts] == ["a", "b.0"]
    state, row = env.reset(KEY)
    _, row, *_ = env.step(KEY, state, jnp.int32(1))
    unpacked = env.layout.unpack(row)
    assert unpacked["a"].tolist() == [1, 1]
    assert unpacked["b.0"].tolist() == [1]
    check_training(env, tmp_path)


class Births(Counting):
    """Counts how often an episode is begun; the length of an episode is drawn when it begins."""

    name = "births"
    begun = 0

    def reset(self, key):
        def count(_):
            self.begun += 1

        jax.debug.callback(count, key, ordered=False)
        return jax.random.randint(key, (), 2, 9), jax.random.uniform(key, (1,))

    def step(self, key, state, action):
        return state - 1, jax.random.uniform(key, (1,)), jnp.float32(action), state <= 1, jnp.bool_(False)


class CostlyBirths(Births):
    costly_reset = True


@pytest.mark.parametrize("n_envs", [3, 48])  # 48: three at a time
def test_a_costly_reset_is_computed_only_where_an_episode_begins(n_envs):
    agents = {}
    for kind in (Births, CostlyBirths):
        env = kind()
        agent = agents[kind] = capo.NCAPO(env, seeds=2, **TINY_640 | {"n_envs": n_envs, "batch_size": n_envs})
        ended = 0

        def count(_, rows):
            nonlocal ended
            ended += sum(row["episodes"] for row in rows)

        agent.learn(20 * agent.config.frames_per_iteration, callback=count)
        jax.effects_barrier()
        steps = 2 * 20 * agent.config.frames_per_iteration
        if kind is Births:
            assert env.begun > steps
        else:
            assert ended <= env.begun < 0.7 * steps
    assert state_of(agents[Births]) == state_of(agents[CostlyBirths])


# Each suite ----------------------------------------------------------------------------------------------------


@needs("gymnax")
def test_gymnax_against_the_original_and_its_time_limit():
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    ours = envs.make("gymnax:CartPole-v1,max_steps_in_episode=4")
    check_jitted(ours)
    _, state = env.reset_env(KEY, params)
    found = steps(ours, [0, 1, 0, 1, 0])
    for action, (seen, reward, terminated, truncated), t in zip([0, 1, 0, 1], found, range(1, 5), strict=False):
        expected, state, paid, _, _ = env.step_env(KEY, state, action, params)
        np.testing.assert_array_equal(seen, expected)
        assert (reward, terminated, truncated) == (paid, False, t >= 4)
    fallen = steps(envs.make("gymnax:CartPole-v1"), [0] * 12)
    assert any(terminated for *_, terminated, _ in fallen)
    assert not any(truncated for *_, truncated in fallen)


@needs("gymnax")
def test_gymnax_trains_eight_seeds_from_a_name_an_object_or_a_pair(tmp_path):
    import gymnax

    agent = check_training("gymnax:CartPole-v1", tmp_path, seeds=8)
    assert agent.env.observation_shape == (4,)
    env, params = gymnax.make("CartPole-v1")
    for given in (env, (env, params)):
        made = envs.make(given)
        assert (made.name, made.n_actions) == ("gymnax:CartPole-v1", 2)
    with pytest.raises(CapoError, match="continuous actions"):
        envs.make("gymnax:Pendulum-v1")
    with pytest.raises(CapoError, match=r"has no argument 'speed'; allowed: .*gravity"):
        envs.make("gymnax:CartPole-v1,speed=2")
    with pytest.raises(CapoError, match="unknown environment of gymnax 'CartPole-v7': did you mean 'CartPole-v1'"):
        envs.make("gymnax:CartPole-v7")


@needs("pgx")
def test_pgx_alone_against_the_original():
    import pgx

    game = pgx.make("2048")
    ours = envs.make("pgx:2048")
    check_jitted(ours)
    state, theirs = ours.reset(KEY)[0], game.init(KEY)
    for t in range(3):
        key = jax.random.fold_in(KEY, t)
        np.testing.assert_array_equal(ours.action_mask(state), theirs.legal_action_mask)
        action = theirs.legal_action_mask.argmax()
        state, seen, reward, terminated, truncated = ours.step(key, state, action)
        theirs = game.step(theirs, action, key)
        np.testing.assert_array_equal(seen, theirs.observation)
        assert (reward, terminated, truncated) == (theirs.rewards[0], theirs.terminated, False)
    with pytest.raises(CapoError, match="is played alone"):
        envs.make("pgx:2048,opponent=random")


@needs("pgx")
def test_pgx_plays_the_opponent_and_pays_from_the_agents_view():
    env = envs.make("pgx:tic_tac_toe")

    def episode(key):
        """Random legal moves: who won, the stones on the board, whether it always was the agent's turn."""
        state, _ = env.reset(key)
        first = state.game._x.board if hasattr(state.game._x, "board") else state.game.observation
        total, own_turn, done = jnp.float32(0), jnp.bool_(True), jnp.bool_(False)
        for t in range(5):
            own_turn &= done | (state.game.current_player == state.player)
            mask = env.action_mask(state)
            action = jax.random.categorical(jax.random.fold_in(key, t), jnp.where(mask, 0.0, -jnp.inf))
            after, _, reward, terminated, _ = env.step(jax.random.fold_in(key, 100 + t), state, action)
            total += jnp.where(done, 0, reward)
            state = jax.tree.map(partial(jnp.where, done), state, after)
            done |= terminated
        return total, own_turn, done, state.game.rewards[state.player], (first != first.reshape(-1)[0]).any()

    keys = jax.random.split(KEY, 200)
    total, own_turn, done, last, second = map(np.asarray, jax.jit(jax.vmap(episode))(keys))
    assert own_turn.all()
    assert done.all()
    np.testing.assert_array_equal(total, last)  # one reward, at the end
    assert set(total) == {-1, 0, 1}
    assert 60 < (total == 1).sum() < 120  # both play at random
    assert 60 < second.sum() < 140  # the opponent began about every other game


@needs("pgx")
def test_pgx_takes_a_function_as_opponent():
    import pgx

    from capo.envs.suites.pgx import PgxEnv

    env = PgxEnv(pgx.make("connect_four"), lambda *given: jnp.argmax(given[2]))
    state, _ = jax.jit(env.reset)(KEY)
    step = jax.jit(env.step)
    for column in (6, 5, 6, 5):  # the opponent fills the first column: four in a row win
        state, _, reward, terminated, _ = step(KEY, state, jnp.int32(column))
    assert (float(reward), bool(terminated)) == (-1.0, True)


@needs("pgx")
def test_pgx_trains_against_a_random_and_a_saved_opponent(tmp_path):
    agent = check_training("pgx:tic_tac_toe", tmp_path)
    agent.save(tmp_path / "first")
    name = f"pgx:tic_tac_toe,opponent={tmp_path / 'first'}"
    second = capo.NCAPO(name, **TINY_640).learn(32)
    second.save(tmp_path / "second")
    with pytest.raises(CapoError, match="allow it with --allow-import"):
        capo.load(tmp_path / "second")
    assert np.isfinite(capo.load(tmp_path / "second", trust=True).evaluate(episodes=2).returns).all()
    import pgx

    from capo.envs.suites.pgx import PgxEnv

    third = capo.NCAPO(PgxEnv(pgx.make("tic_tac_toe"), opponent=agent), **TINY_640).learn(32)
    assert third.frames == 32


@needs("jumanji")
def test_jumanji_against_the_original_with_its_mask():
    import jumanji

    theirs, ours = jumanji.make("Game2048-v1"), envs.make("jumanji:Game2048-v1")
    check_jitted(ours)
    state, timestep = theirs.reset(KEY)
    mine, _ = ours.reset(KEY)
    reset, step = jax.jit(ours.step), jax.jit(theirs.step)
    for _ in range(5):
        np.testing.assert_array_equal(ours.action_mask(mine), timestep.observation.action_mask)
        action = jnp.int32(timestep.observation.action_mask.argmax())
        state, timestep = step(state, action)
        mine, seen, reward, terminated, truncated = reset(KEY, mine, action)
        np.testing.assert_array_equal(seen, timestep.observation.board)
        assert (float(reward), bool(terminated), bool(truncated)) == (float(timestep.reward), False, False)


@needs("jumanji")
def test_jumanji_flattens_actions_and_truncates_at_the_time_limit():
    import jumanji

    theirs = jumanji.make("RubiksCube-v0", time_limit=3)
    ours = envs.make("jumanji:RubiksCube-v0,time_limit=3")
    assert ours.n_actions == 18
    state, _ = theirs.reset(KEY)
    found = steps(ours, [17, 4, 9])
    for action, (row, _, terminated, truncated), t in zip([17, 4, 9], found, (1, 2, 3), strict=True):
        state, timestep = theirs.step(state, jnp.stack(jnp.unravel_index(action, (6, 1, 3))))
        np.testing.assert_array_equal(ours.layout.unpack(row)["cube"], timestep.observation.cube)
        assert (bool(terminated), bool(truncated)) == (False, t == 3)
    assert timestep.last()
    assert timestep.discount == 0  # jumanji calls it terminated


@needs("jumanji")
def test_jumanji_masks_of_each_number_become_one_of_combinations():
    env = envs.make("jumanji:Cleaner-v0")
    state, _ = env.reset(KEY)
    mask = np.asarray(env.action_mask(state)).reshape(4, 4, 4)
    _, timestep = env._env.reset(KEY)
    one, two, three = np.asarray(timestep.observation.action_mask)
    np.testing.assert_array_equal(mask, one[:, None, None] & two[:, None] & three)
    with pytest.raises(CapoError, match="a reward of its own"):
        envs.make("jumanji:Connector-v3")
    with pytest.raises(CapoError, match="combinations in all"):
        envs.make("jumanji:JobShop-v0")


@needs("jumanji")
@pytest.mark.parametrize("name", ["jumanji:Game2048-v1", "jumanji:Snake-v1"])
def test_jumanji_trains(name, tmp_path):
    check_training(name, tmp_path)


@needs("craftax")
def test_craftax_packs_the_whole_observation_and_truncates_at_the_limit():
    env = envs.make("craftax:Craftax-Classic-Symbolic-v1,max_timesteps=2")
    assert env.observation_shape[0] < 4 * 1345 / 15  # bytes
    key, reset = jax.random.PRNGKey(3), jax.jit(env.reset)
    state, row = reset(key)
    parts = env.layout.unpack(row)
    original = env._env.get_obs(state)
    packed = np.concatenate([np.asarray(parts["map"]).reshape(-1), np.asarray(parts["state"])])
    np.testing.assert_array_equal(packed, original)
    assert [(bool(ended), bool(cut)) for *_, ended, cut in steps(env, [0, 0, 0])][:2] == [
        (False, False),
        (False, True),
    ]
    dead = state.replace(player_health=jnp.int32(0))
    *_, terminated, truncated = jax.jit(env.step)(key, dead, jnp.int32(0))
    assert (bool(terminated), bool(truncated)) == (True, False)


@needs("craftax")
def test_craftax_trains(tmp_path):
    check_training("craftax:Craftax-Classic-Symbolic-v1", tmp_path, seeds=1)


@needs("navix")
def test_navix_against_the_original_and_its_time_limit():
    import navix

    theirs, ours = navix.make("Navix-DoorKey-5x5-v0"), envs.make("navix:Navix-DoorKey-5x5-v0,max_steps=3")
    check_jitted(ours)
    timestep = theirs.reset(KEY)
    found = steps(ours, [1, 2, 0, 2])
    for action, (seen, reward, terminated, truncated), t in zip([1, 2, 0], found, (1, 2, 3), strict=False):
        timestep = theirs.step(timestep, jnp.int32(action))
        np.testing.assert_array_equal(seen, timestep.observation)
        assert (reward, terminated, truncated) == (timestep.reward, False, t == 3)


@needs("navix")
def test_navix_trains_and_draws_itself(tmp_path):
    agent = check_training("navix:Navix-Empty-5x5-v0", tmp_path)
    picture = agent.env.picture(agent.env.reset(KEY)[0])
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)
    agent.watch(tmp_path / "play.gif", steps=2)
    assert (tmp_path / "play.gif").stat().st_size
