"""Records that do not match their schema, and invalid frames, written by hand according to the specifications.

Each record lists the decoders that reject it. If no decoder rejects a record, the specification rejects it, or a reader needs its own
limit. Truncated records are not included, because a test makes them from valid ones.
"""

import io
import warnings

import fastavro
from confluent_kafka.schema_registry.serde import SchemaId

from common import Proto, compact, hexed
from wire import field, long, tag, text, varint


def record(name, *fields):
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


TEXT = record("Text", ("before", "string"), ("id", "string"))
NUMBER = record("Number", ("id", "long"))
LIST = record("List", ("items", {"type": "array", "items": "string"}), ("id", "long"))
MAP = record("Map", ("items", {"type": "map", "values": "long"}), ("id", "long"))
NULLS = record("Nulls", ("items", {"type": "array", "items": "null"}), ("id", "long"))
NODE = record("Node", ("id", "int"), ("next", ["null", "Node"]))

AVRO = [
    ("nothing at all", TEXT, b""),
    ("a text of a negative length", TEXT, long(-1) + text("id")),
    ("a text longer than the record", TEXT, text("x") + long(6) + b"short"),
    ("a text of the largest length", TEXT, text("x") + long(2**63 - 1)),
    ("bytes of 2^40 bytes", record("Bytes", ("id", "bytes")), long(2**40) + b"x"),
    ("a text that is not UTF-8", TEXT, text("x") + text(b"\xff\xfe")),
    ("a text with half a surrogate pair", TEXT, text("x") + text(b"\xed\xa0\x80")),
    ("a text on the way that is not UTF-8", TEXT, text(b"\xc0\x80") + text("id")),
    ("a union's index past its end", record("Union", ("id", ["null", "string"])), long(2)),
    ("a union's index below zero", record("Union", ("id", ["null", "string"])), long(-1)),
    ("a symbol's number past its end", record("Enum", ("id", {"type": "enum", "name": "E", "symbols": ["A", "B"]})), long(2)),
    ("a symbol's number below zero", record("Enum", ("id", {"type": "enum", "name": "E", "symbols": ["A", "B"]})), long(-1)),
    ("a boolean that is 2", record("Bool", ("id", "boolean")), b"\x02"),
    ("a number of eleven bytes", NUMBER, b"\x80" * 10 + b"\x00"),
    ("a number of more than 64 bits", NUMBER, b"\xff" * 9 + b"\x02"),
    ("a number without end", NUMBER, b"\xff" * 20),
    ("an int of more than 32 bits", record("Int", ("id", "int")), long(2**31)),
    ("a fixed of too few bytes", record("Fixed", ("id", {"type": "fixed", "name": "F", "size": 4})), b"abc"),
    ("a double of too few bytes", record("Double", ("id", "double")), b"\x00" * 7),
    ("an array that does not end", LIST, long(1) + text("a")),
    ("an array of 2^62 texts", LIST, long(2**62) + text("a")),
    ("a block of -2^63 items", LIST, long(-(2**63)) + long(0) + long(0) + long(17)),
    ("a block shorter than it says", LIST, long(-1) + long(9) + text("a") + long(0) + long(17)),
    ("a block longer than it says", LIST, long(-1) + long(1) + text("a") + long(0) + long(17)),
    ("a block of a negative length", LIST, long(-1) + long(-2) + text("a") + long(0) + long(17)),
    ("a key of a map of a negative length", MAP, long(1) + long(-2) + long(1) + long(0) + long(17)),
    ("a key of a map that is not UTF-8", MAP, long(1) + text(b"\xff") + long(1) + long(0) + long(17)),
    ("bytes behind the record", NUMBER, long(17) + b"\x00"),
    ("the bytes of a frame before the record", TEXT, b"\x00\x00\x00\x00\x01" + text("x") + text("id")),
]
# Valid, but a reader must not try to read them to their end.
HOSTILE_AVRO = [
    ("an array of 2^62 nulls, which take no bytes", NULLS, long(2**62) + long(0) + long(17)),
    ("a record within itself, a thousand times", NODE, (long(1) + long(1)) * 1000 + long(1) + long(0)),
]
HOSTILE_PROTOBUF = [
    ("groups within each other, a thousand times", "shop.Order", tag(77, 3) * 1000 + tag(77, 4) * 1000),
]
# protobuf drops the excess bits, and other libraries reject them.
DISPUTED_PROTOBUF = [
    ("a number of more than 64 bits", "vectors.Int64", tag(2, 0) + b"\xff" * 9 + b"\x02"),
]

