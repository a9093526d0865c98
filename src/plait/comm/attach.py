"""A rank's process finds its place in the mesh that its launcher has made, whichever kind that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from plait.comm.contract import Endpoint
from plait.comm.emulated_mesh import EmulatedDescription, attach_emulated
from plait.comm.shm import ShmDescription, ShmEndpoint


def attach(description: Mapping[str, object]) -> Endpoint:
    """The endpoint of the rank that this process is, from what `description` of its mesh said. It takes over what that
    names.

    Errors: over emulated links, which all ranks open together, PeerLost and WaitTimeout.
    """
    if description.get("emulated"):
        return attach_emulated(cast(EmulatedDescription, description))
    return ShmEndpoint.attach(cast(ShmDescription, description))
