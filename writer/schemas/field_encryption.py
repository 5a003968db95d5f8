"""Asks a registry which fields of a schema producers encrypt, and for the keys. Only the driver asks.

It is Confluent's client-side field level encryption: rules of type ENCRYPT in the `ruleSet` of a schema, and data keys
that the registry serves, encrypted, below /dek-registry/v1.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, Schema
from confluent_kafka.schema_registry.wildcard_matcher import wildcard_match

from headrace.writer.avro import schema
from headrace.writer.avro.type_visitor import TypePart, iterate_types
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import is_guid
from headrace.writer.privacy.column_protection import ColumnPath
from headrace.writer.privacy.field_decryption import ALGORITHMS, DataKey, Decryption, EncryptedFields, Kek
from headrace.writer.privacy.path_policies import Path
from headrace.writer.privacy.policy import CONFLUENT_TAGS, Policies, PrivacyError
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.registry import ConfluentRegistry

_ENCRYPT = "ENCRYPT"
_PAYLOAD = "ENCRYPT_PAYLOAD"
_LATEST_VERSION = -1


def decryption_of(
    registry: ConfluentRegistry, schema_id: int, text: str, topics: Iterable[str], privacy: Privacy
) -> Decryption | None:
    """Return how fields are decrypted that producers encrypted by a schema; None: they encrypt none.

    `text`: as a plan has it, that of a key inside a record. Raises SchemaNotFound, RegistryUnreachable.
    """
    registered_schema = registry.registered_schema(schema_id)
    try:
        rules = _encryption_rules(registered_schema)
        if not rules:
            return None
        paths_by_rule = [
            (rule, _encrypted_paths(registered_schema, rule, text, registry, privacy.policies)) for rule in rules
        ]
        subjects = _subjects_of(registry, schema_id, text, topics)
        keys = _DataKeys(registry, subjects)
        fields = [
            keys.fields(registered_schema, rule, column_paths, privacy)
            for rule, column_paths in paths_by_rule
            if column_paths
        ]
        decryption = Decryption(tuple(fields))
    except (PrivacyError, schema.UnsupportedSchema) as error:
        return Decryption(problem=str(error))
    try:
        decryption.check()
    except ConfigError as error:
        return Decryption(decryption.rules, str(error))
    return decryption if decryption.rules else None


def _subjects_of(registry: ConfluentRegistry, schema_id: int, text: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects of topics that have a schema; all that have it where none of these does."""
    topic_subjects = dict.fromkeys(registry.subjects.of_schema(topic, text) for topic in topics)
    # No registry tells the subjects of a GUID.
    if is_guid(schema_id):
        return tuple(topic_subjects)
    schema_subjects = dict.fromkeys(registry.subjects_of(schema_id))
    return tuple(subject for subject in topic_subjects if subject in schema_subjects) or tuple(schema_subjects)


def _encryption_rules(registered_schema: Schema) -> list[Rule]:
    """Return the rules that encrypt fields, in the order in which a reader undoes them. Raises PrivacyError."""
    rule_set = registered_schema.rule_set
    if rule_set is None:
        return []
    rules = dict[Any, Rule]()
    for rule in [*(rule_set.encoding_rules or ()), *(rule_set.domain_rules or ())]:
        if rule.disabled or rule.mode not in (RuleMode.WRITEREAD, RuleMode.READ):
            continue
        if rule.type == _PAYLOAD:
            raise PrivacyError(
                f"its rule {rule.name!r} encrypts whole values ({_PAYLOAD}); privacy.decrypt is for fields ({_ENCRYPT})"
            )
        if rule.type == _ENCRYPT and rule.kind == RuleKind.TRANSFORM:
            # Of rules with the same tags, the first counts.
            rules.setdefault((*rule.tags, rule.mode) if rule.tags else id(rule), rule)
    return [*reversed(rules.values())]


def _encrypted_paths(
    registered_schema: Schema, rule: Rule, text: str, registry: ConfluentRegistry, policies: Policies
) -> list[ColumnPath]:
    """Return the columns of each text and bytes that a rule encrypts, which is all where the rule has no tags.

    Raises PrivacyError for a decimal, and for a field that would be in the clear for want of a policy.
    """
    record = schema.parse(text)
    root: Any = record.root
    root_path: ColumnPath = ()
    # The plan puts a record around the schema of a key.
    if registry.subjects.part == "key":
        root = record.fields[0]["type"]
        root_path = (record.fields[0]["name"],)
    rule_tags = frozenset(rule.tags or ())
    metadata_tags = _metadata_tags(registered_schema)
    column_paths: list[ColumnPath] = []
    for part in iterate_types(record.form, root):
        if part.field is None or schema.type_name(part.schema) not in ("string", "bytes"):
            continue
        own_tags = _own_tags(part.field)
        tags = own_tags | _tags_beside(f"{part.records[-1]}.{part.field['name']}", metadata_tags)
        if rule_tags and rule_tags.isdisjoint(tags):
            continue
        path = (*root_path, *_policy_path(part))
        if schema.decimal_digits(part.schema) is not None:
            raise PrivacyError(f"field {'.'.join(path)!r} is an encrypted decimal, which cannot be decrypted")
        if not own_tags and not _has_policy(path, policies):
            raise PrivacyError(
                f"field {'.'.join(path)!r} is decrypted, has no tag of its own, and no policy; name it in "
                "privacy.fields, with clear if it is to be as it is"
            )
        column_paths.append((*root_path, *part.column_path))
    return column_paths


