"""Records in frames of confluent-kafka's serializers, with the schemas as the registry returns them.

The id of a record is the value that the deserializers return at its place.
"""

from confluent_kafka.schema_registry import Schema, SchemaReference, header_schema_id_serializer, prefix_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField

from common import Proto, at, compact, field_of, hexed, id_of, proto_text
from registry import CONF, context, put

LARGE_ID = 0x01020304
CUSTOMER = {"type": "record", "name": "Customer", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "note", "type": ["null", "string"]},
        {"name": "customer", "type": "shop.Customer"},
        {"name": "id", "type": "long"},
    ],
}
PAYMENT = {
    "type": "record",
    "name": "Payment",
    "namespace": "shop",
    "fields": [{"name": "order", "type": ["null", "shop.Order"]}, {"name": "payer", "type": "shop.Customer"}],
}
JSON_CUSTOMER = {"$id": "customer.json", "title": "Customer", "type": "object", "properties": {"id": {"type": "string"}}}
JSON_ORDER = {
    "$id": "order.json",
    "title": "Order",
    "type": "object",
    "properties": {"customer": {"$ref": "customer.json"}, "id": {"type": "integer"}},
}
FRAMES = ("prefix", "header", "prefix with a GUID")


def guid_in_prefix(payload, _, schema_id):
    """A frame that the deserializers also accept: the GUID before the payload instead of in a header."""
    return schema_id.guid_to_bytes() + payload


def serializer_conf(frame, registered):
    """Registering a schema does not return its GUID, so the schema is looked up."""
    serializer = {"prefix": prefix_schema_id_serializer, "header": header_schema_id_serializer}.get(frame, guid_in_prefix)
    return {**CONF, "schema.id.serializer": serializer, "auto.register.schemas": frame == "prefix" and not registered}


