"""What is decided about a Lease of Kubernetes, and what is said when its API does not do as it is asked."""

import copy
import re
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.checkpoints.checks import preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.cli.recover import supervisor
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.lease.factory import leases_of, pipeline_store, replaced_store_epoch
from headrace.writer.lease.kubernetes_api import Api, ApiFailed, in_pod
from headrace.writer.lease.kubernetes_lease import (
    PIPELINE,
    RELEASED_BY,
    KubernetesLeases,
    LeaseContent,
    PutLease,
    decide_release,
    decide_renewal,
    decide_take,
    lease_name,
    parse_record,
)
from headrace.writer.lease.lease import LeaseRecord, StoreLeases
from tests.servers.leases import LeaseApi, account, lease_api, refusal
from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.servers.secured import Authority
from tests.support.sample_records import config

NOW = datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
ABOUT = LeaseContent("headrace-clicks", "clicks", timedelta(seconds=20))
HELD: dict[str, Any] = {
    "metadata": {"name": "headrace-clicks", "uid": "u", "resourceVersion": "7", "labels": {"team": "x"}},
    "spec": {"holderIdentity": "a", "leaseTransitions": 4, "acquireTime": "2026-11-22T04:00:00.000000Z"},
}


def with_spec(**spec: object) -> dict[str, Any]:
    return {**copy.deepcopy(HELD), "spec": {**HELD["spec"], **spec}}


def body(decision: PutLease | None) -> dict[str, Any]:
    assert isinstance(decision, PutLease)
    return decision.body


# What is decided.


def test_a_lease_is_what_kubectl_shows() -> None:
    made = decide_take(None, None, 7, "driver-0/12", ABOUT, NOW)
    assert isinstance(made, PutLease)
    assert made.verb == "create"
    assert made.body["spec"] == {
        "holderIdentity": "driver-0/12", "leaseDurationSeconds": 20, "leaseTransitions": 7,
        "acquireTime": "2026-11-22T05:00:00.000000Z", "renewTime": "2026-11-22T05:00:00.000000Z",
    }  # fmt: skip
    assert made.body["metadata"]["annotations"] == {PIPELINE: "clicks"}


def test_only_a_higher_epoch_is_taken_and_only_from_what_was_looked_at() -> None:
    for epoch in (3, 4):
        assert decide_take(HELD, None, epoch, "b", ABOUT, NOW) is None
    assert isinstance(decide_take(HELD, None, 5, "b", ABOUT, NOW), PutLease)
    assert isinstance(decide_take(HELD, parse_record(HELD), 5, "b", ABOUT, NOW), PutLease)
    renewed = copy.deepcopy(HELD)
    renewed["metadata"]["resourceVersion"] = "8"
    assert decide_take(renewed, parse_record(HELD), 5, "b", ABOUT, NOW) is None, "its holder lives"


def test_a_renewal_keeps_what_others_wrote_and_when_it_was_taken() -> None:
    put = body(decide_renewal(HELD, 4, "a", ABOUT, NOW))
    assert put["metadata"]["labels"] == {"team": "x"}
    assert (put["metadata"]["uid"], put["metadata"]["resourceVersion"]) == ("u", "7")
    assert put["spec"]["acquireTime"] == "2026-11-22T04:00:00.000000Z"
    assert put["spec"]["renewTime"] == "2026-11-22T05:00:00.000000Z"
    assert "renewTime" not in HELD["spec"], "what was read is not changed"


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (HELD, False),
        (None, False),  # somebody removed it
        (with_spec(leaseTransitions=2, holderIdentity="x"), False),  # set back, as a restored etcd is
        (with_spec(leaseTransitions=5), True),
        (with_spec(holderIdentity="b"), True),  # two took this epoch, one of them after a removal
    ],
)
def test_a_holder_has_lost_to_a_higher_epoch_or_to_another_holder_of_its_own(found: Any, lost: bool) -> None:
    assert (decide_renewal(found, 4, "a", ABOUT, NOW) is None) is lost


def test_a_released_lease_keeps_the_epoch_and_names_the_last_holder() -> None:
    put = body(decide_release(HELD, 4, "a", NOW))
    assert put["spec"]["holderIdentity"] is None
    assert parse_record(put) == LeaseRecord(4, "a", ("u", "7"), released=True, taken_at=NOW - timedelta(hours=1))
    assert RELEASED_BY not in body(decide_take(put, None, 5, "b", ABOUT, NOW))["metadata"]["annotations"]
    for found in (None, with_spec(holderIdentity="b"), with_spec(leaseTransitions=5)):
        assert decide_release(found, 4, "a", NOW) is None


