"""Subjects of a topic by the strategy of its producers, and what of them a configuration may say."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.registry import Registry
from headrace.writer.schemas.registry import subjects
from headrace.writer.schemas.subjects import Subject, Subjects, fits, full_name, with_apicurio_groups
from tests.support.sample_records import config

CLICK, INSTALL = "com.shop.Click", "Install"


def configured(root: Path, given: Any, **pipeline: Any) -> Config:
    raw = config(root, **pipeline).model_dump()
    return Config.model_validate({**raw, "registry": {"url": "http://r", "subjects": given}})


def test_a_strategy_names_the_subjects_of_a_topic() -> None:
    records = {"clicks": [CLICK, INSTALL]}
    assert Subjects().of_topic("clicks") == [Subject("clicks-value")]
    assert Subjects("record_name", records).of_topic("clicks") == [Subject(CLICK, CLICK), Subject(INSTALL, INSTALL)]
    named = Subjects("topic_record_name", records).of_topic("clicks")
    assert named == [Subject(f"clicks-{CLICK}", CLICK), Subject(f"clicks-{INSTALL}", INSTALL)]
    assert Subjects("topic_record_name").of_topic("clicks") is None, "the registry's list tells them"


@pytest.mark.parametrize("strategy", ["topic_name", "record_name", "topic_record_name"])
def test_keys_are_by_the_name_of_the_topic(strategy: Any) -> None:
    assert Subjects(strategy, {"clicks": [CLICK]}).of_keys().of_topic("clicks") == [Subject("clicks-key")]


def test_of_a_list_those_of_another_topic_are_left_out() -> None:
    listed = ["clicks-com.shop.Click", "clicks-value", "clicks-eu-com.shop.Click", "clicks2-X", "clicks-", "clicks-1x"]
    found = Subjects("topic_record_name").choose("clicks", [("default", name) for name in listed])
    assert found == [Subject("clicks-com.shop.Click", CLICK), Subject("clicks-value", "value")]
    assert Subjects("topic_record_name").choose("clicks", [("com.shop", "clicks-Click"), ("a-b", "clicks-Click")]) == [
        Subject("clicks-Click", CLICK, "com.shop")
    ]
    assert Subjects("topic_record_name").choose("clicks-eu", [("default", listed[2])]) == [Subject(listed[2], CLICK)]


def test_apicurio_s_own_serializers_have_a_group_for_each_namespace() -> None:
    named = Subjects("topic_record_name", {"clicks": [CLICK, INSTALL]}).of_topic("clicks")
    assert with_apicurio_groups(named or []) == [
        Subject("clicks-com.shop.Click", CLICK), Subject("clicks-Click", CLICK, "com.shop"),
        Subject("clicks-Install", INSTALL),
    ]  # fmt: skip
    assert with_apicurio_groups([Subject("clicks-value")]) == [Subject("clicks-value")]


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "record", "name": "Click", "namespace": "com.shop", "fields": []}, CLICK),
        ({"type": "record", "name": CLICK, "namespace": "ignored", "fields": []}, CLICK),
        ({"type": "record", "name": "Click", "namespace": "", "fields": []}, "Click"),
        ("string", None), (["null", "string"], None),
    ],
)  # fmt: skip
def test_a_schema_has_a_full_name_or_none(schema: Any, name: str | None) -> None:
    assert full_name(json.dumps(schema)) == name
    assert fits(Subject("s"), json.dumps(schema))
    assert fits(Subject("s", CLICK), json.dumps(schema)) == (name == CLICK)
    assert full_name("no schema") is None


def test_a_protobuf_schema_has_the_name_of_its_first_message_and_is_of_each_that_it_defines() -> None:
    text = 'syntax = "proto3"; package com.shop; message Click { message Place {} string at = 1; } message Install {}'
    assert full_name(text) == CLICK
    assert fits(Subject("s"), text)
    assert fits(Subject("s", CLICK), text)
    assert fits(Subject("s", "com.shop.Install"), text)
    assert not fits(Subject("s", "com.shop.Place"), text)
    assert full_name("message Click {}") == "Click"
    assert full_name('syntax = "proto3";') is None


def test_a_configuration_says_them_in_short_or_in_full(tmp_path: Path) -> None:
    short = configured(tmp_path, "topic_record_name").registry
    assert subjects(short).describe(["clicks", "views"]) == (
        "clicks-<full name of a record>, views-<full name of a record>"
    )
    full = configured(tmp_path, {"strategy": "record_name", "records": {"clicks": [CLICK, INSTALL]}}).registry
    assert subjects(full).describe(["clicks"]) == f"{CLICK}, {INSTALL}"
    assert subjects(Registry.model_validate({"url": "http://r"})).describe(["clicks"]) == "clicks-value"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            "record_name",
            "strategy record_name needs 'records', as nothing in a registry says which records",
        ),
        ({"records": {"clicks": [CLICK]}}, "strategy topic_name has no 'records'"),
        ({"strategy": "record_name", "records": {"clicks": []}}, "'records' names none of topic 'clicks'"),
        ({"strategy": "record_name", "records": {"clicks": ["com.shop-Click"]}}, "no full name of a record"),
        ({"strategy": "record_name", "records": {"click": [CLICK]}}, "names no record of topic 'clicks'"),
        (
            {"strategy": "topic_record_name", "records": {"click": [CLICK]}},
            "no pipeline reads topic 'click'; did you mean 'clicks'",
        ),
        ("RecordNameStrategy", "Input should be 'topic_name', 'record_name' or 'topic_record_name'"),
    ],
)
def test_subjects_that_cannot_be_are_refused_with_a_sentence(tmp_path: Path, given: Any, problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        configured(tmp_path, given)
    assert problem in str(refused.value)


def test_files_have_no_subjects() -> None:
    with pytest.raises(ValidationError, match="'subjects' goes with 'url'"):
        Registry.model_validate({"files": {1: "a.avsc"}, "subjects": "topic_record_name"})
