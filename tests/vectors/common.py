"""Code that all scripts share: the format of bytes and ids, and Protobuf classes.

Contains no encoder: fastavro encodes Avro, protobuf encodes Protobuf, and confluent-kafka encodes frames. Only odd.py and invalid.py
write bytes themselves, for records that no encoder would write.
"""

import decimal
import io
import json
import os
import tempfile
import uuid

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PROTO_FILES = [
    "scalars.proto",
    "legacy.proto",
    "shop.proto",
    "common/money.proto",
    "common/currency.proto",
    "order_v1.proto",
    "order_v2.proto",
]
PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "proto")


class Absent:
    """A field that is missing in the record."""


ABSENT = Absent()


def hexed(data):
    return None if data is None else data.hex()


def id_of(value):
    """The id of a value that a decoder returns. Equal ids are equal in every format."""
    if value is ABSENT:
        return {"absent": True}
    if value is None:
        return {"null": True}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, (int, decimal.Decimal)):
        return {"number": format(value, "f") if isinstance(value, decimal.Decimal) else str(value)}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, uuid.UUID):
        return {"text": str(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, str):
        return {"text": value}
    raise TypeError(f"no id: {value!r}")


def at(value, place):
    """The value at a place of a decoded record. The place has one slash per step, and indexes for arrays."""
    for step in place.split("/")[1:]:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def compact(schema):
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


# Avro


def avro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def without_times(schema):
    """The schema without logical types that turn numbers into a `datetime`, which is not an id."""
    if isinstance(schema, list):
        return [without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: without_times(value) for name, value in schema.items()}
    if str(kept.get("logicalType", "")).startswith(("timestamp", "local-timestamp", "time", "date")):
        del kept["logicalType"]
    return kept


def read_avro(schema, record):
    data = io.BytesIO(record)
    value = fastavro.schemaless_reader(data, fastavro.parse_schema(without_times(schema)), None)
    if data.read(1):
        raise ValueError("bytes behind the record")
    return value


# Protobuf


def descriptors(name):
    """protoc's descriptor set of a file, including all imports."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "set")
        arguments = ["protoc", f"-I{PROTO}", "--include_imports", f"--descriptor_set_out={out}", os.path.join(PROTO, name)]
        if protoc.main(arguments):
            raise SystemExit(f"protoc refuses {name}")
        with open(out, "rb") as file:
            return file.read()


def proto_text(name):
    with open(os.path.join(PROTO, name), encoding="utf-8") as file:
        return file.read()


class Proto:
    """The messages of a file and of its imports."""

    def __init__(self, name):
        self.name = name
        self.descriptors = descriptors(name)
        self.pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file:
            self.pool.Add(file)

    def message(self, full_name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))


def field_of(message, place):
    """The field at a place of a message, by field names. Enum values become their names, if they have one."""
    for step in place.split("/")[1:]:
        if step.isdigit():
            message = message[int(step)]
            continue
        field = message.DESCRIPTOR.fields_by_name[step]
        if field.message_type and field.message_type.GetOptions().map_entry:
            message = dict(getattr(message, step))
            return message[place.rsplit("/", 1)[1]]
        if field.has_presence and not message.HasField(step):
            return field.default_value if field.has_default_value else ABSENT
        message = getattr(message, step)
        if field.enum_type and field.enum_type.values_by_number.get(message):
            message = field.enum_type.values_by_number[message].name
    return message
