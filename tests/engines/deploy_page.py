"""docs/DEPLOY.md walked as a new user walks it: the commands of the page, in its order, on a cluster that is real.

What stands between the page and this machine: helm is given values for a small machine beneath those of the page; a pod
is entered by the namespaces of its processes, as the kubelet of the tests has no `exec`; `trino` is a small client.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from headrace.bench.engines.statement import Coordinator
from tests.servers.kubernetes import HELM, program
from tests.support.chart_release import Release
from tests.support.helm_chart import ROOT

_HELM = """#!/bin/bash
[ "$1" != install ] || set -- "$@" -f values.yaml
exec {helm} "$@"
"""
_KUBECTL = """#!/bin/bash
set -e
if [ "$1 $3" = "-n exec" ]; then
  while [ "$1" != -- ]; do shift; done
  shift
  exec {enter} "$@"
fi
exec {kubectl} "$@"
"""
# The lake is a volume of the pods, and a folder of its own to this Trino.
_TRINO = """#!{python}
import sys
sys.path.insert(0, "{root}")
from headrace.bench.engines.statement import Coordinator
text = sys.argv[sys.argv.index("--execute") + 1] if "--execute" in sys.argv else sys.stdin.read()
text = text.replace("local:///lake/", "local:///")
text = "\\n".join(line for line in text.splitlines() if not line.startswith("--"))
for statement in filter(None, map(str.strip, text.split(";"))):
    for row in Coordinator("{url}", "{flavour}").ask(statement).rows:
        print(*row, sep=",")
"""


def blocks(heading: str) -> list[list[str]]:
    """The commands below a heading of the page, block by block."""
    page = (ROOT / "docs" / "DEPLOY.md").read_text()
    section = re.split(r"^## ", page.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [re.sub(r"\\\n\s*", "", block).splitlines() for block in found]


@dataclass
class Walk:
    """Somebody in a folder with the chart and a file of pipelines."""

    release: Release
    folder: Path

    def __post_init__(self) -> None:
        """Lay the folder out."""
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "helm").symlink_to(ROOT / "helm")
        (self.folder / "values.yaml").write_text(yaml.safe_dump(self.release.values))
        (self.folder / "pipelines.yaml").write_text(yaml.safe_dump(self.release.config))
        self._put("helm", _HELM.format(helm=program("helm", HELM)))

    def run(self, command: str, *, trino: Coordinator | None = None) -> str:
        """Run a command of the page. Returns what it said."""
        enter = ["false"]
        if (driver := self.release.container()) is not None:
            told = (f"{name}={value}" for name, value in driver.environment().items())
            enter = ["env", "-i", *told, *driver.entering()]
        self._put("kubectl", _KUBECTL.format(kubectl=program("kubectl"), enter=shlex.join(enter)))
        if trino is not None:
            told = {"python": sys.executable, "root": ROOT, "url": trino.url, "flavour": trino.flavour}
            self._put("trino", _TRINO.format(**told))
        env = self.release.cluster.environment()
        env |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=env, check=False, timeout=900,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _put(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
