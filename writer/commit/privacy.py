"""Opens the keys of a pipeline's privacy, and checks its policies against the schemas and the log."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from headrace.writer.avro import schema
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import SchemaPlan, parse_records
from headrace.writer.commit.event_specs import settings_of_record
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import join_first
from headrace.writer.json.record_schema import is_rest_name
from headrace.writer.privacy.field_decryption import kms_of, secret_of
from headrace.writer.privacy.keyring import PURPOSES, KeyringPlace, KeySource, read_keyring
from headrace.writer.privacy.path_policies import (
    RecordPolicies,
    effective_action,
    format_path,
    is_any_protected,
    overlay_policies,
)
from headrace.writer.privacy.policy import CLEAR, PrivacyError, TooManyPaths, UnknownTag, fingerprint
from headrace.writer.privacy.protected_schema import Privacy, check_paths, paths_of
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.schemas.record_source import KEY_RECORD
from headrace.writer.schemas.tracker import Schemas
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

_PATHS_SHOWN = 6
_JSON_FORMATS = frozenset[str](("json", "json_schema"))


class RecordedPrivacy(NamedTuple):
    """What a table's log has of privacy: the fingerprint of the policies, and the numbers of its keys; 0: none."""

    fingerprint: int
    hash_key: int
    encryption_key: int

    @property
    def keys(self) -> dict[str, int]:
        """Numbers of the keys by purpose; 0: none."""
        return {"hash": self.hash_key, "encrypt": self.encryption_key}

    @classmethod
    def of(cls, snapshot: PipelineSnapshot) -> "RecordedPrivacy":
        """Return what a version of a table has."""
        return cls(snapshot.privacy_fingerprint, snapshot.hash_key, snapshot.encryption_key)


def open_privacy(name: str, config: Config) -> Privacy | None:
    """Return the policies of a pipeline, with the ids of its keys; None: it has none.

    Raises ConfigError where a key is missing, or the keyring cannot be read.
    """
    settings = config.pipelines[name]
    if settings.privacy is None:
        return None
    policies = settings.privacy.policies
    keys = KeySource(KeyringPlace())
    if config.keys is not None:
        keys = primary_keys(config.keys.source)
        if not policies.attributes:
            if not policies.needs("hash"):
                keys = replace(keys, hash=None)
            if not policies.needs("encrypt"):
                keys = replace(keys, encrypt=None)
    for kind in PURPOSES:
        if policies.needs(kind) and getattr(keys, kind) is None:
            raise ConfigError(
                f"pipelines.{name}.privacy has the policy {kind}, and the keyring in {keys.place} has no such key; "
                "`headrace keys rotate` makes one"
            )
    keks = {kek: section.source for kek, section in settings.privacy.decrypt.items()}
    return Privacy(policies, keys, settings.uses, keks=keks).with_columns(columns_without_schema(settings))


def primary_keys(source: KeySource) -> KeySource:
    """Return the source with the keys that new values get. Raises ConfigError."""
    keyring = read_keyring(source)
    return replace(source, hash=keyring.primary_of("hash"), encrypt=keyring.primary_of("encrypt"))


def check_privacy(
    pipeline: str,
    settings: Pipeline,
    plan: SchemaPlan,
    keys: SchemaPlan | None,
    recorded: RecordedPrivacy | None,
) -> None:
    """Raise ConfigError where a path of the log would be in the clear, or new policies do not fit the known schemas.

    By the policies of the log, a schema that came since and does not fit them is rejected alone, as it would be while
    the writer runs. So is one with a tag for which there is no policy, or with too many paths, in any case.

    `keys`: plan of Avro keys. `recorded`: what the table's log has; None: there is no table yet.
    """
    privacy = plan.privacy
    if privacy is None:
        return
    check_recorded_paths(pipeline, settings, plan, keys)
    _check_keks(pipeline, privacy, plan, keys)
    if recorded is None or recorded.fingerprint != fingerprint(privacy.policies.to_json()):
        key_texts = keys.known_texts if keys else ()
        _check_schemas(pipeline, settings, privacy, [*plan.known_texts, *key_texts])


