"""The records of a file's batch, unpacked, by the decoder of `kafkabuf consume`. It needs the extra `broker`."""

from __future__ import annotations

from kafkabuf.broker.log.decoding import ConsumerRecord, Decoder
from kafkabuf.errors import KafkaError
from kafkabuf.spool._entries import DamagedError
from kafkabuf.spool.reading import DamagedBatch, HeldBatch

_LARGEST_TIMESTAMP = (1 << 63) - 1


def records_of(batch: HeldBatch) -> list[ConsumerRecord]:
    """The batch was read with its data. Offsets count from 0. Raises DamagedError."""
    try:
        records = Decoder(batch.topic, batch.partition, 0, None).records(batch.data)
    except KafkaError as error:
        raise DamagedError(f"its records do not decode: {error}") from None
    if len(records) != batch.records:
        raise DamagedError(f"it has {len(records)} records, and its entry counts {batch.records}")
    if not all(0 <= record.timestamp <= _LARGEST_TIMESTAMP for record in records):
        raise DamagedError("a record has a time that no record can have")
    return records


def unpacked(batch: HeldBatch | DamagedBatch) -> HeldBatch | DamagedBatch:
    """The batch, or the damage that only a decoder sees: in compressed records, and in the CRCs of magic 1."""
    if isinstance(batch, DamagedBatch) or (batch.magic >= 2 and batch.compression == "none"):
        return batch
    try:
        records_of(batch)
    except DamagedError as error:
        return DamagedBatch(batch.place, str(error))
    return batch
