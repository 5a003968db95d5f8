#!/bin/bash
# Install into /opt/headrace/venv, which has no pip: the packages of a lock, or this project.
#   packages.sh LOCK     each is checked against the lock
#   packages.sh FOLDER   its wheel of FOLDER/wheels where one lies there
set -euo pipefail
venv=/opt/headrace/venv
pip=(/tools/bin/pip --disable-pip-version-check -q)

[ -d "$venv" ] || python3 -m venv --without-pip "$venv"
# pyspark comes as a source archive; so all become wheels first.
if [ -d "$1/wheels" ]; then
  cp -r "$1/wheels" /wheels
elif [ -d "$1" ]; then
  "${pip[@]}" wheel --no-deps --no-build-isolation --no-index "$1" -w /wheels
else
  "${pip[@]}" wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes -r "$1" -w /wheels
fi
"${pip[@]}" --python "$venv/bin/python" install --no-deps --no-index /wheels/*.whl
rm -r /wheels
