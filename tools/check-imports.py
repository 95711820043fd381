#!/usr/bin/env python3
"""Checks that imports point one way, in the code under crates/*/src without its tests.

A crate imports only crates on floors below its own, and files of a crate do not import each other in a circle. A file
imports the one that defines the item it names, also where the item is re-exported on the way. `mod x;` and a
re-export that the file itself does not use are no imports. Known circles are in tools/import-circles.txt, one a line:
the sorted files of a group, each of which imports all others, directly or not. The list may only shrink.
"""

import os
import re
import sys
from pathlib import Path

# From the ground up. Crates on one floor do not import each other.
FLOORS = """
    files
    net handover resctrl confine streams socket
    traffic sdk ids measure
    api sdk-c
    chain
    functions state dpdk
    policy predict
    placement
    baselines dispatch
    isolation cache-agent
    dataplane sim
    profile doctor server
    cluster
    cli python
"""
FLOOR_OF = {crate: floor for floor, crates in enumerate(FLOORS.split("\n")) for crate in crates.split()}
KNOWN = Path("tools/import-circles.txt")

# Comments, strings and characters; the quote of a lifetime opens none.
OPAQUE = re.compile(r"""//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^\\'])'""", re.S)
TEST = re.compile(r"#!?\[cfg\((?:all\()?test\b[^\]]*\]")
INLINE = re.compile(r"\bmod\s+\w+\s*(?=\{)")
MOD = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"(\bpub\b(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
PART = re.compile(r"(?:[^,{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})+")
PATH = re.compile(r"(?<![\w:.])\w+(?:\s*::\s*\w+)+")


def blank(match):
    """Spaces in place of a match, so that positions and lines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def in_items(code, start, pattern, replacement):
    """The code with a pattern replaced in every item that begins so, up to its `;` or closing brace."""
    at = 0
    while found := start.search(code, at):
        end, depth = found.end(), 0
        while end < len(code) and depth >= 0:
            depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(code[end], 0)
            end += 1
            if depth == 0 and code[end - 1] in ";}":
                break
        code = code[: found.start()] + re.sub(pattern, replacement, code[found.start() : end]) + code[end:]
        at = found.end()
    return code


def code_of(file):
    """The code of a file without comments, strings and tests. In modules within it, `super` becomes the file itself."""
    code = in_items(OPAQUE.sub(blank, file.read_text()), TEST, r"[^\n]", " ")
    return in_items(code, INLINE, r"(?<!:)\bsuper\b", "self ")


def line_of(match, code, group=0):
    return code.count("\n", 0, match.start(group)) + 1


def names(path):
    return tuple(path.replace("::", " ").split())


def bindings(tree, prefix=()):
    """The paths of a use declaration, each with the name that it binds."""
    head, group, rest = tree.partition("{")
    if group:
        for part in filter(str.strip, PART.findall(rest[: rest.rindex("}")])):
            yield from bindings(part, prefix + names(head))
    else:
        path, *alias = re.split(r"\s+as\s+", tree.strip())
        path = prefix + names(path)
        path = path[:-1] if path[-1] in ("self", "*") else path
        yield path, alias[0] if alias else path[-1]


class Module:
    """A module that is a file: what it declares and what it imports."""

    def __init__(self, file, parent=None):
        self.file, self.parent, self.root = file, parent or self, parent.root if parent else self
        code = code_of(file)
        rest = USE.sub(blank, code)
        words = set(re.findall(r"\w+", MOD.sub(blank, rest)))
        self.bound, self.paths = {}, [(names(path[0]), line_of(path, code)) for path in PATH.finditer(rest)]
        for use in USE.finditer(code):
            for path, name in bindings(use[2]):
                self.bound[name] = path
                if not use[1] or name in words:
                    self.paths.append((path, line_of(use, code, 2)))
        folder = file.parent if parent is None or file.stem == "mod" else file.with_suffix("")
        files = {name: (folder / f"{name}.rs", folder / name / "mod.rs") for name in MOD.findall(rest)}
        self.children = {name: Module(file, self) for name, both in files.items() for file in both if file.exists()}

    def find(self, path, seen=()):
        """The module that a path names (and True) or that defines its item (and False), if it is in this crate."""
        if path[0] not in {"crate", "super", "self", *self.children, *self.bound}:
            return None
        module = self
        for at, name in enumerate(path):
            if name in ("crate", "super", "self"):
                module = {"crate": module.root, "super": module.parent, "self": module}[name]
            elif name in module.children:
                module = module.children[name]
            elif name in module.bound and (module, name) not in seen:
                found = module.find(module.bound[name], (*seen, (module, name)))
                inside = found and found[1] and path[at + 1 :]
                return found[0].find(("self", *inside), seen) if inside else found
            else:
                return module, False
        return module, True

    def graph(self):
        """The files of this module and of those in it, each with the files that it imports and the first lines."""
        found = [(self.find(path), line) for path, line in sorted(self.paths, key=lambda path: -path[1])]
        graph = {self.file: {to[0].file: line for to, line in found if to and not to[1] and to[0] is not self}}
        for child in self.children.values():
            graph |= child.graph()
        return graph


def way(graph, start, end):
    """The fewest imports that lead from one file to another, or `None`."""
    ways, queue = {start: []}, [start]
    for file in queue:
        for to, line in graph[file].items():
            step = [*ways[file], f"    {file}:{line} imports {to}"]
            if to == end:
                return step
            if to not in ways:
                ways[to] = step
                queue.append(to)
    return None


def main():
    os.chdir(Path(__file__).resolve().parent.parent)
    errors, circles, known = [], {}, set(KNOWN.read_text().splitlines())
    for source in sorted(Path("crates").glob("*/src")):
        floor, graph = FLOOR_OF.get(source.parent.name), {}
        if floor is None:
            errors.append(f"{source.parent}: the crate has no floor in tools/check-imports.py")
            continue
        for root in filter(Path.exists, (source / "lib.rs", source / "main.rs", *source.glob("bin/*.rs"))):
            graph |= Module(root).graph()
        for file in graph:
            code = code_of(file)
            for other in re.finditer(r"\btailwater_(\w+)", code):
                if FLOOR_OF.get(other[1].replace("_", "-"), -1) >= floor:
                    where = f"{file}:{line_of(other, code)}"
                    errors.append(f"{where} imports {other[0]}, which is not below {source.parent.name}")
        rounds = {file: found for file in sorted(graph, key=str) if (found := way(graph, file, file))}
        while rounds:
            first = next(iter(rounds))
            group = [file for file in rounds if way(graph, first, file) and way(graph, file, first)]
            circles[" ".join(map(str, group))] = min((rounds.pop(file) for file in group), key=len)
    for group in sorted(circles.keys() - known):
        errors += [f"files import each other in a circle that is not in {KNOWN}:", f"    {group}", "  the shortest way:"]
        errors += circles[group]
    errors += [f"{KNOWN}: this is no circle any more: {group}" for group in sorted(known - circles.keys())]
    print("\n".join(errors) or f"imports point one way, but for {len(known)} known circles of files")
    sys.exit(bool(errors))


main()
