from typing import Any

import numpy as np
import numpy.typing as npt

def digest(data: Any) -> int: ...
def partitions_of(data: Any, partitions: int) -> npt.NDArray[np.int32]: ...
