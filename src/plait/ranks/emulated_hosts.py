"""What the record of a run over emulated links says of them."""

from __future__ import annotations

from dataclasses import replace

from plait.spec.emulation import Emulation, host_names
from plait.timeline.record import RunRecord


def on_emulated_hosts(record: RunRecord, emulation: Emulation) -> RunRecord:
    """The record with every rank on its emulated host, and the links in its result. All hosts have one clock."""
    names = host_names(emulation)
    named = list(dict.fromkeys(names.values()))  # hosts are numbered as ranks come to them
    wires = [
        {"source": source, "target": target, "latency_s": wire.latency_s, "bandwidth_bytes_per_s": wire.bandwidth}
        for (source, target), wire in emulation.wires.items()
    ]
    return replace(
        record,
        predicted=record.predicted and replace(record.predicted, hosts=names),
        measured=record.measured and replace(record.measured, hosts=names),
        result={**record.result, "emulated": {"hosts": list(emulation.hosts), "names": named, "wires": wires}},
    )
