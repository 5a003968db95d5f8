"""Reads a test file `*.test.yaml`, with the configuration, schemas and records that it names."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from writer.config.base import did_you_mean
from writer.config.faults import describe_faults
from writer.config.loader import load_pipelines, mapping
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.preflight.testing.case_file import CaseFile, ExpectedOutcome, RecordSpec
from writer.preflight.testing.records import RecordPosition, Unusable, make_sample
from writer.schemas import saved_sample
from writer.schemas.saved_sample import SavedSample

# The name of the test that counts all records of a file.
COUNTS = "counts"
# A message names at most as many records.
_NAMED = 20
PATTERN = "*.test.yaml"
_FIX = "Name files *.test.yaml, or folders with such files."
_SECTION = re.compile(r"^expect:.*\n?((?:[ \t]*\n)*[ \t]+\S.*\n?)*", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A test file that was read, with all that it names."""

    path: Path
    file: CaseFile
    config: Config
    pipeline: str
    sample: SavedSample
    # Where each record is, by its name.
    names: Mapping[str, RecordPosition]
    expected: Mapping[str, ExpectedOutcome]

    @property
    def tests(self) -> list[str]:
        """Names of the tests: of records, and `counts`."""
        if self.file.counts is None:
            return list(self.names)
        return [*(name for name in self.names if name in self.expected), COUNTS]

    @property
    def expected_path(self) -> Path:
        """The file that has what is expected."""
        if isinstance(self.file.expect, str):
            return self.path.parent / self.file.expect
        return self.path

    def replace_expected(self, expected: Mapping[str, Any]) -> str:
        """Return the text of that file with another section `expect`. All else in it stays as it is.

        Raises ConfigError where the section cannot be told from others.
        """
        if self.expected_path != self.path:
            return _yaml(expected)
        text = self.path.read_text(encoding="utf-8")
        section = {"expect": expected}
        match = _SECTION.search(text)
        if match is None:
            new = f"{text.rstrip()}\n{_yaml(section)}"
        else:
            new = f"{text[: match.start()]}{_yaml(section)}{text[match.end() :]}"
        if not _is(new, {**yaml.safe_load(text), **section}):
            raise ConfigError(f"{self.path}: `expect` cannot be told from what follows it. Indent each line of it.")
        return new


def read(path: Path) -> Case:
    """Read a test file and what it names. Raises ConfigError, with the file and the key."""
    file = _validate(path, CaseFile, mapping(path, "it needs the keys config, now, records and expect", _FIX))
    # Test files of several folders name one file by several paths.
    config_path = Path(os.path.relpath((path.parent / file.config).resolve()))
    config = load_pipelines(config_path, file.variables)
    name = config.one(file.pipeline)
    if isinstance(file.records, str):
        sample = saved_sample.load(path.parent / file.records)
        columns = (sample.records.column(column).to_pylist() for column in ("topic", "partition", "offset"))
        names = {
            f"{topic}/{partition}:{offset}": (topic, partition, offset)
            for topic, partition, offset in zip(*columns, strict=True)
        }
    else:
        specs = _validate(path, dict[str, RecordSpec], file.records, "records")
        try:
            sample, names = make_sample(path.parent, config.pipelines[name], name, file, specs)
        except Unusable as error:
            raise ConfigError(f"{path} cannot be used: {error}") from error
    section = file.expect
    if isinstance(section, str):
        expected_path = path.parent / section
        section = {}
        # `--update` writes a file that does not exist yet.
        if expected_path.exists():
            section = mapping(expected_path, "it needs the names of records", _FIX)
    if file.counts is not None and COUNTS in names:
        raise ConfigError(
            f"{path} cannot be used: records.{COUNTS}: the test of `counts` has this name; choose another"
        )
    expected = _validate(path, dict[str, ExpectedOutcome], section, "expect")
    if unknown := next((record for record in expected if record not in names), None):
        why = f"there is no such record{did_you_mean(unknown, list(names)[:_NAMED])}"
        raise ConfigError(f"{path} cannot be used: expect.{unknown}: {why}")
    return Case(path, file, config, name, sample, names, expected)


def _yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def _is(text: str, document: Any) -> bool:
    try:
        # The text of NaN equals itself, its value does not.
        return repr(yaml.safe_load(text)) == repr(document)
    except yaml.YAMLError:
        return False


def _validate(path: Path, model: Any, document: Any, *above: str) -> Any:
    try:
        return TypeAdapter(model).validate_python(document)
    except ValidationError as error:
        raise ConfigError("\n".join([f"{path} cannot be used:", *describe_faults(error, document, *above)])) from None
