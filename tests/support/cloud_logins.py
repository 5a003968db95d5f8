"""Each kind of credentials for a cloud: how clients find them, what of them nothing may show, and how they end."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.servers.cloud_tokens import (
    AZURE_CLIENT_SECRET,
    AZURE_FEDERATED,
    CLIENT_SECRET,
    GCP_METADATA,
    GCP_SERVICE_ACCOUNT,
    TOKEN_CANARY,
    CloudTokens,
)

# How a writer proves itself to a cloud.
CLOUD_LOGINS = (
    "azure_sas", "azure_key", AZURE_CLIENT_SECRET, AZURE_FEDERATED, GCP_METADATA, GCP_SERVICE_ACCOUNT,
)  # fmt: skip
# What a client makes of a key or a federated token: no text of the product has one.
JWT = re.compile(r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}")


@dataclass(frozen=True)
class CloudLogin:
    """How clients log in to a cloud. `secrets`: what nothing may show. `refuse` ends that it is accepted."""

    environment: dict[str, str]
    secrets: list[str]
    refuse: Callable[[], None]


def cloud_login(kind: str, server: GcsStore | AzureStore, lake: str, tokens: CloudTokens, folder: Path) -> CloudLogin:
    """Return a login of a kind to a server. `folder`: for files with credentials."""
    match kind:
        case "azure_sas":
            assert isinstance(server, AzureStore)
            sas = server.sas(lake)
            (signature,) = parse_qs(sas)["sig"]
            variables = {"AZURE_STORAGE_SAS_TOKEN": sas}
            return CloudLogin(variables, [signature], lambda: server.tell(demand_tokens=True))
        case "azure_key":
            assert isinstance(server, AzureStore)
            secrets = [server.key, base64.b64decode(server.key).decode()]
            variables = {"AZURE_STORAGE_ACCOUNT_KEY": server.key}
            return CloudLogin(variables, secrets, lambda: server.tell(demand_tokens=True))
    variables = tokens.environment(kind, folder)
    server.tell(demand_tokens=True)
    secrets = [CLIENT_SECRET, TOKEN_CANARY]
    if kind == AZURE_FEDERATED:
        secrets.append(Path(variables["AZURE_FEDERATED_TOKEN_FILE"]).read_text(encoding="utf-8"))
    if kind == GCP_SERVICE_ACCOUNT:
        server.tell(public_key=tokens.public_key)
        # Without the first line and the last, which say what it is.
        lines = tokens.private_key.splitlines()[1:-1]
        return CloudLogin(variables, [*secrets, *lines], lambda: server.tell(public_key=""))
    return CloudLogin(variables, secrets, lambda: setattr(tokens, "gives_ended_tokens", True))
