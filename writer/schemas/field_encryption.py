"""Asks a registry which fields of a schema producers encrypt, and for the keys. Only the driver asks.

It is Confluent's client-side field level encryption: rules of type ENCRYPT in the `ruleSet` of a schema, and data keys
that the registry serves, encrypted, below /dek-registry/v1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from writer.privacy.column_protection import Place
from writer.privacy.field_decryption import ALGORITHMS, DataKey, Decryption, EncryptedFields, Kek
from writer.privacy.path_policies import Path
from writer.privacy.policy import CONFLUENT_TAGS, Policies, PrivacyError
from writer.privacy.protected_schema import Privacy
from writer.schemas.registry import ConfluentRegistry
from writer.schemas.registry_answers import is_absence_code

_ENCRYPT, _PAYLOAD = "ENCRYPT", "ENCRYPT_PAYLOAD"
_LATEST = -1
_T = TypeVar("_T")


def decryption_of(
    registry: ConfluentRegistry, schema_id: int, text: str, topics: Iterable[str], privacy: Privacy
) -> Decryption | None:
    """Return how fields are decrypted that producers encrypted by a schema; None: they encrypt none.

    `text`: as a plan has it, that of a key inside a record. Raises SchemaNotFound, RegistryUnreachable.
    """
    registered = registry.registered(schema_id)
    try:
        rules = _rules(registered)
        if not rules:
            return None
        fields = [(rule, _encrypted(registered, rule, text, registry, privacy.policies)) for rule in rules]
        candidates = [registry.subjects.of_schema(topic, text) for topic in topics]
        if not is_guid(schema_id):  # by which no registry tells subjects
            having = registry.subjects_of(schema_id)
            candidates = [one for one in candidates if one in having] or having
        with DekRegistryClient(registry.settings) as client:
            keys = _DataKeys(registry, client, tuple(dict.fromkeys(candidates)))
            found = Decryption(tuple(keys.fields(registered, rule, at, privacy) for rule, at in fields if at))
    except (PrivacyError, schema.UnsupportedSchema) as error:
        return Decryption(problem=str(error))
    try:
        found.check()
    except ConfigError as error:
        return Decryption(found.rules, str(error))
    return found if found.rules else None


def _rules(registered: Schema) -> list[Rule]:
    """Return the rules that encrypt fields, in the order in which a reader undoes them. Raises PrivacyError."""
    if (rule_set := registered.rule_set) is None:
        return []
    found = dict[Any, Rule]()
    for rule in [*(rule_set.encoding_rules or ()), *(rule_set.domain_rules or ())]:
        if rule.disabled or rule.mode not in (RuleMode.WRITEREAD, RuleMode.READ):
            continue
        if rule.type == _PAYLOAD:
            raise PrivacyError(
                f"its rule {rule.name!r} encrypts whole values ({_PAYLOAD}); privacy.decrypt is for fields ({_ENCRYPT})"
            )
        if rule.type == _ENCRYPT and rule.kind == RuleKind.TRANSFORM:
            found.setdefault(
                (*rule.tags, rule.mode) if rule.tags else id(rule), rule
            )  # of those alike, the first counts
    return [*reversed(found.values())]


def _encrypted(
    registered: Schema, rule: Rule, text: str, registry: ConfluentRegistry, policies: Policies
) -> list[Place]:
    """Return where a rule's fields lie. Raises PrivacyError for one that would be in the clear for want of a policy."""
    record, places = schema.parse(text), list[Place]()
    metadata = registered.metadata.tags if registered.metadata is not None else None
    walk = _Walk(record, frozenset(rule.tags or ()), metadata.tags if metadata is not None else {})
    start: tuple[Any, Place] = (record.root, ())
    if registry.subjects.part == "key":  # inside a record that the plan puts around it
        start = record.fields[0]["type"], (record.fields[0]["name"],)
    for place, path, says in walk.leaves(*start, start[1]):
        if not says and not any(path[:length] in policies.by_path for length in range(1, len(path) + 1)):
            raise PrivacyError(
                f"field {'.'.join(path)!r} is decrypted, has no tag of its own, and no policy; name it in "
                "privacy.fields, with clear if it is to be as it is"
            )
        places.append(place)
    return places


