"""A container as processes of this machine: a root of its own over the machine's files, mounts, user, and process 1.

What an image has is laid out as `docker/Dockerfile` does it. The network is this machine's. Needs root, for mounts.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# Lays the root out, and becomes the command: process 1 of a namespace of process ids. $1 root, $2 user.
_ENTER = """
set -euo pipefail
root=$1 user=$2; shift 2
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
merged=$root/merged
chmod 711 "$merged/root"
mount -t proc proc "$merged/proc"
mount --rbind /dev "$merged/dev"
while IFS=$'\\t' read -r source target mode; do
  target=$(chroot "$merged" realpath -m "$target")  # /var/run is a link, which would lead out of the root
  if [ -d "$source" ]; then mkdir -p "$merged$target"
  else mkdir -p "$(dirname "$merged$target")"; touch "$merged$target"; fi
  mount --bind "$source" "$merged$target"
  [ "$mode" = rw ] || mount -o remount,bind,ro "$merged$target"
done <"$root/mounts"
[ ! -e "$root/readonly" ] || mount -o remount,ro "$merged"
exec chroot --userspec="$user:$user" --groups="$user" "$merged" "$@"
"""


@dataclass(frozen=True)
class Mount:
    """A file or directory of this machine, seen in the container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Image:
    """What an image brings: an entrypoint, an environment, and directories of this machine."""

    entrypoint: Sequence[str]
    env: Mapping[str, str]
    mounts: Sequence[Mount] = ()


@dataclass
class Container:
    """One run of a container."""

    root: Path
    log: Path
    image: Image
    command: Sequence[str]
    env: Mapping[str, str]
    mounts: Sequence[Mount] = ()
    read_only: bool = False
    user: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        for name in ("upper", "work", "merged"):
            (self.root / name).mkdir(parents=True)
        mounts = [*self.image.mounts, *sorted(self.mounts, key=lambda mount: mount.target)]
        rows = [f"{m.source}\t{m.target}\t{'rw' if m.writable else 'ro'}\n" for m in mounts]
        (self.root / "mounts").write_text("".join(rows))
        if self.read_only:
            (self.root / "readonly").touch()
        enter = [
            "setpriv",
            "--pdeathsig=KILL",
            "--",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            "bash",
            "-c",
        ]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*enter, _ENTER, "enter", str(self.root), str(self.user), *self.image.entrypoint, *self.command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self.environment(),
            )

    def environment(self) -> dict[str, str]:
        return {**self.image.env, **self.env}

    def exit_code(self) -> int | None:
        """Return the exit code as a container runtime says it; None while it runs."""
        assert self._process is not None
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        """Signal process 1."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # setpriv became unshare, and that has one child
            for child in psutil.Process(self._process.pid).children():
                os.kill(child.pid, number)

    def entering(self) -> list[str]:
        """The command before a command that is to run beside process 1; nothing when that has ended."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        if not children:
            return []
        who = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user else []
        return ["nsenter", f"--target={children[0].pid}", "--mount", "--pid", "--net", "--root", "--wd=/", *who]

    def run_inside(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        """Run a command beside process 1. Returns its exit code, 124 when it takes too long, and what it said."""
        enter = self.entering()
        if not enter:
            return 137, "process 1 has ended"
        try:
            done = subprocess.run(
                [*enter, *command],
                check=False,
                timeout=seconds,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
            )
        except subprocess.TimeoutExpired:
            return 124, f"it took more than {seconds} s"
        return done.returncode, done.stdout + done.stderr * (done.returncode != 0)

    def kill(self) -> None:
        """End it now, with all that it started: process 1 of a namespace takes the others with it."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait(10)
