"""Runs a real schema registry, on loopback unless told: Apicurio with Confluent's API, for the demo and the tests."""

import json
from datetime import timedelta
from pathlib import Path

from headrace.writer.clients import java_artifacts
from headrace.writer.core.http import RequestFailed, ask
from headrace.writer.demo.devstack.process import (
    LOOPBACK,
    Process,
    Server,
    ServerFailed,
    free_ports,
    java_options,
    require_free,
)

HEAP_MEGABYTES = 256
# Its class files are of that version.
JAVA_MIN = 21
# A start takes 3 s; on a busy machine many times that.
READY_WITHIN = timedelta(seconds=180)
PATH = "/apis/ccompat/v7"
_ANSWER_WITHIN_S = 10.0


class Registry(Server):
    """A registry, compatibility BACKWARD as Confluent's. The directory keeps its schemas and their ids.

    `host`: an address of this machine, where it listens.
    """

    def __init__(self, directory: Path, *, port: int | None = None, host: str = LOOPBACK) -> None:
        self._directory = directory.absolute()
        self._host = host
        free = free_ports(2)
        self.port = port or free[0]
        self._management_port = free[1]
        # Further settings of Apicurio.
        self._settings = dict[str, str]()

    @property
    def url(self) -> str:
        """The base address, as clients of Confluent's registry take it."""
        return f"http://{self._host}:{self.port}{PATH}"

    def launch(self) -> None:
        """Start the registry. `wait` waits until it answers. Raises ArtifactError, JavaMissing, ServerFailed."""
        home = java_artifacts.fetch("registry", progress=lambda _: None)
        java = java_artifacts.java(JAVA_MIN)
        require_free("registry", self.port, self._host)
        self._directory.mkdir(parents=True, exist_ok=True)
        options = {
            "quarkus.http.host": self._host,
            "quarkus.http.port": self.port,
            # Unset, it would listen on 0.0.0.0:9000.
            "quarkus.management.host": LOOPBACK,
            "quarkus.management.port": self._management_port,
            "quarkus.log.level": "WARN",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._directory}/schemas",
            **self._settings,
        }
        self._process = Process(
            "registry",
            [
                java,
                *java_options(self._directory, heap_megabytes=HEAP_MEGABYTES),
                *(f"-D{key}={value}" for key, value in options.items()),
                "-jar",
                home / "quarkus-run.jar",
            ],
            cwd=self._directory,
            log=self._directory / "registry.log",
        )
        self._process.launch()

    def wait(self) -> None:
        """Return once the registry answers and refuses incompatible schemas. Raises ServerFailed."""
        assert self._process is not None, "launch comes before wait"
        self._process.wait_until(self._answers, within=READY_WITHIN)
        set_compatibility(self.url, "BACKWARD")

    def _answers(self) -> bool:
        try:
            return ask(f"{self.url}/subjects", timeout_s=_ANSWER_WITHIN_S, proxies=False).ok
        except RequestFailed:
            return False


def set_compatibility(url: str, level: str) -> None:
    """Set the registry-wide rule for new schema versions: Apicurio's own default is NONE. Raises ServerFailed."""
    body = json.dumps({"compatibility": level}).encode()
    headers = {"Content-Type": "application/json"}
    try:
        answer = ask(
            f"{url}/config", method="PUT", body=body, headers=headers, timeout_s=_ANSWER_WITHIN_S, proxies=False
        )
    except RequestFailed as error:
        raise ServerFailed(str(error)) from error
    if not answer.ok:
        raise ServerFailed(f"{url} refused compatibility {level}: {answer.summary()}")