def test_a_lease_that_another_client_made_is_one_of_epoch_0() -> None:
    assert parse_record({"metadata": {"uid": "u", "resourceVersion": "1"}}) == LeaseRecord(
        0, "", ("u", "1"), released=True
    )


def test_pipelines_have_leases_of_their_own() -> None:
    names = ["clicks", "a-b", "a_b", "a__b", "a_", "a-", "0", "a_b-", "z" * 63]
    found = [lease_name("clicks-headrace", name) for name in names]
    assert found[:2] == ["clicks-headrace-clicks", "clicks-headrace-a-b"]
    assert len(set(found)) == len(names)
    assert all(name.strip("-") == name and name.replace("-", "").isalnum() for name in found)


# What is asked, and what is said.


@pytest.fixture
def api() -> Iterator[tuple[LeaseApi, str]]:
    with lease_api() as found:
        yield found


def leases(url: str, folder: Path) -> KubernetesLeases:
    return KubernetesLeases(Api(url, account(folder)), ABOUT)


def test_a_label_from_another_client_loses_no_lease(api: tuple[LeaseApi, str], tmp_path: Path) -> None:
    one = leases(api[1], tmp_path)
    assert one.take(4, "a")
    touched = api[0].objects["headrace-clicks"]
    touched["metadata"] |= {"resourceVersion": "900", "labels": {"team": "x"}}
    assert one.renew(4, "a")
    assert api[0].objects["headrace-clicks"]["metadata"]["labels"] == {"team": "x"}


def test_a_renewal_is_one_question(api: tuple[LeaseApi, str], tmp_path: Path) -> None:
    one, asked = leases(api[1], tmp_path), []
    assert one.take(4, "a")
    before = api[0].answer

    def counted(found: HttpRequest) -> Reply:
        asked.append(found.method)
        return before(found)

    with serve_script(counted) as script:
        one._api = Api(script.url, tmp_path)
        assert one.renew(4, "a")
    assert asked == ["PUT"]


def test_an_answer_that_is_lost_loses_no_lease(api: tuple[LeaseApi, str], tmp_path: Path) -> None:
    """The API has put it, and nobody heard of it: the next renewal looks."""
    broken = [False]

    def answer(asked: HttpRequest) -> Reply:
        reply = api[0].answer(asked)
        return refusal(504, "timeout") if asked.method == "PUT" and broken.pop() else reply

    with serve_script(answer) as script:
        one = leases(script.url, tmp_path)
        assert one.take(4, "a")
        broken[:] = [False, True]
        with pytest.raises(ApiFailed, match="504: timeout"):
            one.renew(4, "a")
        assert one.renew(4, "a")


def test_a_lease_that_never_stands_still_is_said(tmp_path: Path) -> None:
    def answer(asked: HttpRequest) -> Reply:
        return Reply(200, HELD) if asked.method == "GET" else refusal(409, "the object has been modified")

    with (
        serve_script(answer) as script,
        pytest.raises(ApiFailed, match=r"changed by others 5 times.*kubectl get lease"),
    ):
        leases(script.url, tmp_path).renew(4, "a")


def test_the_token_is_read_anew_for_each_question(api: tuple[LeaseApi, str], tmp_path: Path) -> None:
    one = leases(api[1], tmp_path)
    account(tmp_path, token="of-yesterday")
    with pytest.raises(ApiFailed, match=r"cannot get lease headrace-clicks of namespace lake .*401.*token .* is not"):
        one.look()
    account(tmp_path)
    assert one.look() is None


FORBIDDEN = 'leases "headrace-clicks" is forbidden: User "system:serviceaccount:lake:x" cannot do that'
ASKED: dict[str, Callable[[KubernetesLeases], object]] = {
    "get": KubernetesLeases.look, "create": lambda one: one.take(1, "a"), "update": lambda one: one.take(5, "b"),
}  # fmt: skip


@pytest.mark.parametrize("verb", ASKED)
def test_a_forbidden_request_names_the_verb_that_the_role_lacks(verb: str, tmp_path: Path) -> None:
    there = {"get": None, "create": refusal(404, "not found"), "update": Reply(200, HELD)}[verb]
    with serve_script(lambda asked: there if there and asked.method == "GET" else refusal(403, FORBIDDEN)) as script:
        asking = leases(script.url, tmp_path)
        with pytest.raises(ApiFailed) as failed:
            ASKED[verb](asking)
    said = str(failed.value)
    assert f"cannot {verb} lease headrace-clicks of namespace lake at {script.url}: 403: {FORBIDDEN}." in said
    assert f"the verb `{verb}` on leases of coordination.k8s.io with the name headrace-clicks" in said


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (refusal(500, "etcdserver: leader changed"), "500: etcdserver: leader changed. It is asked again."),
        (refusal(429, "too many"), "429: too many. It is asked again."),
        (refusal(422, "spec.x: Invalid"), "422: spec.x: Invalid. Look at the Lease with kubectl"),
        (Reply(502, b"<html>bad gateway</html>"), "the answer is not JSON: 502: <html>bad gateway</html>"),
        (Reply(200, b"[1]"), "200: [1] is no Lease. Does an API server of Kubernetes answer there?"),
    ],
)
def test_an_error_has_the_words_of_the_api_server(reply: Reply, said: str, tmp_path: Path) -> None:
    with serve_script(lambda _: reply) as script:
        one = leases(script.url, tmp_path)
        with pytest.raises(ApiFailed) as failed:
            one.look()
    assert said in str(failed.value)


