"""Exceptions of this package."""


class TailwaterError(Exception):
    """A chain or a command has failed, for a reason that is not the input's."""


class InputError(TailwaterError, ValueError):
    """Input that cannot be used: a spec, a capture, an argument. The message is the program's one line, with the file,
    the position and what was expected. The program's exit code 2."""


class CommandError(TailwaterError, RuntimeError):
    """The `tailwater` program has failed. `exit_code` is the program's, negative for a signal; `output` is all that it
    wrote to standard error."""

    def __init__(self, message: str, exit_code: int, output: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.output = output


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a command. `report` is the `Report` of what it had done by then, or `None`."""

    def __init__(self, report: object = None) -> None:
        super().__init__("interrupted")
        self.report = report