def _check_schemas(pipeline: str, settings: Pipeline, privacy: Privacy, texts: Sequence[str]) -> None:
    """Raise ConfigError where policies do not fit schemas, or have a path that none of them has."""
    paths = {*settings.record_columns.names, *_recorded_paths(privacy)}
    for record in parse_records(texts):
        table_settings = settings_of_record(settings, record.root["name"])
        uses = table_settings.uses if table_settings else ()
        try:
            paths |= paths_of(record, privacy.policies)
            replace(privacy, uses=uses).protection(record, settings.record_specs)
        except (UnknownTag, TooManyPaths):
            continue
        except PrivacyError as error:
            raise ConfigError(f"pipelines.{pipeline}.privacy: {error} (record {record.root['name']})") from error
    if texts:
        try:
            check_paths(privacy.policies, paths)
        except PrivacyError as error:
            raise ConfigError(f"pipelines.{pipeline}.{error}") from error


def check_recorded_paths(pipeline: str, settings: Pipeline, plan: SchemaPlan, keys: SchemaPlan | None) -> None:
    """Raise ConfigError where a path would be in the clear that the table's log has as protected.

    `keys`: plan of Avro keys, whose schemas say what is to be protected of these.
    """
    if plan.privacy is None:
        return
    tagged = dict(plan.privacy.tagged)
    if keys is not None and keys.privacy is not None and KEY_RECORD in keys.privacy.tagged:
        tagged[KEY_RECORD] = keys.privacy.tagged[KEY_RECORD]
    privacy = replace(plan.privacy, tagged=tagged)
    try:
        privacy.check_recorded(columns_without_schema(settings))
    except PrivacyError as error:
        raise ConfigError(f"pipelines.{pipeline}.privacy: {error}") from error


def _recorded_paths(privacy: Privacy) -> Iterator[str]:
    """Yield the paths that the table's log has, dotted: the schemas that had them may be gone."""
    for paths in privacy.recorded.values():
        for path in paths:
            for length in range(1, len(path) + 1):
                yield ".".join(path[:length])


def recorded_privacy(name: str, config: Config) -> RecordedPrivacy | None:
    """Return what the log of a pipeline's table has of privacy; None where there is none. Raises CommitFailed."""
    table = main_table(name, config)
    if not table.exists():
        return None
    return RecordedPrivacy.of(table.snapshot())


def recorded_paths(name: str, config: Config) -> RecordPolicies:
    """Return what the log of a pipeline's table has as protected; nothing where there is none, or it cannot be read."""
    with suppress(ConfigError, CommitFailed):
        table = main_table(name, config)
        if table.exists():
            return protected_paths(name, config, table.snapshot())
    return config.protected_before(name)


def record_screen(name: str, config: Config) -> RecordScreen:
    """Return what a screen shows of a pipeline's records: nothing where it has policies, or its table's log has."""
    has_policies = config.pipelines[name].privacy is not None
    return RecordScreen(has_policies or is_any_protected(recorded_paths(name, config)))


def hidden_columns(name: str, config: Config, columns: Iterable[str]) -> set[str]:
    """Return which columns of a pipeline's table may hold rows from before they were protected.

    A column that a spec makes is one of them where anything is protected: it may be made of such values. So is that of
    members of JSON that have no column.
    """
    protected = list[tuple[str, ...]]()
    for paths in recorded_paths(name, config).values():
        protected += [path for path in paths if effective_action(paths, path) != CLEAR]
    if not protected:
        return set()
    settings = config.pipelines[name]
    fields = set(columns) if () in protected else {path[0] for path in protected if path}
    if not _JSON_FORMATS.isdisjoint(settings.formats):
        fields |= {column for column in columns if is_rest_name(column)}
    specs = settings.record_specs
    return fields | {column for column in columns if any(spec.makes(column) for spec in specs)}


def columns_without_schema(settings: Pipeline) -> list[str]:
    """Return the columns of keys and headers that a pipeline's tables have, but those of Avro keys."""
    targets = settings.route.targets.values() if settings.route else ()
    sections = [settings.columns, *(target.columns for target in targets if target.columns is not None)]
    names = list[str]()
    for section in sections:
        columns = section.record_columns
        names += [name for name in columns.names if name != columns.avro_key]
    return names


def protected_paths(name: str, config: Config, snapshot: PipelineSnapshot) -> RecordPolicies:
    """Return what a table's log has of protected paths; of a shadow, also what the first table's log has."""
    return overlay_policies(config.protected_before(name), snapshot.protected_paths)


