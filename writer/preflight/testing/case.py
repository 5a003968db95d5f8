"""Reads a test file `*.test.yaml`, with the configuration, schemas and records that it names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.writer.config.base import did_you_mean
from headrace.writer.config.faults import describe_faults
from headrace.writer.config.loader import load_pipelines, mapping
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.preflight.testing.case_file import CaseFile, ExpectedOutcome, RecordSpec
from headrace.writer.preflight.testing.records import RecordPosition, Unusable, make_sample
from headrace.writer.preflight.testing.yaml_edit import EditRefused, set_entries
from headrace.writer.schemas import saved_sample
from headrace.writer.schemas.saved_sample import SavedSample

# The name of the test that counts all records of a file.
COUNTS = "counts"
# A message names at most as many records.
_NAMED = 20
PATTERN = "*.test.yaml"
_FIX = "Name files *.test.yaml, or folders with such files."


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

    def replace_expected(self, entries: Mapping[str, Any]) -> str:
        """Return the text of that file with other entries in `expect`. All else in it stays as it is.

        Raises ConfigError where the entries cannot be told from others.
        """
        path: tuple[str, ...] = ()
        if self.expected_path == self.path:
            path = ("expect",)
        try:
            return set_entries(self.expected_text, path, entries)
        except EditRefused as error:
            raise ConfigError(f"{self.expected_path} is not rewritten: {error}. Change it by hand.") from error

    @property
    def expected_text(self) -> str:
        """The text of that file, with the ends of lines that it has; empty where it does not exist yet."""
        if not self.expected_path.exists():
            return ""
        return self.expected_path.read_bytes().decode()


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


def _validate(path: Path, model: Any, document: Any, *above: str) -> Any:
    try:
        return TypeAdapter(model).validate_python(document)
    except ValidationError as error:
        raise ConfigError("\n".join([f"{path} cannot be used:", *describe_faults(error, document, *above)])) from None
