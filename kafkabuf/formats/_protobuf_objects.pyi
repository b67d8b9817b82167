from typing import final

from kafkabuf.formats._object_writer import ObjectWriter
from kafkabuf.formats.protobuf_schema import Message

@final
class ProtobufObjectEncoder(ObjectWriter): ...

def object_encoder(message: Message, extra_columns: str, missing_columns: str, name: str) -> ProtobufObjectEncoder: ...
