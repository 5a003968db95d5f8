"""A disk of a few MiB that is full or read-only for a moment, in a namespace of its own: no root is needed."""

import os
import subprocess
from pathlib import Path

MOMENTS = {  # what begins it, and what ends it
    "full": ("head -c 1G /dev/zero >$DISK/other 2>/dev/null", "rm $DISK/other"),
    "read-only": ("until mount -o remount,ro $DISK 2>/dev/null; do sleep 0.01; done", "mount -o remount,rw $DISK"),
}


def on_a_disk(
    folder: Path, moment: str, *command: str, mib: int = 1, begin: bool = True, **variables: str
) -> list[str]:
    """Run a command with a disk at `folder`/disk that is full or read-only. Returns what it said.

    `spoil` and `mend` in the command's PATH begin the moment and end it. `begin`: the command begins in it.
    """
    disk = folder / "disk"
    disk.mkdir()
    tools = folder / "tools"
    tools.mkdir()
    for name, script in zip(("spoil", "mend"), MOMENTS[moment], strict=True):
        (tools / name).write_text(f"#!/bin/sh\n{script}\ntrue\n")
        (tools / name).chmod(0o755)
    first = " && spoil" if begin else ""
    script = f'mount -t tmpfs -o size={mib}m none "$DISK" && mkdir "$DISK/tmp"{first} && exec "$@"'
    environment = {**os.environ, "DISK": str(disk), "PATH": f"{tools}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "-", *command],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]
