"""Types of the extension module (crates/python)."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Optional, Union

# Source, destination, source port, destination port, protocol.
Flow = tuple[str, str, int, int, int]
# Time since the first packet, length, flow, verdict, function, reason, events, frame that left, whether it has changed.
Row = tuple[int, int, Optional[Flow], str, Optional[str], Optional[str], list[str], Optional[bytes], bool]

class Packet:
    """Packet at a function written in Python: a copy, which may be kept."""

    @property
    def time_ns(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def network_offset(self) -> int: ...
    @property
    def transport_offset(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def destination(self) -> str: ...
    @property
    def source_port(self) -> int: ...
    @property
    def destination_port(self) -> int: ...
    @property
    def protocol(self) -> int: ...
    @property
    def flow(self) -> Flow: ...
    @property
    def is_new(self) -> bool: ...
    def __len__(self) -> int: ...

class Chain:
    """Chain of functions in this process; see `tailwater.Chain`, which wraps it."""

    def __init__(
        self,
        *,
        path: Optional[Union[str, PathLike[str]]] = None,
        text: Optional[str] = None,
        name: str = "chain",
        base_dir: Union[str, PathLike[str]] = "",
        functions: Sequence[tuple[str, Callable[[Packet], Any], list[str], Optional[tuple[bool, str]]]] = ...,
        seed: int = 1,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def functions(self) -> list[str]: ...
    @property
    def flows(self) -> int: ...
    def process(self, packets: Sequence[tuple[int, Union[bytes, bytearray]]], *, keep: bool = False) -> list[Row]: ...
    def counts(self) -> list[tuple[Optional[str], str, str, int]]: ...
    def close(self) -> None: ...

class Packets:
    """Packets of a capture or a preset; see `tailwater.packets`, which wraps it."""

    def __init__(
        self,
        name: Union[str, PathLike[str]],
        *,
        seed: int = 1,
        duration_ns: int = 1_000_000_000,
        skip_bad_packets: bool = False,
    ) -> None: ...
    def read(self) -> list[tuple[int, bytes]]: ...
    @property
    def notices(self) -> list[str]: ...

def write_capture(
    path: Union[str, PathLike[str]], packets: Iterable[tuple[int, Union[bytes, bytearray]]]
) -> int: ...
