"""What the hook of Dagster asks, and what it makes of the answers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.writer.config.sections.hooks import Dagster
from headrace.writer.core.http import RequestFailed
from headrace.writer.hooks.base import HookFailed, Receipt
from headrace.writer.hooks.dagster import DagsterHook
from tests.servers.scripted import Reply, Scripted, serve_script
from tests.support.dagster_api import ASSET, DagsterApi
from tests.support.sealed_version import sealed_version as sealed


@pytest.fixture
def api() -> DagsterApi:
    return DagsterApi()


@pytest.fixture
def server(api: DagsterApi) -> Iterator[Scripted]:
    with serve_script(api) as server:
        yield server


def hook(server: Scripted, **settings: str) -> DagsterHook:
    return DagsterHook(Dagster(type="dagster", url=server.url, timeout="2 s", **{"asset": ASSET, **settings}))


def test_a_materialisation_has_partition_data_version_and_what_happened(server: Scripted, api: DagsterApi):
    dagster = hook(server)
    receipt = dagster.deliver(sealed(), {})
    dagster.deliver(sealed(version=2, entry=12), {})
    dagster.deliver(replace(sealed(version=2, entry=15), retired=True), {})
    first, again, retired = api.materializations
    assert (first["asset"], first["partition"]) == (ASSET, "2026-11-20T05")
    assert receipt == Receipt(f"data version {first['data_version']}")
    assert first["description"] == "hour=2026-11-20T05 sealed, version 1"
    assert first["metadata"] == sealed().facts()
    assert [report["metadata"]["reason"] for report in api.materializations] == ["sealed", "sealed again", "retired"]
    assert retired["metadata"]["rows"] == 0
    versions = [report["data_version"] for report in (first, again, retired)]
    assert [version[:3] for version in versions] == ["v1-", "v2-", "v2-"]
    assert len(set(versions)) == 3


def test_a_report_whose_answer_was_lost_is_not_made_twice(server: Scripted, api: DagsterApi):
    api.lost = [Reply(502, b"Bad Gateway")]
    dagster = hook(server)
    with pytest.raises(HookFailed, match="502: Bad Gateway"):
        dagster.deliver(sealed(), {})
    for process in (dagster, hook(server)):
        assert process.deliver(sealed(), {}).summary.endswith("was there")
    assert len(api.materializations) == 1


def test_dimensions_of_a_partition_are_in_the_order_of_their_names(server: Scripted, api: DagsterApi):
    api.assets[ASSET] = {"type": "MULTIPARTITIONED", "fmt": None, "name": None}
    hook(server).deliver(sealed(("2026-11-20T05", "DE")), {})
    assert [report["partition"] for report in api.materializations] == ["DE|2026-11-20T05"]


def test_a_partition_of_a_dynamic_set_is_added_first(server: Scripted, api: DagsterApi):
    api.assets[ASSET] = {"type": "DYNAMIC", "fmt": None, "name": "hours"}
    hook(server).deliver(sealed(), {})
    hook(server).deliver(sealed(version=2, entry=12), {})
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "defs"}
    assert api.added == [{"repository": selector, "definition": "hours", "key": "2026-11-20T05"}] * 2
    assert len(api.materializations) == 2


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        (
            {"type": "TIME_WINDOW", "fmt": "%Y-%m-%d-%H:%M"},
            r"written as %Y-%m-%d-%H:%M, and the bucket is 2026-11-20T05",
        ),
        (None, "has no partitions; give its definition a partitions_def"),
    ],
)
def test_an_asset_that_has_no_such_partition_is_refused(
    server: Scripted, api: DagsterApi, definition: dict[str, Any] | None, sentence: str
):
    api.assets[ASSET] = definition
    with pytest.raises(HookFailed, match=sentence):
        hook(server).deliver(sealed(), {})
    assert not api.materializations


def test_an_asset_that_no_code_location_has_is_not_made_by_a_report(server: Scripted, api: DagsterApi):
    dagster = hook(server, asset="lake/cliks")
    with pytest.raises(HookFailed, match="has no asset lake/cliks"):
        dagster.deliver(sealed(), {})
    with pytest.raises(HookFailed, match="has no asset lake/cliks"):
        dagster.report_audit(adds_up=True, metadata={})
    assert not api.materializations + api.checks


def test_a_part_of_a_key_may_have_any_character(server: Scripted, api: DagsterApi):
    api.assets["lake of 2026/clicks?"] = None
    hook(server, asset="lake of 2026/clicks?").report_audit(adds_up=True, metadata={})
    assert [check["asset"] for check in api.checks] == ["lake of 2026/clicks?"]


def test_the_token_of_dagster_plus_is_in_its_header_and_in_no_message(server: Scripted):
    dagster = hook(server, token="t0ken")
    dagster.deliver(sealed(), {})
    assert {request.headers["dagster-cloud-api-token"] for request in server.asked} == {"t0ken"}
    server.answer = lambda _: Reply(401, {"error": "Not authorized"})
    with pytest.raises(HookFailed, match=r"401.*\(user, password or token\)") as failure:
        dagster.deliver(sealed(entry=10), {})
    assert "t0ken" not in str(failure.value) + dagster.target + repr(dagster._settings)


def test_an_error_of_graphql_is_told(server: Scripted):
    server.answer = lambda _: Reply(200, {"errors": [{"message": "Cannot query field"}], "data": None})
    with pytest.raises(HookFailed, match="refused a query: Cannot query field"):
        hook(server).deliver(sealed(), {})


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"data": {}}', b"null", b'"x"'])
def test_another_server_is_a_failure_that_is_told(body: bytes):
    with serve_script(lambda _: Reply(200, body)) as server:
        with pytest.raises(HookFailed):
            hook(server).deliver(sealed(), {})
        with pytest.raises(HookFailed):
            hook(server).report_audit(adds_up=True, metadata={})


def test_a_page_of_html_is_a_failure_that_is_told():
    with serve_script(lambda _: Reply(200, b"<html>")) as server, pytest.raises(RequestFailed, match="not JSON"):
        hook(server).deliver(sealed(), {})


@pytest.mark.parametrize("asset", ["", "/clicks", "lake//clicks", "lake/"])
def test_a_key_with_an_empty_part_is_refused(asset: str):
    with pytest.raises(ValidationError, match="asset"):
        Dagster(type="dagster", url="http://dagster:3000", asset=asset)
