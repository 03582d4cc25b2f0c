"""Equal ids: one value in every format that can represent it.

A row is a value in the records of all encoders, with a field before and after it. The row's id is the value that each decoder returns at
the place.
"""

import datetime
import decimal
import json
import uuid

from common import ABSENT, Proto, at, avro, compact, field_of, hexed, id_of, read_avro
from registry import JSON_SCHEMA, frame_json

PLACE = "/id"
INTEGERS = [0, 1, -1, 63, 64, -64, -65, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, -(2**63), 2**63 - 1, 2**64 - 1]
ID = uuid.UUID("0188a7d2-3f6b-7c1e-9a40-5be1c0ffee42")
TIME = datetime.datetime(2026, 11, 24, 7, 30, 0, 123000, tzinfo=datetime.timezone.utc)
MILLIS = round(TIME.timestamp() * 1000)
AVRO_SCHEMAS = {}  # of the records, by the type of the field


def of_json(text):
    """JSON text with this text at the place."""
    record = f'{{"before":"\\u00fc {{\\"id\\":1}}","id":{text},"after":[1,{{"id":2}}]}}'.encode()
    json.loads(record)
    return {"format": "json", "record": hexed(record)}


def of_avro(kind, value, branch=None):
    fields = [("before", "string"), ("id", kind), ("after", {"type": "array", "items": "long"})]
    schema = {
        "type": "record",
        "name": "Value",
        "namespace": "vectors",
        "fields": [{"name": name, "type": type_} for name, type_ in fields],
    }
    chosen = value if branch is None else (branch, value)
    record = avro(schema, {"before": "ü", "id": chosen, "after": [1, -2]})
    AVRO_SCHEMAS[compact(kind)] = compact(schema)
    return {"format": "avro", "schema": compact(kind), "record": hexed(record), "is": id_of(at(read_avro(schema, record), PLACE))}


