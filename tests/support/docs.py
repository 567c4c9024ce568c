"""Real pages in number: the HTML of Debian's documentation packages, unpacked, not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "debian-docs"
PACKAGES = ("python3.11-doc", "postgresql-doc-15")


class Unavailable(Exception):
    """The packages cannot be had here."""


def folder() -> Path:
    """Where the packages are unpacked; gets them the first time."""
    done = CACHE / "unpacked"
    if not done.exists():
        _get()
        done.touch()
    return CACHE / "files"


def pages(*, bytes_max: int = 500_000) -> list[Path]:
    """Paths of HTML files under `folder`, in a fixed order; links to others are left out."""
    root = folder()
    found = [path for path in root.rglob("*.html") if path.is_file() and not path.is_symlink()]
    return sorted(path.relative_to(root) for path in found if path.stat().st_size <= bytes_max)


def _get() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("Debian's packages are needed, and this is not Debian")
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES]
    said = ""
    for command in (wanted, ["apt-get", "-qq", "update"], wanted):
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, check=False)
        said = done.stderr.strip()[:200]
        if command is wanted and done.returncode == 0:
            break
    archives = sorted(CACHE.glob("*.deb"))
    if len(archives) < len(PACKAGES):
        raise Unavailable(f"could not get {', '.join(PACKAGES)}: {said}")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", archive, CACHE / "files"], check=True)
