"""A release: which versions and trees it refuses, and what it says of what it builds."""

import gzip
import io
import json
import random
import re
import subprocess
import tarfile
import tempfile
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from packaging.version import Version

from release.archives import compare_builds, rewrite_tar, sha256
from release.changelog import find_section, release_notes
from release.checkout import LOCKS, check_versions
from release.components import (
    Component,
    check_image_packages,
    check_image_wheel,
    image_components,
    lock_components,
    parse_licences,
)
from release.errors import ReleaseError
from release.inventory import debian_packages, jar_coordinates
from release.plan import describe_plan, make_plan
from release.provenance import PREDICATE, STATEMENT, UNSIGNED, Build, statement
from release.versions import chart_version, parse_version, tag_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "docker" / "writer.lock").read_text(encoding="utf-8")
CHANGELOG = (
    "# Changelog\n\n## 1.1.0, unreleased\n\n- New ([TABLES](docs/TABLES.md)).\n\n## 1.0.0, 2026-12-24\n\n- Old.\n"
)

releases = st.builds(
    lambda numbers, pre: ".".join(map(str, numbers)) + pre,
    st.tuples(*[st.integers(0, 30)] * 3),
    st.one_of(st.just(""), st.builds("{}{}".format, st.sampled_from(["a", "b", "rc"]), st.integers(0, 30))),
)


def semver_key(text: str) -> tuple[object, ...]:
    """The order of versions by https://semver.org/#spec-item-11: numbers below letters, candidates below a release."""
    numbers, _, pre = text.partition("-")
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre.split(".") if part]
    return tuple(map(int, numbers.split("."))), not pre, tuple(parts)


@given(releases, releases)
def test_versions_of_the_chart_are_in_the_order_of_the_versions_of_python(one: str, other: str) -> None:
    charts = [chart_version(parse_version(text)) for text in (one, other)]
    assert (Version(one) < Version(other)) == (semver_key(charts[0]) < semver_key(charts[1]))
    assert (one == other) == (charts[0] == charts[1])


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("one", "is no version by PEP 440"),
        ("", "is no version by PEP 440"),
        ("1.0.0-rc1", "Say VERSION=1.0.0rc1"),
        ("v1.0.0", "Say VERSION=1.0.0"),
        ("1.0.00", "Say VERSION=1.0.0"),
        ("1.0", "2 numbers"),
        ("1.0.0.0", "4 numbers"),
        ("1!1.0.0", "an epoch"),
        ("1.0.0.post1", "a post-release"),
        ("1.0.0.dev1", "a development release"),
        ("1.0.0rc1.dev2", "a development release"),
        ("1.0.0+local", "a local part"),
    ],
)
def test_a_version_that_is_no_release_is_refused_with_its_reason(version: str, reason: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(reason)):
        parse_version(version)


def test_a_candidate_is_written_as_each_of_the_three_wants_it() -> None:
    version = parse_version("1.2.0rc3")
    assert (str(version), chart_version(version), tag_name(version)) == ("1.2.0rc3", "1.2.0-rc.3", "v1.2.0rc3")


def test_a_section_ends_where_the_next_one_begins() -> None:
    assert find_section(CHANGELOG, "1.1.0").text == "- New ([TABLES](docs/TABLES.md))."
    assert find_section(CHANGELOG, "1.1.0").day is None
    assert find_section(CHANGELOG, "1.0.0").day == date(2026, 12, 24)


@pytest.mark.parametrize(
    ("changelog", "reason"),
    [
        (CHANGELOG.replace("1.1.0", "1.1.0rc1"), "has no section for 1.1.0; it has 1.1.0rc1, 1.0.0"),
        ("", "it has none"),
        ("## 1.1.0, unreleased\n\n## 1.0.0, 2026-12-24\n\n- Old.\n", "says nothing below its heading of 1.1.0"),
        ("## 1.1.0, soon\n\n- New.\n", "dates 1.1.0 with 'soon'"),
        ("## 1.1.0, 2026-13-01\n\n- New.\n", "dates 1.1.0 with '2026-13-01'"),
    ],
)
def test_a_changelog_without_the_section_is_refused(changelog: str, reason: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(reason)):
        find_section(changelog, "1.1.0")


