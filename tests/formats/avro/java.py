"""Apache Avro's Java library as an oracle: DecodeAvro.java decodes all given cases in one JVM."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from rigs.jars import JarsUnavailableError, java
from rigs.real_kafka import TOOL_JVM

Schema = Any
_SOURCE = Path(__file__).with_name("DecodeAvro.java")
# Of pyspark's jars, those that Avro needs.
_JARS = [
    "avro-1*",
    "jackson-annotations-*",
    "jackson-core-2*",
    "jackson-databind-*",
    "slf4j-api-*",
    "commons-compress-*",
]
_TIMEOUT = 120.0
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


@dataclass
class Case:
    """A schema, values that kafkabuf encoded, and what describe() makes of the values."""

    schema: Schema
    encoded: Sequence[bytes]
    expected: Sequence[Any]
    defaulted: Sequence[str] = ()  # fields of the record that no value has: each has Java's default
    references: Sequence[Schema] = ()


def check(cases: Sequence[Case]) -> None:
    """Let Java decode every value, and compare."""
    for case, decoded in zip(cases, decode(cases), strict=True):
        assert "error" not in decoded, (case, decoded["error"])
        for value, expected in zip(decoded["values"], case.expected, strict=True):
            for name in case.defaulted:
                assert value[2].pop(name) == decoded["defaults"][name], case
            assert value == expected, case


def decode(cases: Sequence[Case]) -> list[Any]:
    """What Java says to each case: see DecodeAvro.java."""
    with tempfile.TemporaryDirectory(prefix="kafkabuf-avro-") as name:
        given, decoded = Path(name, "given"), Path(name, "decoded")
        with given.open("w") as file:
            for case in cases:
                values = [value.hex() for value in case.encoded]
                references = list(map(json.dumps, case.references))
                given_case = {"references": references, "schema": json.dumps(case.schema), "values": values}
                file.write(json.dumps(given_case) + "\n")
        command = [java(), *TOOL_JVM, "-cp", _class_path(), str(_SOURCE), str(given), str(decoded)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{_SOURCE.name} failed; it needs a JDK, because java compiles it:\n{done.stderr}")
        with decoded.open(encoding="utf-8", newline="\n") as file:
            return [json.loads(line) for line in file]


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnavailableError("pyspark, which has Avro's jars, is not installed. Run `make build`.")
    folder = Path(spec.origin).parent / "jars"
    return ":".join(str(jar) for pattern in _JARS for jar in folder.glob(f"{pattern}.jar"))


# ---- what Java should find -------------------------------------------------------------------------------------------


def describe(schema: Schema, value: Any) -> Any:
    """A value of a schema as DecodeAvro.java describes it. Values are as fastavro takes them; a logical type also takes
    the class of Python that stands for it. A value's type chooses the branch of a union."""
    return _describe(schema, value, _names(schema))


def _names(schema: Schema) -> dict[str, Schema]:
    if isinstance(schema, list):
        return {name: node for branch in schema for name, node in _names(branch).items()}
    if not isinstance(schema, dict):
        return {}
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[key] for key in ("items", "values") if key in schema]
    own = {schema["name"]: schema} if "name" in schema else {}
    return own | {name: node for part in inner for name, node in _names(part).items()}


def _describe(schema: Schema, value: Any, names: dict[str, Schema]) -> Any:
    if isinstance(schema, list):
        return _describe(_branch(schema, value, names), value[1] if isinstance(value, tuple) else value, names)
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and "logicalType" in schema:
        return _describe_logical(schema, value)
    if kind in ("array", "map", "record"):
        return _describe_parts(schema, value, names)
    match kind:
        case "null" | "boolean":
            return value
        case "float":
            return ["float", "nan" if math.isnan(value) else f"{struct.unpack('<I', struct.pack('<f', value))[0]:x}"]
        case "double":
            return ["double", "nan" if math.isnan(value) else f"{struct.unpack('<Q', struct.pack('<d', value))[0]:x}"]
        case "bytes":
            return ["bytes", value.hex()]
        case "fixed":
            return ["fixed", schema["name"], value.hex()]
        case "enum":
            return ["enum", schema["name"], value]
    return [kind, value]


def _describe_parts(schema: Schema, value: Any, names: dict[str, Schema]) -> Any:
    if schema["type"] == "array":
        return ["array", [_describe(schema["items"], item, names) for item in value]]
    if schema["type"] == "map":
        return ["map", {key: _describe(schema["values"], item, names) for key, item in value.items()}]
    types = {field["name"]: field["type"] for field in schema["fields"]}
    values = {field["name"]: field["default"] for field in schema["fields"] if "default" in field} | value
    return ["record", schema["name"], {name: _describe(kind, values[name], names) for name, kind in types.items()}]


def _branch(branches: list[Schema], value: Any, names: dict[str, Schema]) -> Schema:
    if value is None:
        return "null"
    others = [names.get(each, each) if isinstance(each, str) else each for each in branches if each != "null"]
    if len(others) == 1:
        return others[0]
    if isinstance(value, dict):
        (record,) = (
            each for each in others if isinstance(each, dict) and {f["name"] for f in each["fields"]} == value.keys()
        )
        return record
    return {bool: "boolean", int: "long", str: "string", bytes: "bytes"}[type(value)]


def _describe_logical(schema: Schema, value: Any) -> Any:
    logical = schema["logicalType"]
    if logical == "decimal":
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1) * 10 ** (schema["scale"] + exponent)
        return ["decimal", str(unscaled), schema["scale"]]
    if logical == "uuid":
        return ["uuid", str(UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value)))]
    if logical == "duration":
        return ["duration", 0, 0, value]
    if logical == "date":
        return ["date", value]
    family, _, fraction = logical.rpartition("-")
    per_second = _PER_SECOND[fraction]
    if family == "time":
        return ["time", value * (10**9 // per_second)]
    seconds, rest = divmod(value, per_second)
    return [family, seconds, rest * (10**9 // per_second)]
