#!/usr/bin/env python3
"""Builds test programs and runs them in lanes. At the end: time of each, failures, and the result of all.

Programs of the live data plane run one after another. Most of the time they wait, or keep the last core busy. Programs
that only compute run beside them: at the kernel's idle priority, which gives up a core at once, and not on the last
one. So do programs of the data plane for which one core is enough, at the lowest ordinary priority, and programs that
wait for servers of their own. Nothing but programs that compute runs beside those whose subject is time, or that keep
all cores busy.

Other machines' load takes cores away for up to half a second, and a test of the live data plane may fail by that. Such
a test is repeated up to twice, at the end and alone, and the result says so. One that fails in all three runs has failed.

A test that lacks a program or data passes, and prints a line that starts with "skipped": of the output of passing
tests only these lines are shown.

usage: tools/tests.py [--lint] [--beside COMMAND]... [--first ARGUMENTS] CARGO-ARGUMENTS... [-- TEST-ARGUMENTS...]
       --lint              lints and documents all crates in the course of the build, benchmarks, too
       --beside COMMAND    runs a command, too, as a program that only computes: from the start, while others are built
       --first ARGUMENTS   builds and runs test programs with these arguments before the others, one after another
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from fnmatch import fnmatch
from pathlib import Path

# Programs in which hostile code must be stopped in time, or that keep all cores busy: directory of the crate, and name
# of the program (`lib` for unit tests).
ALONE = """
    isolation/* confine/* dataplane/external dataplane/hosted_isolation dataplane/many_chains
    cli/captures cli/isolation cli/serve_isolated cli/serve_state
"""
# Programs that only compute: nothing depends on when they run, on a time limit or on the number of cores. The longest
# come first.
COMPUTING = """
    functions/hostile functions/lib sim/* ids/* net/* traffic/* baselines/* functions/handover functions/exhaustion
    dataplane/*_captures predict/* socket/* policy/*
    placement/[!m]* dispatch/* chain/* api/* streams/* measure/*
    cli/explain cli/place cli/predict cli/schema cli/simulate cli/simulate_find cli/simulate_flows cli/simulate_report
    cli/trace cli/wrong_input
    sdk/function sdk/header sdk/json functions/kinds functions/library functions/spec_golden functions/transfer python/*
"""
# Programs of the data plane of whose tests none needs a second core. The longest come first.
ONE_CORE = """
    dataplane/reconfigure profile/lib dataplane/steady_state cli/curves cache-agent/resctrl dataplane/faults
    cli/tailwater dataplane/buckets cli/functions dataplane/splits cli/examples cli/faults dataplane/devices dataplane/lib
"""
# Programs that wait most of the time: they run on the cores of those that only compute, at their own priority.
WAITING = "cluster/* server/control server/hostile state/redis functions/flow_stats cli/kernel_ports"
CORES = sorted(os.sched_getaffinity(0))
# Workers use the last core.
BESIDE = ",".join(map(str, CORES[:-1]))
LINTING = str(Path(__file__).resolve().with_name("linted-rustc.sh"))
BOUNDED = str(Path(__file__).resolve().with_name("bounded.py"))
# More failures have another cause than the machine's load.
REPEATED = 12
REPETITIONS = 2
FAILED = " ... FAILED"
RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
PRINTING = threading.Lock()


def rank(name, patterns):
    """Returns the number of the last pattern that fits, or None."""
    fitting = [number for number, pattern in enumerate(patterns.split()) if fnmatch(name, pattern)]
    return max(fitting, default=None)


class Program:
    """A program to run, and its results."""

    def __init__(self, name, command, directory=None, computes=False, in_background=False, environment=None):
        self.name, self.command, self.directory, self.in_background = name, command, directory, in_background
        self.environment = environment or {}
        self.waits, self.alone = rank(name, WAITING) is not None, rank(name, ALONE) is not None
        self.one_core, self.rank = rank(name, ONE_CORE), rank(name, COMPUTING)
        self.computes = not self.waits and (computes or self.rank is not None)
        self.in_lanes = not (self.waits or self.alone or self.computes or self.one_core is not None)
        self.process, self.code, self.wall, self.processor = None, None, 0, 0
        self.counts, self.failed, self.repeated = [0, 0, 0], [], []

    def run(self, beside):
        """Runs it, beside others or not, and prints its output."""
        command, environment = self.command, dict(os.environ, **self.environment)
        if self.directory:
            environment["CARGO_MANIFEST_DIR"] = self.directory
        if beside:
            if self.one_core is not None:
                command = ["nice", "-n", "19", *command]
            elif not self.waits:
                command = ["chrt", "--idle", "0", *command]
                environment["RUST_TEST_THREADS"] = "2"
            command = ["taskset", "--cpu-list", BESIDE, *command]
        began = time.monotonic()
        # Not a pipe, which a process that was left behind would keep open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0 if self.in_background else None,
            )
            _, status, usage = os.wait4(process.pid, 0)
            self.code = process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            lines = list(shown(output))
        self.wall, self.processor = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        for line in lines:
            if found := RESULT.match(line):
                self.counts = [sum(pair) for pair in zip(self.counts, map(int, found.groups()))]
            elif line.startswith("test ") and line.endswith(FAILED):
                self.failed.append(line.removeprefix("test ").removesuffix(FAILED))
        with PRINTING:
            print(f"\n     Running {self.name} ({self.times()})", *lines, sep="\n", flush=True)

    def repeat(self):
        """Runs the tests that failed once more; all, if the program does not name them."""
        arguments = ["--exact", *self.failed] if self.failed else []
        again = Program(f"{self.name} again", [*self.command, *arguments], self.directory)
        again.run(beside=False)
        self.wall, self.processor = self.wall + again.wall, self.processor + again.processor
        if not self.failed:
            self.code, self.counts = again.code, again.counts
            self.repeated += [] if again.code else ["as a whole"]
        # One that ended in the middle, or lacks a test, tells nothing.
        elif sum(again.counts) == len(self.failed):
            self.repeated += [name for name in self.failed if name not in again.failed]
            self.failed, self.code = again.failed, again.code
            self.counts = [self.counts[0] + again.counts[0], again.counts[1], self.counts[2]]

    def stop(self):
        """Ends it with its processes, if it runs in the background."""
        if self.process and self.code is None:
            os.killpg(self.process.pid, signal.SIGTERM)

    def times(self):
        return f"{self.wall:.1f} s, {self.processor:.1f} s of processor time"


def shown(output):
    """Leaves out what passing tests print, except why they were skipped."""
    name, quiet = "", False
    for line in output:
        line = line.rstrip("\n")
        if line == "successes:":
            quiet = True
        elif line == "failures:" or line.startswith("test result:"):
            quiet = False
        if not quiet:
            yield line
        elif line.startswith("---- ") and line.endswith(" stdout ----"):
            name = line.removeprefix("---- ").removesuffix(" stdout ----")
        elif line.startswith("skipped") and name:
            yield f"test {name} {line}"
            # A test of several parts may say so for each.
            name = ""


def built(command, environment):
    """Runs cargo, which must not warn. Returns what it has built."""
    artifacts, warnings = [], 0
    command = ["cargo", *command, "--message-format=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, **environment)) as cargo:
        for message in map(json.loads, cargo.stdout):
            if message["reason"] == "compiler-message":
                print(message["message"]["rendered"], file=sys.stderr)
                warnings += message["message"]["level"] == "warning"
            elif message["reason"] == "compiler-artifact":
                artifacts.append(message)
    if cargo.returncode:
        sys.exit(cargo.returncode)
    if warnings:
        sys.exit(f"{warnings} warnings")
    return artifacts


def build(cargo_arguments, test_arguments, environment):
    """Builds all test programs. Returns them."""
    programs = []
    for artifact in built(["test", "--no-run", *cargo_arguments], environment):
        if not artifact["profile"]["test"]:
            continue
        directory = Path(artifact["manifest_path"]).parent
        target = artifact["target"]
        name = "lib" if "lib" in target["kind"] else target["name"]
        command = [sys.executable, BOUNDED, artifact["executable"], *test_arguments]
        programs.append(Program(f"{directory.name}/{name}", command, str(directory)))
    return programs


def run_all(programs):
    """Runs programs: first those that run alone, then the others in lanes."""
    alone = [program for program in programs if program.alone]
    waiting = deque(program for program in programs if program.waits)
    live = deque(program for program in programs if program.in_lanes)
    one_core = [program for program in programs if program.one_core is not None]
    one_core = deque(sorted(one_core, key=lambda program: program.one_core))
    computing = [program for program in programs if program.computes]
    computing = deque(sorted(computing, key=lambda program: -1 if program.rank is None else program.rank))
    is_live = threading.Event()
    is_live.set()
    # Programs that run alone have ended.
    over = threading.Event()

    def first_lane():
        while live:
            live.popleft().run(beside=False)
        is_live.clear()
        compute()

    def next_beside():
        """Takes the next program that runs beside others."""
        for queue in (one_core, computing) if over.is_set() else (computing,):
            try:
                return queue.popleft()
            except IndexError:
                pass
        return None

    def compute():
        while program := next_beside():
            program.run(beside=is_live.is_set())

    def second_lane():
        compute()
        over.wait()
        compute()

    def third_lane():
        over.wait()
        while waiting:
            waiting.popleft().run(beside=bool(BESIDE))

    def run_alone():
        for program in alone:
            program.run(beside=False)
        over.set()
        first_lane()

    lanes = [threading.Thread(target=run_alone), threading.Thread(target=third_lane)]
    if BESIDE:
        lanes.append(threading.Thread(target=second_lane))
    for lane in lanes:
        lane.start()
    try:
        for lane in lanes:
            lane.join()
    except KeyboardInterrupt:
        for queue in (live, one_core, computing, waiting):
            queue.clear()
        raise


def repeat_failed(programs):
    """Repeats tests of the live data plane that failed. Exit code 101 is that of a program whose tests ran to the end."""
    for _ in range(REPETITIONS):
        failed = [program for program in programs if program.code == 101 and not program.computes]
        if sum(len(program.failed) or 1 for program in failed) <= REPEATED:
            for program in failed:
                program.repeat()


def summary(programs, wall):
    """Returns the lines with which the output ends."""
    yield "time of the longest programs:"
    for program in sorted(programs, key=lambda program: -program.wall)[:20]:
        yield f"{program.wall:8.1f} s {program.processor:8.1f} s of processor time  {program.name}"
    # One that was never run has no exit code.
    failed = [program for program in programs if program.code != 0]
    for program in failed:
        yield f"FAILED: {program.name}, exit code {program.code}"
        yield from (f"  test {name}{FAILED}" for name in program.failed)
    for program in programs:
        yield from (f"passed only when it was repeated alone: {program.name} {name}" for name in program.repeated)
    passed, wrong, ignored = map(sum, zip(*(program.counts for program in programs)))
    processor = sum(program.processor for program in programs)
    yield (
        f"result: {'FAILED' if failed else 'ok'}. {passed} tests passed, {wrong} failed, {ignored} ignored, in "
        f"{len(programs)} programs and {wall:.0f} s, {processor:.0f} s of processor time"
    )


def separated(arguments):
    """Returns the arguments of cargo, and those of test programs."""
    cargo, _, test = "\0".join(arguments).partition("\0--\0")
    return cargo.split("\0"), ["--show-output", *filter(None, test.split("\0"))]


def main():
    os.chdir(Path(__file__).resolve().parent.parent)
    arguments, first, background, environment = sys.argv[1:], [], [], {}
    if lints := arguments[:1] == ["--lint"]:
        arguments = arguments[1:]
        environment = {"RUSTC_WORKSPACE_WRAPPER": LINTING}
    while arguments[:1] in (["--beside"], ["--first"]):
        option, value, *arguments = arguments
        words = shlex.split(value)
        if option == "--first":
            first = words
        else:
            background.append(Program(value, words, computes=True, in_background=True))
    threads = [threading.Thread(target=it.run, args=(bool(BESIDE),), daemon=True) for it in background]
    for thread in threads:
        thread.start()
    try:
        run_before = build(*separated(first), environment) if first else []
        for program in run_before:
            program.run(beside=False)
        cargo_arguments, test_arguments = separated(arguments)
        programs = build(cargo_arguments, test_arguments, environment)
        if lints:
            built(["build", "--bins", "--benches", *cargo_arguments], environment)
        if "--workspace" in cargo_arguments and "--test" not in cargo_arguments:
            command = [sys.executable, BOUNDED, "cargo", "test", "--doc", "--no-fail-fast", *cargo_arguments]
            command += ["--", *test_arguments]
            # With another compiler, cargo would build the crates again.
            programs.append(Program("examples in documentation", command, computes=True, environment=environment))
        began = time.monotonic()
        run_all(programs)
        for thread in threads:
            thread.join()
        programs += background + run_before
        repeat_failed(programs)
    except BaseException:
        for program in background:
            program.stop()
        raise
    lines = "\n".join(summary(programs, time.monotonic() - began))
    print(f"\n{lines}")
    if results := os.environ.get("TEST_RESULTS"):
        with open(results, "a", encoding="utf-8") as file:
            print(lines, file=file)
    sys.exit(any(program.code != 0 for program in programs))


main()
