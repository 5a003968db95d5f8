"""Loads the configuration file, once or again while a process runs, and reports each fault in a line."""

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from headrace.writer.config.base import overlay_settings
from headrace.writer.config.faults import describe_faults
from headrace.writer.config.pipelines import Config
from headrace.writer.config.references import References, has_reference, look_up
from headrace.writer.config.sections.connections import S3, Azure, Gcs, Http, Supervisor
from headrace.writer.config.sections.table import Location
from headrace.writer.core import logging
from headrace.writer.core.config_location import MISSING
from headrace.writer.core.errors import ConfigError, file_error
from headrace.writer.core.text import iso
from headrace.writer.storage.settings import StoreSettings

VARIABLE = "HEADRACE_CONFIG_OVERLAY"
SECTIONS = ("autoscaler", "http", "spark", "supervisor")
NEEDS = f"it may have the sections {', '.join(SECTIONS)}"
# Seconds between two readings of a file that is watched.
_LOOK_S = 5.0
# Sections that a process takes over while it runs; a change of any other needs a restart.
_OF_PIPELINES = ("pipelines", "defaults")
_NO_SERVERS = {"kafka": {"bootstrap_servers": "none:9092"}, "registry": {"url": "http://none"}, "checkpoints": "/none"}
# The variable holds the keyring of commands that ask no server.
_TEST_KEYS = "HEADRACE_TEST_KEYS"
_TEST_KEYRING = {
    kind: {"primary": name, "keys": {name: base64.b64encode(b"k" * 32).decode()}}
    for kind, name in (("hash", "h1"), ("encrypt", "k1"))
}
# Sections that decide what is read, and where it goes.
_BENEATH = ("kafka", "registry", "s3", "gcs", "azure", "checkpoints", "keys")


def beneath(settings: dict[str, Any], overlay: dict[str, Any], name: str) -> dict[str, Any]:
    """Lay the settings over those of an overlay file. Raises ConfigError for a section that an overlay cannot have."""
    if foreign := sorted(map(str, overlay.keys() - set(SECTIONS))):
        raise ConfigError(
            f"{name}, which {VARIABLE} names, has {', '.join(foreign)}; {NEEDS}. Move the rest to the pipelines' file."
        )
    return overlay_settings(overlay, settings)


def load(path: Path) -> Config:
    """Read and check a configuration file, and what the place decides. Raises ConfigError, one line for each fault."""
    return checked(*_whole(path))


def load_pipelines(path: Path, variables: Mapping[str, str]) -> Config:
    """Read the pipelines of a configuration for a command that asks no server. Raises ConfigError.

    Sections about servers are left aside. References become `variables`, those of others stand for themselves, so that
    neither the environment nor a secret is needed. The keyring is that of HEADRACE_TEST_KEYS, or a published one.
    """
    raw = mapping(path, "it needs the key pipelines", MISSING)
    sections = {key: raw[key] for key in (*_OF_PIPELINES, "catalog") if key in raw}
    missing: list[str] = []
    if "keys" in raw:
        os.environ.setdefault(_TEST_KEYS, json.dumps(_TEST_KEYRING))
        sections["keys"] = {"env": _TEST_KEYS}

    def look_up_variable(kind: str, name: str) -> str:
        if kind == "env" and name in variables:
            return variables[name]
        missing.append(f"${{{kind}:{name}}}")
        return missing[-1]

    references = References(look_up_variable)
    try:
        return checked({**_NO_SERVERS, **sections}, str(path), references)
    except ConfigError as error:
        message = str(error)
        for reference in dict.fromkeys(missing):
            keys = ", ".join(references.keys[reference])
            message += f"\n  {keys}: {reference} is without a value, as none is given to this command"
        raise ConfigError(message) from None


def _whole(path: Path) -> tuple[dict[str, Any], str]:
    """Read a configuration file and what lies beneath it. Returns it, and what it is, for messages."""
    required = [name for name, field in Config.model_fields.items() if field.is_required()]
    raw = mapping(path, f"it needs the keys {', '.join(required)}", MISSING)
    overlay_path = os.environ.get(VARIABLE)
    if not overlay_path:
        return raw, str(path)
    overlay = mapping(Path(overlay_path), NEEDS, f"Correct {VARIABLE}, or unset it.")
    return beneath(raw, overlay, overlay_path), f"{path}, with {overlay_path} beneath it,"


def find_literal_secrets(path: Path, config: Config) -> list[str]:
    """Return the keys whose secrets stand in the file itself, and not by a reference. `config`: as it was loaded."""
    raw, _ = _whole(path)
    return list(_literal_secrets(config, raw))


