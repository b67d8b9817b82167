from typing import final

from kafkabuf.formats.rows._encoder import RowEncoder

@final
class ProtobufEncoder(RowEncoder): ...
