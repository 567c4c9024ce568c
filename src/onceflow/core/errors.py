"""Every error Onceflow raises.

    OnceflowError
    ├── PipelineError        a pipeline's table is wrong: raised when it is built
    ├── SettingsError        a setting is unknown, of the wrong type or out of range
    ├── UnknownItem          no item of that pipeline has that key or id
    ├── StoreError           the database
    │   ├── StoreUnavailable     not reachable, locked or full at the moment: try again
    │   └── WrongDatabase        not an Onceflow database, or one we must not touch
    └── HandlerError         what a handler raises to say how an attempt ended
        ├── Transient            ready again after a backoff, while attempts remain
        ├── Permanent            failed now, no more attempts
        ├── Pause                no item of this stage can succeed now: the stage is paused
        └── Halt                 the run's ceiling is reached: the item waits until it is raised

A message names the thing, says what happened and what to do next.
"""

from __future__ import annotations

from functools import cache


class OnceflowError(Exception):
    """The root: `except OnceflowError` catches all of ours and nothing else."""


class PipelineError(OnceflowError):
    """A pipeline's table is wrong."""


class SettingsError(OnceflowError):
    """A setting is unknown, of the wrong type or out of its range."""


class UnknownItem(OnceflowError):
    """No such item."""


class StoreError(OnceflowError):
    """The database refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached or written at the moment; nothing accepted is lost."""


class WrongDatabase(StoreError):
    """The file or server is not a database this program may write to; it was left untouched."""


class HandlerError(OnceflowError):
    """How a handler says that an attempt did not succeed.

    `code` is short and stable (`timeout`, `blocked_address`); failures are grouped by it.
    """

    default_code = "failed"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code


class Transient(HandlerError):
    """It may work later. `retry_after` (seconds) is a floor under the backoff; `hold_lane_seconds`
    keeps every other item of its lane from starting, anywhere, for so long. Without `counts`
    nothing was tried, such as while a provider is left alone: it costs no attempt."""

    default_code = "transient"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after: float | None = None,
        hold_lane_seconds: float = 0.0,
        counts: bool = True,
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
        self.hold_lane_seconds = hold_lane_seconds
        self.counts = counts


class Permanent(HandlerError):
    """It will never work: the item is failed now."""

    default_code = "permanent"


class Pause(HandlerError):
    """No item of this stage can succeed now, such as with a wrong key: the item goes back without
    costing an attempt, and the stage is paused for everybody until somebody resumes it."""

    default_code = "paused"


class Halt(HandlerError):
    """`work.left()` says that nothing is left of what the run may spend: the item goes back without
    costing an attempt, and is claimed again when somebody raises the run's ceiling."""

    default_code = "halted"


@cache
def pip_install(extras: str) -> str:
    """The command that installs what is missing: in the clone that this program came from, or by
    the package's name."""
    import json  # only when something is missing
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("onceflow").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {"dir_info": {}}  # not installed at all: it runs from a clone
    return f"pip install '{'.' if 'dir_info' in origin else 'onceflow'}[{extras}]'"
