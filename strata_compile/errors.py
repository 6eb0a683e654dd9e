"""What can be wrong with the compiler's input; the root is strata_runtime's StrataError."""

from pathlib import Path

from strata_runtime.errors import StrataError


class PlanError(StrataError):
    """A plan that cannot be used: which file, line and field, and what to do about it.

    `line` counts from 1 and is None where no line is at fault (a missing file); `field` is a path
    such as `stages[1].layers`, empty where the whole file is meant. Prints as one line:
    `plan.yaml:7: stages[1].layers: message`.
    """

    def __init__(self, file: Path, line: int | None, field: str, message: str) -> None:
        super().__init__(file, line, field, message)
        self.file = file
        self.line = line
        self.field = field
        self.message = message

    def __str__(self) -> str:
        place = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        parts = [place, self.field, self.message] if self.field else [place, self.message]
        return " ".join(": ".join(parts).splitlines())


class MemoryPlanError(StrataError):
    """A plan that does not fit a device: its name, and how many bytes are missing."""

    def __init__(self, message: str, *, device: str = "", short_bytes: int = 0) -> None:
        super().__init__(message)
        self.device = device
        self.short_bytes = short_bytes


class KernelCompileError(StrataError):
    """A kernel that did not compile: the compiler's whole log and the rendered source's path.

    The log stays out of the printed line, which names the source instead.
    """

    def __init__(self, message: str, *, log: str = "", source: Path | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.source = source

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.source is None else f"{message} (source: {self.source})"
