#!/usr/bin/env python3
"""Checks that libraries have the same features in all builds of `make check test`, so that they are built once:
tools/libraries/Cargo.toml gives them what they would lack in a build without optional parts, or without tests.

Cargo tells what it would build in an unstable format; a cargo that does not is no error.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.chdir(Path(__file__).resolve().parent.parent)


def arguments(*build):
    return subprocess.check_output(["tools/features.sh", *build], text=True, stderr=subprocess.DEVNULL).split()


WHOLE, WITHOUT = arguments(), arguments("without") + ["--test", "ports", "--test", "place", "--test", "built_without"]
# Each build, and the one whose libraries it shares.
PAIRS = [
    (["test", "--no-run", *WITHOUT], ["test", "--no-run", *WHOLE]),
    (["doc", "--no-deps", *WHOLE], ["check", "--all-targets", *WHOLE]),
]


def libraries(build):
    """Returns the sets of features with which each library of others is built."""
    command = ["cargo", *build, "-Z", "unstable-options", "--unit-graph"]
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
    graph = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if graph.returncode:
        print("skipped: cargo did not tell what it builds")
        sys.exit()
    found = {}
    for unit in json.loads(graph.stdout)["units"]:
        if unit["mode"] in ("build", "check") and not unit["pkg_id"].startswith("path+"):
            key = unit["pkg_id"].rpartition("#")[2], tuple(unit["target"]["kind"]), unit["mode"]
            found.setdefault(key, set()).add(frozenset(unit["features"]))
    return found


differ = False
for build, other in PAIRS:
    shared = libraries(other)
    for key, builds in sorted(libraries(build).items()):
        for features in builds - shared.get(key, builds):
            differ = True
            known = " or ".join(str(sorted(features)) for features in shared[key])
            print(f"cargo {build[0]}: {key[0]} has features {sorted(features)}, not {known}", file=sys.stderr)
if differ:
    sys.exit("tools/libraries/Cargo.toml: give these libraries the features that they have in the other build")
