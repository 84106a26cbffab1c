"""Observation spaces of Gymnasium, of every kind and nested at random, and how they are encoded."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from capo import envs
from capo.envs.failures import EnvironmentFailed
from capo.envs.ids import find_wrapper, wrappers_of
from capo.envs.layout import MASK
from capo.envs.protocol import EnvSpec
from capo.envs.spaces import MAX_ONE_HOT, observation_encoding
from capo.errors import CapoError
from capo.neural.film import _drawable
from capo.neural.learners.protocol import as_batch


def random_space(rng, depth=0):
    """A space of any supported kind, nested up to three deep."""
    kinds = ["box", "image", "bits", "discrete", "multi"]
    kind = rng.choice([*kinds, "dict", "tuple"] if depth < 3 else kinds)
    shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4)))
    if kind == "box":
        dtype = rng.choice([np.float32, np.float64, np.int64, np.int8, np.bool_, np.uint8])
        low, high = (0, 1) if dtype in (np.bool_, np.uint8) else (-5, 5)
        return spaces.Box(low, high, shape, dtype)
    if kind == "image":
        size, channels = int(rng.integers(16, 20)), int(rng.choice([1, 3, 4]))
        first = bool(rng.integers(2))
        return spaces.Box(0, 255, (channels, size, size) if first else (size, size, channels), np.uint8)
    if kind == "bits":
        return spaces.MultiBinary(shape or 3)
    if kind == "discrete":
        return spaces.Discrete(int(rng.choice([2, 9, MAX_ONE_HOT, 5000])), start=int(rng.integers(-3, 3)))
    if kind == "multi":
        return spaces.MultiDiscrete(rng.choice([2, 7, 3000], shape or 2))
    inside = [random_space(rng, depth + 1) for _ in range(rng.integers(1, 4))]
    return spaces.Tuple(inside) if kind == "tuple" else spaces.Dict({f"k{i}": one for i, one in enumerate(inside)})


def leaves(space, sample):
    """The spaces and arrays inside an observation, in order."""
    if isinstance(space, spaces.Dict):
        return [pair for key, one in space.items() for pair in leaves(one, sample[key])]
    if isinstance(space, spaces.Tuple):
        return [pair for one, part in zip(space, sample, strict=True) for pair in leaves(one, part)]
    return [(space, np.asarray(sample))]


def slow_parts(space, sample):
    """What a leaf becomes, entry by entry: a list of arrays."""
    if isinstance(space, spaces.Discrete):
        space, sample = spaces.MultiDiscrete([space.n], start=[space.start]), sample.reshape(1)
    if isinstance(space, spaces.MultiDiscrete):
        bits, rows, before = [], [], 0
        for size, start, value in zip(space.nvec.flat, space.start.flat, sample.flat, strict=True):
            index = int(value) - int(start)
            if size > MAX_ONE_HOT:
                rows.append(before + index)
                before += int(size)
            else:
                bits += [i == index for i in range(size)]
        return [np.array(x, dtype) for x, dtype in ((bits, bool), (rows, np.int32)) if x]
    if isinstance(space, spaces.MultiBinary):
        return [sample.astype(bool)]
    if sample.ndim == 3 and sample.dtype == np.uint8 and sample.shape[0] < sample.shape[1] == sample.shape[2]:
        return [np.stack(list(sample), axis=-1)]
    kept = sample.dtype in (np.uint8, np.bool_)
    return [sample.astype(sample.dtype if kept else np.float32).reshape(sample.shape or (1,))]


@pytest.mark.parametrize("seed", range(40))
def test_random_spaces_are_encoded_part_by_part(seed):
    rng = np.random.default_rng(seed)
    space = random_space(rng)
    space.seed(seed)
    encoding = observation_encoding("random", space)
    samples = [space.sample() for _ in range(3)]
    rows = encoding.encode_each([encoding.copied(sample) for sample in samples])
    assert (rows.shape, rows.dtype) == ((3, *encoding.shape), encoding.dtype)
    batch = gymnasium.vector.utils.concatenate(space, samples, gymnasium.vector.utils.create_empty_array(space, 3))
    np.testing.assert_array_equal(encoding.encode(batch), rows)  # as a vector environment gives them
    for sample, row in zip(samples, rows, strict=True):
        expected = [part for leaf in leaves(space, sample) for part in slow_parts(*leaf)]
        found = [row] if encoding.layout is None else list(encoding.layout.unpack(row).values())
        assert len(found) == len(expected)
        for ours, slow in zip(found, expected, strict=True):
            assert ours.dtype == slow.dtype
            np.testing.assert_array_equal(ours, slow)
    if encoding.composite:
        for given, single in ((samples[0], True), (batch, False)):
            made, found = encoding.batched(given)
            assert found is single
            np.testing.assert_array_equal(encoding.encode(made), rows[:1] if single else rows)


class Given(gymnasium.Env):
    """Observes samples of a space; an episode has three steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, bad_at=10**9):
        self.observation_space, self.bad_at = space, bad_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        del action
        self.steps += 1
        sample = self.observation_space.sample()
        if self.steps == self.bad_at:
            sample["speed"][:] = np.nan
        return sample, 1.0, self.steps == 3, False, {}


