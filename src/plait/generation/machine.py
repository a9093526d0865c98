"""What a plan runs on: this host, or the hosts of a mesh that somebody else has started."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Protocol

from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.plans.plan import Plan, check_runnable
from plait.prober.host import free_memory_here, usable_cores


class Machine(Protocol):
    """Where the ranks of a plan will run."""

    @property
    def threads(self) -> int:
        """Threads that may compute at the same time on a host."""

    def placed(self, plan: Plan) -> Plan:
        """The plan as it runs here. Errors: PlanError where it cannot."""

    def free_bytes(self, layout: Layout) -> Mapping[str, int]:
        """Memory that is free on the hosts that the layout's stages name. Errors: PlanError."""


class ThisMachine:
    """Ranks are started here, on this host alone."""

    @property
    def threads(self) -> int:
        """OMP_NUM_THREADS where it is set, else the cores."""
        asked = os.environ.get("OMP_NUM_THREADS", "")
        return int(asked) if asked.isdigit() and int(asked) > 0 else usable_cores()

    def placed(self, plan: Plan) -> Plan:
        """See `Machine`."""
        check_runnable(plan, platform.node())
        return plan

    def free_bytes(self, layout: Layout) -> Mapping[str, int]:
        """See `Machine`."""
        hosts = {stage.host for stage in layout.stages}
        if len(hosts) != 1:
            raise PlanError(f"the plan names hosts {sorted(hosts)}, but only one host can be started from here")
        return {hosts.pop(): free_memory_here()}
