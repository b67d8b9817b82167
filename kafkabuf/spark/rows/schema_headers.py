"""The headers that name the schemas of keys and values, behind the headers that the rows have themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Flags = npt.NDArray[np.uint8]
Header = tuple[str, bytes]
_ITEM = pa.struct([("key", pa.string()), ("value", pa.binary())])


def with_headers(own: pa.Array | None, added: Sequence[tuple[Header, Flags]], rows: int) -> pa.Array:
    """A column `headers` of `rows` rows: those of `own`, and each added header in the rows that its flags name."""
    if own is None:
        own = pa.nulls(rows, pa.list_(_ITEM))
    if not added:
        return own
    items = own.flatten()
    counts = np.asarray(own.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    flags = np.stack([given.astype(np.int64) for _, given in added])
    ends = np.cumsum(counts + flags.sum(0))
    places = np.full(int(ends[-1]) if rows else 0, -1, np.int64)
    behind = ends
    for number, (_, given) in reversed(list(enumerate(added))):
        behind = behind - flags[number]
        places[behind[given.astype(bool)]] = len(items) + number
    places[places < 0] = np.arange(len(items))
    header = pa.array([{"key": name, "value": value} for (name, value), _ in added], items.type)
    pool = pa.concat_arrays([items, header])
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pool.take(pa.array(places)))
