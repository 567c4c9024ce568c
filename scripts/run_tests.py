"""Run the tests in parallel; what failed beside others is tried once more alone, and said.

    python -m scripts.run_tests -n 2 [arguments for pytest]

The tests start real programs, databases and browsers, on machines that others use too. A test that
fails alone fails the run; so do more than FAILED_MAX, which is no accident (decision 0304).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FAILED_MAX = 5
TESTS_FAILED = 1
"""pytest's exit code when it ran to its end."""


def main(arguments: Sequence[str]) -> int:
    # A cache of its own: what failed in this run, and nothing of earlier ones.
    with tempfile.TemporaryDirectory(prefix="onceflow-tests-") as folder:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}"]
        code = subprocess.run([*pytest, "--dist", "worksteal", *arguments], check=False).returncode
        failed = _failed(Path(folder))
        if code != TESTS_FAILED or not failed:
            return code
        if len(failed) > FAILED_MAX:
            _say(f"{len(failed)} tests failed: too many to be an accident, none is tried again")
            return code
        _say(f"trying alone what failed beside others: {', '.join(failed)}")
        again = [*pytest, *arguments, "-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        if any(one.split("=")[0] == "--cov" for one in arguments):
            again.append("--cov-append")  # what it must reach, both reach together
        code = subprocess.run(again, check=False).returncode
        alone = _failed(Path(folder))
        if passed := [name for name in failed if name not in alone]:
            _say(f"failed beside others, passed alone: {', '.join(passed)}")
        if alone:
            _say(f"failed alone too: {', '.join(alone)}")
        return code


def _failed(folder: Path) -> list[str]:
    try:
        found = json.loads((folder / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(found)


def _say(line: str) -> None:
    print(f"\n{line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
