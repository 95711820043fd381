#!/usr/bin/env python3
"""Checks that libraries have the same features in a build without optional parts as in the whole one, so that they are
built once for both: tools/libraries/Cargo.toml gives them what they lack.

Cargo tells what it would build in an unstable format; a cargo that does not is no error.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.chdir(Path(__file__).resolve().parent.parent)
TESTS = ["--test", "ports", "--test", "place", "--test", "built_without"]


def libraries(*build):
    """Returns the sets of features with which each library of others is built."""
    arguments = subprocess.check_output(["tools/features.sh", *build], text=True, stderr=subprocess.DEVNULL).split()
    command = ["cargo", "test", "--no-run", "-Z", "unstable-options", "--unit-graph", *arguments]
    if build:
        command += TESTS
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
    graph = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if graph.returncode:
        print("skipped: cargo did not tell what it builds")
        sys.exit()
    found = {}
    for unit in json.loads(graph.stdout)["units"]:
        if unit["mode"] == "build" and not unit["pkg_id"].startswith("path+"):
            key = unit["pkg_id"].rpartition("#")[2], tuple(unit["target"]["kind"])
            found.setdefault(key, set()).add(frozenset(unit["features"]))
    return found


whole, without = libraries(), libraries("without")
differ = 0
for (name, kind), builds in sorted(without.items()):
    for features in builds - whole.get((name, kind), builds):
        differ += 1
        known = " or ".join(str(sorted(features)) for features in whole[name, kind])
        print(f"{name} is built with {sorted(features)}, and with {known} in the whole", file=sys.stderr)
if differ:
    sys.exit("tools/libraries/Cargo.toml: give these libraries the features that they have in the whole build")