def _literal_secrets(value: object, raw: object, *key_path: str) -> Iterator[str]:
    if isinstance(value, SecretStr):
        if isinstance(raw, str) and not has_reference(raw):
            yield ".".join(key_path)
    elif isinstance(value, BaseModel) and isinstance(raw, dict):
        for name, field in type(value).model_fields.items():
            key = field.alias or name
            yield from _literal_secrets(getattr(value, name), raw.get(key), *key_path, key)
    elif isinstance(value, dict) and isinstance(raw, dict):
        for key, item in value.items():
            yield from _literal_secrets(item, raw.get(key), *key_path, str(key))
    elif isinstance(value, list | tuple) and isinstance(raw, list):
        for index, (item, raw_item) in enumerate(zip(value, raw, strict=False)):
            yield from _literal_secrets(item, raw_item, *key_path, str(index))


@dataclass(frozen=True)
class Addresses:
    """Where the processes that run a file answer, or say where they do."""

    checkpoints: str
    pipelines: tuple[str, ...]
    stores: StoreSettings
    http: Http
    supervisor: Supervisor


def addresses(path: Path) -> Addresses:
    """Read them, also from a file that is invalid; a section that cannot be used is as it is by default."""
    raw: dict[str, Any] = {}
    with suppress(ConfigError):
        raw, _ = _whole(path)

    def section(name: str, kind: Any) -> Any:
        with suppress(ConfigError, ValidationError, RecursionError):
            document = References(look_up).replace_in(raw.get(name), name, name)
            return TypeAdapter(kind).validate_python(document)
        return None

    names = raw.get("pipelines")
    return Addresses(
        section("checkpoints", Location) or "",
        tuple(map(str, names)) if isinstance(names, dict) else (),
        StoreSettings(
            (section("s3", S3) or S3.model_validate({})).settings,
            (section("gcs", Gcs) or Gcs.model_validate({})).settings,
            (section("azure", Azure) or Azure.model_validate({})).settings,
        ),
        section("http", Http) or Http.model_validate({}),
        section("supervisor", Supervisor) or Supervisor.model_validate({}),
    )


def checked(raw: dict[str, Any], read: str, references: References | None = None) -> Config:
    """Check a configuration. `read`: what it is, for messages. Raises ConfigError, one line for each fault.

    `references`: by default those of the environment and of files.
    """
    references = references or References(look_up)
    try:
        document = references.replace_in(raw, read)
        return Config.model_validate(document)
    except RecursionError as error:
        raise ConfigError(f"{read} cannot be used: an alias (*) stands inside what it names (&)") from error
    except ValidationError as error:
        lines = [f"{read} cannot be used:", *describe_faults(error, document)]
        raise ConfigError(references.hide_values("\n".join(lines))) from None


class _Loader(yaml.SafeLoader):
    """Names the place of a value that cannot be built, such as the 30th of February. PyYAML's own does not."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            problem = f"no {node.tag.rpartition(':')[2]}: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def mapping(path: Path, needs: str, fix: str) -> dict[str, Any]:
    """Read a YAML file. Raises ConfigError for what is none, with the line, and with `needs` for what is no mapping."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            raw = loader.get_single_data()
        finally:
            loader.dispose()
    except OSError as error:
        raise file_error(f"cannot read {path}: {error.strerror}. {fix}", error) from error
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {_fault(error)}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is empty or not a mapping; {needs}")
    return raw


def _fault(error: yaml.YAMLError | ValueError) -> str:
    """Return where a file stops being YAML, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


@dataclass(frozen=True)
class ConfigChanges:
    """What a file that was read again changes: pipelines by name, and keys that need a restart of the process."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def changes(old: Config, new: Config, names: Collection[str]) -> ConfigChanges:
    """Compare the configuration in force with a newer one. `names`: the pipelines of both that the process runs."""
    before = {name: pipeline for name, pipeline in old.pipelines.items() if name in names}
    after = {name: pipeline for name, pipeline in new.pipelines.items() if name in names}
    restart: list[str] = []
    for section in Config.model_fields:
        if section not in _OF_PIPELINES:
            restart += _differing(section, getattr(old, section), getattr(new, section))
    return ConfigChanges(
        added=tuple(name for name in after if name not in before),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
        removed=tuple(name for name in before if name not in after),
        restart=tuple(restart),
    )


def merge_configs(old: Config, new: Config, difference: ConfigChanges) -> Config:
    """Return `old` with the pipelines of `new`, checked as a whole. `difference`: between the two.

    Raises ConfigError where the pipelines need another section of `new`, too.
    """
    begin = (*difference.added, *difference.changed)
    needed = [key for key in difference.restart if key.partition(".")[0] in _BENEATH]
    if begin and needed:
        raise ConfigError(
            f"{', '.join(begin)} would begin without the new {', '.join(needed)}, which a process reads when it "
            "starts. Restart the process, or change only one of the two."
        )
    try:
        sections = {name: new if name in _OF_PIPELINES else old for name in Config.model_fields}
        return Config.model_validate({name: getattr(config, name) for name, config in sections.items()})
    except ValidationError as error:
        why = "the pipelines do not fit the other sections, which a process reads when it starts. Restart the process:"
        raise ConfigError("\n".join([why, *describe_faults(error)])) from None


