"""What becomes of records before they fill a table: by type (docs/SPECS.md), and of personal data (docs/PRIVACY.md)."""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.writer.config.base import Strict
from headrace.writer.privacy.keyring import KeyringPlace, KeySource, WrapSource
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.specs.spec import Sample, Spec
from headrace.writer.specs.step import TYPE_NAMES, cast_type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _share(value: Any) -> str:
    """Return a share as a percentage: of `1 %`, or of a number from 0 to 1."""
    text = str(value).strip()
    try:
        share = Fraction(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ValueError(f"{value!r} is no share; write '1 %', or a number above 0 and up to 1")
    percent = share * 100
    if percent.denominator == 1:
        return f"{percent.numerator} %"
    return f"{float(percent):.15g} %"


Share = Annotated[str, BeforeValidator(_share)]


class SampleRule(Strict):
    """A share of the records."""

    share: Share = Field(description="how many stay, such as 1 %")
    by: str = Field(
        min_length=1,
        description="column by whose SHA-256 it is decided, nested with dots: all records with a value stay, or none",
    )


class ColumnList(Strict):
    """Which columns stay. A path such as `user.address.city` goes into records, also inside lists and maps."""

    include: list[str] = Field(default_factory=list, description="only these; default: all")
    exclude: list[str] = Field(default_factory=list, description="without these")


class EventSpec(Strict):
    """What becomes of the records of a type: which of them become rows, and with which columns."""

    where: str | None = Field(
        None, min_length=1, description="SQL condition; records for which it is not true are left out, and counted"
    )
    sample: SampleRule | None = Field(None, description="of those, a share stays; the others are left out, and counted")
    columns: ColumnList = ColumnList.model_validate({})
    rename: dict[str, str] = Field(default_factory=dict, description="column of the record: its name in the table")
    cast: dict[str, str] = Field(
        default_factory=dict,
        description=f"column of the record: its type in the table ({', '.join(TYPE_NAMES)}); a value that has none "
        "there makes a dead letter",
    )
    flatten: bool | list[str] = Field(
        False, description="columns whose fields become columns, joined by `_`; true: all that are records"
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="column of the table: SQL over the columns of the record; where it fails on a record, this becomes "
        "a dead letter",
    )

    @field_validator("rename", "derive")
    @classmethod
    def _names(cls, value: dict[str, str], info: Any) -> dict[str, str]:
        names = list(value)
        if info.field_name == "rename":
            names = list(value.values())
        if wrong := next((name for name in names if not _NAME.fullmatch(name)), None):
            raise ValueError(f"{wrong!r} is no name of a column; use letters, digits and _, and no digit first")
        return value

    @field_validator("cast")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, kind in value.items():
            cast_type(name, kind)
        return value

    @model_validator(mode="after")
    def _says_something(self) -> "EventSpec":
        if not self.model_fields_set:
            raise ValueError(
                "it says nothing; take it out, or say where, sample, columns, rename, cast, flatten, derive"
            )
        return self

    def spec(self, name: str) -> Spec:
        """Return what tasks get. `name`: of the record, or a pattern."""
        sample = None
        if self.sample is not None:
            sample = Sample(Fraction(self.sample.share.removesuffix("%").strip()) / 100, self.sample.by)
        every = self.flatten is True
        return Spec(
            name,
            self.where or "",
            sample,
            tuple(self.columns.include),
            tuple(self.columns.exclude),
            tuple(self.rename.items()),
            tuple(self.cast.items()),
            () if isinstance(self.flatten, bool) else tuple(self.flatten),
            every,
            tuple(self.derive.items()),
        )


def specs_of(section: Mapping[str, EventSpec]) -> tuple[Spec, ...]:
    """Return the specs of a pipeline, in the order of the file."""
    return tuple(spec.spec(name) for name, spec in section.items())


# {mask: n}.
PolicySetting = Literal["drop", "encrypt", "hash", "clear"] | dict[str, int]


def _actions(section: Mapping[str, Any]) -> tuple[tuple[str, Action], ...]:
    return tuple((name, Action.of(setting)) for name, setting in section.items())


class PrivacySection(Strict):
    """Which fields are protected before a row is made of a record, and how."""

    tags: dict[str, PolicySetting] = Field(
        default_factory=dict,
        description="tag of `confluent:tags` → drop, encrypt, hash, {mask: n} or clear. A field with a tag that is not "
        "here rejects its schema",
    )
    attributes: list[str] = Field(
        default_factory=list,
        description="further attributes of fields that count, such as `pii`; their value is a policy, or a tag",
    )
    fields: dict[str, PolicySetting] = Field(
        default_factory=dict,
        description="path of a field such as user.email, or column of a key or header → policy; goes before tags",
    )

    decrypt: dict[str, "KekSection"] = Field(
        default_factory=dict,
        description="name of a key encryption key (KEK) of Confluent's client-side field level encryption → where it "
        "is. Fields that producers encrypted with it are decrypted before anything else",
    )
    dead_letters: Literal["encrypt", "redact"] = Field(
        "encrypt",
        description="how records are kept that become no row: key, value and headers encrypted, or without them; then "
        "none can be replayed",
    )

    @field_validator("tags", "fields", mode="before")
    @classmethod
    def _policies(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, setting in value.items():
            try:
                Action.of(setting)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return value

    @model_validator(mode="after")
    def _says_something(self) -> "PrivacySection":
        if not (self.tags or self.attributes or self.fields or self.decrypt):
            raise ValueError("it says nothing; take it out, or say tags, attributes, fields, decrypt")
        return self

    @property
    def policies(self) -> Policies:
        """What tasks get."""
        redacts = self.dead_letters == "redact"
        return Policies(
            _actions(self.tags), tuple(self.attributes), _actions(self.fields), redacts, tuple(self.decrypt)
        )


class KeyPlace(Strict):
    """A place of a key: a file or an environment variable."""

    file: Path | None = Field(None, description="file that only the user of the process can read")
    env: str | None = Field(None, min_length=1, description="environment variable")

    @property
    def place(self) -> KeyringPlace:
        """What tasks get."""
        return KeyringPlace(None if self.file is None else str(self.file), self.env)


class KeyWrapSection(KeyPlace):
    """The key that unwraps those of the keyring."""

    type: str | None = Field(
        None,
        pattern=r"^[^:]+:[^:]+$",
        description="module:Class of your own that wraps and unwraps keys, such as with Vault or a KMS (KeyWrap in "
        "writer/privacy/keyring.py)",
    )
    options: dict[str, str] = Field(default_factory=dict, description="with `type`: what the class is made with")

    @model_validator(mode="after")
    def _one_place(self) -> "KeyWrapSection":
        if sum(source is not None for source in (self.file, self.env, self.type)) != 1:
            raise ValueError("give one of 'file', 'env' and 'type'")
        if self.options and self.type is None:
            raise ValueError("'options' goes with 'type'")
        return self

    @property
    def source(self) -> WrapSource:
        """What tasks get."""
        return WrapSource(None if self.type else self.place, self.type or "", tuple(self.options.items()))


class KekSection(KeyWrapSection):
    """A KEK: the secret of Confluent's local KMS in a file or an environment variable, or a class that asks a KMS."""


class Keys(KeyPlace):
    """The keyring: keys for hashes and encryption. Driver and executors read the same place.

    https://github.com/headrace/headrace/blob/main/docs/PRIVACY.md
    """

    wrap: KeyWrapSection | None = Field(None, description="how its keys are wrapped; default: they are as they are")

    @model_validator(mode="after")
    def _one_place(self) -> "Keys":
        if (self.file is None) == (self.env is None):
            raise ValueError("give either 'file' or 'env'")
        return self

    @property
    def source(self) -> KeySource:
        """Where the keys are."""
        return KeySource(self.place, None if self.wrap is None else self.wrap.source)
