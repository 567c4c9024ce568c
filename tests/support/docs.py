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
    return _unpacked(CACHE, PACKAGES)


def package(name: str) -> Path:
    """Where one package is unpacked; gets it the first time."""
    return _unpacked(CACHE / name, (name,))


def _unpacked(cache: Path, packages: tuple[str, ...]) -> Path:
    done = cache / "unpacked"
    if not done.exists():
        _get(cache, packages)
        done.touch()
    return cache / "files"


def pages(*, bytes_max: int = 500_000) -> list[Path]:
    """Paths of HTML files under `folder`, in a fixed order; links to others are left out."""
    root = folder()
    found = [path for path in root.rglob("*.html") if path.is_file() and not path.is_symlink()]
    return sorted(path.relative_to(root) for path in found if path.stat().st_size <= bytes_max)


def _get(cache: Path, packages: tuple[str, ...]) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("Debian's packages are needed, and this is not Debian")
    cache.mkdir(parents=True, exist_ok=True)
    wanted = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages]
    said = ""
    for command in (wanted, ["apt-get", "-qq", "update"], wanted):
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=False)
        said = done.stderr.strip()[:200]
        if command is wanted and done.returncode == 0:
            break
    archives = sorted(cache.glob("*.deb"))
    if len(archives) < len(packages):
        raise Unavailable(f"could not get {', '.join(packages)}: {said}")
    for archive in archives:
        subprocess.run(["dpkg-deb", "-x", archive, cache / "files"], check=True)
