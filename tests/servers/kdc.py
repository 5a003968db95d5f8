"""A KDC of Kerberos, and a broker that takes its tickets, on loopback.

Debian's krb5-kdc, krb5-admin-server and krb5-user have the programs; `make test-logins` says so where they are missing.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.demo.devstack.process import Process, Server, free_ports, is_listening

REALM = "HEADRACE.TEST"
USER = "headrace"
# The first part of the broker's principal; its host's name is the one that clients connect to.
SERVICE = "kafka"
HOST = "localhost"
_ANSWERS_WITHIN = timedelta(seconds=30)
_LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
# Java's parser wants each brace on a line of its own.
_CONFIG = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 {defaults}
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
"""
_PROFILE = """\
[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  max_life = {life}
  supported_enctypes = aes256-cts:normal aes128-cts:normal
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


class Kdc(Server):
    """A KDC of its own realm, with a user and a broker. `life`: of its tickets, as kdc.conf has it."""

    def __init__(self, folder: Path, *, life: str = "10h", environment: Mapping[str, str] | None = None) -> None:
        """`environment`: further variables of its process."""
        self._folder = folder
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        self.config = self.write_config(folder / "krb5.conf")
        profile = folder / "kdc.conf"
        profile.write_text(_PROFILE.format(port=self.port, realm=REALM, folder=folder, life=life))
        self._further = environment or {}
        self._environment = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(profile)}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self.keytab = self.export_keys(USER, folder / "user.keytab")
        self.broker_keytab = self.export_keys(f"{SERVICE}/{HOST}", folder / "broker.keytab")

    def write_config(self, path: Path, *, port: int = 0, defaults: str = "") -> Path:
        """Write a krb5.conf. `port`: of another KDC; `defaults`: a further line of libdefaults. Returns its path."""
        path.write_text(_CONFIG.format(realm=REALM, port=port or self.port, defaults=defaults))
        return path

    def export_keys(self, principal: str, keytab: Path) -> Path:
        """Give a principal new keys, and write these alone into a keytab. Returns its path."""
        fresh = keytab.with_suffix(".fresh")
        fresh.unlink(missing_ok=True)
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey +requires_preauth {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {fresh} {principal}")
        fresh.replace(keytab)
        return keytab

    def lock(self, principal: str, *, is_locked: bool) -> None:
        """Let a principal have no more tickets, or have them again."""
        sign = "-" if is_locked else "+"
        self._run("kadmin.local", "-r", REALM, "-q", f"modprinc {sign}allow_tix {principal}")

    def write_keytab(self, principal: str, keytab: Path) -> Path:
        """Write a keytab with keys that the KDC does not know. Returns its path."""
        lines = f"addent -password -p {principal} -k 1 -e aes256-cts -s SALT\nword\nwkt {keytab}\nquit\n"
        self._run("ktutil", text=lines)
        return keytab

    def user_keys(self) -> list[bytes]:
        """Return the keys in the user's keytab."""
        text = self._run("klist", "-k", "-K", str(self.keytab))
        return [bytes.fromhex(key) for key in re.findall(r"\(0x([0-9a-f]+)\)", text)]

    def launch(self) -> None:
        """Start it."""
        self._process = Process(
            "krb5kdc",
            [_program("krb5kdc"), "-n", "-r", REALM],
            cwd=self._folder,
            log=self._folder / "output.log",
            env={**self._environment, **self._further},
        )
        self._process.launch()

    def wait(self) -> None:
        """Return once it listens."""
        assert self._process is not None, "launch comes before wait"
        self._process.wait_until(lambda: is_listening(self.port), within=_ANSWERS_WITHIN)

    def questions(self, kind: str) -> int:
        """Return how many questions of a kind it has answered: AS_REQ for first tickets, TGS_REQ for services'."""
        log = self._folder / "kdc.log"
        if not log.exists():
            return 0
        return sum(f" {kind} " in line and ": ISSUE: " in line for line in log.read_text().splitlines())

    def _run(self, program: str, *arguments: str, text: str = "") -> str:
        """Run a program. Returns what it prints. `text`: its input."""
        ended = subprocess.run(
            [_program(program), *arguments], env={**os.environ, **self._environment}, check=True, timeout=60,
            capture_output=True, text=True, input=text,
        )  # fmt: skip
        return ended.stdout


def _program(name: str) -> str:
    """Return the path of a program; Debian has some where only root looks."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise FileNotFoundError(
            f"{name} is not here: apt-get install krb5-kdc krb5-admin-server krb5-user, or leave out the tests of "
            "`make test-logins`"
        )
    return path


@dataclass(frozen=True)
class KerberosBroker:
    """A broker with two doors: one open, for the test, and one that wants a ticket."""

    bootstrap: str
    port: int

    @property
    def kerberos(self) -> str:
        """`host:port` of the door that wants a ticket."""
        return f"{HOST}:{self.port}"


@contextmanager
def kerberos_broker(folder: Path, kdc: Kdc, *, session_ms: int = 0) -> Iterator[KerberosBroker]:
    """Run a real broker that takes tickets. `session_ms`: how long a login lasts; 0: as long as its connection."""
    (port,) = free_ports(1)
    server = Broker(folder)
    door = "listener.name.kerberos"
    server._settings |= {
        "listeners": f"{server._settings['listeners']},KERBEROS://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{server.port},KERBEROS://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,KERBEROS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        f"{door}.sasl.enabled.mechanisms": "GSSAPI",
        f"{door}.sasl.kerberos.service.name": SERVICE,
        f"{door}.gssapi.connections.max.reauth.ms": str(session_ms),
        f"{door}.gssapi.sasl.jaas.config": f"{_LOGIN_MODULE} required useKeyTab=true storeKey=true "
        f'keyTab="{kdc.broker_keytab}" principal="{SERVICE}/{HOST}@{REALM}";',
    }
    # The one way to give a JVM options that its command does not have.
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f'-Djava.security.krb5.conf="{kdc.config}"'
    try:
        server.launch()
    finally:
        if before is None:
            del os.environ["JAVA_TOOL_OPTIONS"]
        else:
            os.environ["JAVA_TOOL_OPTIONS"] = before
    try:
        server.wait()
        yield KerberosBroker(server.bootstrap, port)
    finally:
        server.stop()