class Rows:
    def __init__(self, client):
        self.client = client
        self.proto = Proto("scalars.proto")
        self.rows = []

    def of_proto(self, message, field="id", **fields):
        kind = self.proto.message(f"vectors.{message}")
        record = kind(before="ü", **fields).SerializeToString(deterministic=True)
        found = id_of(field_of(kind.FromString(record), f"/{field}"))
        extra = {} if field == "id" else {"place": f"/{field}"}
        return {
            "format": "protobuf",
            "schema": "scalars.proto",
            "message": f"vectors.{message}",
            "record": hexed(record),
            **extra,
            "is": found,
        }

    def of_json_schema(self, value):
        record = frame_json(self.client, "values", {"before": "ü", "id": value, "after": 3})
        return {"format": "json_schema", "record": hexed(record)}

    def add(self, name, identity, records):
        for record in records:
            found = record.pop("is", identity)
            if found != identity:
                raise SystemExit(f"{name}: a decoder finds {found}, and not {identity}: {record}")
        self.rows.append({"name": name, "id": identity, "place": PLACE, "records": records})

    def texts(self):
        for name, text in [("ASCII", "order-17"), ("non-ASCII", 'Zürich ☕ 日本 🦀 "\\/\n'), ("empty", ""), ("long", "x" * 300)]:
            records = [of_json(json.dumps(text, ensure_ascii=False)), of_json(json.dumps(text))]
            records += [of_avro("string", text), of_avro(["null", "string"], text), of_avro(["string", "null"], text)]
            records += [of_avro({"type": "string", "avro.java.string": "String"}, text)]
            records += [
                self.of_proto("Text", id=text, after=-3),
                self.of_proto("OptionalText", id=text),
                self.of_proto("Choice", id=text),
            ]
            self.add(f"a text, {name}", {"text": text}, [*records, self.of_json_schema(text)])

    def integers(self):
        for value in INTEGERS:
            records = [of_json(str(value)), self.of_json_schema(value)]
            is_32, is_u32, is_64, is_u64 = (
                low <= value < 2**bits for low, bits in ((-(2**31), 31), (0, 32), (-(2**63), 63), (0, 64))
            )
            if is_32:
                records += [of_avro("int", value), of_avro(["null", "int", "string"], value)]
            if is_64:
                records += [of_avro("long", value), of_avro(["string", "long", "null"], value, "long")]
                records += [self.of_proto("OptionalInt64", id=value), self.of_proto("Choice", "number", number=value)]
            messages = {"Int32": is_32, "Sint32": is_32, "Sfixed32": is_32, "Uint32": is_u32, "Fixed32": is_u32}
            messages |= {"Int64": is_64, "Sint64": is_64, "Sfixed64": is_64, "Uint64": is_u64, "Fixed64": is_u64}
            records += [self.of_proto(message, id=value) for message, fits in messages.items() if fits]
            self.add(f"the whole number {value}", {"number": str(value)}, records)

    def bytes(self):
        for name, data in [("not UTF-8", b"\x00\xff\x80"), ("ASCII", b"abc"), ("empty", b"")]:
            records = [of_avro("bytes", data), of_avro(["null", "bytes"], data), self.of_proto("Bytes", id=data)]
            if data:
                records.append(of_avro({"type": "fixed", "name": "Three", "size": 3}, data))
            self.add(f"bytes, {name}", {"bytes": data.hex()}, records)

    def words(self):
        for value in (True, False):
            records = [
                of_json(str(value).lower()),
                self.of_json_schema(value),
                of_avro("boolean", value),
                of_avro(["null", "boolean"], value),
            ]
            self.add(f"{value}".lower(), {"bool": value}, [*records, self.of_proto("Bool", id=value)])
        records = [
            of_json("null"),
            self.of_json_schema(None),
            of_avro(["null", "string"], None),
            of_avro(["string", "null"], None),
            of_avro("null", None),
        ]
        self.add("null", {"null": True}, records)
        self.add(
            "no value",
            id_of(ABSENT),
            [self.of_proto("OptionalText"), self.of_proto("OptionalInt64"), self.of_proto("Choice", number=1)],
        )
        symbols = {"type": "enum", "name": "Status", "symbols": ["UNKNOWN", "PAID", "SENT_BACK"]}
        for symbol in symbols["symbols"]:
            records = [
                of_json(f'"{symbol}"'),
                of_avro(symbols, symbol),
                of_avro(["null", symbols], symbol),
                of_avro("string", symbol),
            ]
            self.add(
                f"the symbol {symbol}",
                {"text": symbol},
                [*records, self.of_proto("Enum", id=symbols["symbols"].index(symbol)), self.of_proto("Text", id=symbol)],
            )

    def logical(self):
        fixed = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
        records = [of_json(f'"{ID}"'), of_avro({"type": "string", "logicalType": "uuid"}, ID), of_avro("string", str(ID))]
        # fastavro returns the sixteen bytes unchanged.
        in_bytes = {**of_avro(fixed, ID.bytes), "is": {"text": str(ID)}}
        self.add("a UUID", {"text": str(ID)}, [*records, in_bytes, self.of_proto("Text", id=str(ID))])
        for text, precision in [
            ("123.45", 9),
            ("-0.05", 9),
            ("0.00", 9),
            ("-1.00", 9),
            ("12345678901234567890123456789012345.67", 37),
        ]:
            logical = {"logicalType": "decimal", "precision": precision, "scale": 2}
            number = decimal.Decimal(text)
            records = [of_json(text), of_avro({"type": "bytes", **logical}, number)]
            records.append(of_avro({"type": "fixed", "name": "Amount", "size": 16, **logical}, number))
            self.add(f"the decimal {text}", {"number": text}, records)
        micros = {"type": "long", "logicalType": "timestamp-micros"}
        for name, kind, number in [
            ("millis", {"type": "long", "logicalType": "timestamp-millis"}, MILLIS),
            ("micros", micros, MILLIS * 1000),
        ]:
            records = [of_json(str(number)), of_avro(kind, TIME), of_avro("long", number), self.of_proto("Int64", id=number)]
            self.add(f"a time in {name}", {"number": str(number)}, records)
        date = of_avro({"type": "int", "logicalType": "date"}, TIME.date())
        days = (TIME.date() - datetime.date(1970, 1, 1)).days
        self.add("a date", {"number": str(days)}, [of_json(str(days)), date, self.of_proto("Int32", id=days)])

    def floats(self):
        """These have no expected id, because the same number has different digits in each width."""
        rows = []
        for value in (0.5, -2.0, 0.1):
            records = [of_json(repr(value)), *(of_avro(kind, value) for kind in ("float", "double"))]
            records += [self.of_proto(message, id=value) for message in ("Float", "Double")]
            rows.append({"name": f"the float {value}", "place": PLACE, "records": records})
        return rows


def make(client):
    rows = Rows(client)
    for part in (rows.texts, rows.integers, rows.bytes, rows.words, rows.logical):
        part()
    floats = rows.floats()
    return {
        "avro_schemas": AVRO_SCHEMAS,
        "json_schema": compact(JSON_SCHEMA),
        "values": rows.rows,
        "floats": floats,
    }
