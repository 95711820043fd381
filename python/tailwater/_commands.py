"""Commands of the `tailwater` program, and their results."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Optional, Union

from . import _program
from ._chain import document_text, path_of
from ._errors import InputError, Interrupted
from ._program import Progress
from ._table import Table, paths_of, rows_of

# A file's path, its text (with a line end), or a document of mappings and lists.
Document = Union[str, "PathLike[str]", Mapping[str, Any]]

WRONG_INPUT = 2
# Flags that are given once for each value; other lists are one value with commas.
REPEATED = {"port", "property"}


class Report(Mapping[str, Any]):
    """Result of a command: its JSON document, whose fields the command's page lists, read as a mapping.

    `exit_code` is 0, or tells about the result: 1 no verdict, 3 an objective missed or denied, 4 a measurement in
    doubt. `notices` are the program's messages."""

    def __init__(self, document: Mapping[str, Any], *, path: str = "", exit_code: int = 0, messages: str = "") -> None:
        self.document = dict(document)
        self.exit_code = exit_code
        self.notices = messages.splitlines()
        self._path = path

    def __getitem__(self, field: str) -> Any:
        return self.document[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    @property
    def tables(self) -> list[str]:
        """Paths of the document's lists of objects, for `table`."""
        return paths_of(self.document)

    def table(self, path: Optional[str] = None) -> Table:
        """The list at a path, such as `runs[].chains[]`, as a table: fields of objects as `object.field`, and the
        fields of the elements that the list is in. By default the command's main list; `""` is the document as one
        row."""
        return Table.from_rows(rows_of(self.document, self._path if path is None else path))

    def to_pandas(self, path: Optional[str] = None) -> Any:
        """`table` as a `pandas.DataFrame`."""
        return self.table(path).to_pandas()

    def to_arrow(self, path: Optional[str] = None) -> Any:
        """`table` as a `pyarrow.Table`."""
        return self.table(path).to_arrow()

    def save(self, path: Union[str, PathLike[str]]) -> None:
        """Writes the document as JSON; `Report.load` reads it."""
        Path(path).write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Union[str, PathLike[str]]) -> Report:
        """Reads a JSON document, also one that the program has printed."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{fspath(path)}: expected a JSON document: {error}") from error
        if not isinstance(document, dict):
            raise InputError(f"{fspath(path)}: expected a JSON object, found {type(document).__name__}")
        return cls(document)

    def __repr__(self) -> str:
        return f"Report({', '.join(self.document)})"


def command(
    *arguments: Union[str, PathLike[str], Mapping[str, Any]],
    table: str = "",
    progress: Progress = None,
    **flags: Any,
) -> Report:
    """Runs a command of the program that prints JSON, such as `command("doctor")`. Arguments that are documents or
    texts are given to it as such. Keywords are its flags: `rate_scale=2` is `--rate-scale=2`, `check_slo=True` is
    `--check-slo`, a list has commas, and a final `_` is left out (`with_`). `progress` shows the program's progress on
    standard error: by default where that is a terminal; a callable gets it line by line. `table` is the path of the
    result's main list.

    Raises `InputError` for wrong input, `CommandError` if the command has failed, and `Interrupted`, with the report of
    what was done, after Ctrl-C."""
    with ExitStack() as stack:
        given: list[str] = []
        text = None
        for argument in arguments:
            own = document_text(argument)
            if own is None:
                given.append(path_of(argument))
            elif text is None:
                given.append("-")
                text = own
            else:
                given.append(stack.enter_context(_file(own)))
        for name, value in flags.items():
            given.extend(_flag(stack, name, value))
        finished = _program.call([*given, "--output=json"], text=text, progress=progress)
    report = _report(finished, table)
    if finished.was_interrupted:
        raise Interrupted(report)
    if finished.exit_code == WRONG_INPUT:
        raise InputError(str(_program.failure(finished)))
    if report is None:
        raise _program.failure(finished)
    return report


class _file:
    """Temporary file with a text."""

    def __init__(self, text: str) -> None:
        handle, self._path = tempfile.mkstemp(prefix="tailwater-", suffix=".yaml")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        os.unlink(self._path)


def _flag(stack: ExitStack, name: str, value: Any) -> list[str]:
    flag = "--" + name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, (list, tuple)):
        values = [str(each) if not isinstance(each, PathLike) else fspath(each) for each in value]
        return [f"{flag}={each}" for each in values] if name.rstrip("_") in REPEATED else [f"{flag}={','.join(values)}"]
    if isinstance(value, PathLike):
        return [f"{flag}={fspath(value)}"]
    own = document_text(value)
    return [f"{flag}={value if own is None else stack.enter_context(_file(own))}"]


def _report(finished: _program.Finished, path: str) -> Optional[Report]:
    try:
        document = json.loads(finished.output)
    except ValueError:
        return None
    if not isinstance(document, dict):
        document = {"items": document}
    return Report(document, path=path, exit_code=finished.exit_code, messages=finished.complaints)


def run(chain: Document, *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater run`: runs a chain on traffic, in real time, and measures its latency. Tables:
    `windows.list[]`, `packets.drops[]`, and others."""
    return command("run", chain, table="windows.list[]", progress=progress, **flags)


def simulate(rack: Document, *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater simulate`: chains on a rack under several policies, in virtual time. Table: a row for each chain of
    each run."""
    main = "searches[]" if "find" in flags else "runs[].chains[]"
    return command("simulate", rack, table=main, progress=progress, **flags)


def predict(target: Union[str, PathLike[str]], *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater predict`: throughput and p99 of a chain beside others (`with_=[...]`) on the same server."""
    return command("predict", table="as_competitors_join[]", progress=progress, target=target, **flags)


def place(slos: Document, cluster: Document, *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater place`: the SLOs that a cluster can keep, and where their instances run. `exit_code` 3: one was
    denied."""
    return command("place", slos, table="slos[]", progress=progress, cluster=cluster, **flags)


def profile(kind: str, chain: Document, *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater profile`: measures a chain. `kind` is `capacity`, `latency`, `cache`, `all` or `contention`."""
    main = {"capacity": "frontier[]"}.get(kind, "")
    return command("profile", kind, chain, table=main, progress=progress, **flags)


def trace_info(traffic: Union[str, PathLike[str]], *, progress: Progress = None, **flags: Any) -> Report:
    """`tailwater trace info`: packets, flows, sizes and worst bursts of a capture or a preset; with `service_us`, a
    study of the latency that its bursts cause."""
    main = "minnows[]" if "service_us" in flags or "svg" in flags else "bursts[]"
    return command("trace", "info", traffic, table=main, progress=progress, **flags)
