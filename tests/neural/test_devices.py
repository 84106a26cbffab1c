"""Seeds spread over several devices: two that XLA is told to make of one processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np

PROGRAM = """
import json, sys
import jax, numpy as np
import capo

learned = {}
agent = capo.NCAPO("probe-both", seeds=4, n_envs=4, rollout_length=4, batch_size=8, gradient_steps=2)
agent.learn(640, callback=lambda _, rows: learned.setdefault("losses", []).extend(r["critic_loss"] for r in rows))
state = agent._states.groups[0].state
learned["devices"] = agent.learner.n_devices
learned["spread"] = sorted(len(s.device_set) for s in {leaf.sharding for leaf in jax.tree.leaves(state)})
learned["params"] = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(state.params)]
learned["returns"] = agent.evaluate(5).returns.tolist()
path = agent.save(sys.argv[1])
learned["after"] = capo.NCAPO.load(path).learn(160).evaluate(5).returns.tolist()
odd = capo.NCAPO("probe-both", seeds=3, n_envs=4, rollout_length=4).learn(64)
learned["odd"] = odd.learner.n_devices
print(json.dumps(learned))
"""


def learn_on(devices, folder):
    flags = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder / f"on{devices}")]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_devices_learn_what_one_does(tmp_path):
    one, two = learn_on(1, tmp_path), learn_on(2, tmp_path)
    assert (one["devices"], two["devices"]) == (1, 2)
    assert set(two["spread"]) == {2}
    assert (one["odd"], two["odd"]) == (1, 1)  # three seeds can't be shared by two
    # Squared errors that have fallen to 1e-5 are differences of numbers around 1, rounded in another order.
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4, atol=1e-7)
    for here, there in zip(one["params"], two["params"], strict=True):
        np.testing.assert_allclose(there, here, atol=1e-5)
    assert two["returns"] == one["returns"]
    assert two["after"] == one["after"]
