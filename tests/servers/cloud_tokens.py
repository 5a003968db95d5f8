"""Who gives tokens for Google Cloud Storage and Azure Blob Storage, played on one port of loopback.

Google's metadata server and its token endpoint for service accounts; Azure's token endpoint for a client's secret and
for a workload's federated token, and its managed identity. Tokens carry their end and a signature, so that the
servers of the stores, which are other processes, know those that live.
"""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from tests.servers.token_server import JWT_GRANT, JWT_PROOF, SigningKey

# Whose tokens they are.
GCS = "gcs"
AZURE = "azure"
GCP_METADATA = "gcp_metadata"
GCP_SERVICE_ACCOUNT = "gcp_service_account"
AZURE_CLIENT_SECRET = "azure_client_secret"
AZURE_FEDERATED = "azure_federated"
AZURE_MANAGED_IDENTITY = "azure_managed_identity"
KINDS = (GCP_METADATA, GCP_SERVICE_ACCOUNT, AZURE_CLIENT_SECRET, AZURE_FEDERATED, AZURE_MANAGED_IDENTITY)

TENANT_ID = "7a3c1d52-0000-4000-8000-headrace0001"
CLIENT_ID = "2f5b9a10-0000-4000-8000-headrace0002"
CLIENT_SECRET = "canary~client.secret_of-azure"
SERVICE_ACCOUNT = "writer@headrace-test.iam.gserviceaccount.com"
# In each token, and in nothing else.
TOKEN_CANARY = "canary-token-of-a-cloud"
# What no log, message or screen may hold.
CANARIES = (CLIENT_SECRET, TOKEN_CANARY)
_TOKEN_KEY = b"signs the tokens of the tests"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/"
# Google's client in Java names it whatever the key's file says.
_GOOGLE_TOKEN_URL = "https://oauth2.googleapis.com/token"
_GCS_AUDIENCE = "https://storage.googleapis.com/"
_AZURE_SCOPE = "https://storage.azure.com"


def make_token(cloud: str, end_s: float) -> str:
    """Return a token for a cloud's store, good until `end_s`, in seconds since 1970."""
    content = f"{TOKEN_CANARY}.{cloud}.{int(end_s * 1_000)}.{secrets.token_hex(4)}"
    return f"{content}.{_signature(content)}"


def is_live(token: str, cloud: str, now_s: float | None = None) -> bool:
    """Return whether a token is of this cloud, genuine, and has not ended."""
    content, _, signature = token.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(content).encode()):
        return False
    _, token_cloud, end_ms, _ = content.split(".")
    return token_cloud == cloud and int(end_ms) > (now_s or time.time()) * 1_000


def is_self_signed(token: str, public_key: str, now_s: float | None = None) -> bool:
    """Return whether a token is a JWT of the service account, signed by its key and not ended. `public_key`: in PEM."""
    now_s = now_s or time.time()
    content, _, signature = token.rpartition(".")
    try:
        key = load_pem_public_key(public_key.encode())
        assert isinstance(key, rsa.RSAPublicKey)
        key.verify(_bytes_of(signature), content.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_bytes_of(content.partition(".")[2]))
    except (ValueError, InvalidSignature):
        return False
    is_ours = claims.get("iss") == claims.get("sub") == SERVICE_ACCOUNT
    is_scope = str(claims.get("scope", claims.get("aud", ""))).startswith((_GOOGLE_SCOPE, _GCS_AUDIENCE))
    return is_ours and is_scope and claims.get("iat", 0) - 60 < now_s < claims.get("exp", 0)


def _bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _signature(content: str) -> str:
    return hmac.new(_TOKEN_KEY, content.encode(), hashlib.sha256).hexdigest()


