"""Plays a compose file without Docker: each service is processes of this machine, in a root and a network of their own.

The text of the file is what runs: commands, environments, files, healthchecks and the order of dependencies. The
services have hosts of their own, which find each other by name as those of `docker compose` do.
"""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname

from tests.servers.containers import Container, Image, Mount
from tests.servers.network_hosts import Network, network
from tests.support.compose_file import ComposeFile, Service

# What a service may take to its first healthy answer, beside a busy machine's other work.
_READY_S_MAX = 420
_POLL_S = 0.2
_LOG_LINES = 30


@dataclass(frozen=True)
class Program:
    """What stands for an image, and the user whom the image names. 0: root."""

    image: Image
    user: int = 0


class ServiceFailed(AssertionError):
    """A service ended, or did not become healthy."""


@dataclass
class Composition:
    """The services of a compose file, of which some run. `programs`: by the name of the image, without its tag."""

    file: ComposeFile
    programs: Mapping[str, Program]
    directory: Path
    hosts: Network
    _containers: dict[str, Container] = field(default_factory=dict)
    _runs: int = 0

    def up(self, *names: str) -> None:
        """Start services and what they depend on, each when its dependencies are as it asks. All: without names."""
        wanted = self._with_dependencies(names or tuple(self.file.services))
        for service in self.file.order():
            if service.name in wanted and service.name not in self._containers:
                for other, condition in service.depends_on.items():
                    self.await_condition(other, condition)
                self._containers[service.name] = self._start(service)

    def await_condition(self, name: str, condition: str) -> None:
        """Wait for what a dependency asks of a service. Raises ServiceFailed."""
        if condition == "service_healthy":
            self.await_health(name)
        elif condition == "service_completed_successfully":
            self._await_success(name, self._containers[name])

    def await_health(self, name: str) -> None:
        """Run the healthcheck of a service until it succeeds. Raises ServiceFailed."""
        check = self.file.services[name].healthcheck
        assert check is not None, f"{name} has no healthcheck"
        deadline = time.monotonic() + _READY_S_MAX
        while True:
            code, output = self.exec(name, check.command, check.timeout_s)
            if code == 0:
                return
            if self._containers[name].exit_code() is not None or time.monotonic() > deadline:
                raise ServiceFailed(f"{name} is not healthy: {code} {output}\n{self.log(name)}")
            time.sleep(min(check.interval_s, 1))

    def run(self, name: str) -> str:
        """Run a service once more, to its end. Returns what it said; raises ServiceFailed."""
        self._runs += 1
        container = self._start(self.file.services[name], f"{name}-{self._runs}")
        self._await_success(name, container)
        return container.log.read_text(errors="replace")

    def exec(self, name: str, command: Sequence[str], seconds: float = 120) -> tuple[int, str]:
        """Run a command in a service that runs. Returns its exit code, and what it said."""
        return self._containers[name].run_inside(command, seconds)

    def entering(self, name: str) -> list[str]:
        """Return the words before a command that is to run in a service, with the service's environment."""
        container = self._containers[name]
        variables = [f"{key}={value}" for key, value in container.environment().items()]
        return ["env", "-i", *variables, *container.entering()]

    def running(self) -> list[str]:
        """Return the services that run."""
        return [name for name, container in self._containers.items() if container.exit_code() is None]

    def stop(self) -> dict[str, int]:
        """Stop what runs, last first, as `docker compose stop`. Returns exit codes, 137 of those that were killed."""
        codes: dict[str, int] = {}
        for name, container in reversed(self._containers.items()):
            if container.exit_code() is None:
                container.signal(signal.SIGTERM)
                deadline = time.monotonic() + self.file.services[name].stop_grace_s
                while container.exit_code() is None and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                code = container.exit_code()
                codes[name] = 137 if code is None else code
            container.kill()
        self._containers.clear()
        return codes

    def kill(self) -> None:
        """End all at once."""
        for container in self._containers.values():
            container.kill()

    def log(self, name: str) -> str:
        """Return the last lines that a service said."""
        lines = self._containers[name].log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def _await_success(self, name: str, container: Container) -> None:
        deadline = time.monotonic() + _READY_S_MAX
        while (code := container.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if code != 0:
            raise ServiceFailed(f"{name} ended with {code}:\n{container.log.read_text(errors='replace')[-4000:]}")

    def _with_dependencies(self, names: Sequence[str]) -> set[str]:
        wanted: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            wanted.add(name)
            waiting += self.file.services[name].depends_on
        return wanted

    def _start(self, service: Service, run: str | None = None) -> Container:
        program = self.programs[service.image.rpartition(":")[0]]
        image = program.image
        if service.entrypoint is not None:
            image = Image(service.entrypoint, image.env, image.mounts)
        mounts = [Mount(self._hosts_file(service.name), "/etc/hosts")]
        for volume in service.volumes:
            source = self.file.file(volume) if volume.is_file else self._volume(volume.source)
            mounts.append(Mount(source, volume.target, writable=not volume.is_read_only))
        name = run or service.name
        container = Container(
            root=self.directory / name, log=self.directory / f"{name}.log", image=image, command=service.command,
            env=service.environment, mounts=mounts, user=program.user,
        )  # fmt: skip
        with self.hosts[service.name].enter():
            container.start()
        return container

    def _hosts_file(self, name: str) -> Path:
        """Write where a service finds the others, and itself by the name of the machine."""
        lines = ["127.0.0.1 localhost", f"{self.hosts[name].address} {gethostname()}"]
        lines += [f"{self.hosts[other].address} {other}" for other in self.file.services]
        path = self.directory / f"{name}.hosts"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _volume(self, name: str) -> Path:
        folder = self.directory / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@contextmanager
def composition(file: ComposeFile, programs: Mapping[str, Program], directory: Path) -> Iterator[Composition]:
    """Give hosts to the services of a file; none runs yet. Raises NoHosts where that cannot be."""
    directory.mkdir()
    with network(*file.services) as hosts:
        services = Composition(file, programs, directory, hosts)
        try:
            yield services
        finally:
            services.kill()
