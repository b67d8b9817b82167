from typing import final

from kafkabuf.formats.rows._object_writer import ObjectWriter

@final
class ObjectEncoder(ObjectWriter): ...

def object_encoder(schema: str, extra_columns: str, name: str) -> ObjectEncoder: ...