CAR = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (3, 20, 20), np.uint8),
        "speed": spaces.Box(-9.0, 9.0, (2,), np.float64),
        "where": spaces.Tuple([spaces.Discrete(5000), spaces.Discrete(4, start=1)]),
    }
)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_of_dicts_step_as_single_ones_do(mode):
    vector = envs.make(SyncVectorEnv([lambda: Given(CAR)] * 2, autoreset_mode=mode, copy=False))
    opened = vector.open(2)
    first = opened.reset(0)
    assert first.shape == (2, vector.layout.n_bytes)
    before = first.copy()
    ended = 0
    for _ in range(8):
        moved = opened.step(np.zeros(2, np.int64))
        assert moved.obs.shape == moved.successor.shape == first.shape
        ended += int(moved.terminated.sum())
        speeds = vector.layout.unpack(moved.successor)["speed"]
        assert np.abs(speeds).max() <= 9
    assert ended >= 4
    np.testing.assert_array_equal(first, before)  # nothing writes into what was given out


def test_a_dict_environment_says_what_it_is_made_of():
    env = envs.make(Given(CAR))
    spec = EnvSpec(env)
    assert [(part.name, part.shape, part.dtype, part.classes) for part in spec.seen] == [
        ("camera", (20, 20, 3), "uint8", 0),
        ("speed", (2,), "float32", 0),
        ("where.0", (1,), "int32", 5000),
        ("where.1", (4,), "bool", 0),
    ]
    assert env.observation_shape == (20 * 20 * 3 + 8 + 4 + 1,)


def test_observations_given_to_predict_are_checked():
    spec = EnvSpec(envs.make(Given(CAR)))
    CAR.seed(0)
    sample = CAR.sample()
    batch, single = as_batch(spec, sample)
    assert single
    assert spec.encode(batch).shape == (1, spec.layout.n_bytes)
    for wrong, message in (
        ({"camera": sample["camera"]}, "has the parts camera, speed, where.0, where.1: speed must be"),
        ({**sample, "speed": [1.0, 2.0, 3.0]}, r"speed of shape \(3,\) was given"),
        ({**sample, "speed": "fast"}, "speed must be an array of numbers"),
        ({**sample, "speed": np.zeros((4, 2))}, "batch axis of the same length, or none"),
        (np.zeros(3), "camera must be an array of numbers"),
    ):
        with pytest.raises(CapoError, match=message):
            as_batch(spec, wrong)
    with pytest.raises(CapoError, match="must be an integer from 1 to 4"):
        spec.encode(as_batch(spec, {**sample, "where": (3, 0)})[0])


def test_numbers_of_a_part_that_are_not_finite_are_refused():
    opened = envs.make(Given(CAR, bad_at=2)).open(1)
    opened.reset(0)
    opened.step(np.zeros(1, np.int64))
    with pytest.raises(EnvironmentFailed, match="observation containing nan \\(in 'speed'\\)"):
        opened.step(np.zeros(1, np.int64))


def test_numbers_beyond_float32_are_named():
    encoding = observation_encoding("far", spaces.Box(-np.inf, np.inf, (1,), np.float64))
    np.testing.assert_array_equal(encoding.encode(np.array([[1e300 * 1e-290]])), np.float32([[1e10]]))
    with pytest.raises(CapoError, match=r"1e\+300 of 'far' is too large for the networks' float32"):
        encoding.encode(np.array([[1e300]]))


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        ((84, 84, 4), (84, 84, 4)),
        ((4, 84, 84), (84, 84, 4)),
        ((3, 210, 160), (210, 160, 3)),
        ((210, 160, 3), (210, 160, 3)),
        ((84, 84), (84, 84, 1)),
        ((4, 64, 64, 3), (64, 64, 12)),
        ((4, 3, 64, 64), (64, 64, 12)),
        ((7, 7, 20), (7, 7, 20)),
        ((5, 10), (5, 10)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
    ],
)
def test_images_end_with_their_channels(raw, encoded):
    encoding = observation_encoding("image", spaces.Box(0, 255, raw, np.uint8))
    assert (encoding.raw_shape, encoding.shape) == (raw, encoded)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *raw), np.uint8)
    rows = encoding.encode(pixels)
    assert rows.shape == (2, *encoded)
    if len(raw) == 4 and len(encoded) == 3 and raw[3] == 3:
        np.testing.assert_array_equal(rows[1, 5, 6, 3:6], pixels[1, 1, 5, 6])  # the second picture's pixel
    elif raw[0] in (3, 4) and len(raw) == 3:
        np.testing.assert_array_equal(rows[1, 5, 6], pixels[1, :, 5, 6])