class Records:
    def __init__(self, client):
        self.client = client
        self.records = []

    def add(self, name, topic, places, find, frame="prefix", **parts):
        """A record. The key and the value each consist of a serializer, a deserializer, and the object."""
        headers = []
        record = {"name": name, "format": parts["format"], "frame": frame, "topic": topic}
        if "message" in parts:
            record["message"] = parts["message"]
        record |= {"key": None, "value": None, "headers": headers}
        for field, asked, told in (("key", [""], "key_places"), ("value", places, "places")):
            if field in parts:
                encode, decode, content = parts[field]
                where = context(topic, MessageField.KEY if field == "key" else MessageField.VALUE, headers)
                data = encode(content, where)
                decoded = decode(data, where)
                record |= {field: hexed(data), told: {place: id_of(find(decoded, place)) for place in asked}}
        record["headers"] = [[name, hexed(value)] for name, value in headers]
        self.records.append(record)

    def avro(self, topic, schema, content, places, references=(), frames=FRAMES, name="", **conf):
        written = Schema(compact(schema), "AVRO", list(references))
        for frame in frames:
            encode = AvroSerializer(self.client, written, conf={**serializer_conf(frame, conf), **conf})
            pair = (encode, AvroDeserializer(self.client), content)
            self.add(f"Avro{name}", topic, places, at, frame, format="avro", value=pair)

    def register(self, subject, kind, text, references=()):
        self.client.register_schema(subject, Schema(text, kind, list(references)))

    def of_avro(self):
        self.avro("avro-texts", CUSTOMER, {"id": "Zürich-17"}, ["/id"])
        self.register("avro-customer", "AVRO", compact(CUSTOMER))
        customer = SchemaReference("shop.Customer", "avro-customer", 1)
        self.register("avro-order", "AVRO", compact(ORDER), [customer])
        order = SchemaReference("shop.Order", "avro-order", 1)
        first = {"note": "nur für Sie", "customer": {"id": "c-9"}, "id": -(2**40)}
        self.avro("avro-orders", ORDER, first, ["/id", "/customer/id", "/note"], [customer], name=", with a reference")
        both = {"order": first, "payer": {"id": "c-10"}}
        places = ["/order/customer/id", "/payer/id"]
        self.avro("avro-payments", PAYMENT, both, places, [customer, order], name=", with references that refer to one another")

    def of_large_id(self):
        schema = {**CUSTOMER, "doc": "Its id has four bytes."}
        put(self.client, [{"subject": "avro-large-value", "version": 1, "id": LARGE_ID, "schema": compact(schema)}])
        conf = {"use.schema.id": LARGE_ID, "auto.register.schemas": False}
        self.avro("avro-large", schema, {"id": "x"}, ["/id"], frames=["prefix"], name=", a large schema id", **conf)

    def of_avro_keys(self):
        """A framed key and a framed value. The key is a text and not a record."""
        for frame in ("prefix", "header"):
            topic = "avro-keys"
            key = AvroSerializer(self.client, '"string"', conf=serializer_conf(frame, False))
            value = AvroSerializer(self.client, compact(CUSTOMER), conf=serializer_conf(frame, False))
            decode = AvroDeserializer(self.client)
            parts = {"key": (key, decode, "key-one"), "value": (value, decode, {"id": "value-one"})}
            self.add("Avro, key and value", topic, ["/id"], at, frame, format="avro", **parts)

    def of_protobuf(self):
        shop = Proto("shop.proto")
        order = shop.message("shop.Order")
        line, change = order.Line, shop.message("shop.Audit.Change")
        cases = [
            (
                order(order_id="o-1", customer={"id": "c-1"}, total={"cents": 1999, "currency": {"code": "EUR"}}),
                ["/order_id", "/customer/id", "/total/cents"],
            ),
            (shop.message("shop.Refund")(refund_id=-5, of=order(order_id="o-2")), ["/refund_id", "/of/order_id"]),
            (line(sku="s-1", pieces=3), ["/sku", "/pieces"]),
            (line.Discount(code="d-1"), ["/code"]),
            (shop.message("shop.Audit.Login")(user="u-1"), ["/user"]),
            (change.Field(name="f-1"), ["/name"]),
        ]
        for frame in FRAMES:
            for message, places in cases:
                kind = type(message)
                encode = ProtobufSerializer(kind, self.client, conf=serializer_conf(frame, False))
                decode = ProtobufDeserializer(kind, CONF, self.client)
                full_name = kind.DESCRIPTOR.full_name
                name = f"Protobuf, {full_name}"
                self.add(
                    name,
                    "protobuf-shop",
                    places,
                    field_of,
                    frame,
                    format="protobuf",
                    message=full_name,
                    value=(encode, decode, message),
                )

    def of_protobuf_text(self):
        """The same with textual schemas, which most registries return."""
        self.register("text-currency", "PROTOBUF", proto_text("common/currency.proto"))
        currency = SchemaReference("common/currency.proto", "text-currency", 1)
        self.register("text-money", "PROTOBUF", proto_text("common/money.proto"), [currency])
        money = SchemaReference("common/money.proto", "text-money", 1)
        self.register("protobuf-text-value", "PROTOBUF", proto_text("shop.proto"), [money])
        number = self.client.get_latest_version("protobuf-text-value").schema_id
        refund = Proto("shop.proto").message("shop.Refund")
        message = refund(refund_id=2**62, of={"order_id": "o-3", "total": {"cents": 5}})

        def encode(message, _):
            """The serializer with a fix: it would mistake the schema's text for a descriptor in base64."""
            return SchemaId("PROTOBUF", number, message_indexes=[1]).id_to_bytes() + message.SerializeToString()

        decode = ProtobufDeserializer(refund, CONF)
        self.add("Protobuf, the schema in text", "protobuf-text", ["/refund_id", "/of/order_id", "/of/total/cents"], field_of,
                 format="protobuf", message="shop.Refund", value=(encode, decode, message))  # fmt: skip

    def of_json(self):
        self.register("json-customer", "JSON", compact(JSON_CUSTOMER))
        customer = SchemaReference("customer.json", "json-customer", 1)
        schema = Schema(compact(JSON_ORDER), "JSON", [customer])
        for frame in FRAMES:
            encode = JSONSerializer(schema, self.client, conf=serializer_conf(frame, False))
            pair = (
                encode,
                JSONDeserializer(schema, schema_registry_client=self.client),
                {"customer": {"id": "c-ü"}, "id": 2**53 + 1},
            )
            self.add(
                "JSON Schema, with a reference",
                "json-orders",
                ["/id", "/customer/id"],
                at,
                frame,
                format="json_schema",
                value=pair,
            )


def make(client):
    records = Records(client)
    for part in (
        records.of_avro,
        records.of_avro_keys,
        records.of_protobuf,
        records.of_protobuf_text,
        records.of_json,
        records.of_large_id,
    ):
        part()
    return {"records": records.records}
