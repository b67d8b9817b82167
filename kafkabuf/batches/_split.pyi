from kafkabuf.batches._accumulator import AccumulatorCore
from kafkabuf.batches._batch import Batch

def split(accumulator: AccumulatorCore, refused: Batch) -> None: ...
