"""One record whose schema evolves: each version in a frame, as its producer writes it, with all schemas in one subject.

The deserializers read each version with its own schema.
"""

from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

from common import Proto, at, compact, field_of, hexed, id_of
from registry import CONF, context


def record(*fields):
    return {"type": "record", "name": "Order", "namespace": "evolution", "fields": list(fields)}


ID, CENTS = {"name": "id", "type": "string"}, {"name": "cents", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
RENAMED = {"name": "order_id", "type": "string", "aliases": ["id"]}
AVRO = [
    ("the first", record(ID, CENTS), {"id": "o-17", "cents": 5}, ["/id"]),
    ("a field is new", record(NOTE, ID, CENTS), {"note": "new", "id": "o-17", "cents": 5}, ["/id"]),
    (
        "the field has another name, and its old one as an alias",
        record(NOTE, RENAMED, CENTS),
        {"note": None, "order_id": "o-17", "cents": 5},
        ["/order_id"],
    ),
    (
        "the fields have another order",
        record(CENTS, RENAMED, NOTE),
        {"cents": 5, "order_id": "o-17", "note": "last"},
        ["/order_id"],
    ),
    (
        "the field has another type",
        record(CENTS, {**RENAMED, "type": ["null", "string"]}),
        {"cents": 5, "order_id": "o-17"},
        ["/order_id"],
    ),
]
PROTOBUF = [
    ("the first", "order_v1.proto", {"id": "o-17", "cents": 5}, ["/id"]),
    (
        "a field is new, another has another name, a third is gone",
        "order_v2.proto",
        {"note": "new", "order_id": "o-17", "tenant": 3},
        ["/order_id"],
    ),
]


def make(client):
    records = []

    def add(name, version, topic, encode, decode, content, find, places, **more):
        value = encode(content, context(topic))
        read = decode(value, context(topic))
        found = {place: id_of(find(read, place)) for place in places}
        records.append({"name": name, "version": version, "topic": topic, **more, "value": hexed(value), "places": found})

    for version, (name, schema, content, places) in enumerate(AVRO, 1):
        encode = AvroSerializer(client, compact(schema), conf=CONF)
        decode = AvroDeserializer(client, conf=CONF)
        add(name, version, "avro-evolution", encode, decode, content, at, places, format="avro")
    for version, (name, file, content, places) in enumerate(PROTOBUF, 1):
        kind = Proto(file).message("evolution.Order")
        encode = ProtobufSerializer(kind, client, conf=CONF)
        decode = ProtobufDeserializer(kind, CONF, client)
        add(
            name,
            version,
            "protobuf-evolution",
            encode,
            decode,
            kind(**content),
            field_of,
            places,
            format="protobuf",
            message="evolution.Order",
        )
    return {"records": records}