def _check_keks(pipeline: str, privacy: Privacy, *plans: SchemaPlan | None) -> None:
    """Raise ConfigError where a KEK is not to be had, or does not unwrap the data keys of the registry."""
    try:
        for name, kek in privacy.keks.items():
            if kek.place is None:
                kms_of(name, kek)
            else:
                secret_of(name, kek)
        for plan in plans:
            if plan is None or plan.privacy is None:
                continue
            for decryption in plan.privacy.decryptions.values():
                decryption.check()
    except ConfigError as error:
        raise ConfigError(f"pipelines.{pipeline}.privacy.decrypt: {error}") from error


def check_uses(privacy: Privacy | None, text: str, settings: Pipeline) -> None:
    """Raise ProtectedUse where a table of a route needs a column as it is that a schema protects."""
    if privacy is not None:
        replace(privacy, uses=settings.uses).protection(schema.parse(text), settings.record_specs)


def record_privacy(table: PipelineTable, schemas: Schemas, epoch: int | None) -> None:
    """Enter in a table's log what schemas said is to be protected and it does not have yet.

    `epoch`: of the start that asks; None: a command does. Raises Fenced, CommitFailed, PrivacyChanged.
    """
    new_paths = schemas.privacy_news
    if not new_paths:
        return
    version = table.protect_paths(epoch, new_paths, schemas.privacy_version)
    schemas.note_logged_policies(new_paths, version)
    logging.event("paths_protected", pipeline=table.pipeline, version=version, paths=shown_paths(new_paths))


def protected_columns(columns: RecordColumns, privacy: Privacy | None) -> RecordColumns:
    """Return columns of keys and headers with the keys that protect them."""
    if privacy is None:
        return columns
    return replace(columns, key_source=privacy.keys)


def shown_paths(paths: RecordPolicies) -> str:
    """Return a few of some paths, with their records and policies, as a phrase."""
    phrases = list[str]()
    for record, policies in paths.items():
        subject = record or "columns"
        phrases += [f"{subject}: {format_path(path)} ({policy.action})" for path, policy in policies.items()]
    return join_first(phrases, _PATHS_SHOWN)


def check_keys(pipeline: str, privacy: Privacy | None, recorded: RecordedPrivacy) -> None:
    """Raise ConfigError where the keyring is not the one of the table's rows.

    Values would be hashed with another key, or those that are encrypted could be read by nobody.
    """
    if privacy is not None:
        _check_hash_key(pipeline, privacy, recorded)
        _check_encryption_key(pipeline, privacy, recorded)


def _check_encryption_key(pipeline: str, privacy: Privacy, recorded: RecordedPrivacy) -> None:
    """Raise ConfigError where the keyring lacks the key of the newest rows, as one that was made anew does."""
    key = privacy.keys.encrypt
    if key is None or recorded.encryption_key in (0, key.number):
        return
    if recorded.encryption_key not in read_keyring(privacy.keys).numbers_of("encrypt"):
        raise ConfigError(
            f"the keyring in {privacy.keys.place} lacks the key that the rows of pipeline {pipeline!r} were encrypted "
            "with, as one that was made anew does: nobody can read their values. Put the former key back into "
            "encrypt.keys; or give these values up: `headrace keys rotate --accept-loss --yes`."
        )


def _check_hash_key(pipeline: str, privacy: Privacy, recorded: RecordedPrivacy) -> None:
    """Raise ConfigError where values would be hashed with another key than those of the table: joins would break."""
    if not recorded.hash_key or privacy.keys.hash is None:
        return
    key = privacy.keys.hash
    if key.number != recorded.hash_key:
        raise ConfigError(
            f"the keyring's hash key {key.id} (fingerprint {key.fingerprint}) is not the one that the rows of pipeline "
            f"{pipeline!r} were hashed with: the same value would get another hash, and joins break. Put the former "
            "key back as hash.primary; or accept it: `headrace keys rotate --break-joins --yes`."
        )


def check_policies(pipeline: str, settings: Pipeline, privacy: Privacy | None, recorded: RecordedPrivacy) -> None:
    """Raise ConfigError where a command would protect rows otherwise than the writer does."""
    policies = {} if settings.privacy is None else settings.privacy.policies.to_json()
    if fingerprint(policies) != recorded.fingerprint:
        raise ConfigError(
            f"the privacy policies of pipeline {pipeline!r} are not those by which its writer runs. Start the writer "
            "with this configuration, or use the one that it runs with."
        )
    check_keys(pipeline, privacy, recorded)
