#!/usr/bin/env python3
"""Runs a test program for at most TEST_SECONDS (600). One that takes longer hangs: its threads and those of its
descendants are described on standard error, and all of them are killed.

usage: tools/bounded.py PROGRAM ARGUMENTS...
"""

import os
import signal
import subprocess
import sys

SECONDS = float(os.environ.get("TEST_SECONDS", "600"))


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stat(path):
    """Returns the fields behind the command's name, which may contain anything."""
    return read(f"{path}/stat").rpartition(")")[2].split()


def family(first):
    """Returns a process and its descendants."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat(f"/proc/{name}")
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(name))
    found = [first]
    for process in found:
        found += parents.get(process, [])
    return found


def describe(process):
    command = read(f"/proc/{process}/cmdline").replace("\0", " ").strip()
    print(f"process {process}: {command}", file=sys.stderr)
    tasks = f"/proc/{process}/task"
    for thread in os.listdir(tasks) if os.path.isdir(tasks) else []:
        path = f"{tasks}/{thread}"
        fields = stat(path)
        if not fields:
            continue
        state, core, priority, policy = fields[0], fields[36], fields[37], fields[38]
        time = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        name = read(f"{path}/comm").strip()
        frames = [line.split()[-1] for line in read(f"{path}/stack").splitlines()[:12]]
        print(
            f"  {thread} {name}: {state}, core {core}, policy {policy}, priority {priority}, {time} s, "
            f"system call {read(f'{path}/syscall').split(' ')[0].strip()}, {' '.join(frames)}",
            file=sys.stderr,
        )


def main():
    # Tests end programs by SIGINT, which a shell makes those in its background ignore.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = child.wait(SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{sys.argv[1]} hangs: it has taken {SECONDS} s", file=sys.stderr)
        processes = family(child.pid)
        for process in processes:
            describe(process)
        sys.stderr.flush()
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        sys.exit(124)
    if code < 0:
        # As the program ended, so that cargo tells the signal.
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


main()
