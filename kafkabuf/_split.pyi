from kafkabuf._accumulator import AccumulatorCore
from kafkabuf._batch import Batch

def split(accumulator: AccumulatorCore, refused: Batch) -> None: ...