def _differing(section: str, old: object, new: object) -> list[str]:
    """Return the keys of a section that differ. Their values may be secrets, and are not told."""
    if not isinstance(old, BaseModel) or not isinstance(new, BaseModel):
        if old != new:
            return [section]
        return []
    return [
        f"{section}.{field.alias or name}"
        for name, field in type(old).model_fields.items()
        if getattr(old, name) != getattr(new, name)
    ]


@dataclass(frozen=True)
class Reload:
    """The last time that a running process read its file again."""

    # Since the process began; 0: never.
    reads: int = 0
    at: datetime | None = None
    # Why nothing was taken over; empty: it was.
    error: str = ""
    changes: ConfigChanges = ConfigChanges()


class ReloadableConfig:
    """The configuration file of a process that runs, and what of it is in force.

    Pipelines are taken over when the file is read again; all other sections hold until the process ends.
    """

    def __init__(
        self,
        path: Path,
        only: list[str] | None,
        requested: threading.Event,
        *,
        watched: bool = False,
        missing_ok: bool = False,
        read: Callable[[Path], Config] | None = None,
    ) -> None:
        """Read it. `only`: pipelines that the process runs; None: all. Raises ConfigError.

        It is read again when `requested` is set, and where it is `watched`, when its text changes. `missing_ok`: the
        file need not have those of `only` now. `read`: makes the configuration of the file; default: `load`.
        """
        self.path = path.absolute()
        self.only = only
        self._watched = watched
        self._read_config = read
        # The text in force, and the text of the last look.
        self._text = self._texts()
        self._last_text = self._text
        self._looked_s = time.monotonic()
        self.config = self._read(path)
        self.names = self._names(self.config) if missing_ok else self.config.chosen(only)
        self._requested = requested
        self.last = Reload()

    def read_again(self) -> ConfigChanges | None:
        """Read it again where that was requested, or its text changed. None: there was nothing to do, or it is invalid.

        An invalid file changes nothing, whatever is wrong with it; `last` says why.
        """
        if not self._is_due():
            return None
        reads = self.last.reads + 1
        now = datetime.now(UTC)
        try:
            new = self._read(self.path)
            names = self._names(new)
            difference = changes(self.config, new, {*self.names, *names})
            self.config = merge_configs(self.config, new, difference)
        except Exception as error:  # noqa: BLE001 - a file ends no process that runs
            why = f"{self.path} cannot be used: {type(error).__name__}"
            if isinstance(error, ConfigError):
                why = str(error)
            self.last = replace(self.last, reads=reads, at=now, error=why)
            logging.error("config_reload_failed", file=str(self.path), error=why)
            if not isinstance(error, ConfigError):
                logging.detail(error)
            return None
        self.names = names
        self.last = Reload(reads, now, changes=difference)
        pipelines = {kind: ",".join(getattr(difference, kind)) or "none" for kind in ("added", "changed", "removed")}
        logging.event("config_reloaded", file=str(self.path), **pipelines)
        if difference.restart:
            logging.warning("config_restart_needed", keys=",".join(difference.restart))
        return difference

    def document(self) -> dict[str, Any]:
        """Describe the last reading as JSON values, for `/status`."""
        last = self.last
        return {
            "file": str(self.path),
            "reads": last.reads,
            "read_at": None if last.at is None else iso(last.at),
            "error": last.error or None,
            "added": list(last.changes.added),
            "changed": list(last.changes.changed),
            "removed": list(last.changes.removed),
            "restart": list(last.changes.restart),
        }

    def _read(self, path: Path) -> Config:
        if self._read_config is not None:
            return self._read_config(path)
        return load(path)

    def _names(self, config: Config) -> list[str]:
        return [name for name in self.only or config.pipelines if name in config.pipelines]

    def _is_due(self) -> bool:
        requested = self._requested.is_set()
        now_s = time.monotonic()
        if not requested and (not self._watched or now_s - self._looked_s < _LOOK_S):
            return False
        # The request is cleared before the text is read: one that comes now is of a newer text.
        self._requested.clear()
        self._looked_s = now_s
        previous_text = self._last_text
        text = self._texts()
        self._last_text = text
        # A text that differs from the previous look may be one that an editor still writes.
        if requested or (text != self._text and text == previous_text):
            self._text = text
            return True
        return False

    def _texts(self) -> list[bytes]:
        """Return the text of the file and of what lies beneath it; of one that is not there, nothing."""
        texts = []
        for path in filter(None, [str(self.path), os.environ.get(VARIABLE)]):
            with suppress(OSError):
                texts.append(Path(path).read_bytes())
        return texts