class CloudTokens:
    """The services. Attributes may be changed while they run. `given` and `refused`: kind → how often."""

    def __init__(self, life_s: float) -> None:
        self.life_s = life_s
        # So many questions are answered with 503.
        self.failures = 0
        # Each answer comes so late, in seconds.
        self.delay_s = 0.0
        # It says of tokens that have ended that they live.
        self.gives_ended_tokens = False
        self.given = Counter[str]()
        self.refused = Counter[str]()
        self.tokens: list[str] = []
        self.url = ""
        self._lock = threading.Lock()

    @cached_property
    def account_key(self) -> SigningKey:
        """The key of the service account."""
        return SigningKey()

    @cached_property
    def workload_key(self) -> SigningKey:
        """The key of who signs the tokens of workloads."""
        return SigningKey()

    @property
    def host(self) -> str:
        """Address and port."""
        return urlsplit(self.url).netloc

    @property
    def public_key(self) -> str:
        """The service account's public key: object_store signs its tokens by itself, and asks for none."""
        key = self.account_key.key.public_key()
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def private_key(self) -> str:
        """The service account's private key, as its file has it: a canary too."""
        return self.account_key.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def service_account_file(self, folder: Path) -> Path:
        """Write the key file of a service account, whose tokens come from here."""
        path = folder / "service-account.json"
        document = {
            "type": "service_account",
            "project_id": "headrace-test",
            "private_key_id": self.account_key.id,
            "private_key": self.private_key,
            "client_email": SERVICE_ACCOUNT,
            "client_id": "100000000000000000001",
            "token_uri": f"{self.url}/google/token",
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def federated_token_file(self, folder: Path, life_s: float = 3_600) -> Path:
        """Write the token of a workload, as Kubernetes projects it."""
        path = folder / "federated-token"
        claims = {"iss": "https://kubernetes.headrace.test", "sub": CLIENT_ID, "exp": int(time.time() + life_s)}
        path.write_text(self.workload_key.sign(claims), encoding="utf-8")
        return path

    def environment(self, kind: str, folder: Path) -> dict[str, str]:
        """Return the variables by which clients find the credentials of a kind. `folder`: where files may lie."""
        tenant = {"AZURE_TENANT_ID": TENANT_ID, "AZURE_CLIENT_ID": CLIENT_ID, "AZURE_AUTHORITY_HOST": self.url}
        match kind:
            case "gcp_metadata":
                # The last one is Arrow's.
                return dict.fromkeys(("GCE_METADATA_HOST", "METADATA_HOST", "GCE_METADATA_ROOT"), self.host)
            case "gcp_service_account":
                return {"GOOGLE_APPLICATION_CREDENTIALS": str(self.service_account_file(folder))}
            case "azure_client_secret":
                return {**tenant, "AZURE_CLIENT_SECRET": CLIENT_SECRET}
            case "azure_federated":
                return {**tenant, "AZURE_FEDERATED_TOKEN_FILE": str(self.federated_token_file(folder))}
            case "azure_managed_identity":
                # object_store takes the second; Azure's own clients take the first.
                url = f"{self.url}/metadata/identity/oauth2/token"
                return {"IDENTITY_ENDPOINT": url, "AZURE_MSI_ENDPOINT": url}
        raise ValueError(f"{kind} is none of {', '.join(KINDS)}")

    def answer(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer a question for a token. `fields`: of the query and of the form."""
        time.sleep(self.delay_s)
        with self._lock:
            if self.failures > 0:
                self.failures -= 1
                return 503, {"error": "temporarily_unavailable"}
        kind = _kind_of(path, fields)
        if not kind:
            return 404, {"error": "not_found"}
        if not self._is_proven(kind, fields, headers):
            with self._lock:
                self.refused[kind] += 1
            return 401, {"error": "invalid_client", "error_description": "the proof is wrong"}
        return 200, self._give(kind)

    def _give(self, kind: str) -> dict[str, Any]:
        cloud = kind.partition("_")[0].replace("gcp", GCS)
        end_s = time.time() + self.life_s
        token = make_token(cloud, time.time() - 1 if self.gives_ended_tokens else end_s)
        with self._lock:
            self.given[kind] += 1
            self.tokens.append(token)
        life_s = int(self.life_s)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": life_s, "expires_on": int(end_s)}
        if kind == AZURE_MANAGED_IDENTITY:
            # It answers numbers as texts.
            answer |= {"expires_in": str(life_s), "expires_on": str(int(end_s)), "resource": _AZURE_SCOPE}
        return answer

    def _is_proven(self, kind: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> bool:
        is_client = fields.get("client_id") == CLIENT_ID
        match kind:
            case "gcp_metadata":
                return headers.get("metadata-flavor") == "Google"
            case "gcp_service_account":
                claims = _claims(self.account_key, fields.get("assertion", ""))
                audiences = (f"{self.url}/google/token", _GOOGLE_TOKEN_URL)
                is_ours = claims.get("iss") == SERVICE_ACCOUNT and claims.get("aud") in audiences
                return is_ours and str(claims.get("scope", "")).startswith(_GOOGLE_SCOPE)
            case "azure_client_secret":
                is_secret = hmac.compare_digest(fields.get("client_secret", ""), CLIENT_SECRET)
                return is_client and is_secret and fields.get("scope", "").startswith(_AZURE_SCOPE)
            case "azure_federated":
                is_workload = _claims(self.workload_key, fields.get("client_assertion", "")).get("sub") == CLIENT_ID
                is_jwt = fields.get("client_assertion_type") == JWT_PROOF
                return is_client and is_workload and is_jwt and fields.get("scope", "").startswith(_AZURE_SCOPE)
        # A managed identity is proven by where the question comes from.
        return headers.get("metadata") == "true" and fields.get("resource", "").startswith(_AZURE_SCOPE)


def _kind_of(path: str, fields: Mapping[str, str]) -> str:
    if path.startswith("/computeMetadata/v1/instance/service-accounts/default/token"):
        return GCP_METADATA
    if path == "/google/token" and fields.get("grant_type") == JWT_GRANT:
        return GCP_SERVICE_ACCOUNT
    if path == f"/{TENANT_ID}/oauth2/v2.0/token":
        return AZURE_FEDERATED if "client_assertion" in fields else AZURE_CLIENT_SECRET
    if path == "/metadata/identity/oauth2/token":
        return AZURE_MANAGED_IDENTITY
    return ""


def _claims(key: SigningKey, assertion: str) -> dict[str, Any]:
    """Return the claims of an assertion that a key has signed and that has not ended; none otherwise."""
    try:
        claims = key.verify(assertion)
    except (ValueError, InvalidSignature):
        return {}
    return claims if claims.get("exp", 0) > time.time() else {}


@contextmanager
def cloud_tokens(life_s: float = 3_600) -> Iterator[CloudTokens]:
    """Run the services until the end of the block. `life_s`: of their tokens."""
    services = CloudTokens(life_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            fields = dict(parse_qsl(url.query)) | dict(parse_qsl(body))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, document = services.answer(url.path, fields, headers)
            answer = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            # By this header clients know the metadata server.
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _any  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    services.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield services
    finally:
        server.shutdown()
        server.server_close()
