"""PostgreSQL on loopback, with a database `lake` and one user who has a password."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import parts
from tests.servers.objects import free_port, run_server

USER = "headrace"
PASSWORD = "a-secret,=that no log@may hold"
_NOBODY = "65534"  # PostgreSQL refuses to run as root


@contextmanager
def postgres() -> Iterator[str]:
    """Run the server until the end of the block. Yields the address without the password, as `catalog.uri` has it."""
    as_root = os.geteuid() == 0
    drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"] if as_root else []
    with tempfile.TemporaryDirectory(prefix="headrace-postgres-") as folder:
        root = Path(folder)
        data = Path(folder, "data")
        port = free_port()
        home = shutil.copytree(parts.postgres(), root / "home")  # where another user may read it
        (root / "password").write_text(PASSWORD)
        if as_root:
            subprocess.run(["chown", "-R", f"{_NOBODY}:{_NOBODY}", folder], check=True)
        login = [f"--username={USER}", f"--pwfile={root}/password", "--auth=scram-sha-256"]
        initdb = [*drop, str(home / "bin" / "initdb"), "-D", str(data), "-E", "UTF8", "--no-sync", *login]
        subprocess.run(initdb, check=True, capture_output=True, timeout=400)
        command = [*drop, str(home / "bin" / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1"]
        command += ["-k", folder, "-c", "fsync=off"]
        log = root / "postgres.log"
        with run_server(command, log, "database system is ready to accept connections"):
            yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/postgres"
