"""Asks a registry which fields of a schema producers encrypt, and for the keys. Only the driver asks.

It is Confluent's client-side field level encryption: rules of type ENCRYPT in the `ruleSet` of a schema, and data keys
that the registry serves, encrypted, below /dek-registry/v1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.rules.encryption.dek_registry.dek_registry_client import (
    Dek,
    DekAlgorithm,
    DekRegistryClient,
)
from confluent_kafka.schema_registry.wildcard_matcher import wildcard_match

from writer.avro import schema
from writer.avro.wire_format import is_guid
from writer.core.errors import ConfigError
from writer.privacy.column_protection import ColumnPath
from writer.privacy.field_decryption import ALGORITHMS, DataKey, Decryption, EncryptedFields, Kek
from writer.privacy.path_policies import Path
from writer.privacy.policy import CONFLUENT_TAGS, Policies, PrivacyError
from writer.privacy.protected_schema import Privacy
from writer.schemas.registry import ConfluentRegistry
from writer.schemas.registry_client import is_absence_code

_ENCRYPT = "ENCRYPT"
_PAYLOAD = "ENCRYPT_PAYLOAD"
_LATEST_VERSION = -1
_T = TypeVar("_T")


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
        places_by_rule = [
            (rule, _encrypted_places(registered_schema, rule, text, registry, privacy.policies)) for rule in rules
        ]
        subjects = _subjects_of(registry, schema_id, text, topics)
        with DekRegistryClient(registry.settings) as client:
            keys = _DataKeys(registry, client, subjects)
            fields = [
                keys.fields(registered_schema, rule, places, privacy) for rule, places in places_by_rule if places
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


def _encrypted_places(
    registered_schema: Schema, rule: Rule, text: str, registry: ConfluentRegistry, policies: Policies
) -> list[ColumnPath]:
    """Return where a rule's fields lie. Raises PrivacyError for one that would be in the clear for want of a policy."""
    record = schema.parse(text)
    root: Any = record.root
    root_place: ColumnPath = ()
    # The plan puts a record around the schema of a key.
    if registry.subjects.part == "key":
        root = record.fields[0]["type"]
        root_place = (record.fields[0]["name"],)
    places: list[ColumnPath] = []
    finder = _EncryptedFieldFinder(record, frozenset(rule.tags or ()), _metadata_tags(registered_schema))
    for leaf in finder.leaves(root, root_place, root_place):
        if not leaf.has_own_tags and not _has_policy(leaf.path, policies):
            raise PrivacyError(
                f"field {'.'.join(leaf.path)!r} is decrypted, has no tag of its own, and no policy; name it in "
                "privacy.fields, with clear if it is to be as it is"
            )
        places.append(leaf.place)
    return places


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


@dataclass(frozen=True)
class _Leaf:
    """A text or bytes that a rule encrypts: its place, its path, and whether its field has tags of its own."""

    place: ColumnPath
    path: Path
    has_own_tags: bool


