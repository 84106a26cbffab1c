"""Parts of a training that users bring as Python objects: a network, schedules. A file holds only their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capo.arrays import Array
from capo.envs.layout import Part
from capo.errors import CapoError, unknown_name
from capo.neural.parts.own_network import OwnNetwork, check_network
from capo.neural.parts.schedules import OwnSchedule

SCHEDULES = ("learning_rate", "entropy", "epsilon")  # what may be a function of the progress


@dataclass(frozen=True)
class OwnParts:
    """What the user brought.

    Attributes:
        network: the body of the networks; None for capo's own.
        schedules: by the name of what they are of.
    """

    network: OwnNetwork | None = None
    schedules: Mapping[str, OwnSchedule] = field(default_factory=dict)

    @classmethod
    def split(cls, given: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[OwnParts, Any, dict[str, Any]]:
        """The schedules among settings that a user gave, the network or None, and plain settings in their place.

        The network is for :meth:`with_network`, once the settings say what it sees of an observation.

        Args:
            given: settings by name, some of which may be objects.
            known: the algorithm's settings.

        Raises:
            CapoError: if a part is not what it must be, or the algorithm has no such part.
        """
        plain, network, schedules = dict(given), None, {}
        if "network" in plain and not isinstance(plain["network"], str):
            check_network(network := plain.pop("network"))
        for name in [name for name, value in plain.items() if callable(value)]:
            setting = "epsilon_start" if name == "epsilon" else name
            if name not in SCHEDULES or setting not in known:
                allowed = [
                    one for one in SCHEDULES if one in known or (one == "epsilon" and "epsilon_start" in known)
                ]
                raise CapoError(
                    f"{name} can't be a function; these settings can be a function of the progress: "
                    f"{', '.join(allowed)}"
                )
            made = schedules[name] = OwnSchedule(name, plain.pop(name), known[setting].allowed)
            if name == "epsilon":
                plain |= {"epsilon_start": made.first, "epsilon_final": made.last}
            else:  # what the file says; the schedule itself is what counts
                plain |= {name: made.largest, f"{name}_schedule": "constant"}
        return cls(schedules=schedules), network, plain

    def with_network(self, network: Any, seen: Sequence[Part]) -> OwnParts:
        """These and the user's network.

        Args:
            network: the object.
            seen: the parts of an observation that networks see.

        Raises:
            CapoError: if it is no network for such observations.
        """
        return replace(self, network=OwnNetwork(network, seen))

    def schedule(self, name: str, progress: Array) -> Array | None:
        """The user's value at a progress from 0 to 1; None if there is no schedule of that name."""
        return self.schedules[name](progress) if name in self.schedules else None

    def notes(self) -> dict[str, str]:
        """What a file says about them: what tells the shapes of networks, and the values of schedules, apart."""
        network = {} if self.network is None else {"network": self.network.digest}
        return network | {name: one.digest for name, one in self.schedules.items()}

    def check(self, notes: Mapping[str, str]) -> None:
        """Raise unless these are the parts that a file notes.

        Raises:
            CapoError: says which are missing, or differ.
        """
        have = self.notes()
        if missing := [name for name in notes if name not in have]:
            again = ", ".join(f"{name}=..." for name in missing)
            raise CapoError(
                f"the agent was trained with {' and '.join(missing)} given as Python objects, which "
                f"cannot be stored in a file: in Python, give them again: capo.load(path, {again})"
            )
        if more := [name for name in have if name not in notes]:
            raise CapoError(f"the agent was trained without {' and '.join(more)} given as objects: leave them out")
        if have.get("network") != notes.get("network"):
            raise CapoError(
                "network: the names or shapes of its parameters differ from those of the network that the "
                "agent was trained with"
            )
        for name in self.schedules:
            if have[name] != notes[name]:
                raise CapoError(f"{name}: this function is not the one that the agent was trained with")


NONE = OwnParts()


def check_given_again(own: Mapping[str, Any]) -> None:
    """Raise if something else than objects of the user's is given to an agent that is loaded."""
    for name, value in own.items():
        if name not in ("network", *SCHEDULES):
            raise unknown_name("argument of load", name, ("network", *SCHEDULES))
        if isinstance(value, str | int | float):
            raise CapoError(f"{name}={value!r} can't be given here: a loaded agent keeps its settings")
