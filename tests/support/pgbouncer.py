"""A PgBouncer in front of a test's server, in transaction mode, otherwise with its defaults."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
START_SECONDS_MAX = 20


def there() -> bool:
    return Path(PROGRAM).exists()


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """The address of a database by way of a pooler, which ends with the test."""
    to = urlsplit(url)
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="onceflow-pgbouncer-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "users").write_text(f'"{to.username}" "{to.password}"\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={to.hostname} port={to.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = plain\n"
        f"auth_file = {folder / 'users'}\npool_mode = transaction\nunix_socket_dir =\n"
        "default_pool_size = 5\nlog_connections = 0\nlog_disconnections = 0\n"
    )
    if account is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
    become = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, folder / "ini"], stdout=log, stderr=log, cwd="/",
            **become,  # type: ignore[call-overload]
        )  # fmt: skip
    try:
        _wait_for(port, process, folder / "log")
        place = f"{to.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
        yield urlunsplit(to._replace(netloc=place))
    finally:
        process.kill()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"pgbouncer did not start: {log.read_text()}")
