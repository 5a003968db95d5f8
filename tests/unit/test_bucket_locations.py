"""Which locations in buckets are taken, as what, and what is said of others."""

import pytest

from headrace.writer.storage.bucket_locations import BucketLocation, parse_bucket_location
from headrace.writer.storage.locations import in_bucket, on_s3, parse_location
from headrace.writer.storage.nesting import enclosing_folders, location_of, parts

ABFSS = "abfss://lake@account1.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("location", "parsed"),
    [
        ("s3://my.lake/clicks", BucketLocation("s3", "my.lake", "clicks")),
        ("gs://my_lake.example.org/a/clicks/", BucketLocation("gs", "my_lake.example.org", "a/clicks")),
        ("az://my-lake/clicks", BucketLocation("az", "my-lake", "clicks")),
        (f"{ABFSS}/a/clicks", BucketLocation("abfss", "lake", "a/clicks", "account1")),
    ],
)
def test_a_location_in_a_bucket_is_taken_apart(location: str, parsed: BucketLocation) -> None:
    assert parse_bucket_location(location) == parsed
    assert parse_location(location) == location.rstrip("/")
    assert in_bucket(location)
    assert on_s3(location) == location.startswith("s3://")


@pytest.mark.parametrize(
    ("location", "form"),
    [
        ("gcs://lake/clicks", "gs://lake/clicks"),
        ("https://storage.googleapis.com/lake/clicks", "gs://lake/clicks"),
        ("s3a://lake/clicks", "s3://lake/clicks; headrace tells Spark the rest"),
        ("azure://lake/clicks", "az://lake/clicks"),
        ("adl://lake/clicks", "az://lake/clicks"),
        ("wasbs://lake@account1.blob.core.windows.net/clicks", f"{ABFSS}/clicks"),
        ("abfs://lake@account1.dfs.core.windows.net/clicks", f"{ABFSS}/clicks"),
        ("https://account1.blob.core.windows.net/lake/clicks?sv=1&sig=sesame", f"{ABFSS}/clicks"),
    ],
)
def test_a_location_of_other_programs_is_refused_with_its_form_here(location: str, form: str) -> None:
    with pytest.raises(ValueError, match=f": write it as {form}") as refused:
        parse_location(location)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "fix"),
    [
        ("gs://lake", "names no bucket and folder; write it as gs://bucket/folder"),
        ("gs://Lake/clicks", "names no bucket and folder"),
        ("gs://goog-lake/clicks", "names no bucket and folder"),
        ("gs://my-google-lake/clicks", "names no bucket and folder"),
        ("gs://10.0.0.1/clicks", "names no bucket and folder"),
        (f"gs://{64 * 'a'}/clicks", "names no bucket and folder"),
        ("az://lake", "names no container and folder; write it as az://container/folder"),
        ("az://my--lake/clicks", "names no container and folder"),
        ("az://my_lake/clicks", "names no container and folder"),
        ("az://$root/clicks", "names no container and folder"),
        ("az://lake/clicks./a", "a folder whose name ends with a dot, which Azure drops"),
        ("gs://lake/../clicks", r"named \. or \.\."),
        ("az://lake//clicks", "a folder without a name"),
        ("abfss://lake/clicks", "names no account as abfss:// has it"),
        ("abfss://lake@account1.dfs.fabric.microsoft.com/clicks", "or as az://container/folder with azure.account"),
        ("hdfs://lake/clicks", "only paths, s3://, gs://, az:// and abfss:// are supported, not hdfs://"),
        ("gs://lake/clicks*", r"has \* in it"),
    ],
)
def test_a_location_that_no_bucket_can_have_is_refused_with_the_fix(location: str, fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        parse_location(location)


@pytest.mark.parametrize(
    "location",
    [
        "gs://key:sesame@lake/clicks",
        "az://key:sesame@lake/clicks",
        "abfss://key:sesame@account1.dfs.core.windows.net/clicks",
        "abfss://lake@sesame@account1.dfs.core.windows.net/clicks",
        "az://lake/clicks?sv=1&sig=sesame",
        "gcs://key:sesame@lake/clicks",
        "hdfs://key:sesame@lake/clicks",
    ],
)
def test_credentials_in_a_location_are_refused_and_not_shown(location: str) -> None:
    with pytest.raises(ValueError, match=r"\*\*\*") as refused:
        parse_location(location)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("bucket", ["s3://lake", "gs://lake", "az://lake", ABFSS])
def test_folders_of_a_bucket_are_compared_by_bucket_and_names(bucket: str) -> None:
    location = f"{bucket}/a/clicks"
    assert location_of(parts(location)) == location
    assert parts(f"{bucket}/a/./clicks/") == parts(location)
    assert parts(location) != parts("/a/clicks")
    assert list(map(location_of, enclosing_folders(parts(location)))) == [f"{bucket}/a", bucket]
