"""Section of the AWS Glue Schema Registry: which registry it is, and how it names the schemas of topics."""

import re
from typing import ClassVar

from pydantic import Field, field_validator

from headrace.writer.config.base import ShortForm

# What AWS allows in a name, besides the words of a pattern.
_NAME = re.compile(r"[A-Za-z0-9_$.#*-]+")
TOPIC = "{topic}"
# Stands for all topics that have no names of their own.
EVERY_TOPIC = "*"


class GlueRegistry(ShortForm):
    """The AWS Glue Schema Registry. `glue: NAME` gives its `name`. Credentials come by the standard chain of AWS."""

    short: ClassVar[str] = "name"
    name: str = Field(
        "default-registry",
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9_$.#-]+$",
        description="name of the registry, as the producers' `registry.name`; ids are found whatever it is",
    )
    region: str | None = Field(
        None, min_length=1, description="default: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, else us-east-1"
    )
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/@?#\s]+/?$",
        description="URL of an endpoint of its own, such as that of a VPC; default: `AWS_ENDPOINT_URL_GLUE`, "
        "`AWS_ENDPOINT_URL`, else AWS's of the region",
    )
    schemas: dict[str, list[str]] = Field(
        default_factory=dict,
        description="topic, or `*` for all others → names of the schemas of its values; `{topic}` in a name stands for "
        "the topic, `*` for any text. Default: the topic's name, or as `subjects` says",
    )
    key_schemas: dict[str, list[str]] = Field(
        default_factory=dict,
        description="the same of keys, for `columns.key: avro`; default: `{topic}-key`",
    )

    @field_validator("schemas", "key_schemas")
    @classmethod
    def _names_of_schemas(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for topic, names in value.items():
            if not names:
                raise ValueError(f"topic {topic!r} has no name of a schema; name some, or leave the topic out")
            for name in names:
                if not _NAME.fullmatch(name.replace(TOPIC, "topic")):
                    raise ValueError(f"{name!r} is no name of a schema in AWS Glue: letters, digits and - _ $ . #")
        return value
