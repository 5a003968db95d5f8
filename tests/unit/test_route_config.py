"""The section `route` of a configuration: rules in order, locations made of names, what contradicts itself."""

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.writer.batch.route import RouteRule
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.routing import RouteSection, Target


def section(**given: Any) -> RouteSection:
    return RouteSection.model_validate({"targets": {"a": "/lake/a"}, **given})


def pipeline(**given: Any) -> Pipeline:
    base = {
        "topics": ["t"],
        "table": {"location": "/lake/log"},
        "event_time": {"field": "at"},
        "seal": {"enabled": False},
    }
    return Pipeline.model_validate({**base, **given})


def test_a_route_reads_more_at_once_so_that_each_table_gets_more_rows_at_once() -> None:
    one, many = pipeline(), pipeline(route={"targets": {"a": "/lake/a"}})
    assert (one.arrow_batch_records, one.arrow_batch_bytes) == (25_000, 16 * 2**20)
    assert (many.arrow_batch_records, many.arrow_batch_bytes) == (400_000, 64 * 2**20)


def test_names_go_before_patterns_and_patterns_in_their_order() -> None:
    found = section(targets={"*": "/lake/rest", "com.*": "/lake/{name}", "com.x": "/lake/x", "[ab]": "/lake/ab"})
    assert found.rules == [
        RouteRule("com.x", "com.x"), RouteRule("*", "*"), RouteRule("com.*", None), RouteRule("[ab]", "[ab]"),
    ]  # fmt: skip
    assert found.fixed == {"*": "/lake/rest", "com.x": "/lake/x", "[ab]": "/lake/ab"}
    assert found.rule_of("com.x") == "com.x"
    assert section().rule_of("b") is None


@pytest.mark.parametrize(
    ("template", "name", "location"),
    [
        ("s3://lake/{namespace}/{name}", "com.shop.Click", "s3://lake/com.shop/Click"),
        ("s3://lake/{namespace}/{name}", "Click", "s3://lake/default/Click"),
        ("/lake/{full_name}", "a/b c.D", "/lake/a_b_c.D_00d3becc78183258"),
        ("/lake/{full_name}", "../../etc", "/lake/etc_74ccf3c5b4c19a81"),
        ("/lake/{name}", "_hidden", "/lake/hidden_7a1f9c0915c0cffa"),
        ("/lake/{name}", "été", "/lake/t__bd010c64132bf5ca"),
        ("/lake/all", "x", "/lake/all"),
    ],
)
def test_a_location_is_made_of_a_name_that_file_systems_and_engines_take(
    template: str, name: str, location: str
) -> None:
    assert Target.model_validate(template).location_of(name) == location


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"targets": {"a": "lake/{name}"}}, "'lake/x' is relative"),
        ({"targets": {"a": "/lake/{nam}"}}, "{nam} is not known; did you mean 'name'?"),
        ({"targets": {}}, "at least 1 item"),
        ({"unrouted": "b"}, "'b' is neither dead_letters nor stop, nor one table of `targets`"),
        ({"targets": {"a.*": "/lake/{name}"}, "unrouted": "a.*"}, "neither dead_letters nor stop"),
        ({"by": {"header": "x", "field": "y"}}, "route by one"),
        ({"by": "records"}, "'record' or 'topic'"),
    ],
)
def test_a_route_that_cannot_be_is_refused_with_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        section(**given)
    assert words in str(refused.value)


def test_by_names_the_source_of_a_table_name() -> None:
    assert section().by_key == ("record", "")
    assert section(by={"header": "type"}).by_key == ("header", "type")
    assert section(by={"field": "a.b"}).by_key == ("field", "a.b")


def test_a_target_has_what_it_is_given_and_else_what_the_pipeline_has() -> None:
    given = {"a": {"location": "/lake/a", "format": "parquet", "retention": "400 d"}, "b.*": "/lake/{name}"}
    found = pipeline(route={"targets": given}, retention="500 d")
    a, b = found.of_target("a", "a"), found.of_target("b.*", "b.c")
    assert (a.table.location, a.table.format, a.retention.days if a.retention else 0) == ("/lake/a", "parquet", 400)
    assert (b.table.location, b.table.format, b.retention.days if b.retention else 0) == ("/lake/c", "delta", 500)
    assert a.dead_letters == b.dead_letters == found.dead_letters == "/lake/log_dead_letters"
    assert found.locations == ["/lake/log", "/lake/log_dead_letters", "/lake/a"]


def test_the_settings_of_a_target_are_held_against_each_other() -> None:
    with pytest.raises(ValidationError) as refused:
        pipeline(route={"targets": {"a": {"location": "/lake/a", "retention": "1 d"}}})
    assert "route.targets.a: retention 1 d is shorter than event_time.max_age 365 d" in str(refused.value)


def test_hooks_of_several_tables_name_each_its_own() -> None:
    trino = {
        "type": "trino", "url": "http://trino:8080", "table": "delta.lake.{name}", "location": "s3://b/{namespace}/{name}"
    }  # fmt: skip
    druid = {"type": "druid", "url": "http://druid:8081"}
    route = {"targets": {"com.shop.Click": "/lake/clicks", "com.*": "/lake/{name}"}}
    one = pipeline(route=route, hooks=[trino, druid])
    found = one.of_target("com.*", "com.pay.Bill-2").hooks
    assert [getattr(hook, "table", None) or hook.datasource for hook in found] == ["delta.lake.Bill___2", "Bill___2"]
    assert getattr(found[0], "location", None) == "s3://b/com.pay/Bill-2", "as the folder of the table is called"
    with pytest.raises(
        ValueError, match=r"table delta\.lake\.x would be that of com\.shop\.Click and com\.\*; write \{name\}"
    ):
        pipeline(route=route, hooks=[{**trino, "table": "delta.lake.x"}])
    with pytest.raises(ValueError, match="stands for a table of a route, and there is none"):
        pipeline(hooks=[trino])