def test_notes_lead_to_the_pages_of_the_tag_and_say_what_is_missing() -> None:
    text = "[A](docs/A.md#b), [B](https://example.org/x), [C](#c)"
    section = find_section(f"## 1.0.0, unreleased\n\n{text}\n", "1.0.0")
    notes = release_notes(section, "1.0.0", "https://host/blob/v1.0.0", ["the images"])
    assert "[A](https://host/blob/v1.0.0/docs/A.md#b), [B](https://example.org/x), [C](#c)" in notes
    assert "**Not in this release:**\n\n- the images" in notes
    assert "Not in" not in release_notes(section, "1.0.0", "https://host", [])


def test_the_changelog_has_a_section_of_the_version_of_the_project_whose_links_lead_to_files() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', pyproject, re.MULTILINE)
    assert version is not None
    chart = (ROOT / "helm" / "headrace" / "Chart.yaml").read_text(encoding="utf-8")
    check_versions(version[1], chart_version(parse_version(version[1])), pyproject, chart)
    section = find_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version[1])
    notes = release_notes(section, version[1], "https://host", [])
    targets = re.findall(r"\]\(https://host/([^)#]+)", notes)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean checkout of version 1.1.0."""
    (tmp_path / "helm" / "headrace").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "headrace"\nversion = "1.1.0"\n')
    (tmp_path / "helm" / "headrace" / "Chart.yaml").write_text('version: 1.1.0\nappVersion: "1.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("/dist/\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Change")


def refusal(folder: Path, version: str = "1.1.0", *, confirmed: bool = False) -> str:
    with pytest.raises(ReleaseError) as caught:
        make_plan(folder, version, images=False, confirmed=confirmed)
    return str(caught.value)


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the path hold git and these programs alone."""
    tools = folder / "dist" / "bin"
    tools.mkdir(parents=True)
    for name in names:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    git_path = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    (tools / "git").symlink_to(git_path)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HEADRACE_CACHE", str(folder / "dist" / "cache"))


def test_a_plan_says_first_what_it_does(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(checkout, monkeypatch, "helm", "java")
    lines = "\n".join(describe_plan(make_plan(checkout, "1.1.0", images=False, confirmed=False)))
    assert "leave out the images" in lines
    assert "make dist/1.1.0" in lines
    assert "write no tag: YES=1 writes v1.1.0" in lines
    assert not (checkout / "dist" / "1.1.0").exists()


def test_a_tree_that_differs_from_its_commit_is_refused(checkout: Path) -> None:
    (checkout / "new.py").write_text("")
    assert "this tree differs from its commit: new.py. Commit or stash first." in refusal(checkout)
    commit(checkout)
    (checkout / "CHANGELOG.md").write_text("")
    assert "differs from its commit: CHANGELOG.md" in refusal(checkout)


def test_a_version_that_files_do_not_say_is_refused(checkout: Path) -> None:
    assert "pyproject.toml says version 1.1.0, not 1.0.0" in refusal(checkout, "1.0.0")
    (checkout / "helm" / "headrace" / "Chart.yaml").write_text('version: 1.1.0\nappVersion: "1.0.0"\n')
    commit(checkout)
    assert "Chart.yaml says version 1.1.0 and appVersion 1.0.0, not 1.1.0 and 1.1.0" in refusal(checkout)


def test_a_tag_wants_a_day_and_names_one_commit_for_good(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "CHANGELOG.md calls 1.1.0 unreleased, and a tag is for good" in refusal(checkout, confirmed=True)
    git(checkout, "tag", "v1.1.0")
    programs(checkout, monkeypatch, "helm", "java")
    assert make_plan(checkout, "1.1.0", images=False, confirmed=False).tag_exists
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    commit(checkout)
    assert "the tag v1.1.0 names commit" in refusal(checkout)


def test_files_of_an_earlier_run_are_replaced_only_when_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("unreleased", "2026-12-25"))
    commit(checkout)
    programs(checkout, monkeypatch, "helm", "java")
    (checkout / "dist" / "1.1.0").mkdir()
    assert "dist/1.1.0 is there already. Remove it, or let YES=1 replace it." in refusal(checkout)
    lines = describe_plan(make_plan(checkout, "1.1.0", images=False, confirmed=True))
    assert "  replace dist/1.1.0" in lines


@pytest.mark.parametrize(
    ("names", "images", "sentence"),
    [
        (["java"], False, "helm is not installed, nor Go"),
        (["helm"], False, "Java 17 is not installed"),
        (["helm", "java"], True, "neither a docker daemon nor buildah is here"),
    ],
)
def test_what_a_release_lacks_is_said_before_anything_is_built(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], images: bool, sentence: str
) -> None:
    programs(checkout, monkeypatch, *names)
    with pytest.raises(ReleaseError, match=sentence):
        make_plan(checkout, "1.1.0", images=images, confirmed=False)


