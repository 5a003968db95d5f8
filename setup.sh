#!/usr/bin/env bash
# Make the virtual environment that the Makefile works in. One clear line when something is missing.
set -euo pipefail

python=${PYTHON:-python3} venv=${VENV:-.venv} lock=${LOCK:-requirements.lock}

fail() { printf 'setup: %s\n' "$1" >&2; exit 2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "'$python' is not Python 3.11 or newer. Install one, or name it: make PYTHON=python3.11 …"

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1) || true
[ "${version:-0}" -ge 17 ] ||
  fail "no JDK 17 or newer ('$java' ${version:+is version $version}${version:-does not run}). Install one (Debian: openjdk-17-jre-headless), or set JAVA_HOME."

echo "setup: virtual environment in $venv"
"$python" -m venv "$venv" || fail "cannot make a virtual environment in $venv (Debian: install python3-venv)."

echo "setup: packages of $lock (a few minutes the first time)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$venv/bin/python" -m pip install --disable-pip-version-check -q --require-hashes -r "$lock" >"$log" 2>&1; then
  tail -3 "$log" >&2
  fail "the packages could not be installed: is the package index reachable? (pip's own settings apply)"
fi
"$venv/bin/python" -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e . >"$log" 2>&1 ||
  { tail -3 "$log" >&2; fail "headrace itself could not be installed."; }
# Only the product knows how new a Java its Spark takes.
"$venv/bin/python" -c 'import sys
from headrace.writer.clients import java_artifacts
from headrace.writer.core.errors import ConfigError
try:
    java_artifacts.spark_java()
except ConfigError as error:
    sys.exit(f"setup: {error}")' || exit 2
"$venv/bin/python" -c 'from headrace.writer.clients import java_artifacts
for bundle in ("spark-kafka", "kafka", "registry"):
    java_artifacts.fetch(bundle, progress=lambda line: print("setup:", line))' || fail "the Java parts could not be fetched (see above)."
touch "$venv/.ready"
