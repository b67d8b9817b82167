from typing import final

import numpy as np
import numpy.typing as npt

from kafkabuf.batches._batch import Batch

@final
class Portion:
    batch: Batch
    first_index: int
    rows: int
    bytes: int
    first_row: int
    end_row: int

def places_of(portion: npt.NDArray[np.int32], following: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]: ...
