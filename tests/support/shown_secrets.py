"""All that a writer shows and writes, to be searched for the secrets that it was given."""

import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import psutil

from tests.support.writer_process import Site, Writer


@dataclass(frozen=True)
class Ground:
    """A site whose writer logs in. `ui`: port of Spark's UI."""

    site: Site
    topic: str
    lake: str
    ui: int


def spark_conf(root: Path, ui: int) -> dict[str, str]:
    """Return settings by which Spark shows and logs all that it can. Makes the folder of its event log."""
    events = root / "spark-events"
    events.mkdir()
    return {
        "spark.ui.enabled": "true", "spark.ui.port": str(ui), "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}", "spark.log.level": "INFO",
        # It adds to what is hidden.
        "spark.redaction.regex": "nothing-else",
    }  # fmt: skip


def fetch(url: str) -> str:
    """Return a page; a certificate is not checked."""
    trusting = ssl._create_unverified_context()
    with urlopen(url, timeout=30, context=trusting if url.startswith("https") else None) as answer:
        return str(answer.read().decode(errors="replace"))


def run_command(site: Site, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run a command on the configuration of a site. Returns all that it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", words[0], str(site.config), *words[1:]],
        capture_output=True, text=True, timeout=400, check=False, env=env,
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode == code, text
    return text


def secret_forms(secret: str) -> set[str]:
    """Return a secret as it is, and as URLs, JSON, HTML, Java and basic authentication would have it."""
    html = secret.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    login = base64.b64encode(f"reader:{secret}".encode()).decode()
    java = secret.replace("\\", "\\\\").replace('"', '\\"')
    texts = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], html, login, java, json.dumps(java)[1:-1]}
    return texts | {repr(secret)[1:-1]}


def key_forms(key: bytes) -> list[str]:
    """Return a key as logs and dumps would have it."""
    return [key.hex(), key.hex().upper(), key.hex(" "), base64.b64encode(key).decode(), repr(key)[2:-1]]


def find_secrets(text: str, secrets: Collection[str]) -> list[str]:
    """Return which secrets stand in a text."""
    return [form for secret in secrets for form in secret_forms(secret) if form in text]


def find_in_places(texts: Mapping[str, str], secrets: Collection[str]) -> dict[str, list[str]]:
    """Return which secrets stand in texts, by the place of the text."""
    return {place: secrets_there for place, text in texts.items() if (secrets_there := find_secrets(text, secrets))}


def read_files(*folders: Path) -> Iterator[tuple[str, str]]:
    """Yield path and content of each file in folders."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes().decode(errors="replace")


def collect_screens(ground: Ground, writer: Writer) -> dict[str, str]:
    """Return everything that a running writer shows, by where."""
    site = ground.site
    url = json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"]
    texts = {f"{url}{path}": fetch(url + path) for path in ("/status", "/metrics", "/healthz", "/buckets", "/")}
    texts |= _ui_pages(ground.ui)
    family = [psutil.Process(writer.process.pid), *writer.family()]
    texts["ps"] = "\n".join(_command_line(process) for process in family)
    texts["log"] = writer.output()
    texts["headrace status"] = run_command(site, "status", "--json")
    texts["headrace validate"] = run_command(site, "validate", "--json")
    return texts | dict(read_files(site.root / "checkpoints", site.root / "spark-events"))


def _ui_pages(port: int) -> dict[str, str]:
    """Return Spark's UI and its REST API: environment, plans, and all else."""
    root = f"http://127.0.0.1:{port}"
    app: Any = json.loads(fetch(f"{root}/api/v1/applications"))[0]["id"]
    api = f"{root}/api/v1/applications/{app}"
    urls = [f"{root}/{page}/" for page in ("environment", "jobs", "stages", "executors", "SQL", "StreamingQuery")]
    urls += [f"{api}/{part}" for part in ("environment", "jobs", "stages", "allexecutors")]
    plans = f"{api}/sql?details=true&planDescription=true"
    urls += [plans, *(f"{root}/SQL/execution/?id={execution['id']}" for execution in json.loads(fetch(plans)))]
    return {url: fetch(url) for url in urls}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
