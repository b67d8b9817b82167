"""The partition of aligned rows, in a task: align() leaves the column out, because each task can compute it again.

With a key the partition is that of the key, as align() computed it: no later shuffle sends such a row elsewhere. Rows
without a key have the number of their task, for align() gave task n the rows of partition n.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kafkabuf.arrow._columns import partitions_of


def with_partition(batches: Iterator[pa.RecordBatch], partitions: int, task: int) -> Iterator[pa.RecordBatch]:
    """The batches with the int column `partition`. `partitions` is what align() got, `task` Spark's partition."""
    own = task % partitions
    for batch in batches:
        chosen = partitions_of(batch, partitions)
        chosen[chosen < 0] = own
        # pa.array() would import pandas, which takes longer than many a task.
        column = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(chosen)])
        yield pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, "partition"])
