"""Tailwater: chains of network functions with latency objectives.

`Chain` runs the functions of a chain in this process, packet by packet, and functions written in Python between them.
`run`, `profile`, `simulate`, `predict` and `place` run the `tailwater` program and return its results as tables.

    import tailwater

    with tailwater.Chain("examples/acl-nat.yaml") as chain:
        result = chain.run("capture.pcap")
    print(result.counts)
    print(tailwater.simulate("examples/rack.yaml", policy=["static", "tailwater"]).table())
"""

from ._chain import Chain, Function, PacketResult, Run, function, packets, write_capture
from ._commands import Report, command, place, predict, profile, run, simulate, trace_info
from ._errors import CommandError, InputError, Interrupted, TailwaterError
from ._native import Packet
from ._table import Table

__all__ = [
    "Chain",
    "CommandError",
    "Function",
    "InputError",
    "Interrupted",
    "Packet",
    "PacketResult",
    "Report",
    "Run",
    "Table",
    "TailwaterError",
    "command",
    "function",
    "packets",
    "place",
    "predict",
    "profile",
    "run",
    "simulate",
    "trace_info",
    "write_capture",
]
