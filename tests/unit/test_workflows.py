"""The workflows of a public CI: what they run is there, they may do no more than needed, each action is one commit."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def read(workflow: Path) -> Any:
    return yaml.safe_load(workflow.read_text(encoding="utf-8"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def test_ci_and_release_have_a_workflow() -> None:
    assert [workflow.stem for workflow in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_to_a_commit_and_says_its_version(workflow: Path) -> None:
    lines = [line.strip(" -") for line in workflow.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_the_repository_and_nothing_else(workflow: Path) -> None:
    document = read(workflow)
    assert document["permissions"] == {"contents": "read"}
    for job in document["jobs"].values():
        assert "permissions" not in job
        assert job["timeout-minutes"] <= 180
    checkouts = [step for step in steps(workflow) if "actions/checkout" in step.get("uses", "")]
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_script_holds_a_text_that_somebody_else_writes(workflow: Path) -> None:
    assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_what_workflows_run_is_there() -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    scripts = [step["run"] for workflow in WORKFLOWS for step in steps(workflow) if "run" in step]
    assert scripts == ["bash .ci/run", 'make release VERSION="${VERSION#v}"']
    assert (ROOT / ".ci" / "run").exists()
    assert "release" in targets


def test_a_mutable_tag_is_no_pin() -> None:
    assert not PINNED.fullmatch("uses: actions/checkout@v5")
    assert not PINNED.fullmatch("uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8")
    assert PINNED.fullmatch("uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0")
