"""The compose example says what it promises: fixed versions, ports of this machine alone, no secret in a command."""

import shutil
from pathlib import Path

import pytest

from headrace.writer.clients.java_artifacts import find_bundle
from tests.support.compose_example import FOLDER
from tests.support.compose_file import ComposeError, ComposeFile, Service, fill_variables, read_compose_file

SECRET = "a-secret-of-the-bucket"
_NEEDS_A = "depends_on: {a: {condition: service_started}}"
_NEEDS_B = "depends_on: {b: {condition: service_started}}"
WRONG = {
    "a key that no one plays": ("services: {a: {image: x, privileged: true}}", "nobody plays privileged"),
    "a section that no one plays": ("services: {}\nnetworks: {}", "nobody plays networks"),
    "a variable that is missing": ('services: {a: {image: "${X:?write it}"}}', "X is not set: write it"),
    "a dollar alone": ('services: {a: {image: "$X"}}', "a \\$ that is no variable"),
    "a dependency that is not there": (
        "services: {a: {image: x, depends_on: {b: {condition: service_healthy}}}}",
        "a names b, and there is none",
    ),
    "a volume that is not there": ('services: {a: {image: x, volumes: ["data:/data"]}}', "a names data"),
    "services that wait for each other": (
        f"services: {{a: {{image: x, {_NEEDS_B}}}, b: {{image: x, {_NEEDS_A}}}}}",
        "a, b wait for each other",
    ),
}


@pytest.fixture
def example(tmp_path: Path) -> ComposeFile:
    """The example, with a secret beside it."""
    folder = tmp_path / "compose"
    shutil.copytree(FOLDER, folder)
    (folder / ".env").write_text(f"S3_ACCESS_KEY=headrace\nS3_SECRET_KEY={SECRET}\n")
    return read_compose_file(folder / "compose.yaml")


def test_without_its_secret_the_example_is_refused_with_the_remedy(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "compose")
    with pytest.raises(ComposeError, match=r"is not set: write \.env as README\.md shows"):
        read_compose_file(tmp_path / "compose" / "compose.yaml")


def test_each_published_port_listens_on_this_machine_alone(example: ComposeFile) -> None:
    ports = [port for service in example.services.values() for port in service.ports]
    assert len(ports) > 3
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_secret_is_in_environments_of_those_that_need_it_and_in_no_command(example: ComposeFile) -> None:
    def commands(service: Service) -> str:
        health = service.healthcheck.command if service.healthcheck else ()
        return " ".join([*(service.entrypoint or ()), *service.command, *health])

    for service in example.services.values():
        assert SECRET not in commands(service)
    holders = {name for name, service in example.services.items() if SECRET in service.environment.values()}
    assert holders == {"minio", "events", "check", "headrace", "trino"}


def test_each_image_has_the_version_that_the_tests_run(example: ComposeFile) -> None:
    from headrace.bench.engines.trino import TRINO

    tags = dict(service.image.rsplit(":", 1) for service in example.services.values())
    assert tags["apache/kafka"] == find_bundle("kafka").version
    assert tags["apicurio/apicurio-registry"] == find_bundle("registry").version
    assert tags["trinodb/trino"] == TRINO.version
    assert "latest" not in tags.values()


def test_the_writer_starts_once_events_and_checks_are_done(example: ComposeFile) -> None:
    order = [service.name for service in example.order()]
    assert order.index("events") < order.index("check") < order.index("headrace")
    assert example.services["headrace"].depends_on == {"check": "service_completed_successfully"}


@pytest.mark.parametrize(("text", "problem"), WRONG.values(), ids=WRONG)
def test_a_compose_file_that_says_more_than_is_played_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    with pytest.raises(ComposeError, match=problem):
        list(read_compose_file(tmp_path / "compose.yaml").order())


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "1"),
        ("${A:-x}", "1"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${B:-x}", "x"),
        ("${B-x}", "x"),
        ("${B}", ""),
        ("${A:?no}", "1"),
        ("$$A", "$A"),
        ("a${A}b${A}", "a1b1"),
    ],
)
def test_variables_are_filled_in_as_the_specification_says(text: str, filled: str) -> None:
    assert fill_variables(text, {"A": "1", "EMPTY": ""}) == filled