def make_tar(path: Path, names: list[str], time_s: int, owner: str) -> Path:
    with gzip.GzipFile(path, "wb", mtime=time_s) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            member.mtime = time_s
            member.uname = owner
            member.uid = time_s % 1000
            member.mode = 0o600 if time_s % 2 else 0o664
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


@given(st.lists(st.from_regex(r"[a-z]{1,120}", fullmatch=True), unique=True, min_size=1), st.randoms())
def test_an_archive_tells_nothing_of_the_machine_and_the_moment(names: list[str], shuffle: random.Random) -> None:
    shuffled = sorted(names, key=lambda _: shuffle.random())
    with tempfile.TemporaryDirectory() as folder:
        first = make_tar(Path(folder, "a.tgz"), names, 1_700_000_001, "me")
        second = make_tar(Path(folder, "b.tgz"), shuffled, 1_800_000_002, "you")
        assert sha256(first) != sha256(second)
        for path in (first, second):
            rewrite_tar(path, 1_600_000_000)
        assert sha256(first) == sha256(second)
        with tarfile.open(first) as archive:
            contents = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert contents == {name: name.encode() for name in names}


def test_two_builds_that_differ_are_refused_with_the_member(tmp_path: Path) -> None:
    paths = []
    for folder, text in (("first", "a"), ("second", "b")):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "x.whl")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            archive.writestr(zipfile.ZipInfo("same.py"), "")
            archive.writestr(zipfile.ZipInfo("writer/other.py"), text)
    with pytest.raises(ReleaseError, match=r"two builds of x\.whl differ in writer/other\.py\."):
        compare_builds(paths[:1], paths[1:])
    assert compare_builds(paths[:1], paths[:1]) == {"x.whl": sha256(paths[0])}


def test_the_statement_names_each_file_the_commit_and_each_lock_and_says_that_nobody_signed_it() -> None:
    build = Build(
        "1.0.0",
        "https://host/headrace",
        "c" * 40,
        {"requirements.lock": "a" * 64},
        {"helm": "v3"},
        ["the images"],
        datetime(2026, 12, 24, tzinfo=UTC),
        datetime(2026, 12, 25, tzinfo=UTC),
    )
    document = json.loads(json.dumps(statement(build, {"b.whl": "b" * 64, "a.tgz": "a" * 64})))
    assert (document["_type"], document["predicateType"]) == (STATEMENT, PREDICATE)
    assert document["subject"] == [
        {"name": "a.tgz", "digest": {"sha256": "a" * 64}},
        {"name": "b.whl", "digest": {"sha256": "b" * 64}},
    ]
    predicate = document["predicate"]
    commit_, lock = predicate["buildDefinition"]["resolvedDependencies"]
    assert commit_ == {"uri": f"git+https://host/headrace@{'c' * 40}", "digest": {"gitCommit": "c" * 40}}
    assert lock["uri"].endswith("/requirements.lock")
    assert lock["digest"] == {"sha256": "a" * 64}
    assert predicate["headrace_signature"] == UNSIGNED
    assert "not signed" in UNSIGNED
    assert predicate["buildDefinition"]["internalParameters"] == {"missing": ["the images"]}
    assert predicate["runDetails"]["metadata"]["startedOn"] == "2026-12-24T00:00:00Z"


