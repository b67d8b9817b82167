"""The result for one partition's records, in a response to Produce."""

from collections.abc import Sequence
from typing import final

@final
class PartitionResult:
    """The result for one partition's records.

    Offsets are -1 if no record was appended. `record_errors` has (index in the batch, text) of each refused record
    (version 8 and later, KIP-467). `leader` (node id, leader epoch) names the leader to a client that asked
    another node.
    """

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
    leader: tuple[int, int] | None
    record_errors: Sequence[tuple[int, str]]

    def __init__(
        self,
        partition: int,
        error_code: int = 0,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error_message: str | None = None,
        leader: tuple[int, int] | None = None,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> None: ...

def first_error(results: list[PartitionResult]) -> int:
    """The first error code of the results; 0 without an error."""

def put_successes(out: bytearray, results: list[PartitionResult], first: int) -> int:
    """Writes the results from `first` on in a flexible version, up to the first that has an error. Returns its index,
    or the number of results."""
