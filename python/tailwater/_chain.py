"""Chains in this process: packets go through the functions one after another, and each says what became of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple, Optional, Union

from . import _native
from ._errors import InputError
from ._native import Packet
from ._table import Table

Path = Union[str, "PathLike[str]"]
Frame = Union[bytes, bytearray, memoryview]
# A capture's path, a preset's name, or frames, alone or with their times in nanoseconds.
Traffic = Union[Path, Iterable[Union[Frame, tuple[int, Frame]]]]

CHUNK = 1024
# Distance of frames without times, in nanoseconds.
GAP_NS = 1000
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}


class PacketResult(NamedTuple):
    """What a chain did with a packet."""

    time_ns: int
    """Time since the chain's first packet."""
    length: int
    """Length of the frame as it arrived, in bytes."""
    source: Optional[str]
    """Source address as it arrived; `None`, as the four fields below, for a packet that is malformed or no IP."""
    destination: Optional[str]
    source_port: Optional[int]
    destination_port: Optional[int]
    protocol: Optional[int]
    """IP protocol number."""
    verdict: str
    """`forwarded`; `dropped` by the spec or a function; `lost` for lack of resources; `not-matched` by `spec.match`."""
    function: Optional[str]
    """Function that dropped or lost the packet; `None` for the chain itself."""
    reason: Optional[str]
    """Its reason."""
    events: list[str]
    """Other counters that the packet increased, as `function/counter`."""
    changed: bool
    """The frame left otherwise than it came."""
    data: Optional[bytes]
    """The frame that left. `run` has it only if it has changed, without `keep_data`."""


class Function:
    """Function of a chain, written in Python; made by `function`. It is called with a `Packet` and returns `None` or
    `True` to forward it, `False` or one of its drop reasons to drop it, or `bytes`, the frame to forward instead."""

    def __init__(
        self,
        callable: Callable[[Packet], Any],
        *,
        name: Optional[str] = None,
        before: Optional[str] = None,
        after: Optional[str] = None,
        drop_reasons: Sequence[str] = (),
    ) -> None:
        if before is not None and after is not None:
            raise InputError("expected either before or after, found both")
        if isinstance(drop_reasons, str):
            raise InputError(f"drop_reasons: expected a list of names, found {drop_reasons!r}")
        self.callable = callable
        own = getattr(callable, "__name__", type(callable).__name__)
        self.name = name or re.sub(r"[^a-z0-9]+", "-", own.lower()).strip("-") or "function"
        self.before = before
        self.after = after
        self.drop_reasons = list(drop_reasons)

    def __call__(self, packet: Packet) -> Any:
        return self.callable(packet)

    def _given(self) -> tuple[str, Callable[[Packet], Any], list[str], Optional[tuple[bool, str]]]:
        beside = self.before if self.before is not None else self.after
        position = None if beside is None else (self.before is not None, beside)
        return self.name, self.callable, self.drop_reasons, position


def function(
    *,
    name: Optional[str] = None,
    before: Optional[str] = None,
    after: Optional[str] = None,
    drop_reasons: Sequence[str] = (),
) -> Callable[[Callable[[Packet], Any]], Function]:
    """Decorator that makes a Python function one of a chain, in front of or behind the function of this name, or at the
    chain's end. Its name is that of the Python function, with hyphens. For experiments, and slow."""
    return lambda callable: Function(callable, name=name, before=before, after=after, drop_reasons=drop_reasons)


class Run:
    """Result of packets that a chain has run."""

    def __init__(self, packets: Table, counts: Table, notices: list[str]) -> None:
        self.packets = packets
        """A row for each packet, with the fields of `PacketResult`."""
        self.counts = counts
        """Packets of the whole chain by function, reason and outcome."""
        self.notices = notices
        """Notices on the traffic, such as where a damaged capture ends."""

    @property
    def verdicts(self) -> dict[str, int]:
        """Packets by verdict."""
        return dict(Counter(self.packets["verdict"]))

    def to_pandas(self) -> Any:
        """The packets as a `pandas.DataFrame`."""
        return self.packets.to_pandas()

    def to_arrow(self) -> Any:
        """The packets as a `pyarrow.Table`."""
        return self.packets.to_arrow()

    def __repr__(self) -> str:
        parts = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items())
        return f"Run({len(self.packets)} packets: {parts})"


