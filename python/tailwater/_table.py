"""Tables: columns of equal length, which become pandas' and Arrow's where these are installed."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, Union

SHOWN = 20


class Table:
    """Columns by name, all of the same length. A value that does not exist is `None`."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self.columns = dict(columns)
        lengths = {len(values) for values in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"expected columns of one length, found {sorted(lengths)}")
        self._rows = lengths.pop() if lengths else 0

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
        """Makes a table of rows, with the columns of all of them in the order of their first use."""
        columns: dict[str, list[Any]] = {}
        count = 0
        for row in rows:
            for name, value in row.items():
                columns.setdefault(name, [None] * count).append(value)
            count += 1
            for values in columns.values():
                if len(values) < count:
                    values.append(None)
        return cls(columns)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows."""
        for values in zip(*self.columns.values()):
            yield dict(zip(self.columns, values))

    def select(self, *columns: str) -> Table:
        """The table with these columns alone, in this order."""
        return Table({name: self.columns[name] for name in columns})

    def where(self, **values: Any) -> Table:
        """The rows whose columns have these values."""
        rows = [row for row in self if all(row[name] == value for name, value in values.items())]
        return Table({name: [row[name] for row in rows] for name in self.columns})

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`. Requires pandas."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("pandas is not installed: pip install pandas") from error
        return pandas.DataFrame(self.columns)

    def to_arrow(self) -> Any:
        """The table as a `pyarrow.Table`. Requires pyarrow."""
        try:
            import pyarrow  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("pyarrow is not installed: pip install pyarrow") from error
        return pyarrow.table(self.columns)

    def to_csv(self, path: Union[str, PathLike[str]]) -> None:
        """Writes the table with a header. `None` is an empty field."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*self.columns.values()))

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.columns)})"

    def _texts(self) -> list[list[str]]:
        shown = [[_text(value) for value in values[:SHOWN]] for values in self.columns.values()]
        return [list(self.columns), *map(list, zip(*shown))]

    def __str__(self) -> str:
        rows = self._texts()
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        if len(self) > SHOWN:
            lines.append(f"... {len(self) - SHOWN} more rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *rows = self._texts()
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        more = f"<p>{len(self) - SHOWN} more rows</p>" if len(self) > SHOWN else ""
        return f"<table><tr>{cells}</tr>{body}</table>{more}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value)


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of a document, those of objects in it as `object.field`; without lists of objects."""
    row: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            row.update(flatten(value, f"{prefix}{name}."))
        elif not (isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value)):
            row[prefix + name] = value
    return row


def rows_of(document: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Elements of the list at `path`, such as `runs[].chains[]`, as rows. Each has also the fields of the elements
    that it is in, where it has none of the same name. The path may lead through objects; the empty one is the
    document."""
    found: list[tuple[Any, dict[str, Any]]] = [(document, {})]
    is_element = False
    for part in path.split(".") if path else []:
        inner: list[tuple[Any, dict[str, Any]]] = []
        for holder, outer in found:
            if not isinstance(holder, Mapping):
                continue
            if not part.endswith("[]"):
                inner.append((holder.get(part), outer))
            elif isinstance(values := holder.get(part[:-2]), list):
                # Fields outside of lists are the same in each row.
                around = {**outer, **flatten(holder)} if is_element else outer
                inner.extend((item, around) for item in values)
        found, is_element = inner, part.endswith("[]")
    return [_row(item, outer) for item, outer in found if item is not None]


def _row(item: Any, outer: dict[str, Any]) -> dict[str, Any]:
    own = flatten(item) if isinstance(item, Mapping) else {"value": item}
    return {**own, **{name: value for name, value in outer.items() if name not in own}}


def paths_of(document: Any, prefix: str = "") -> list[str]:
    """Paths of all lists of objects in a document."""
    paths: dict[str, None] = {}
    if isinstance(document, Mapping):
        for name, value in document.items():
            if isinstance(value, Mapping):
                paths.update(dict.fromkeys(paths_of(value, f"{prefix}{name}.")))
            elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
                path = f"{prefix}{name}[]"
                paths[path] = None
                for item in value:
                    paths.update(dict.fromkeys(paths_of(item, f"{path}.")))
    return list(paths)