def test_the_locks_of_a_release_are_all_locks_that_it_reads() -> None:
    listed = subprocess.run(["git", "ls-files", "*.lock"], cwd=ROOT, check=True, capture_output=True, text=True)
    others = {"docs/site.lock", "tests/engines/schemas.lock"}
    assert set(listed.stdout.split()) - others >= set(LOCKS)
    assert {path for path in listed.stdout.split() if path.startswith(("docker/", "release/"))} <= set(LOCKS)


def test_an_sbom_lists_each_package_of_the_lock_with_its_hashes_and_its_licence() -> None:
    licences = parse_licences((ROOT / "docs" / "LICENSES.md").read_text(encoding="utf-8"))
    components = lock_components(LOCK, licences)
    pins = [line for line in LOCK.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    assert [f"{component.name}=={component.version}" for component in components] == [
        re.split(r"[ \\]", re.sub(r"\[.*?\]", "", pin))[0].lower() for pin in pins
    ]
    assert sum(len(component.sha256s) for component in components) == LOCK.count("--hash=sha256:")
    assert [component.name for component in components if not component.licence] == []


def test_a_package_of_another_python_or_system_is_in_no_image() -> None:
    lock = "a==1 ; python_full_version < '3.12' \\\n    --hash=sha256:" + "a" * 64 + "\n"
    lock += (
        "a==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:" + "b" * 64 + "\nb==3 ; sys_platform == 'win32'\n"
    )
    check_image_packages("i", [Component("pypi", "a", "1"), Component("pypi", "headrace", "1.0.0")], lock)
    with pytest.raises(ReleaseError, match="the image i has b 3 beside its lock, and lacks a 1 of it"):
        check_image_packages("i", [Component("pypi", "b", "3")], lock)


def test_an_image_with_another_wheel_is_refused() -> None:
    shipped = ["writer/a.py,sha256=x,1", '"odd, name.py",sha256=z,1', "headrace-1.dist-info/RECORD,,"]
    check_image_wheel("i", ["../bin/headrace,sha256=y,2", *shipped], shipped)
    with pytest.raises(ReleaseError, match=r"does not hold the wheel that is published: writer/a\.py differs"):
        check_image_wheel("i", ["writer/a.py,sha256=other,1", *shipped[1:]], shipped)
    with pytest.raises(ReleaseError, match="does not hold the wheel"):
        check_image_wheel("i", [], shipped)


def test_the_packages_of_dpkg_are_those_that_are_installed() -> None:
    status = (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\nDescription: C\n more\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    assert list(debian_packages(status)) == [{"name": "libc6", "version": "2.36-9", "architecture": "amd64"}]


def make_jar(path: Path, *modules: tuple[str, str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for group, name, version in modules:
            text = f"#Created\ngroupId={group}\nartifactId={name}\nversion={version}\n"
            archive.writestr(f"META-INF/maven/{group}/{name}/pom.properties", text)
    return path


def test_a_jar_is_named_by_its_own_module_and_not_by_those_within(tmp_path: Path) -> None:
    shaded = make_jar(tmp_path / "client-3.4.1.jar", ("g.other", "within", "9"), ("g.own", "client", "3.4.1"))
    assert jar_coordinates(shaded) == {"group": "g.own", "name": "client", "version": "3.4.1"}
    plain = make_jar(tmp_path / "spark-core_2.13-4.0.2.jar", ("g.other", "within", "9"))
    assert jar_coordinates(plain) == {"group": "", "name": "spark-core_2.13", "version": "4.0.2"}


def test_an_inventory_becomes_components_of_three_kinds() -> None:
    inventory = {
        "python": [{"name": "PyYAML", "version": "6", "licence": "MIT", "record": []}],
        "debian": [{"name": "libc6", "version": "2.36-9", "architecture": "amd64"}],
        "java": [
            {"group": "g", "name": "a", "version": "1", "path": "/j/a-1.jar", "sha256": "a" * 64},
            {"group": "", "name": "b", "version": "2", "path": "/j/b-2.jar", "sha256": "b" * 64},
        ],
    }
    components = image_components(inventory)
    assert [(one.kind, one.namespace, one.name) for one in components] == [
        ("pypi", "", "pyyaml"),
        ("deb", "debian", "libc6"),
        ("maven", "g", "a"),
        ("generic", "", "b"),
    ]
