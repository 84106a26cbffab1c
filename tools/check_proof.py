"""Check a proof written by capo, with numpy alone: python check_proof.py PROOF.npz MDP.npz [--exact]

The MDP: gamma, reward(s, a) and the positive weights p(s, a, s') are the doubles stored in MDP.npz, exactly. The
probabilities are p(s, a, s') / sum of p(s, a, .), in exact arithmetic, and a policy is w(s, a) / sum of w(s, .).
The claims, at every covered state:  V_pi >= v + lower,  V* <= v + upper,  V* - V_pi <= gap_bound.
They follow from  lower (1 - gamma) <= T_pi v - v  and  Q(v) - v <= upper (1 - gamma).  Both sides are computed in
floating point with a bound on every rounding error, or, with --exact, in rational arithmetic.
"""

import hashlib
import json
import math
import sys
import zipfile
from fractions import Fraction

import numpy as np

UNIT = 2.0**-53  # the greatest relative error of one operation
TINY = 2.0**-1000  # more than all underflows of a sum together
BLOCK = 1 << 16  # states handled at once


def read(archive, name, types, shape, most=1 << 36):
    """One array of an .npz, after its header was checked: no pickle. None in ``shape`` stands for any number."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        version, (found, _, dtype) = np.lib.format.read_magic(file), np.lib.format.read_array_header_1_0(file)
        wanted = tuple(n if m is None else m for n, m in zip(found, shape, strict=True))
        end = file.tell() + math.prod(found) * dtype.itemsize
        if not ((version, found) == ((1, 0), wanted) and dtype.str in types and end == member.file_size <= most):
            raise ValueError(f"array {name} has the wrong type, shape or size")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def read_manifest(archive, *formats):
    manifest = json.loads(read(archive, "manifest", "|u1", (None,), 1 << 20).tobytes())
    if manifest["format"] not in formats:
        raise ValueError(f"the file has format {manifest['format']!a}")
    return manifest


def sha256(text, *arrays):
    parts = (np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data for array, dtype in arrays)
    return hashlib.sha256(text + b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def read_mdp(path):
    """gamma, reward and allowed (S, A), first (pairs + 1,), successor and weight (entries,), and the digest."""
    with zipfile.ZipFile(path) as archive:
        gamma = float(read_manifest(archive, "capo-mdp-1", "capo-mdp-2")["gamma"])
        reward, names = read(archive, "reward", "<f8", (None, None)) + 0.0, archive.namelist()
        n_states, n_actions = reward.shape
        if "transition.npy" in names:
            rows = read(archive, "transition", "<f8", (*reward.shape, n_states)).reshape(reward.size, n_states)
            pair, successor = np.nonzero(rows)
            weight, width = rows[pair, successor], np.bincount(pair, minlength=len(rows))
        else:
            width = np.diff(read(archive, "indptr", "<i4 <i8", (reward.size + 1,)))
            successor = read(archive, "indices", "<i4 <i8", (None,))
            weight = read(archive, "data", "<f8", (None,))
        masked = "actions.npy" in names
        allowed = read(archive, "actions", "|b1", reward.shape) if masked else np.ones(reward.shape, bool)
    first = np.concatenate([[0], np.cumsum(width, dtype=np.int64)])
    sound = allowed.any(axis=1).all() and (width >= 0).all() and first[-1] == len(successor) == len(weight)
    sound = sound and ((width > 0) == allowed.ravel()).all() and 0 <= successor.min() <= successor.max() < n_states
    if not (sound and 0 < gamma < 1 and np.isfinite(reward).all() and (weight > 0).all() and (weight <= 2).all()):
        raise ValueError(f"{path} is not an MDP")
    text = f"capo-mdp-digest-1:{n_states}:{n_actions}:{gamma.hex()}:".encode()
    digest = sha256(text, (reward, "<f8"), (allowed, "|b1"), (width, "<i8"), (successor, "<i8"), (weight, "<f8"))
    return gamma, reward, allowed, first, successor, weight, digest


def read_proof(path, gamma, allowed, digest):
    """Policy weights (S, A), v (S,), the covered states (S,) and the claims."""
    with zipfile.ZipFile(path) as archive:
        claims, policy = read_manifest(archive, "capo-proof-1"), read(archive, "policy", "<f8", allowed.shape)
        values = read(archive, "values", "<f8", allowed.shape[:1])
        covered = read(archive, "covered", "|b1", allowed.shape[:1])
    said, text = claims.pop("sha256"), json.dumps(claims, sort_keys=True).encode()
    if said != sha256(text, (policy, "<f8"), (values, "<f8"), (covered, "|b1")):
        raise ValueError("the checksum does not match: the file was changed")
    of = [claims[name] for name in ("mdp", "gamma", "states", "actions")]
    if repr(of) != repr([digest, gamma, *allowed.shape]):
        raise ValueError("the proof is for another MDP")
    total, distributes = policy.sum(axis=1), (policy >= 0).all() and (policy[~allowed] == 0).all()
    if not (distributes and ((total > 0.5) & (total < 2)).all() and np.isfinite(values).all() and covered.any()):
        raise ValueError("infinite values, no covered state, or a policy that is not one of this MDP")
    return policy, values, covered, claims


def residuals(mdp, policy, values, covered):
    """A lower bound on T_pi v - v and an upper bound on Q(v) - v over the covered states, rounded outward."""
    gamma, reward, allowed, first, successor, weight, _ = mdp
    (n_states, n_actions), low, high = reward.shape, np.inf, -np.inf
    for start in range(0, n_states, BLOCK):
        end = min(start + BLOCK, n_states)
        pairs = np.flatnonzero(allowed[start:end]) + start * n_actions
        entries = slice(first[start * n_actions], first[end * n_actions])
        count, at = first[pairs + 1] - first[pairs], first[pairs] - entries.start
        state, target, p = pairs // n_actions, successor[entries], weight[entries]
        if (np.repeat(covered[state], count) & ~covered[target]).any():
            raise ValueError("the covered states can be left")
        change = p * (values[target] - np.repeat(values[state], count))
        total, part = np.add.reduceat(p, at), gamma * np.add.reduceat(np.abs(change), at)
        r, own = reward.ravel()[pairs], (1 - gamma) * values[state]
        advantage = r + gamma * (np.add.reduceat(change, at) / total) - own
        error = 1.001 * (2 * count + 6) * UNIT * (np.abs(r) + part / total + np.abs(own)) + TINY
        above, lows = np.nextafter(advantage + error, np.inf), np.zeros((end - start, n_actions))
        lows.ravel()[pairs - start * n_actions] = np.nextafter(advantage - error, -np.inf)
        w, here = policy[start:end], covered[start:end]
        size = 1.001 * (2 * n_actions + 2) * UNIT * (w * np.abs(lows)).sum(axis=1) / w.sum(axis=1) + TINY
        followed = np.nextafter((w * lows).sum(axis=1) / w.sum(axis=1) - size, -np.inf)
        if not (np.isfinite(above).all() and np.isfinite(followed).all() and ((total > 0.5) & (total < 2)).all()):
            raise ValueError("the values overflow, or the weights p(s, a, .) do not sum to about 1")
        low = min(low, followed[here].min(initial=np.inf))
        high = max(high, above[covered[state]].max(initial=-np.inf))
    return Fraction(float(low)), Fraction(float(high))


def exact_residuals(mdp, policy, values, covered):
    """The same without rounding."""
    gamma, reward, allowed, first, successor, weight, _ = mdp
    v, w, q, p = (np.frompyfunc(Fraction, 1, 1)(array) for array in (values, policy, reward, weight))
    at = first[np.flatnonzero(allowed)]
    q[allowed] += Fraction(gamma) * (np.add.reduceat(p * v[successor], at) / np.add.reduceat(p, at))
    followed = (w * q).sum(axis=1) / w.sum(axis=1)
    return min((followed - v)[covered]), max((q - v[:, None])[allowed & covered[:, None]])


def main(arguments):
    exact, (proof, mdp_file) = "--exact" in arguments, [name for name in arguments if name != "--exact"]
    mdp = read_mdp(mdp_file)
    policy, values, covered, claims = read_proof(proof, mdp[0], mdp[2], mdp[-1])
    found = residuals(mdp, policy, values, covered)  # also checks that the covered states cannot be left
    low, high = exact_residuals(mdp, policy, values, covered) if exact else found
    left = 1 - Fraction(mdp[0])
    lower, upper, gap = (Fraction(float(claims[name])) for name in ("lower", "upper", "gap_bound"))
    held = low / left >= lower and high / left <= upper and (high - low) / left <= gap
    print(f"{'proved' if held else 'NOT PROVED'}: V* - V_pi <= {float(gap):.17g} at {covered.sum()} states")
    print(f"recomputed {'exactly' if exact else 'with rounding bounds'}: {float((high - low) / left):.17g}")
    return 0 if held else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception as problem:
        sys.exit(f"NOT PROVED: {type(problem).__name__}: {str(problem)[:200]}")