class _Walk:
    """One way through a schema, to the fields that a rule encrypts."""

    def __init__(self, record: schema.Record, tags: frozenset[str], metadata: Mapping[str, Iterable[str]]) -> None:
        """`tags`: of the rule; empty: it encrypts all fields. `metadata`: tags by pattern of a field's full name."""
        self._record, self._tags, self._metadata = record, tags, metadata

    def leaves(
        self, kind: Any, place: Place, path: Path, *, wanted: bool = False, says: bool = False
    ) -> Iterator[tuple[Place, Path, bool]]:
        """Yield place and path of each text and bytes that are encrypted, and whether their field has tags itself."""
        kind = self._record.resolve(kind)
        if isinstance(kind, list):
            some = [one for one in kind if self._record.resolve(one) != "null"]
            for at, one in enumerate(some):
                step = (f"member{at}",) if len(some) > 1 else ()
                yield from self.leaves(one, (*place, *step), (*path, *step), wanted=wanted, says=says)
            return
        name = kind["type"] if isinstance(kind, dict) else kind
        match name:
            case "record":
                for one in kind["fields"]:
                    tags, own = self._tags_of(f"{kind['name']}.{one['name']}", one)
                    yield from self.leaves(
                        one["type"], (*place, one["name"]), (*path, one["name"]), wanted=tags, says=own
                    )
            case "array":
                yield from self.leaves(kind["items"], (*place, "element"), path, wanted=wanted, says=says)
            case "map":
                yield from self.leaves(kind["values"], (*place, "value"), path, wanted=wanted, says=says)
            case "string" | "bytes" if wanted:
                if schema.decimal_digits(kind) is not None:
                    raise PrivacyError(f"field {'.'.join(path)!r} is an encrypted decimal, which cannot be decrypted")
                yield place, path, says

    def _tags_of(self, name: str, one: Mapping[str, Any]) -> tuple[bool, bool]:
        """Return whether the rule encrypts a field, and whether it has tags of its own, which need policies."""
        given = one.get(CONFLUENT_TAGS)
        listed = given if isinstance(given, list) else [given]
        own = {tag for tag in listed if isinstance(tag, str)}
        beside = {tag for pattern, tags in self._metadata.items() if wildcard_match(name, pattern) for tag in tags}
        return not self._tags or bool(self._tags & (own | beside)), bool(own)


class _DataKeys:
    """The data keys of some subjects."""

    def __init__(self, registry: ConfluentRegistry, client: DekRegistryClient, subjects: tuple[str, ...]) -> None:
        self._registry, self._client, self._subjects = registry, client, subjects

    def fields(self, registered: Schema, rule: Rule, places: list[Place], privacy: Privacy) -> EncryptedFields:
        """Return the fields of a rule, with all keys that are there. Raises PrivacyError, RegistryUnreachable."""
        settings = rule.params.params if rule.params is not None else {}
        if registered.metadata is not None and registered.metadata.properties is not None:
            settings = {**registered.metadata.properties.properties, **settings}
        name, algorithm = settings.get("encrypt.kek.name"), settings.get("encrypt.dek.algorithm", "AES256_GCM")
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
        found = _asked(self._registry, self._client.get_kek, name, True)
        kms, key_id = settings.get("encrypt.kms.type", ""), settings.get("encrypt.kms.key.id", "")
        if found is not None:
            kms, key_id = found.kms_type or kms, found.kms_key_id or key_id
        keys = () if found is None else tuple(self._keys(name, DekAlgorithm(algorithm), has_versions=has_versions))
        kek = Kek(name, kms, key_id, privacy.keks[name])
        return EncryptedFields(tuple(places), kek, algorithm, has_versions, self._subjects, keys)

    def _keys(self, kek: str, algorithm: DekAlgorithm, *, has_versions: bool) -> Iterator[DataKey]:
        for subject in self._subjects:
            newest = 1
            if has_versions:
                latest = self._key(kek, subject, algorithm, _LATEST)
                newest = 0 if latest is None else latest.version or 0
            known = self._registry.data_keys
            for version in range(1, newest + 1):
                asked = kek, subject, algorithm, version
                if asked not in known:
                    found = self._key(*asked)
                    if found is None or not found.encrypted_key_material:
                        continue
                    known[asked] = DataKey(subject, version, found.encrypted_key_material)
                yield known[asked]

    def _key(self, kek: str, subject: str, algorithm: DekAlgorithm, version: int) -> Dek | None:
        return _asked(self._registry, self._client.get_dek, kek, subject, algorithm, version, True)


def _asked(registry: ConfluentRegistry, ask: Callable[..., _T], *about: Any) -> _T | None:
    """Return an answer; None where there is none, such as a key, which comes with the first value of a producer."""
    try:
        return ask(*about)
    except Exception as error:
        if isinstance(error, SchemaRegistryError) and is_absence_code(error.error_code or 0):
            return None
        raise registry.unreachable(error) from error