def test_large_categories_are_numbers_not_vectors():
    large = observation_encoding("large", spaces.Discrete(1_000_000))
    (part,) = large.layout.seen
    assert (large.shape, part.classes, part.dtype) == ((4,), 1_000_000, "int32")
    assert observation_encoding("small", spaces.Discrete(500)).layout is None
    many = observation_encoding("many", spaces.MultiDiscrete([1000] * 100))
    assert many.shape == (400,)
    with pytest.raises(CapoError, match="at most 10,000,000"):
        observation_encoding("huge", spaces.Discrete(10**9))


def test_a_users_part_is_never_taken_for_the_mask():
    space = spaces.Dict({MASK: spaces.MultiBinary(3), "x": spaces.Box(0, 1, (2,), np.float32)})
    layout = observation_encoding("own", space).layout
    assert not layout.masked
    assert len(layout.seen) == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "FlattenObservation"),
        (spaces.Sequence(spaces.Discrete(3)), "Sequence.*TransformObservation"),
        (spaces.Graph(spaces.Discrete(3), None), "Graph"),
        (spaces.OneOf([spaces.Discrete(3)]), "OneOf"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(5)), "Text in 'b'.*FilterObservation"),
        (spaces.Dict(), "no numbers"),
        (spaces.Box(0, 1, (0,), np.float32), "no numbers"),
    ],
)
def test_spaces_without_a_fixed_number_of_numbers_are_refused(space, message):
    with pytest.raises(CapoError, match=message):
        envs.make(Given(space))


def test_minigrid_is_told_which_wrapper_helps():
    pytest.importorskip("minigrid")
    with pytest.raises(CapoError, match=r"minigrid\.wrappers\.ImgObsWrapper"):
        envs.make("MiniGrid-Empty-5x5-v0")
    name = "MiniGrid-Empty-5x5-v0,wrapper=minigrid.wrappers:ImgObsWrapper"
    env = envs.make(name)
    assert (env.name, env.observation_shape, env.n_actions) == (name, (7, 7, 3), 7)
    opened = env.open(2)
    assert opened.reset(0).shape == (2, 7, 7, 3)
    opened.close()


def test_wrappers_follow_an_id():
    flat = "gymnasium.wrappers:FlattenObservation"
    env = envs.make(f"Blackjack-v1,sab=true,wrapper={flat}")
    assert (env.observation_shape, env.layout) == ((45,), None)
    assert wrappers_of(f"a,wrapper=m:x,b=1,wrapper={flat}") == ["m:x", flat]
    for wrong, message in (
        ("FlattenObservation", "give it as module:name"),
        ("gymnasium.wrappers:Nothing", "no wrapper called Nothing"),
        ("no_such_module:Nothing", "importing no_such_module raised"),
    ):
        with pytest.raises(CapoError, match=message):
            find_wrapper(wrong)


def test_a_wrapper_named_in_a_file_needs_consent():
    for name in ("a,wrapper=os:system", "a,wrapper=gymnasium.wrappers.vector:x", "a,wrapper=this", "a,wrapper=,"):
        with pytest.raises(CapoError, match="--allow-import"):
            envs.prepare_named_in_file(name, trust=False)
    envs.prepare_named_in_file("CartPole-v1,wrapper=json:loads", trust=True)
    with pytest.raises(CapoError, match="importing no_such_module raised"):
        envs.prepare_named_in_file("CartPole-v1,wrapper=no_such_module:f", trust=True)


def test_gymnasiums_own_wrappers_need_no_consent():
    envs.prepare_named_in_file("CartPole-v1,wrapper=gymnasium.wrappers:FlattenObservation", trust=False)
    with pytest.raises(CapoError, match="--allow-import"):
        envs.prepare_named_in_file(
            "CartPole-v1,wrapper=gymnasium.wrappers:FlattenObservation,wrapper=os:system", trust=False
        )
    for name in ("vector", "numpy_to_torch", "__import__"):  # not wrappers
        with pytest.raises(CapoError, match="no wrapper called"):
            find_wrapper(f"gymnasium.wrappers:{name}")


def test_what_people_look_at_is_an_image_or_all_numbers():
    env = envs.make(Given(CAR))
    sample = CAR.sample()
    np.testing.assert_array_equal(_drawable(env, sample), np.moveaxis(sample["camera"], 0, -1))
    numbers = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,), np.float32))
    assert _drawable(envs.make(Given(numbers)), numbers.sample()).shape == (5,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(_drawable(envs.make("CartPole-v1"), [1, 2, 3, 4]), [1, 2, 3, 4])