class Chain:
    """Chain of network functions in this process.

    `spec` is the path of a chain spec, its text (with a line end), or a document of mappings and lists. `functions` are
    written in Python: made by `function`, or plain callables at the chain's end. The functions are those of the data
    plane, but one packet at a time and without cores, queues and latency: `tailwater.run` measures. `spec.isolation`
    has no effect; external functions and `spec.state` are refused.

    A chain keeps its flows between calls. `close`, or the end of a `with` block, ends them and completes the files that
    functions write. One thread uses it at a time."""

    def __init__(
        self,
        spec: Union[Path, Mapping[str, Any]],
        *,
        functions: Sequence[Union[Function, Callable[[Packet], Any]]] = (),
        base_dir: Path = "",
        seed: int = 1,
    ) -> None:
        given = [(each if isinstance(each, Function) else Function(each))._given() for each in functions]
        text = document_text(spec)
        if text is not None:
            self._chain = _native.Chain(text=text, base_dir=base_dir, functions=given, seed=seed)
        else:
            self._chain = _native.Chain(path=path_of(spec), functions=given, seed=seed)
        self._last_ns = 0

    @property
    def name(self) -> str:
        """Name in the spec."""
        return self._chain.name

    @property
    def functions(self) -> list[str]:
        """Names of the functions, in the order in which packets pass them."""
        return self._chain.functions

    @property
    def flows(self) -> int:
        """Number of flows in the flow table."""
        return self._chain.flows

    @property
    def counts(self) -> Table:
        """Packets (of some counters bytes) so far by function, reason and outcome: `dropped`, `lost`, or `passed` for
        other counters. Zeros are left out."""
        counts = self._chain.counts()
        names = ("function", "reason", "outcome", "packets")
        return Table({name: [count[at] for count in counts] for at, name in enumerate(names)})

    def process(self, frame: Frame, time_ns: Optional[int] = None) -> PacketResult:
        """Runs one Ethernet frame, by default a microsecond after the last one. Idle flows end by these times."""
        self._last_ns = self._last_ns + GAP_NS if time_ns is None else time_ns
        (row,) = self._chain.process([(self._last_ns, bytes(frame))], keep=True)
        return _result(row)

    def run(
        self,
        traffic: Traffic,
        *,
        duration: Union[str, float] = "1s",
        seed: int = 1,
        limit: Optional[int] = None,
        keep_data: bool = False,
        skip_bad_packets: bool = False,
        capture_out: Optional[Path] = None,
    ) -> Run:
        """Runs the packets of a capture, of a preset (for `duration`, such as `"100ms"`, with `seed`), or given ones,
        at most `limit`. `keep_data` keeps all frames that left, not only changed ones. `capture_out` writes them to a
        pcap file with the times of their arrival."""
        source = _Source(traffic, duration, seed, skip_bad_packets)
        rows: list[_native.Row] = []
        passed = self._passed(source, rows, limit, keep_data, capture_out is not None)
        if capture_out is None:
            for _ in passed:
                pass
        else:
            _native.write_capture(capture_out, passed)
        results = [_result(row) for row in rows]
        table = Table({name: [result[at] for result in results] for at, name in enumerate(PacketResult._fields)})
        return Run(table, self.counts, source.notices)

    def _passed(
        self, source: _Source, rows: list[_native.Row], limit: Optional[int], keep: bool, yields: bool
    ) -> Iterator[tuple[int, bytes]]:
        left = limit
        for chunk in source.chunks():
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            if chunk:
                self._last_ns = chunk[-1][0]
            done = self._chain.process(chunk, keep=keep or yields)
            for (time, _), row in zip(chunk, done):
                if yields and row[7] is not None:
                    yield time, row[7]
                if not keep and not row[8]:
                    row = (*row[:7], None, row[8])
                rows.append(row)
            if left == 0:
                return

    def close(self) -> None:
        """Ends all flows and completes the files that functions write. The counts remain."""
        self._chain.close()

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Chain({self.name}: {', '.join(self.functions)})"


class _Source:
    """Packets in chunks, from wherever they come."""

    def __init__(self, traffic: Traffic, duration: Union[str, float], seed: int, skip_bad_packets: bool) -> None:
        self._reader: Optional[_native.Packets] = None
        if isinstance(traffic, (str, PathLike)):
            self._reader = _native.Packets(
                traffic, seed=seed, duration_ns=nanoseconds(duration), skip_bad_packets=skip_bad_packets
            )
        else:
            self._given = traffic

    @property
    def notices(self) -> list[str]:
        return self._reader.notices if self._reader else []

    def chunks(self) -> Iterator[list[tuple[int, bytes]]]:
        if self._reader:
            while read := self._reader.read():
                yield read
            return
        chunk: list[tuple[int, bytes]] = []
        time = -GAP_NS
        for item in self._given:
            time, frame = item if isinstance(item, tuple) else (time + GAP_NS, item)
            chunk.append((time, bytes(frame)))
            if len(chunk) == CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def packets(
    traffic: Path, *, duration: Union[str, float] = "1s", seed: int = 1, skip_bad_packets: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Packets of a capture or a preset: time in nanoseconds, and Ethernet frame."""
    for chunk in _Source(traffic, duration, seed, skip_bad_packets).chunks():
        yield from chunk


def write_capture(path: Path, traffic: Iterable[tuple[int, Frame]]) -> int:
    """Writes packets, as `packets` yields them, to a pcap file. Returns their number."""
    return _native.write_capture(path, ((time, bytes(frame)) for time, frame in traffic))


def document_text(document: Union[Path, Mapping[str, Any]]) -> Optional[str]:
    """Text of a document that is no file: a mapping, or a text with a line end. JSON is YAML, too."""
    if isinstance(document, Mapping):
        return json.dumps(document)
    if isinstance(document, str) and "\n" in document:
        return document
    return None


def path_of(document: Union[Path, Mapping[str, Any]]) -> str:
    """Path of a document that is a file."""
    if not isinstance(document, (str, PathLike)):
        raise InputError(f"expected a path, a text or a mapping, found {type(document).__name__}")
    return fspath(document)


def nanoseconds(duration: Union[str, float]) -> int:
    """Nanoseconds of a duration in seconds, or with a unit as in specs: `"1.5ms"`."""
    if isinstance(duration, str):
        if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m)", duration)):
            raise InputError(f"expected a duration such as 100ms, found {duration!r}")
        value = float(found[1]) * UNITS[found[2]]
    else:
        value = duration * 1e9
    if not 0 < value < 2**63:
        raise InputError(f"expected a duration above 0, found {duration!r}")
    return round(value)


def _result(row: _native.Row) -> PacketResult:
    time, length, flow, verdict, function, reason, events, data, changed = row
    fields = flow or (None, None, None, None, None)
    return PacketResult._make((time, length, *fields, verdict, function, reason, events, changed, data))
