"""Writes Spark's rows to Kafka: our sink beside Spark's own."""

from __future__ import annotations

from functools import partial

from bench.claim import Case, Claim, Goal
from bench.spark import streams, writes
from bench.spark.session import CPU, JVM, RATE

NOOP, COUNTS, THEIRS, OURS = "Spark's noop", "Arrow writer that counts", "Spark's Kafka sink", "kafkabuf"
LARGE = "Spark's Kafka sink, 512 KiB batches"
ALIGNED, ATOMIC = "kafkabuf, aligned", "kafkabuf, aligned, atomic"
CORE_THEIRS, CORE = "one core: Spark's Kafka sink", "one core: kafkabuf"
SKIP, SKIP_ATOMIC, SKIP_STREAM = "skip", "skip, aligned, atomic", "skip, stream, exactly_once"
BAD = "{}: 1 bad row in 10,000"
STREAM_THEIRS, STREAM, STREAM_ONCE = "stream: Spark's Kafka sink", "stream: kafkabuf", "stream: kafkabuf, exactly_once"
SMALL_COUNTS = "8 rows: Arrow writer that counts"
SMALL_THEIRS, SMALL = "8 rows: Spark's Kafka sink", "8 rows: kafkabuf"
SMALL_ONCE, SMALL_ATOMIC = "8 rows: kafkabuf, exactly_once", "8 rows: kafkabuf, atomic"

ONCE, WHOLE = {"deliveryGuarantee": "exactly_once"}, {"deliveryGuarantee": "atomic"}
SKIPS = {"onRowError": "skip"}
# The driver asks nothing, so no task knows the limits of the topic, and the broker has to refuse the rows.
UNCHECKED = {**SKIPS, "driverCheck": "false"}
TENTH, TWENTIETH = 0.1, 0.05
BRIEF = 0.3

_theirs, _ours, _atomic = writes.to("kafka"), writes.to("kafkabuf"), writes.to("kafkabuf", WHOLE)
_skips = partial(writes.skipping, writes.to("kafkabuf", UNCHECKED), "key")
_skips_atomic = partial(writes.skipping, writes.to("kafkabuf", {**WHOLE, **SKIPS}), "timestamp", aligned=True)
_skips_stream = partial(streams.skipping, {**ONCE, **SKIPS})


def _skipping() -> list[Case]:
    """Each kind of write without bad rows, and then with bad rows."""
    runs = {SKIP: _skips, SKIP_ATOMIC: _skips_atomic, SKIP_STREAM: _skips_stream}
    return [
        Case(name.format(kind), partial(run, bad=bad), TENTH, kind, group="streams")
        for kind, run in runs.items()
        for name, bad in (("{}", False), (BAD, True))
    ]