def test_a_silent_api_server_or_a_missing_account_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiFailed, match=r"cannot reach http://127\.0\.0\.1:1: Connection refused\. It is asked again"):
        leases("http://127.0.0.1:1", tmp_path).look()
    (tmp_path / "token").unlink()
    with pytest.raises(ApiFailed, match=r"token cannot be read .*automountServiceAccountToken"):
        KubernetesLeases(Api("http://127.0.0.1:1", tmp_path), ABOUT).look()
    (tmp_path / "token").write_text("x")
    with pytest.raises(ApiFailed, match=r"ca\.crt is no authority to trust"):
        KubernetesLeases(Api("https://127.0.0.1:1", tmp_path), ABOUT).look()


def test_a_namespace_that_is_not_there_is_said(tmp_path: Path) -> None:
    with serve_script(lambda _: refusal(404, 'namespaces "lake" not found')) as script:
        one = leases(script.url, tmp_path)
        assert one.look() is None, "as where there is no Lease yet"
        with pytest.raises(ApiFailed, match=r'cannot create lease .*404: namespaces "lake" not found'):
            one.take(1, "a")


@pytest.mark.parametrize("token", ["", "to ken", "to\nken", "tökén"])
def test_a_file_that_holds_no_token_is_not_shown(token: str, tmp_path: Path) -> None:
    one = leases("http://127.0.0.1:1", tmp_path)
    (tmp_path / "token").write_text(token)
    with pytest.raises(ApiFailed, match="token holds no token") as failed:
        one.look()
    assert not token or token not in str(failed.value)


def test_only_the_server_of_the_pods_authority_is_told_the_token(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    shown = authority.certificate("api")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    api = LeaseApi()
    with serve_script(api.answer, tls=context) as script:
        files = account(tmp_path / "account", ca=other.ca.read_bytes())
        one = KubernetesLeases(Api(script.url, files), ABOUT)
        with pytest.raises(ApiFailed, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            one.look()
        assert script.asked == []
        account(files, ca=authority.ca.read_bytes())
        assert one.take(1, "a"), "the authority too is read anew"


# Where it is kept.


def settings(tmp_path: Path, lease: str = "kubernetes") -> Config:
    found = config(tmp_path)
    return found.model_copy(update={"supervisor": found.supervisor.model_copy(update={"lease": lease})})


def test_a_lease_is_kept_where_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(leases_of(settings(tmp_path, "store"), "clicks"), StoreLeases)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"supervisor\.lease is kubernetes, and this process runs in no pod"):
        leases_of(settings(tmp_path), "clicks")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert isinstance(leases_of(settings(tmp_path), "clicks"), KubernetesLeases)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "https://10.96.0.1:443"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.96.0.1:6443"),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT_HTTPS": "8443"}, "https://[fd00::1]:8443"),
    ],
)
def test_a_pod_finds_its_api(environment: dict[str, str], url: str) -> None:
    assert in_pod(environment).url == url


def test_a_move_into_kubernetes_goes_on_above_the_epoch_beside_the_checkpoints(tmp_path: Path) -> None:
    beside = pipeline_store(settings(tmp_path), "clicks")
    assert replaced_store_epoch(settings(tmp_path), beside) == 0
    for epoch in (1, 2, 3):
        assert StoreLeases(beside).take(epoch, "before")
    assert replaced_store_epoch(settings(tmp_path), beside) == 3
    assert replaced_store_epoch(settings(tmp_path, "store"), beside) == 0, "its own look says so"


def test_an_api_that_is_silent_is_said_and_holds_no_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT_HTTPS", raising=False)
    silent = re.compile("token cannot be read|namespace cannot be read|cannot reach")  # as this may run in a pod
    report = supervisor.explain_recovery(settings(tmp_path), ["clicks"])
    assert report.exit_code == 1
    assert silent.search(report.pipelines["clicks"].error or "")
    check = preflight(collect_pipeline_facts(settings(tmp_path), "clicks").facts)[0]
    assert (check.name, check.ok) == ("lease", None)
    assert silent.search(check.message)
