from typing import final

from kafkabuf.formats.protobuf.schema import Message
from kafkabuf.formats.rows._object_writer import ObjectWriter

@final
class ProtobufObjectEncoder(ObjectWriter): ...

def object_encoder(message: Message, extra_columns: str, missing_columns: str, name: str) -> ProtobufObjectEncoder: ...
