"""Modified CAPO on jax's devices, here three that share a CPU, against the same rounds by numba."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import jax
import numpy as np
import capo
from capo.tabular.modified import Rounds, Sharp
from capo.tabular import modified_device
from capo.tabular.modified_device import Device, Segments

modified_device.gpu_devices = jax.devices

assert len(jax.devices()) == 3
full = capo.mdps.garnet(50, 4, 3, gamma=0.95)
mask = np.random.default_rng(0).random((50, 4)) < 0.7
mask[:, 2] = True
limited = capo.MDP(full.transition, full.reward, full.gamma, actions=mask)
uneven = capo.mdps.forest(10)
for mdp in (capo.mdps.garnet(41, 2, 3, gamma=0.99), limited, uneven):  # no ties
    for devices in (jax.devices()[:1], jax.devices()):
        both = [Rounds(of, mdp.gamma, 4, choose=False) for of in (Sharp(mdp), Device.of(mdp, devices))]
        for _ in range(12):
            for rounds in both:
                rounds.round()
            one, other = both
            assert np.abs(one.values - other.values).max() < 1e-11 * (1 + np.abs(one.values).max())
            assert abs(one.gap_bound - other.gap_bound) < 1e-10 * (1 + np.abs(one.values).max()) / (1 - mdp.gamma)
        assert abs(one.certify() - other.certify()) < 1e-10 * (1 + np.abs(one.values).max()) / (1 - mdp.gamma)
        best = capo.solve(mdp, critic="k-step", tol=1e-8).values
        assert np.abs(other.values - best).max() <= other.gap_bound + 2e-8
        assert other.values.dtype == np.float64

for mdp in (capo.mdps.slippery_grid(7), capo.mdps.chain(8)):  # ties: actions may differ, V* does not
    rounds = Rounds(Device.of(mdp), mdp.gamma, None, choose=False)
    while rounds.gap_bound > 1e-8:
        rounds.round()
    best = capo.solve(mdp, critic="k-step", tol=1e-8).values
    assert np.abs(rounds.values - best).max() <= 2e-8
    assert rounds.certify() <= 1e-8

# The whole of capo.solve.
result = capo.solve(capo.mdps.garnet(200, 3, 4), critic="k-step", device="gpu", tol=1e-7)
assert result.converged and result.settings["device"] == "gpu", result
assert result.certificate().held
assert jax.numpy.ones(1).dtype == np.float32  # nothing outside is switched to float64

# Rows that differ much in length are entries, not padded rows.
long = np.zeros((500, 2, 500))
long[:, 0] = 1 / 500
long[:, 1] = np.roll(np.eye(500), 1, axis=1)
reward = np.random.default_rng(1).random((500, 10))
mdp = capo.MDP(long[:, [1] * 9 + [0]], reward, 0.95)
for devices in (jax.devices()[:1], jax.devices()):
    device = Device.of(mdp, devices)
    assert isinstance(device._problem.transitions, Segments)
    both = [Rounds(of, mdp.gamma, 4, choose=False) for of in (Sharp(mdp), device)]
    for _ in range(12):
        for rounds in both:
            rounds.round()
    assert np.abs(both[0].values - both[1].values).max() < 1e-11
    assert (both[0].sweeper.log_policy == both[1].sweeper.log_policy).all()
    assert abs(both[0].certify() - both[1].certify()) < 1e-10

# More actions and successors than are written out.
mdp = capo.mdps.garnet(60, 20, 25, gamma=0.9)
both = [Rounds(of, mdp.gamma, None, choose=False) for of in (Sharp(mdp), Device.of(mdp, jax.devices()))]
for rounds in both:
    while rounds.gap_bound > 1e-8:
        rounds.round()
assert np.abs(both[0].values - both[1].values).max() < 2e-8

# One value that is not finite: nothing is certified.
for mdp in (capo.mdps.garnet(50, 3, 4), uneven):
    for value in (np.nan, np.inf, -np.inf):
        for step in ("round", "certify"):
            device = Device.of(mdp, jax.devices())
            with jax.enable_x64(True):
                device._values = device._values.at[mdp.n_states - 1].set(value)
            try:
                getattr(Rounds(device, mdp.gamma, None, choose=False), step)()
            except capo.CapoError as error:
                assert "no longer finite" in str(error), error
            else:
                raise AssertionError((mdp, value, step))
print("done")
"""


def test_the_same_rounds_on_one_and_on_three_devices() -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "done", ran.stderr
