from typing import Any

import numpy as np
import numpy.typing as npt

from kafkabuf.arrow.types import ArrowType
from kafkabuf.errors import KafkaError
from kafkabuf.formats.rows.program import Program

def encode(format: Any, data: Any) -> list[bytes | None]: ...
def encode_batch(
    program: Program, data: Any
) -> tuple[npt.NDArray[np.int64], bytearray, npt.NDArray[np.uint8], dict[int, KafkaError]]: ...
def columns_of(data: Any) -> tuple[ArrowType, ...]: ...
