"""A value whose path a tag has ever protected stands in no file of the lake, whatever becomes of schemas and policies.

Schemas come, are renamed, lose tags, are hidden or deleted; writers start again, by other policies; a person releases
paths. The oracle is the search of every file for the values that were written while their path was protected.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.path_policies import RELEASED, PathPolicy
from headrace.writer.privacy.policy import CLEAR
from tests.support.canaries import STEM, files, forms
from tests.support.example_counts import share
from tests.support.local_driver import Driver, log
from tests.support.private_table import keyring_at
from tests.support.sample_records import NOW, TIME, Schemas, value

LEAVES = ("mail", "user.mail", "items", "labels", "either")
POLICIES = ("hash", "encrypt", "drop")
WEAKER: tuple[Any, ...] = (None, {"tags": {"OTHER": "drop"}}, {"tags": {"PII": "clear", "OTHER": "drop"}})


def make_schema(tagged: frozenset[str], *, renames_field: bool, renames_record: bool) -> dict[str, Any]:
    """Return a schema with tags on some leaves. `renames_field`: of `mail`, by an alias."""

    def words(leaf: str) -> dict[str, Any]:
        return {"confluent:tags": ["PII"]} if leaf in tagged else {}

    inner = {"type": "record", "name": "User", "fields": [
        {"name": "mail", "type": "string", **words("user.mail")}, {"name": "age", "type": "int"},
    ]}  # fmt: skip
    mail = {"name": "post", "aliases": ["mail"]} if renames_field else {"name": "mail", "aliases": ["post"]}
    name = {"name": "Visit", "aliases": ["Event"]} if renames_record else {"name": "Event", "aliases": ["Visit"]}
    return {"type": "record", **name, "fields": [
        {"name": "at", "type": TIME}, {**mail, "type": "string", **words("mail")}, {"name": "user", "type": inner},
        {"name": "items", "type": {"type": "array", "items": "string"}, **words("items")},
        {"name": "labels", "type": {"type": "map", "values": "string"}, **words("labels")},
        {"name": "either", "type": ["null", "string"], **words("either")},
    ]}  # fmt: skip


class ProtectedLake(RuleBasedStateMachine):
    """One pipeline, its registry, and what its files may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-protected-"))
        self.schemas = dict[int, dict[str, Any]]()
        self.tags = dict[int, frozenset[str]]()
        self.listed, self.deleted = set[int](), set[int]()
        self.policies: Any = {"tags": {"PII": "hash"}}
        self.protected, self.secrets = set[str](), set[str]()
        self.offset = 0
        keyring_at(self.root)

    @initialize(form=st.sampled_from(["delta", "parquet", "iceberg"]), tagged=st.frozensets(st.sampled_from(LEAVES)))
    def begin(self, form: str, tagged: frozenset[str]) -> None:
        self.form = form
        self.register(tagged, renames_field=False, renames_record=False)
        self.driver = self.started(self.policies)

    def started(self, policies: Any) -> Driver:
        """Start a writer. What the schemas that it knows tag is protected from then on."""
        known = Schemas({n: one for n, one in self.schemas.items() if n not in self.deleted}, sorted(self.listed))
        table = {"name": "s.clicks"} if self.form == "iceberg" else {}
        sections = {"keys": {"file": keyring_at(self.root).place.file}}
        driver = Driver(
            self.root, self.form, schemas=known, privacy=policies, sections=sections, table=table,
            limits={"max_failed_ratio": 1},
        )  # fmt: skip
        driver.start()
        driver.table.grow(list(driver.row_columns()), driver.epoch)
        self.protected |= {leaf for number in self.listed for leaf in self.tags[number]}
        return driver

    @rule(tagged=st.frozensets(st.sampled_from(LEAVES)), renames_field=st.booleans(), renames_record=st.booleans())
    def register(self, tagged: frozenset[str], *, renames_field: bool, renames_record: bool) -> None:
        number = len(self.schemas) + 1
        self.schemas[number] = make_schema(tagged, renames_field=renames_field, renames_record=renames_record)
        self.tags[number] = tagged
        self.listed.add(number)

    @precondition(lambda self: self.listed)
    @rule(data=st.data(), is_deleted=st.booleans())
    def lose(self, data: st.DataObject, *, is_deleted: bool) -> None:
        """Hide a schema under another subject, or delete it."""
        number = data.draw(st.sampled_from(sorted(self.listed)))
        self.listed.discard(number)
        self.deleted |= {number} if is_deleted else set()

    @rule(policy=st.sampled_from(POLICIES))
    def restart(self, policy: str) -> None:
        self.policies = {"tags": {"PII": policy}}
        self.driver = self.started(self.policies)

    @rule(weaker=st.sampled_from(WEAKER))
    def weaken(self, weaker: Any) -> None:
        """Start by policies without the tag: refused where anything was ever protected."""
        is_recorded = any(
            word.action != CLEAR for paths in self.driver.table.snapshot().protected_paths.values()
            for word in paths.values()
        )  # fmt: skip
        assert is_recorded >= bool(self.protected), "the log has what schemas said"
        if not is_recorded:
            return
        try:
            self.started(weaker)
        except ConfigError as error:
            assert "would be in the clear" in str(error)  # noqa: PT017 - a rule goes on behind it
        else:
            raise AssertionError(weaker)

    @rule(data=st.data(), count=st.integers(1, 2))
    def carry(self, data: st.DataObject, count: int) -> None:
        """Write records of any schema that ever was; the writer asks for one that it does not know."""
        number = data.draw(st.sampled_from(sorted(self.schemas)))
        known = number in self.driver._pipeline.plan.schemas or number in self.driver.schemas._schemas
        if known:
            self.protected |= self.tags[number]
        rows = {self.offset + at: self.record(number, self.offset + at) for at in range(count)}
        self.offset += count
        self.driver.carry([log(rows)], {0: self.offset})

    def record(self, number: int, at: int) -> bytes:
        secret = {leaf: f"{STEM}-{leaf}-{at}-end" for leaf in LEAVES}
        self.secrets |= {secret[leaf] for leaf in self.protected}
        schema = self.schemas[number]
        row = {
            "at": NOW, schema["fields"][1]["name"]: secret["mail"], "user": {"mail": secret["user.mail"], "age": at},
            "items": [secret["items"]], "labels": {secret["labels"]: "x"}, "either": secret["either"],
        }  # fmt: skip
        return value(number, schema, row)

    @rule(leaf=st.sampled_from(LEAVES))
    def release(self, leaf: str) -> None:
        """Release a path while no writer runs; a schema that the next start knows may protect it again."""
        table = self.driver.table
        names = [("mail",), ("post",)] if leaf == "mail" else [tuple(leaf.split("."))]
        recorded = table.snapshot().protected_paths
        paths = {
            record: {name: PathPolicy(CLEAR, RELEASED) for name in names if name in of_record}
            for record, of_record in recorded.items()
        }
        table.release_paths({record: found for record, found in paths.items() if found}, {"by": "ann"})
        self.protected.discard(leaf)
        self.driver = self.started(self.policies)

    @invariant()
    def no_file_tells_a_secret(self) -> None:
        needles = {form for secret in self.secrets for form in forms(secret.encode(), text=True)}
        for place, content in files(self.root, ["keys.json"]):
            assert STEM.encode() not in content or not any(needle in content for needle in needles), place

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


TestProtectedLake = ProtectedLake.TestCase
TestProtectedLake.settings = settings(
    max_examples=share(6), stateful_step_count=12, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