def _policy_path(part: TypePart) -> Path:
    """Return the path by which policies name a type: that of its column, without steps into arrays and maps."""
    return tuple(step.name for step in part.steps if step.kind in ("field", "member"))


def _metadata_tags(registered_schema: Schema) -> Mapping[str, Iterable[str]]:
    """Return the tags that the registry keeps beside a schema, by pattern of a field's full name."""
    metadata = registered_schema.metadata
    if metadata is None or metadata.tags is None:
        return {}
    tags: Mapping[str, Iterable[str]] = metadata.tags.tags
    return tags


def _has_policy(path: Path, policies: Policies) -> bool:
    """Return whether a field, or one around it, has a policy."""
    return any(path[:length] in policies.by_path for length in range(1, len(path) + 1))


def _tags_beside(field_name: str, metadata_tags: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the tags that the registry keeps beside the schema for a field. `field_name`: in full."""
    tags = set[str]()
    for pattern, pattern_tags in metadata_tags.items():
        if wildcard_match(field_name, pattern):
            tags.update(pattern_tags)
    return tags


def _own_tags(field: Mapping[str, Any]) -> set[str]:
    """Return the tags that a field has itself, which need policies."""
    tags = field.get(CONFLUENT_TAGS)
    if not isinstance(tags, list):
        tags = [tags]
    return {tag for tag in tags if isinstance(tag, str)}


class _DataKeys:
    """The data keys of some subjects."""

    def __init__(self, registry: ConfluentRegistry, subjects: tuple[str, ...]) -> None:
        self._registry = registry
        self._subjects = subjects

    def fields(
        self, registered_schema: Schema, rule: Rule, column_paths: list[ColumnPath], privacy: Privacy
    ) -> EncryptedFields:
        """Return the fields of a rule, with all keys that are there. Raises PrivacyError, RegistryUnreachable."""
        settings = _rule_settings(registered_schema, rule)
        name = settings.get("encrypt.kek.name")
        algorithm = settings.get("encrypt.dek.algorithm", "AES256_GCM")
        if not name or algorithm not in ALGORITHMS:
            raise PrivacyError(
                f"its rule {rule.name!r} has the KEK {name!r} and the algorithm {algorithm!r}; it needs a KEK, and one "
                f"of {', '.join(ALGORITHMS)}"
            )
        if name not in privacy.keks:
            field = ".".join(column_paths[0])
            raise PrivacyError(f"field {field!r} is encrypted with the KEK {name!r}, which is not in privacy.decrypt")
        has_versions = str(settings.get("encrypt.dek.expiry.days", 0)) != "0"
        kms = settings.get("encrypt.kms.type", "")
        key_id = settings.get("encrypt.kms.key.id", "")
        keys: tuple[DataKey, ...] = ()
        registered_kek = self._registry.read_object(f"{_kek_path(name)}?deleted=true")
        if registered_kek is not None:
            kms = registered_kek.get("kmsType") or kms
            key_id = registered_kek.get("kmsKeyId") or key_id
            keys = tuple(self._keys(name, algorithm, has_versions=has_versions))
        kek = Kek(name, kms, key_id, privacy.keks[name])
        return EncryptedFields(tuple(column_paths), kek, algorithm, has_versions, self._subjects, keys)

    def _keys(self, kek: str, algorithm: str, *, has_versions: bool) -> Iterator[DataKey]:
        data_keys = self._registry.data_keys
        for subject in self._subjects:
            for version in range(1, self._newest_version(kek, subject, algorithm, has_versions=has_versions) + 1):
                question = (kek, subject, algorithm, version)
                if question not in data_keys:
                    dek = self._dek(*question)
                    material = None if dek is None else dek.get("encryptedKeyMaterial")
                    if not isinstance(material, str) or not material:
                        continue
                    data_keys[question] = DataKey(subject, version, material)
                yield data_keys[question]

    def _newest_version(self, kek: str, subject: str, algorithm: str, *, has_versions: bool) -> int:
        """Return the version of a subject's newest key; 0 where there is none."""
        if not has_versions:
            return 1
        newest = self._dek(kek, subject, algorithm, _LATEST_VERSION)
        version = None if newest is None else newest.get("version")
        return version if isinstance(version, int) else 0

    def _dek(self, kek: str, subject: str, algorithm: str, version: int) -> Mapping[str, Any] | None:
        """Return a key as the registry has it; None where there is none: it comes with a producer's first value."""
        path = f"{_kek_path(kek)}/deks/{quote(subject, safe='')}/versions/{version}"
        return self._registry.read_object(f"{path}?algorithm={algorithm}&deleted=true")


def _kek_path(kek: str) -> str:
    return f"dek-registry/v1/keks/{quote(kek, safe='')}"


def _rule_settings(registered_schema: Schema, rule: Rule) -> Mapping[str, str]:
    """Return the parameters of a rule, and below them the properties of its schema."""
    settings: dict[str, str] = {}
    metadata = registered_schema.metadata
    if metadata is not None and metadata.properties is not None:
        settings |= metadata.properties.properties
    if rule.params is not None:
        settings |= rule.params.params
    return settings
