"""Valid records with unusual encodings, written by hand according to the specifications.

The id of a record is the value that the decoder of fastavro or protobuf returns at its place.
"""

from common import Proto, at, compact, field_of, hexed, id_of, read_avro
from wire import field, long, tag, text, varint

LIST = {
    "type": "record",
    "name": "List",
    "fields": [
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "long"}},
        {"name": "id", "type": "long"},
    ],
}
END = b"\x00"


def blocks(*parts, sized=()):
    """Blocks of an array or map. Each has a count and its items, and `sized` blocks also their length in bytes."""
    out = b""
    for number, items in enumerate(parts):
        data = b"".join(items)
        out += (long(-len(items)) + long(len(data)) if number in sized else long(len(items))) + data
    return out + END


def of_avro():
    a, b, c = text("a"), text("bb"), text("")
    one, two = text("x") + long(1), text("id") + long(-2)
    rows = [
        ("an array and a map in several blocks", blocks([a, b], [c]) + blocks([one], [two]) + long(17)),
        ("blocks that say their length", blocks([a, b, c], sized=[0]) + blocks([one, two], sized=[0]) + long(17)),
        ("blocks with and without their length", blocks([a], [b], [c], sized=[1]) + blocks([one], [two], sized=[1]) + long(17)),
        ("a key of a map twice", blocks([a]) + blocks([two, text("id") + long(5)]) + long(17)),
        ("numbers longer than they need be", long(1, 3) + text("a") + long(0, 2) + blocks() + long(17, 10)),
        ("lengths longer than they need be", long(1, 5) + long(1, 4) + b"a" + END + blocks() + long(-17, 9)),
    ]
    for name, record in rows:
        found = {"/id": id_of(at(read_avro(LIST, record), "/id"))}
        yield {"name": f"Avro: {name}", "format": "avro", "schema": compact(LIST), "record": hexed(record), "places": found}


def of_protobuf(shop, scalars, legacy):
    order, customer = "shop.Order", lambda **fields: shop.message("shop.Order.Customer")(**fields).SerializeToString()
    whole = shop.message(order)(order_id="o-1", customer={"id": "c-1"}, invoice=5).SerializeToString()
    other = shop.message(order)(order_id="o-2", customer={"mail": "m"}, card="k").SerializeToString()
    group = tag(77, 3) + field(2, "x") + tag(78, 3) + tag(1, 0) + b"\x05" + tag(78, 4) + tag(77, 4)
    unknown = field(99, "unknown") + tag(98, 0) + varint(2**63) + tag(97, 1) + bytes(8) + tag(96, 5) + bytes(4)
    entry = field(1, "id") + field(2, "a")
    rows = [
        ("fields in no order", order, field(2, customer(id="c-1")) + field(1, "o-1"), ["/order_id", "/customer/id"]),
        (
            "two records as one: the last of a field counts, messages are merged",
            order,
            whole + other,
            ["/order_id", "/customer/id", "/customer/mail", "/invoice", "/card"],
        ),
        ("the other member of a oneof last", order, other + whole, ["/order_id", "/customer/id", "/invoice", "/card"]),
        ("a field twice", order, field(1, "o-1") + field(1, ""), ["/order_id"]),
        (
            "a message in two parts",
            order,
            field(2, customer(id="c-1")) + field(1, "o-1") + field(2, b""),
            ["/order_id", "/customer/id"],
        ),
        ("unknown fields", order, unknown + field(1, "o-1") + unknown, ["/order_id"]),
        ("an unknown group with a group in it", order, group + field(1, "o-1") + group, ["/order_id"]),
        (
            "a known field of another wire type, which is an unknown one",
            order,
            field(1, "o-1") + tag(1, 0) + b"\x05",
            ["/order_id"],
        ),
        ("a known field of another wire type only", order, tag(1, 5) + bytes(4), ["/order_id"]),
        ("a packed field that is not packed", order, tag(5, 0) + b"\x01" + tag(5, 0) + b"\x02", ["/marks/0", "/marks/1"]),
        ("a packed field in two parts", order, field(5, b"\x01\x02") + field(5, b"\x03"), ["/marks/2"]),
        ("an entry of a map with its value first", order, field(4, field(2, "v") + field(1, "k")), ["/labels/k"]),
        ("a key of a map twice", order, field(4, entry) + field(4, field(1, "id") + field(2, "b")), ["/labels/id"]),
        ("an entry of a map without a key", order, field(4, field(2, "v")), ["/labels/"]),
        ("an enum that no symbol has", order, tag(6, 0) + varint(9), ["/status"]),
        ("an enum that is negative", order, tag(6, 0) + varint(2**64 - 1), ["/status"]),
        ("a default on the wire", "vectors.Int64", tag(2, 0) + b"\x00", ["/id"]),
        ("a text on the wire that is empty", "vectors.Text", field(2, ""), ["/id"]),
        ("a negative int32, in ten bytes", "vectors.Int32", tag(2, 0) + varint(2**64 - 1), ["/id"]),
        ("a negative int32, in five bytes", "vectors.Int32", tag(2, 0) + varint(2**32 - 1), ["/id"]),
        ("an int32 with more than 32 bits, which are cut off", "vectors.Int32", tag(2, 0) + varint(2**32 + 5), ["/id"]),
        ("a uint32 with more than 32 bits, which are cut off", "vectors.Uint32", tag(2, 0) + varint(2**40 + 5), ["/id"]),
        ("a sint32 with more than 32 bits, which are cut off", "vectors.Sint32", tag(2, 0) + varint(2**32 + 5), ["/id"]),
        ("true that is 2", "vectors.Bool", tag(2, 0) + b"\x02", ["/id"]),
        ("true that is 2^63", "vectors.Bool", tag(2, 0) + varint(2**63), ["/id"]),
        ("a number longer than it need be", "vectors.Int64", tag(2, 0) + varint(5, 10), ["/id"]),
        ("a length longer than it need be", "vectors.Text", tag(2, 2) + varint(1, 5) + b"a", ["/id"]),
        ("a tag longer than it need be", "vectors.Text", varint(2 << 3 | 2, 5) + b"\x01a", ["/id"]),
        (
            "a group that is known",
            "vectors.Legacy",
            field(1, "l-1") + tag(3, 3) + field(4, "n") + tag(3, 4),
            ["/id", "/extra/note"],
        ),
        (
            "a numbers field that is packed, though its schema does not say so",
            "vectors.Legacy",
            field(1, "l-1") + field(5, b"\x01\x02"),
            ["/id", "/numbers/1"],
        ),
    ]
    for name, kind, record, places in rows:
        proto = {"shop": shop, "vectors": legacy if kind == "vectors.Legacy" else scalars}[kind.split(".")[0]]
        read = proto.message(kind).FromString(record)
        found = {place: id_of(field_of(read, place)) for place in places}
        yield {
            "name": f"Protobuf: {name}",
            "format": "protobuf",
            "schema": proto.name,
            "message": kind,
            "record": hexed(record),
            "places": found,
        }


def make():
    return {"records": [*of_avro(), *of_protobuf(Proto("shop.proto"), Proto("scalars.proto"), Proto("legacy.proto"))]}
