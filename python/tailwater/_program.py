"""The `tailwater` program: where it is, and running it with progress, Ctrl-C and its messages."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Optional, Union

from ._errors import CommandError, TailwaterError

# Progress: shown where standard error is a terminal (`None`), always, never, or given to a function line by line.
Progress = Union[None, bool, Callable[[str], None]]

# Time that the program has after Ctrl-C to print what it has.
PATIENCE = 30
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
MESSAGE = re.compile(r"(error|warning|notice): ")


class Finished(NamedTuple):
    """Result of the program."""

    exit_code: int
    output: str
    # Everything on standard error but progress.
    complaints: str
    was_interrupted: bool


def find() -> Path:
    """Returns the program's path: `$TAILWATER`, the one in this package, or the first in `$PATH`."""
    if named := os.environ.get("TAILWATER"):
        if not os.access(named, os.X_OK):
            raise TailwaterError(f"TAILWATER={named}: expected the tailwater program, found nothing to execute")
        return Path(named)
    bundled = Path(__file__).parent / "bin" / "tailwater"
    if os.access(bundled, os.X_OK):
        return bundled
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("tailwater", path=folder)
        # This package's own command is a script that would call the program.
        if found and not _is_script(found):
            return Path(found)
    raise TailwaterError("the tailwater program is neither in this package nor in PATH; set TAILWATER to its path")


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def main() -> NoReturn:
    """The command `tailwater`: the program in place of this one."""
    try:
        program = find()
    except TailwaterError as error:
        sys.exit(f"error: {error}")
    os.execv(program, [str(program), *sys.argv[1:]])


def call(arguments: Sequence[str], *, text: Optional[str] = None, progress: Progress = None) -> Finished:
    """Runs the program to its end, with this text on its standard input. Ctrl-C is passed on to it, and it prints what
    it has. It runs in a session of its own, so that it gets the signal once."""
    show = _shown(progress)
    # It writes progress to a terminal only.
    master, slave = pty.openpty() if show else (None, None)
    try:
        process = subprocess.Popen(
            [str(find()), *arguments],
            stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if slave is None else slave,
            start_new_session=True,
        )
    except OSError as error:
        if master is not None:
            os.close(master)
        raise TailwaterError(f"cannot start the tailwater program: {error}") from error
    finally:
        if slave is not None:
            os.close(slave)
    output: list[bytes] = []
    complaints: list[str] = []
    out, source = process.stdout, process.stderr.fileno() if process.stderr else master
    assert out is not None and source is not None
    readers = [
        threading.Thread(target=lambda: output.append(out.read()), daemon=True),
        threading.Thread(target=_read, args=(source, complaints, show), daemon=True),
        threading.Thread(target=_write, args=(process, text), daemon=True),
    ]
    was_interrupted = False
    try:
        try:
            for reader in readers:
                reader.start()
            process.wait()
        except KeyboardInterrupt:
            was_interrupted = True
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for reader in readers:
            if reader.ident is not None:
                reader.join()
        out.close()
        if process.stderr:
            process.stderr.close()
        if master is not None:
            os.close(master)
    text_out = b"".join(output).decode(errors="replace")
    return Finished(process.returncode, text_out, "\n".join(complaints), was_interrupted)


def _shown(progress: Progress) -> Optional[Callable[[str], None]]:
    if callable(progress):
        return progress
    if progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):

        def show(line: str) -> None:
            # An empty line clears the last one.
            print(f"\r{line.ljust(100)}" if line else "\r" + " " * 100 + "\r", end="", file=sys.stderr, flush=True)

        return show
    return None


def _write(process: subprocess.Popen[bytes], text: Optional[str]) -> None:
    if process.stdin is None or text is None:
        return
    try:
        with process.stdin:
            process.stdin.write(text.encode())
    except BrokenPipeError:
        # It has ended, and says why.
        pass


def _read(source: int, complaints: list[str], show: Optional[Callable[[str], None]]) -> None:
    shown = False
    in_message = show is None
    for line in _lines(source):
        # With progress, lines between it and the first message are its own.
        in_message = in_message or bool(MESSAGE.match(line))
        if in_message and line:
            complaints.append(line)
            in_message = show is None or line.startswith("error: ")
        elif show and line:
            shown = True
            try:
                show(line)
            except Exception:  # noqa: BLE001
                # The program must not be blocked by what shows its progress.
                show = None
    if show and shown:
        show("")


def _lines(source: int) -> Iterator[str]:
    rest = ""
    while True:
        try:
            read = os.read(source, 65536)
        except OSError:
            # The other side of the terminal is closed.
            read = b""
        text = rest + read.decode(errors="replace")
        *lines, rest = re.split(r"[\r\n]", text)
        for line in lines:
            yield CONTROL.sub("", line).rstrip()
        if not read:
            if rest:
                yield CONTROL.sub("", rest).rstrip()
            return


def failure(finished: Finished) -> CommandError:
    """Exception of a program that has failed: its error in one line."""
    lines = finished.complaints.splitlines()
    errors = [line[len("error: ") :] for line in lines if line.startswith("error: ")]
    message = errors[0] if errors else lines[-1] if lines else f"tailwater ended with exit code {finished.exit_code}"
    if finished.exit_code < 0:
        message = f"tailwater was ended by signal {-finished.exit_code}"
    return CommandError(message, finished.exit_code, finished.complaints)