CLAIM = Claim(
    name="spark",
    title="From Spark's executors rather than through Spark's own sink",
    cases=[
        Case(NOOP, partial(writes.batch, writes.noop, sends=False), group="batch"),
        Case(COUNTS, partial(writes.batch, writes.count, sends=False), group="batch"),
        Case(THEIRS, partial(writes.batch, _theirs), group="batch"),
        Case(LARGE, partial(writes.batch, writes.to("kafka", {"kafka.batch.size": "524288"})), group="batch"),
        Case(OURS, partial(writes.batch, _ours), group="batch"),
        Case(ALIGNED, partial(writes.batch, _ours, aligned=True), group="batch"),
        Case(ATOMIC, partial(writes.batch, _atomic, aligned=True), group="batch"),
        Case(CORE_THEIRS, partial(writes.on_one_core, _theirs), TENTH, CORE_THEIRS, group="core"),
        Case(CORE, partial(writes.on_one_core, _ours), TENTH, CORE_THEIRS, group="core"),
        *_skipping(),
        Case(STREAM_THEIRS, partial(streams.large, "kafka", {}), TWENTIETH, STREAM_THEIRS, group="streams"),
        Case(STREAM, partial(streams.large, "kafkabuf", {}), TWENTIETH, STREAM_THEIRS, group="streams"),
        Case(STREAM_ONCE, partial(streams.large, "kafkabuf", ONCE), TWENTIETH, STREAM_THEIRS, group="streams"),
        Case(SMALL_THEIRS, partial(streams.small, "kafka", {}), TENTH, SMALL_THEIRS, group="streams"),
        Case(SMALL_COUNTS, partial(streams.small, "counting", {}), TENTH, SMALL_THEIRS, group="streams"),
        Case(SMALL, partial(streams.small, "kafkabuf", {}), TENTH, SMALL_THEIRS, group="streams"),
        Case(SMALL_ONCE, partial(streams.small, "kafkabuf", ONCE), TENTH, SMALL_THEIRS, group="streams"),
        Case(SMALL_ATOMIC, partial(streams.small, "kafkabuf", WHOLE), TENTH, SMALL_THEIRS, group="streams"),
    ],
    metrics=[RATE, CPU, JVM],
    baseline=THEIRS,
    amount=2_000_000,
    seconds=290,
    brief=BRIEF,
    unit="rows",
    goals=[
        Goal("rows/s, of Spark's own sink", OURS, RATE.name, 2.0, THEIRS),
        Goal("the same on one core", CORE, RATE.name, 2.0, CORE_THEIRS),
        Goal("CPU, of Spark's own sink's", OURS, CPU.name, 0.5, THEIRS, at_most=True, above=NOOP),
        Goal("rows/s, of a writer that only counts", OURS, RATE.name, 0.92, COUNTS),
        Goal("aligned, of unaligned", ALIGNED, RATE.name, 0.95, OURS),
        Goal("atomic, of at_least_once", ATOMIC, RATE.name, 0.95, ALIGNED),
        Goal("addBatch of 100,000 rows, of Spark's own sink", STREAM, RATE.name, 1.8, STREAM_THEIRS),
        Goal("exactly_once, of at_least_once", STREAM_ONCE, RATE.name, 0.9, STREAM),
        Goal("addBatch of 8 rows, of Spark's own sink", SMALL, RATE.name, 1.0, SMALL_THEIRS),
        Goal("addBatch of 8 rows, exactly_once, of Spark's own sink", SMALL_ONCE, RATE.name, 1 / 3, SMALL_THEIRS),
        *(
            Goal("with bad rows, of the rate without", BAD.format(kind), RATE.name, 0.8, kind)
            for kind in (SKIP, SKIP_ATOMIC, SKIP_STREAM)
        ),
    ],
    notes=[
        "local[2]; cached rows with keys of 16 bytes and values of 100 bytes; two Kafka partitions. CPU is that of the "
        "JVM and of Python together.",
        "The writer that only counts is the ceiling of any sink in Python: the JVM turns each row into Arrow and sends "
        "it to Python. The noop sink shows what the rows cost before that.",
        f"Each figure is the median of {writes.WRITES} writes, after {writes.WARM_UPS} writes that warm Spark up. The "
        "cases without a mark share one Spark, those on one core another, all others a third.",
        "One core: a tenth of the rows, with the JVM and Python together on one core; the broker has all cores.",
        "skip: a tenth of the rows, onRowError=skip. Some rows have no key, in a compacted topic, and only the broker "
        "refuses them (driverCheck=false); atomic and the stream have rows that are two hours ahead. Each write must "
        "leave out the bad rows and no other row.",
        f"Streams: {streams.BATCHES} micro-batches (in a run of all claims {streams.BATCHES * BRIEF:.0f}) after "
        f"{streams.WARM_UPS} that warm up, each with a twentieth of the rows from {streams.FILES} parquet files. The "
        "rate is that of the median addBatch; CPU includes the warm-up.",
        f"8 rows: as many micro-batches of {streams.SMALL} rows, in as many tasks and Kafka partitions.",
        "Settings are the sinks' defaults: Spark's sink sends batches of 16 KiB, kafkabuf's, for two partitions, "
        "batches of 512 KiB.",
    ],
)
