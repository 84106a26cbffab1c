"""The agent people hold: learn, predict, evaluate, and Stable-Baselines3's way of using it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers_envs import Coin, Fragile
from helpers_shell import ENV, FRAMES, TINY, TINY_640, bits, metrics
from PIL import Image

import capo
import capo.envs.ids
import capo.neural.agent
import capo.neural.trainer
import capo.progress
import capo.runs.checkpoint
import capo.runs.events
import capo.runs.reader
from capo.commands.resume import differences
from capo.runs.reader import read_metrics

CARTPOLE: dict[str, Any] = TINY | {"horizon": 640}


@pytest.fixture(scope="module")
def agent() -> capo.NCAPO:
    return capo.NCAPO(ENV, seeds=2, **TINY_640).learn(640)


@pytest.fixture(scope="module")
def cartpole() -> capo.NCAPO:
    return capo.NCAPO("CartPole-v1", **CARTPOLE).learn(160)


def test_learn_does_exactly_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    agent = capo.NCAPO(ENV, **TINY_640)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agent.learn(10 * FRAMES).frames == 10 * FRAMES
        agent.learn(100, progress_bar=True)
    assert "rounded up to 112 frames: whole iterations of 16" in capsys.readouterr().err
    assert agent.frames == 10 * FRAMES + 112
    for wrong in (0, -5, 1.5, True):
        with pytest.raises(capo.CapoError, match="positive integer"):
            agent.learn(wrong)  # type: ignore[arg-type]


def test_the_first_learn_sets_the_horizon_and_later_ones_stay_at_the_end() -> None:
    rates: list[float] = []

    def note(_: Any, rows: list[dict[str, float]]) -> None:
        rates.append(rows[0]["learning_rate"])

    agent = capo.NCAPO(ENV, **TINY, log_every=FRAMES, learning_rate_schedule="linear", learning_rate=1e-3)
    agent.learn(640, callback=note)
    assert agent.config.horizon == 640
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-3 / 40, rel=1e-3)
    rates.clear()
    agent.learn(160, callback=note)
    assert agent.config.horizon == 640
    assert rates == [0.0] * 10
    rates.clear()
    agent.learn(160, callback=note, horizon=1600)
    assert agent.config.horizon == 1600
    assert rates[0] == pytest.approx(1e-3 / 2)


def test_callbacks_see_the_rows_and_can_stop() -> None:
    seen: list[dict[str, float]] = []

    def stop_at_320(who: Any, rows: list[dict[str, float]]) -> bool | None:
        assert isinstance(who, capo.NCAPO)
        seen.extend(rows)
        return False if rows[0]["frames"] >= 320 else None

    agent = capo.NCAPO(ENV, seeds=2, log_every=160, **TINY_640)
    agent.learn(640, callback=stop_at_320)
    assert (agent.frames, agent.frames_left) == (320, 320)
    assert [(row["seed"], row["frames"]) for row in seen] == [(0, 160), (1, 160), (0, 320), (1, 320)]
    assert all(row["episodes"] > 0 and -1 <= row["episode_return"] <= 1 for row in seen)


def test_an_agent_says_what_it_is(agent: capo.NCAPO) -> None:
    assert repr(agent) == f"<NCAPO on {ENV!r}, preset 'default', 2 seeds, 640 frames>"


def test_uniform_behaviour_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {name: value for name, value in TINY.items() if name != "horizon"}
    capo.OffPAC(ENV, **settings).learn(FRAMES, progress_bar=True)
    assert "the returns shown are those of random play" in capsys.readouterr().err


def test_predict_takes_one_or_many(agent: capo.NCAPO) -> None:
    action, state = agent.predict([1.0], state="kept", deterministic=True)
    assert (np.shape(action), state) == ((), "kept")
    batch, _ = agent.predict(np.array([[1.0], [-1.0], [1.0]]), deterministic=True)
    assert batch.shape == (3,)
    assert batch.dtype == np.int64
    assert batch[0] == batch[2] == action
    for wrong in (1.0, [1.0, 2.0], [[1.0, 2.0]], {"a": 1}):
        with pytest.raises(capo.CapoError, match=r"observations of shape \(1,\)"):
            agent.predict(wrong)


def test_predict_samples_unless_told() -> None:
    fresh = capo.NCAPO(ENV, **TINY_640)  # nothing learned: both actions are about as likely
    sampled, _ = fresh.predict(np.ones((400, 1)))
    assert 0.2 < sampled.mean() < 0.8
    likeliest, _ = fresh.predict(np.ones((400, 1)), deterministic=True)
    assert len(set(likeliest.tolist())) == 1
    first, _ = fresh.predict(np.ones((400, 1)))
    second, _ = fresh.predict(np.ones((400, 1)))
    assert (first != second).any()


@pytest.mark.parametrize("deterministic", [True, False])
def test_masked_actions_are_never_taken(agent: capo.NCAPO, deterministic: bool) -> None:
    observations = np.array([[1.0], [-1.0]] * 50)
    for allowed in (0, 1):
        mask = np.arange(2) == allowed
        actions, _ = agent.predict(observations, deterministic=deterministic, action_masks=mask)
        assert set(actions.tolist()) == {allowed}
    each = np.eye(2, dtype=bool)[np.arange(100) % 2]
    actions, _ = agent.predict(observations, deterministic=deterministic, action_masks=each)
    assert actions.tolist() == [0, 1] * 50
    with pytest.raises(capo.CapoError, match="no action"):
        agent.predict([1.0], action_masks=[False, False])
    with pytest.raises(capo.CapoError, match=r"must be \(2,\) or \(1, 2\)"):
        agent.predict([1.0], action_masks=[True])


def test_evaluation(agent: capo.NCAPO) -> None:
    found = agent.evaluate(50)
    assert found.returns.shape == (2, 50)
    assert found.mean == pytest.approx(found.returns.mean())
    means = found.returns.mean(axis=1)
    assert found.standard_error == pytest.approx(abs(means[0] - means[1]) / 2)  # of two numbers
    assert (agent.evaluate(50).returns == found.returns).all()
    assert (agent.evaluate(50, seed=1).returns != found.returns).any()
    alone = capo.NCAPO(ENV, **TINY_640).evaluate(50)
    assert alone.standard_error == pytest.approx(alone.returns.std(ddof=1) / np.sqrt(50))
    with pytest.raises(capo.CapoError, match="episodes=0 must be a positive integer"):
        agent.evaluate(0)


def test_evaluating_on_the_way_compiles_once() -> None:
    agent = capo.NCAPO(ENV, seeds=2, log_every=160, **TINY_640)
    found: list[Any] = []
    agent.learn(640, callback=lambda who, rows: found.append(who.evaluate(5, seed=int(rows[0]["frames"]))))
    assert [(one.returns.shape, one.frames) for one in found] == [
        ((2, 5), frames) for frames in range(160, 641, 160)
    ]
    assert agent.learner._evaluate._cache_size() == 1


def test_evaluations_on_the_way_change_nothing_else(tmp_path: Path) -> None:
    settings = TINY_640 | {"seeds": 2, "log_every": 80}
    plain = capo.NCAPO(ENV, out=tmp_path / "plain", **settings).learn(640)
    tests: dict[str, Any] = {"eval_every": 200, "eval_episodes": 3}
    agent = capo.NCAPO(ENV, out=tmp_path / "tested", **settings, **tests).learn(640)
    assert bits(agent) == bits(plain)
    rows = read_metrics(tmp_path / "tested")
    scores = {(row["frames"], row["seed"]): row["evaluation_return"] for row in rows}
    assert {frames for (frames, _), score in scores.items() if score == score} == {240, 400, 640}
    np.testing.assert_allclose([scores[640, 0], scores[640, 1]], agent.evaluate(3).returns.mean(axis=1), rtol=1e-6)
    assert [row | {"evaluation_return": 0} for row in metrics(tmp_path / "tested")] == [
        row | {"evaluation_return": 0} for row in metrics(tmp_path / "plain")
    ]
    # Stopped and resumed, it is the same run.
    capo.NCAPO(ENV, out=tmp_path / "cut", **settings, **tests).learn(
        640, callback=lambda _, rows: rows[0]["frames"] < 320
    )
    resumed = capo.NCAPO.resume(tmp_path / "cut")
    resumed.learn(resumed.frames_left)
    assert bits(resumed) == bits(agent)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "tested")


def test_an_evaluation_on_the_way_that_fails_costs_no_rows(tmp_path: Path) -> None:
    env = Fragile(copies=False)  # is played itself
    agent = capo.NCAPO(env, out=tmp_path / "run", log_every=16, eval_every=32, eval_episodes=1, **TINY_640)
    env.breaks_at = 33
    with pytest.raises(capo.CapoError, match="in the evaluation: its step raised RuntimeError"):
        agent.learn(640)
    assert [row["frames"] for row in read_metrics(tmp_path / "run")] == [16, 32]
    assert agent.learn(16).frames == 48


def test_the_same_seed_of_an_evaluation_plays_on_after_loading(agent: capo.NCAPO, tmp_path: Path) -> None:
    loaded = capo.NCAPO.load(agent.save(tmp_path / "agent"))
    np.testing.assert_array_equal(loaded.evaluate(20, seed=3).returns, agent.evaluate(20, seed=3).returns)
    assert loaded.wall_seconds == agent.wall_seconds > 0


def test_a_greedy_policy_says_that_nothing_is_sampled() -> None:
    rainbow = capo.Rainbow("probe-action", width=16)
    assert not rainbow.samples
    assert rainbow.wall_seconds == 0
    assert "most likely actions" in str(rainbow.evaluate(2))
    assert capo.NCAPO(ENV).samples


@pytest.mark.parametrize("rule", ["sampled", "best"])
def test_every_evaluation_follows_the_setting(rule: str, tmp_path: Path) -> None:
    """On the way, after training and after loading, but not predict."""
    best = rule == "best"
    agent = capo.NCAPO("CartPole-v1", evaluation=rule, out=tmp_path, eval_every=160, eval_episodes=5, **CARTPOLE)
    agent.learn(160)
    found = agent.evaluate(5)
    assert found.deterministic == best
    assert read_metrics(tmp_path)[-1]["evaluation_return"] == pytest.approx(found.mean)
    assert (found.returns == agent.evaluate(5, deterministic=best).returns).all()
    assert (found.returns != agent.evaluate(5, deterministic=not best).returns).any()
    assert (capo.load(tmp_path).evaluate(5).returns == found.returns).all()
    drawn = {agent.predict(np.zeros(4, np.float32))[0].item() for _ in range(50)}
    assert drawn == {0, 1}  # of a nearly uniform policy
    assert [agent.takes_best(asked) for asked in (None, True, False)] == [best, True, False]


def test_it_learns_and_each_seed_can_be_asked() -> None:
    agent = capo.NCAPO(ENV, seeds=[3, 7], **TINY | {"learning_rate": 3e-3}).learn(6400)
    assert agent.evaluate(50, deterministic=True).mean > 0.9
    for seed in (3, 7):
        assert agent.use_seed(seed).predict(np.array([[1.0], [-1.0]]), deterministic=True)[0].tolist() == [
            1,
            0,
        ]
    with pytest.raises(capo.CapoError, match="seed 0 is not one of this agent's: 3, 7"):
        agent.use_seed(0)


def evaluate_policy_stand_in(model: Any, env: Any, n_eval_episodes: int) -> list[float]:
    """What stable_baselines3.common.evaluation.evaluate_policy does with a model, on one environment."""
    returns: list[float] = []
    observations = env.reset(seed=0)[0][None]
    states, starts, total = None, np.ones(1, bool), 0.0
    while len(returns) < n_eval_episodes:
        actions, states = model.predict(observations, state=states, episode_start=starts, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(actions[0])
        total += float(reward)
        starts = np.array([terminated or truncated])
        if starts[0]:
            returns.append(total)
            total, observation = 0.0, env.reset()[0]
        observations = observation[None]
    return returns


def test_the_way_stable_baselines3_evaluates(cartpole: capo.NCAPO) -> None:
    returns = evaluate_policy_stand_in(cartpole, gymnasium.make("CartPole-v1"), 3)
    assert len(returns) == 3
    assert all(1 <= value <= 500 for value in returns)


@pytest.mark.oracle
def test_stable_baselines3_itself(cartpole: capo.NCAPO) -> None:
    from stable_baselines3.common import evaluation

    mean, deviation = evaluation.evaluate_policy(
        cartpole, gymnasium.make("CartPole-v1"), n_eval_episodes=3, warn=False
    )
    assert 1 <= mean <= 500
    assert deviation >= 0


def test_gymnasium_seeds_run_one_after_another(tmp_path: Path) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO("CartPole-v1", seeds=2, out=out, log_every=80, **CARTPOLE).learn(160)
    rows = metrics(out)
    assert [(row["seed"], row["frames"]) for row in rows] == [
        ("0", "80"),
        ("0", "160"),
        ("1", "80"),
        ("1", "160"),
    ]
    assert agent.evaluate(4).returns.shape == (2, 4)
    loaded = capo.NCAPO.load(out)
    assert bits(loaded) == bits(agent)
    assert loaded.frames == 160
    resumed = capo.NCAPO.resume(out)
    notes = list(differences(resumed, capo.runs.reader.read_config(out)))
    assert len(notes) == 1
    assert "new episodes start" in notes[0]


def test_seeds_that_have_not_begun_are_left_out_of_an_evaluation() -> None:
    seen: list[tuple[int, ...]] = []

    def look(agent: capo.Agent, rows: Any) -> None:
        assert len(rows) == 1, "seeds run one after another"
        if agent.seeds[-1] == rows[0]["seed"]:
            seen.append(agent.evaluate(1).seeds)
            return
        with pytest.warns(capo.CapoWarning, match="left out: 8"):
            seen.append(agent.evaluate(1).seeds)

    capo.NCAPO("CartPole-v1", seeds=[7, 8], **TINY).learn(FRAMES, callback=look)
    assert seen == [(7,), (7, 8)]


def test_an_environment_object_is_watched_itself(tmp_path: Path) -> None:
    env = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1", render_mode="rgb_array"), 4)
    agent = capo.NCAPO(gymnasium.wrappers.TransformReward(env, lambda reward: 10 * reward), **TINY)
    assert agent.watch(tmp_path / "play.gif", episodes=2) == [40.0, 40.0]
    with Image.open(tmp_path / "play.gif") as picture:
        assert picture.n_frames == 10
    with pytest.raises(capo.CapoError, match="per_second"):
        agent.watch(tmp_path / "play.gif", per_second=0)


def test_an_environment_that_can_not_be_copied_trains_on_after_being_watched(tmp_path: Path) -> None:
    env = Fragile(copies=False)
    agent = capo.NCAPO(env, **TINY_640).learn(FRAMES)
    assert agent.watch(tmp_path / "play.gif")[0] > 0
    resets = env.resets
    assert agent.learn(FRAMES).frames == 2 * FRAMES
    assert env.resets > resets, "new episodes"


def test_one_of_a_vector_is_watched_and_evaluated(tmp_path: Path) -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, max_episode_steps=3)
    settings = {name: value for name, value in TINY.items() if name != "n_envs"}
    agent = capo.NCAPO(vector, **settings)
    assert agent.watch(tmp_path / "play.gif") == [3.0]
    assert agent.evaluate(2).mean == 3.0


def test_a_wrapped_vector_is_watched_if_its_wrappers_leave_play_alone(tmp_path: Path) -> None:
    def vector() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=2, max_episode_steps=3)

    settings = {name: value for name, value in TINY.items() if name != "n_envs"}
    wrappers = gymnasium.wrappers.vector
    agent = capo.NCAPO(wrappers.ClipReward(wrappers.RecordEpisodeStatistics(vector()), 0, 0.5), **settings)
    assert agent.watch(tmp_path / "play.gif") == [3.0]

    class Own(gymnasium.vector.VectorRewardWrapper):
        """Who knows what else it does."""

    for wrapper in (wrappers.NormalizeObservation, Own):
        agent = capo.NCAPO(wrapper(vector()), **settings)
        with pytest.raises(capo.CapoError, match="wrappers of the vector environment act on all of them"):
            agent.watch(tmp_path / "play.gif")


def test_gymnasium_stops_between_seeds_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def stop(_: Any, rows: list[dict[str, float]]) -> bool:
        return not (rows[0]["seed"] == 1 and rows[0]["frames"] == 80)

    agent = capo.NCAPO("CartPole-v1", seeds=3, out=out, log_every=80, **CARTPOLE).learn(160, callback=stop)
    with pytest.warns(capo.CapoWarning, match="left out: 2"):
        assert agent.evaluate(2).seeds == (0, 1)
    with pytest.raises(capo.CapoError, match="seed 2 has not been trained"):
        agent.use_seed(2).predict(np.zeros(4))
    resumed = capo.NCAPO.resume(out)
    resumed.learn(resumed.frames_left)
    assert [row["seed"] for row in metrics(out)] == ["0", "0", "1", "1", "2", "2"]
    assert resumed.frames == 160


def test_an_environment_object(tmp_path: Path) -> None:
    """A user's own jitted environment: usable everywhere, but given again when loading."""

    agent = capo.NCAPO(Coin(), **TINY_640).learn(320)
    path = agent.save(tmp_path / "coin")
    with pytest.raises(capo.CapoError, match=r"'coin'.*give it again as env="):
        capo.NCAPO.load(path)
    assert bits(capo.NCAPO.load(path, env=Coin())) == bits(agent)
    with pytest.raises(capo.CapoError, match="environment changed: name was 'coin'"):
        capo.NCAPO.load(path, env="probe-both")


def test_loading_into_a_new_folder(tmp_path: Path) -> None:
    path = capo.NCAPO(ENV, **TINY_640).learn(320).save(tmp_path / "agent")
    capo.NCAPO.load(path, out=tmp_path / "more").learn(320)
    assert metrics(tmp_path / "more")[-1]["frames"] == "640"
    with pytest.raises(capo.CapoError, match="already contains a run"):
        capo.NCAPO.load(path, out=tmp_path / "more")