PROTOBUF = [
    ("a field with the number 0", "shop.Order", b"\x02\x01x"),
    ("wire type 6", "shop.Order", tag(1, 6) + b"\x00"),
    ("wire type 7", "shop.Order", tag(99, 7) + b"\x00"),
    ("the end of a group that did not begin", "shop.Order", tag(77, 4)),
    ("a group that does not end", "shop.Order", tag(77, 3) + field(1, "x")),
    ("a group with the end of another", "shop.Order", tag(77, 3) + tag(78, 4)),
    ("a text longer than the record", "shop.Order", tag(1, 2) + varint(9) + b"short"),
    ("a text of 2^40 bytes", "shop.Order", tag(1, 2) + varint(2**40) + b"x"),
    ("a text of 2^64-1 bytes", "shop.Order", tag(1, 2) + varint(2**64 - 1) + b"x"),
    ("a text that is not UTF-8", "shop.Order", field(1, b"\xff\xfe")),
    ("a text with half a surrogate pair", "shop.Order", field(1, b"\xed\xa0\x80")),
    ("a text of a message within that is not UTF-8", "shop.Order", field(2, field(1, b"\xff"))),
    ("a number of eleven bytes", "vectors.Int64", tag(2, 0) + b"\x80" * 10 + b"\x00"),
    ("a number without end", "vectors.Int64", tag(2, 0) + b"\xff" * 20),
    ("an unknown number without end", "shop.Order", tag(99, 0) + b"\xff" * 20),
    ("a tag of six bytes", "shop.Order", b"\x8a\x80\x80\x80\x80\x00\x01x"),
    ("a tag of more than 32 bits", "shop.Order", b"\x8a\x80\x80\x80\x10\x01x"),
    ("a tag and no field", "shop.Order", tag(1, 2)),
    ("seven bytes of a fixed64", "shop.Order", tag(11, 1) + bytes(7)),
    ("three bytes of a fixed32", "shop.Order", tag(12, 5) + bytes(3)),
    ("a message within that ends in a field", "shop.Order", field(2, tag(1, 2) + varint(5) + b"x")),
    ("a message within that ends in a number", "shop.Order", field(7, tag(1, 0) + b"\x80")),
    ("packed numbers, the last without end", "shop.Order", field(5, b"\x02\x80")),
    ("a message within itself, a thousand times", "shop.Tree", None),
    ("the bytes of a frame before the record", "shop.Order", b"\x00\x00\x00\x00\x01\x00" + field(1, "o-1")),
    ("an entry of a map that is torn", "shop.Order", field(4, tag(1, 2) + b"\x05x")),
]

ID, GUID = b"\x00\x00\x00\x00\x01", b"\x01" + bytes(range(16))
# True if the format has message indexes, then the start of the value, and the header.
FRAMES = [
    ("nothing at all", False, b"", None),
    ("a magic byte only", False, b"\x00", None),
    ("three bytes of an id", False, ID[:4], None),
    ("a magic byte that there is not", False, b"\x02" + ID[1:], None),
    ("a magic byte of 255", False, b"\xff" + ID[1:], None),
    ("no frame, but JSON", False, b'{"id":1}', None),
    ("no frame, but a text of Avro", False, text("order-17"), None),
    ("a GUID of fifteen bytes", False, GUID[:16], None),
    ("a header with nothing in it", False, b"", b""),
    ("a header with a magic byte only", False, b"", b"\x01"),
    ("a header with a GUID of fifteen bytes", False, b"", GUID[:16]),
    ("a header with a magic byte that there is not", False, b"", b"\x02" + GUID[1:]),
    ("a header with a GUID in words", False, b"", b"00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ("no message indexes", True, ID, None),
    ("a negative count of message indexes", True, ID + long(-1), None),
    ("2^40 message indexes", True, ID + long(2**40), None),
    ("fewer message indexes than said", True, ID + long(2) + long(0), None),
    ("a message index without end", True, ID + long(1) + b"\xff" * 20, None),
    ("a negative message index", True, ID + long(1) + long(-1), None),
    ("a message index past the last message", True, ID + long(1) + long(9), None),
    ("a message index past the last message within", True, ID + long(2) + long(0) + long(9), None),
    ("a header without its message indexes", True, b"", GUID),
    ("a header with fewer message indexes than said", True, b"", GUID + long(2) + long(0)),
]


def refusals(tries):
    """The decoders that reject the record, with their messages."""
    out = {}
    for name, read in tries.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read()
        except Exception as error:  # noqa: BLE001 - a decoder may reject with any exception
            words = f"{type(error).__name__}: {error}".strip(": ")
            out[name] = words.split(" from <")[0]  # what follows is the address of an object
    return out


def of_avro(rows):
    for name, schema, data in rows:

        def read(schema=schema, data=data):
            stream = io.BytesIO(data)
            fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
            if stream.read(1):
                raise ValueError("bytes behind the record, which fastavro leaves unread")

        # fastavro would run for too long, or exhaust the memory.
        refused = {} if "2^62 nulls" in name or "2^40" in name or "largest" in name else refusals({"fastavro": read})
        yield {"name": f"Avro: {name}", "format": "avro", "schema": compact(schema), "record": hexed(data), "refused_by": refused}


def of_protobuf(rows, protos):
    for name, kind, data in rows:
        if data is None:
            data = b""
            for _ in range(1000):
                data = field(2, data)
        proto = protos[kind.split(".")[0]]
        refused = refusals({"protobuf": lambda: proto.message(kind).FromString(data)})
        yield {
            "name": f"Protobuf: {name}",
            "format": "protobuf",
            "schema": proto.name,
            "message": kind,
            "record": hexed(data),
            "refused_by": refused,
        }


def of_frames():
    for name, indexed, value, header in FRAMES:
        kind = "PROTOBUF" if indexed else "AVRO"
        refused = refusals(
            {"confluent-kafka": lambda: SchemaId(kind).from_bytes(io.BytesIO(value if header is None else header))}
        )
        headers = [] if header is None else [["__value_schema_id", hexed(header)]]
        yield {"name": name, "format": kind.lower(), "value": hexed(value), "headers": headers, "refused_by": refused}


def make():
    protos = {"shop": Proto("shop.proto"), "vectors": Proto("scalars.proto")}
    return {
        "records": [*of_avro(AVRO), *of_protobuf(PROTOBUF, protos)],
        "hostile": [*of_avro(HOSTILE_AVRO), *of_protobuf(HOSTILE_PROTOBUF, protos)],
        "disputed": list(of_protobuf(DISPUTED_PROTOBUF, protos)),
        "frames": list(of_frames()),
    }
