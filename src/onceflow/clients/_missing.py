"""What to say when a library is not installed: once, clearly, and without trying again."""

from __future__ import annotations

from onceflow.core.errors import Permanent, pip_install


def not_installed(what: str, error: ImportError, extra: str) -> Permanent:
    name = error.name or str(error)
    return Permanent(f"{what} needs {name}: {pip_install(extra)}", code="not_installed")
