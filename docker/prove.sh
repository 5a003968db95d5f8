#!/bin/bash
# Prove of both images what they promise: nobody is root, nothing is written outside of /tmp and /scratch, no tools to
# install with, one package that is imported, jars inside, and an autoscaler without Spark.
#   docker/prove.sh TAG
set -euo pipefail
tag=$1
failed=0

inside() { image=$1; shift; bash "$(dirname "$0")/inside.sh" "$image:$tag" "$@"; }

prove() { # WHAT IMAGE COMMAND...
  what=$1; shift
  if said=$(inside "$@" 2>&1); then echo "proven: $what"; else failed=1; echo "NOT proven: $what"; echo "$said" | tail -5; fi
}

for image in headrace headrace-autoscaler; do
  prove "$image: its command answers" $image headrace --version
  prove "$image: its user is 10001" $image sh -c 'test "$(id -u):$(id -g)" = 10001:10001'
  prove "$image: its root cannot be written" $image sh -c '! touch /opt/headrace/x 2>/dev/null && ! touch /x 2>/dev/null'
  prove "$image: nothing in it belongs to its user or may be written by all" $image sh -c \
    'test -z "$(find / -xdev \( -user 10001 -o -perm -0002 ! -type l ! -perm -1000 \) -not -path "/proc/*" -not -path "/dev/*" -print -quit)"'
  prove "$image: neither pip nor a compiler" $image sh -c '! command -v pip && ! command -v pip3 && ! command -v gcc && ! python -c "import pip"'
  # Of what headrace asks for, the autoscaler's image has what its lock has (docker/locks.py).
  prove "$image: each of Python's packages has those that it asks for" $image python -c '
from importlib.metadata import distributions
import re, sys
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
packages = {normal(package.metadata["Name"]): package for package in distributions()}
if sys.argv[1] == "headrace-autoscaler":
    del packages["headrace"]
requirements = [text for package in packages.values() for text in package.requires or () if ";" not in text]
names = {normal(re.match(r"[A-Za-z0-9._-]+", text)[0]) for text in requirements}
missing = names - packages.keys() - {"pyspark", "pandas"}
assert not missing, missing
' $image
done
prove "headrace: it is imported by one name, which is its own" headrace python -c '
from importlib.metadata import packages_distributions
owners = packages_distributions()
assert {name for name, distributions in owners.items() if "headrace" in distributions} == {"headrace"}
assert set(owners["headrace"]) == {"headrace"}'
prove "headrace: what is no Python is inside too: the page, the alerts, the log's settings" headrace python -c '
from importlib.resources import files
names = {"headrace.writer": ("web/page.html", "preflight/capacity/rates.json", "log4j2.properties"), "headrace.recovery": ("alerts.yaml", "escalation/damages.json")}
assert all((files(package) / name).is_file() for package, found in names.items() for name in found)'
prove "headrace: its supervisor is there" headrace headrace supervisor run --help
prove "headrace: Java 17 runs, and is no JDK" headrace sh -c '"$JAVA_HOME/bin/java" -version 2>&1 | grep -q "\"17" && ! test -e "$JAVA_HOME/bin/javac"'
prove "headrace: Spark starts without a network, with the jars of Kafka and S3 inside" headrace python -c '
from headrace.writer.config.pipelines import Config
from headrace.writer.clients import java_artifacts
from headrace.writer.driver import spark as driver_spark
names = {jar.name.rsplit("-", 1)[0] for jar in java_artifacts.spark_jars(s3=True)}
assert {"spark-sql-kafka-0-10_2.13", "kafka-clients", "hadoop-aws"} <= names, names
config = Config.model_validate({"kafka": {"bootstrap_servers": "nowhere:1"}, "registry": {"url": "http://nowhere"},
  "checkpoints": "/scratch/c", "pipelines": {"a": {"topics": ["a"], "table": {"location": "/scratch/t"}, "event_time": {"field": "at"}}}})
spark = driver_spark.session(config)
assert spark.range(1000).selectExpr("sum(id)").first()[0] == 499500
spark.stop()'
prove "headrace: the login of MSK is inside, for Spark" headrace python -c '
from headrace.writer.clients import java_artifacts
assert java_artifacts.spark_jars(s3=True, msk_iam=True)[-1].name.startswith("aws-msk-iam-auth-")'
for image in headrace headrace-autoscaler; do
  prove "$image: the library of Kerberos is inside" $image python -c '
import ctypes
ctypes.CDLL("libgssapi_krb5.so.2")'
done
prove "headrace: an Iceberg table is made, and the client of each type of catalog is inside" headrace python -c '
import psycopg2, pyiceberg.catalog.glue, pyiceberg.catalog.rest
import pyarrow as pa
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.table.factory import table_at
settings = (("type", "sql"), ("uri", "sqlite:////scratch/catalog.db"))
table = table_at("iceberg", "/scratch/clicks", "clicks", catalog=CatalogTable("headrace", ("shop",), "clicks", settings))
table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
assert table.exists()'
prove "headrace: each format of values is inside, and protoc compiles a schema" headrace python -c '
import headrace.writer.avro.decoding.block_decoder, headrace.writer.json.block_decoder, headrace.writer.protobuf.block_decoder
from headrace.writer.protobuf.schema_files import compile_files
assert compile_files({"click.proto": "syntax = \"proto3\"; message Click { int64 id = 1; }"}, "click.proto")'
prove "headrace: the class of an executor on Kubernetes is there" headrace sh -c \
  'ls "$SPARK_HOME"/jars/spark-kubernetes_*.jar && test -x /opt/decom.sh && test -x /opt/headrace/entrypoint.sh'
for image in headrace headrace-autoscaler; do
  prove "$image: the clients of each store are inside" $image python -c '
import boto3
from obstore.store import AzureStore, GCSStore
import headrace.writer.storage.clouds.obstore_client, headrace.writer.storage.s3'
done
prove "headrace-autoscaler: no Spark, no Java" headrace-autoscaler sh -c '! python -c "import pyspark" 2>/dev/null && ! command -v java'
prove "headrace-autoscaler: it decides by a table of each format, with its Kafka and its driver away" headrace-autoscaler python -c '
import json, subprocess
import pyarrow as pa
import yaml
from headrace.writer.config.pipelines import Config
from headrace.writer.table.factory import main_table
for form in ("delta", "iceberg", "parquet"):
    settings = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"}, "registry": {"url": "http://127.0.0.1:1"},
        "checkpoints": "/scratch/checkpoints", "catalog": {"type": "sql", "uri": "sqlite:////scratch/catalog.db"},
        "spark": {"master": "k8s://https://127.0.0.1:1"}, "supervisor": {"port": 0},
        "pipelines": {"a": {"topics": ["a"], "table": {"location": f"/scratch/{form}", "format": form}, "event_time": {"field": "at"}}},
    }
    table = main_table("a", Config.model_validate(settings))
    table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    table.begin({}, {"a": ["uuid-1"]})
    with open("/scratch/pipelines.yaml", "w") as file:
        yaml.safe_dump(settings, file)
    command = ["headrace", "autoscaler", "explain", "/scratch/pipelines.yaml", "--save", "/scratch/facts.json"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    assert [pipeline["name"] for pipeline in json.load(open("/scratch/facts.json"))["pipelines"]] == ["a"], form'

for image in headrace headrace-autoscaler; do
  if command -v buildah >/dev/null; then buildah images --format "{{.Name}}:{{.Tag}} {{.Size}}" "localhost/$image:$tag" 2>/dev/null || true; fi
done
exit $failed
