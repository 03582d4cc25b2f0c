"""Records with many fields, and the ids at many places in them, to make a reader skip other fields.

fastavro and protobuf encode the records. An id is the value that their decoders return at the place. Places contain indexes of arrays
and keys of maps.
"""

import datetime
import decimal
import uuid

from common import Proto, at, avro, compact, field_of, hexed, id_of, read_avro

AVRO = {
    "type": "record",
    "name": "Event",
    "namespace": "places",
    "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "single", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "blob", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "namespace": "places.kinds", "symbols": ["NEW", "OLD"]}},
        {"name": "kinds", "type": {"type": "array", "items": "places.kinds.Kind"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "tags", "type": {"type": "map", "values": ["null", "long", "string"]}},
                    ],
                },
            },
        },
        {"name": "labels", "type": {"type": "map", "values": {"type": "array", "items": "bytes"}}},
        {"name": "first", "type": ["null", "Line"]},
        {
            "name": "user",
            "type": [
                "null",
                "string",
                {
                    "type": "record",
                    "name": "User",
                    "fields": [{"name": "id", "type": ["long", "string"]}, {"name": "hash", "type": "Hash"}],
                },
            ],
        },
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "chain",
            "type": {
                "type": "record",
                "name": "Node",
                "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
            },
        },
        {"name": "last", "type": "string"},
    ],
}
EVENT = {
    "nothing": None,
    "flag": True,
    "small": -129,
    "large": 2**62,
    "single": 1.5,
    "double": -0.25,
    "blob": bytes(range(200)),
    "hash": b"\x00\x01\x02\x03",
    "kind": "OLD",
    "kinds": ["NEW", "OLD", "NEW"],
    "lines": [
        {"sku": "s-1", "tags": {"a": 1, "b": None, "c": "drei"}},
        {"sku": "s-2", "tags": {}},
        {"sku": "s-3", "tags": {"id": 7}},
    ],
    "labels": {"id": [b"x", b""], "Größe": [], "": [b"y"]},
    "first": {"sku": "s-0", "tags": {"z": -1}},
    "user": {"id": "u-ü", "hash": b"\xff" * 4},
    "amount": decimal.Decimal("-1234.500"),
    "at": datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc),
    "trace": uuid.UUID("0188a7d2-3f6b-7c1e-9a40-5be1c0ffee42"),
    "chain": {"id": 1, "next": {"id": 2, "next": {"id": 3, "next": None}}},
    "last": "the end",
}
OF_AVRO = (
    "/nothing /flag /small /large /blob /hash /kind /kinds/1 /lines/0/sku /lines/2/sku /lines/0/tags/a /lines/0/tags/b /lines/0/tags/c "
    "/lines/2/tags/id /labels/id/0 /labels/id/1 /labels//0 /first/sku /first/tags/z /user/id /user/hash /amount /at /trace /chain/id "
    "/chain/next/id /chain/next/next/id /chain/next/next/next /last"
).split()
OF_PROTOBUF = (
    "/order_id /customer/id /customer/mail /lines/0/sku /lines/1/pieces /lines/1/discount/code /labels/id /labels/Größe /marks/2 /status "
    "/total/cents /total/currency/code /invoice /card /trace /shard /signature"
).split()


def of_avro(name, value, places):
    record = avro(AVRO, value)
    found = {place: id_of(at(read_avro(AVRO, record), place)) for place in places}
    return {"name": name, "format": "avro", "schema": compact(AVRO), "record": hexed(record), "places": found}


def of_protobuf(name, proto, message, places):
    record = message.SerializeToString(deterministic=True)
    read = type(message).FromString(record)
    found = {place: id_of(field_of(read, place)) for place in places}
    kind = message.DESCRIPTOR.full_name
    return {"name": name, "format": "protobuf", "schema": proto, "message": kind, "record": hexed(record), "places": found}


def order(shop):
    lines = [{"sku": "s-1", "pieces": 1}, {"sku": "s-2", "pieces": -2, "discount": {"code": "d-ü"}}]
    return shop.message("shop.Order")(
        order_id="o-1",
        customer={"id": "c-1"},
        lines=lines,
        labels={"id": "no id", "Größe": "XL"},
        marks=[1, -1, 2**62],
        status=2,
        total={"cents": -1999, "currency": {"code": "EUR"}},
        invoice=2**40,
        weight=0.5,
        trace=2**64 - 1,
        shard=2**32 - 1,
        signature=b"\x00\xff" * 100,
    )


def make():
    shop, legacy = Proto("shop.proto"), Proto("legacy.proto")
    tree = shop.message("shop.Tree")(id="1", child={"id": "2", "child": {"id": "3"}})
    old = legacy.message("vectors.Legacy")(id="l-1", extra={"note": "in a group"}, numbers=[1, 2, 300])
    rest = EVENT | {"user": None, "first": None, "lines": [], "labels": {}, "kinds": [], "blob": b"", "last": ""}
    return {
        "records": [
            of_avro("Avro, all there is", EVENT, OF_AVRO),
            of_avro("Avro, all that can be empty", rest, ["/flag", "/user", "/first", "/blob", "/last", "/at"]),
            of_avro("Avro, a text and not a record", EVENT | {"user": "nobody"}, ["/user", "/last"]),
            of_protobuf("Protobuf, all there is", "shop.proto", order(shop), OF_PROTOBUF),
            of_protobuf(
                "Protobuf, nothing",
                "shop.proto",
                shop.message("shop.Order")(),
                ["/order_id", "/customer/id", "/status", "/trace", "/card", "/signature"],
            ),
            of_protobuf(
                "Protobuf, a message within itself",
                "shop.proto",
                tree,
                ["/id", "/child/id", "/child/child/id", "/child/child/child/id"],
            ),
            of_protobuf("Protobuf 2", "legacy.proto", old, ["/id", "/tenant", "/extra/note", "/numbers/2"]),
        ],
    }
