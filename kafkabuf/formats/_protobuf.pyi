from typing import final

from kafkabuf.formats._encoder import RowEncoder

@final
class ProtobufEncoder(RowEncoder): ...