class _EncryptedFieldFinder:
    """Finds the fields of a schema that a rule encrypts."""

    def __init__(self, record: schema.Record, tags: frozenset[str], metadata: Mapping[str, Iterable[str]]) -> None:
        """`tags`: of the rule; empty: it encrypts all fields. `metadata`: tags by pattern of a field's full name."""
        self._record = record
        self._tags = tags
        self._metadata = metadata

    def leaves(
        self, kind: Any, place: ColumnPath, path: Path, *, is_encrypted: bool = False, has_own_tags: bool = False
    ) -> Iterator[_Leaf]:
        """Yield each text and bytes of a type that are encrypted. `is_encrypted`: the field around the type is."""
        kind = self._record.resolve(kind)
        field_state = {"is_encrypted": is_encrypted, "has_own_tags": has_own_tags}
        if isinstance(kind, list):
            members = [member for member in kind if self._record.resolve(member) != "null"]
            for index, member in enumerate(members):
                step = (f"member{index}",) if len(members) > 1 else ()
                yield from self.leaves(member, (*place, *step), (*path, *step), **field_state)
            return
        name = kind["type"] if isinstance(kind, dict) else kind
        match name:
            case "record":
                for field in kind["fields"]:
                    yield from self._field_leaves(kind["name"], field, place, path)
            case "array":
                yield from self.leaves(kind["items"], (*place, "element"), path, **field_state)
            case "map":
                yield from self.leaves(kind["values"], (*place, "value"), path, **field_state)
            case "string" | "bytes" if is_encrypted:
                if schema.decimal_digits(kind) is not None:
                    raise PrivacyError(f"field {'.'.join(path)!r} is an encrypted decimal, which cannot be decrypted")
                yield _Leaf(place, path, has_own_tags)

    def _field_leaves(
        self, record_name: str, field: Mapping[str, Any], place: ColumnPath, path: Path
    ) -> Iterator[_Leaf]:
        """Yield each text and bytes of a record's field that are encrypted."""
        name = field["name"]
        own_tags = _own_tags(field)
        tags = own_tags | self._tags_beside(f"{record_name}.{name}")
        yield from self.leaves(
            field["type"],
            (*place, name),
            (*path, name),
            is_encrypted=not self._tags or bool(self._tags & tags),
            has_own_tags=bool(own_tags),
        )

    def _tags_beside(self, full_name: str) -> set[str]:
        """Return the tags that the registry keeps beside the schema for a field."""
        tags = set[str]()
        for pattern, pattern_tags in self._metadata.items():
            if wildcard_match(full_name, pattern):
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

    def __init__(self, registry: ConfluentRegistry, client: DekRegistryClient, subjects: tuple[str, ...]) -> None:
        self._registry = registry
        self._client = client
        self._subjects = subjects

    def fields(
        self, registered_schema: Schema, rule: Rule, places: list[ColumnPath], privacy: Privacy
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
            raise PrivacyError(
                f"field {'.'.join(places[0])!r} is encrypted with the KEK {name!r}, which is not in privacy.decrypt"
            )
        has_versions = str(settings.get("encrypt.dek.expiry.days", 0)) != "0"
        kms = settings.get("encrypt.kms.type", "")
        key_id = settings.get("encrypt.kms.key.id", "")
        keys: tuple[DataKey, ...] = ()
        registered_kek = _ask_or_none(self._registry, self._client.get_kek, name, True)
        if registered_kek is not None:
            kms = registered_kek.kms_type or kms
            key_id = registered_kek.kms_key_id or key_id
            keys = tuple(self._keys(name, DekAlgorithm(algorithm), has_versions=has_versions))
        kek = Kek(name, kms, key_id, privacy.keks[name])
        return EncryptedFields(tuple(places), kek, algorithm, has_versions, self._subjects, keys)

    def _keys(self, kek: str, algorithm: DekAlgorithm, *, has_versions: bool) -> Iterator[DataKey]:
        data_keys = self._registry.data_keys
        for subject in self._subjects:
            for version in range(1, self._newest_version(kek, subject, algorithm, has_versions=has_versions) + 1):
                question = (kek, subject, algorithm, version)
                if question not in data_keys:
                    dek = self._dek(*question)
                    if dek is None or not dek.encrypted_key_material:
                        continue
                    data_keys[question] = DataKey(subject, version, dek.encrypted_key_material)
                yield data_keys[question]

    def _newest_version(self, kek: str, subject: str, algorithm: DekAlgorithm, *, has_versions: bool) -> int:
        """Return the version of a subject's newest key; 0 where there is none."""
        if not has_versions:
            return 1
        newest = self._dek(kek, subject, algorithm, _LATEST_VERSION)
        if newest is None:
            return 0
        return newest.version or 0

    def _dek(self, kek: str, subject: str, algorithm: DekAlgorithm, version: int) -> Dek | None:
        return _ask_or_none(self._registry, self._client.get_dek, kek, subject, algorithm, version, True)


def _rule_settings(registered_schema: Schema, rule: Rule) -> Mapping[str, str]:
    """Return the parameters of a rule, and below them the properties of its schema."""
    settings: dict[str, str] = {}
    metadata = registered_schema.metadata
    if metadata is not None and metadata.properties is not None:
        settings |= metadata.properties.properties
    if rule.params is not None:
        settings |= rule.params.params
    return settings


def _ask_or_none(registry: ConfluentRegistry, ask: Callable[..., _T], *arguments: Any) -> _T | None:
    """Return an answer; None where there is none, such as a key, which comes with the first value of a producer."""
    try:
        return ask(*arguments)
    except Exception as error:
        if isinstance(error, SchemaRegistryError) and is_absence_code(error.error_code or 0):
            return None
        raise registry.unreachable(error) from error
