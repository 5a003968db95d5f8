"""What the hook of Airflow asks, and what it makes of the answers."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import ValidationError

from headrace.writer.config.sections.hooks import Airflow
from headrace.writer.core.http import RequestFailed
from headrace.writer.hooks.airflow import AirflowHook
from headrace.writer.hooks.base import HookFailed, Receipt
from tests.servers.scripted import Reply, Scripted, serve_script
from tests.support.airflow_api import ASSET, PASSWORD, USER, AirflowApi
from tests.support.sealed_version import START, sealed_version as sealed


@pytest.fixture
def api() -> AirflowApi:
    return AirflowApi()


@pytest.fixture
def server(api: AirflowApi) -> Iterator[Scripted]:
    with serve_script(api) as server:
        yield server


def hook(server: Scripted, **settings: str) -> AirflowHook:
    login = {"user": USER, "password": PASSWORD, "asset": ASSET, **settings}
    return AirflowHook(Airflow(type="airflow", url=server.url, timeout="2 s", **login))


def test_an_event_has_the_bucket_as_its_partition_and_what_happened_to_it(server: Scripted, api: AirflowApi):
    airflow = hook(server)
    assert airflow.deliver(sealed(), {}) == Receipt("event 1")
    airflow.deliver(sealed(version=2, entry=12), {})
    airflow.deliver(replace(sealed(version=2, entry=15), retired=True), {})
    first, again, retired = api.events
    assert (first["asset_id"], first["partition_key"]) == (7, "2026-11-20T05")
    assert first["extra"] == {
        "reason": "sealed",
        "version": 1,
        "rows": 30,
        "bucket": "hour=2026-11-20T05",
        "manifest": "/lake/clicks/_headrace/sealed/hour=2026-11-20T05/v1.json",
        "table": "/lake/clicks",
        "table_version": 9,
        "with_gap": False,
        "delivery": sealed().delivery_id,
    }
    assert (again["extra"]["reason"], again["extra"]["rows"]) == ("sealed again", 30)
    assert (retired["extra"]["reason"], retired["extra"]["rows"]) == ("retired", 0)
    assert len({event["extra"]["delivery"] for event in api.events}) == 3


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        (("2026-11-20T05", "DE"), "2026-11-20T05|DE"),
        (("a|b", "c"), "a%7Cb|c"),
        (("a", "b|c"), "a|b%7Cc"),
        (("a%7Cb", None), "a%257Cb|__HIVE_DEFAULT_PARTITION__"),
        (("a|b",), "a|b"),
    ],
)
def test_buckets_of_several_columns_have_keys_of_their_own(
    server: Scripted, api: AirflowApi, bucket: tuple[str | None, ...], key: str
):
    hook(server).deliver(sealed(bucket), {})
    assert [event["partition_key"] for event in api.events] == [key]


def test_a_bucket_whose_key_is_too_long_for_airflow_is_refused(server: Scripted, api: AirflowApi):
    with pytest.raises(HookFailed, match="has 251 characters, and Airflow takes 250"):
        hook(server).deliver(sealed(("x" * 251,)), {})
    assert not api.events


def test_an_event_whose_answer_was_lost_is_not_created_twice(server: Scripted, api: AirflowApi):
    airflow = hook(server)
    for bucket in ("04", "03"):
        airflow.deliver(sealed((f"2026-11-20T{bucket}",)), {})
    api.lost = [Reply(502, b"Bad Gateway")]
    with pytest.raises(HookFailed, match="502: Bad Gateway"):
        airflow.deliver(sealed(), {})
    airflow.deliver(sealed(("2026-11-20T06",)), {})
    for process in (airflow, hook(server)):
        assert process.deliver(sealed(), {}) == Receipt("event 3 was there")
    assert len(api.events) == 4


def test_an_event_is_found_behind_pages_of_others_and_later_looks_read_the_newest_alone(
    server: Scripted, api: AirflowApi
):
    api.page = 7
    writer = hook(server)
    for number in range(30):
        writer.deliver(sealed(entry=100 + number), {})
        # Ten minutes between two events, so that a later look need not read those before.
        api.events[-1]["timestamp"] = (START + timedelta(minutes=10 * number)).isoformat()
    reader = hook(server)
    assert reader.deliver(sealed(entry=100), {}) == Receipt("event 1 was there")
    before = len(server.asked)
    assert reader.deliver(sealed(entry=101), {}) == Receipt("event 2 was there")
    assert [request.path.count("/assets/events?") for request in server.asked[before:]] == [1]
    assert len(api.events) == 30


def test_a_token_that_ended_is_asked_for_anew(server: Scripted, api: AirflowApi):
    airflow = hook(server)
    airflow.deliver(sealed(), {})
    airflow.deliver(sealed(entry=10), {})
    assert api.logins == 1
    api.expired = list(api.tokens)
    airflow.deliver(sealed(entry=11), {})
    assert api.logins == 2
    # Airflow started again with another key.
    api.tokens.clear()
    airflow.deliver(sealed(entry=12), {})
    assert api.logins == 3
    assert len(api.events) == 4


def test_a_user_without_the_right_is_told_and_logs_in_once_for_each_attempt(server: Scripted, api: AirflowApi):
    airflow = hook(server)
    airflow.deliver(sealed(), {})
    server.answer = lambda asked: (
        Reply(403, {"detail": "Forbidden"}) if asked.method == "POST" and "assets" in asked.path else api(asked)
    )
    with pytest.raises(HookFailed, match=r"created no event: 403.*role Op"):
        airflow.deliver(sealed(entry=10), {})
    assert api.logins == 2
    assert len(api.events) == 1


def test_a_login_that_airflow_refuses_is_told_without_the_password(server: Scripted, api: AirflowApi):
    airflow = hook(server, password="wr0ng")
    with pytest.raises(HookFailed, match="gives headrace no token: 401") as failure:
        airflow.deliver(sealed(), {})
    assert "wr0ng" not in str(failure.value) + airflow.target + repr(airflow._settings)
    static = AirflowHook(Airflow(type="airflow", url=server.url, asset=ASSET, token="t0ken"))
    with pytest.raises(HookFailed, match=r"403.*Invalid JWT token") as failure:
        static.deliver(sealed(), {})
    assert "t0ken" not in str(failure.value)
    with pytest.raises(HookFailed, match=r"401.*\(user, password or token\)"):
        AirflowHook(Airflow(type="airflow", url=server.url, asset=ASSET)).deliver(sealed(), {})
    api.tokens.append("t0ken")
    assert isinstance(static.deliver(sealed(), {}), Receipt)


@pytest.mark.parametrize("version", ["2.11.2", "3.0.6", "3.1.8", "2.10.5+composer", "none"])
def test_an_airflow_without_partition_keys_is_named(server: Scripted, api: AirflowApi, version: str):
    api.version = version
    with pytest.raises(HookFailed, match=f"is Airflow {version.replace('+', '.')}, .* use 3.2 or newer"):
        hook(server).deliver(sealed(), {})
    assert not api.events


@pytest.mark.parametrize("version", ["3.2.0", "3.2.0rc1", "3.10.0"])
def test_an_airflow_with_partition_keys_is_taken(server: Scripted, api: AirflowApi, version: str):
    api.version = version
    hook(server).deliver(sealed(), {})
    assert len(api.events) == 1


def test_an_asset_is_found_by_all_of_its_uri_or_name(server: Scripted, api: AirflowApi):
    api.assets = [
        {"id": 1, "uri": "s3://lake/clicks_2", "name": "clicks_2"},
        {"id": 2, "uri": "s3://lake/clicks", "name": "clicks of the shop"},
    ]
    hook(server).deliver(sealed(), {})
    hook(server, asset="clicks of the shop").deliver(sealed(entry=10), {})
    assert [event["asset_id"] for event in api.events] == [2, 2]
    with pytest.raises(HookFailed, match="has no active asset with the URI or name 'clicks'"):
        hook(server, asset="clicks").deliver(sealed(), {})


def test_an_asset_that_airflow_made_anew_is_looked_for_again(server: Scripted, api: AirflowApi):
    airflow = hook(server)
    airflow.deliver(sealed(), {})
    api.assets = [{"id": 8, "uri": ASSET, "name": "clicks"}]
    with pytest.raises(HookFailed, match="created no event: 404"):
        airflow.deliver(sealed(entry=10), {})
    airflow.deliver(sealed(entry=10), {})
    assert [event["asset_id"] for event in api.events] == [7, 8]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"version": 3}', b"null", b'"x"'])
def test_another_server_is_a_failure_that_is_told(body: bytes):
    with serve_script(lambda _: Reply(200, body)) as server, pytest.raises(HookFailed):
        hook(server).deliver(sealed(), {})


def test_a_page_of_html_is_a_failure_that_is_told():
    with serve_script(lambda _: Reply(200, b"<html>")) as server, pytest.raises(RequestFailed, match="not JSON"):
        hook(server).deliver(sealed(), {})


def test_a_user_needs_a_password():
    with pytest.raises(ValidationError, match="needs a 'password'"):
        Airflow(type="airflow", url="http://airflow:8080", asset="clicks", user="me")
