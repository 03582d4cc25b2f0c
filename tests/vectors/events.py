"""CloudEvents in Kafka records as written by the Python SDK, in binary and structured mode."""

import datetime

from cloudevents.core.bindings import kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v03.event import CloudEvent as CloudEventV03
from cloudevents.core.v1.event import CloudEvent

from common import hexed

TIME = datetime.datetime(2026, 11, 24, 7, 30, tzinfo=datetime.timezone.utc)
# By default, the SDK uses the current time.
REQUIRED = {"specversion": "1.0", "type": "com.example.order", "source": "/orders/zürich", "id": "order-17", "time": TIME}
EVENTS = [
    ("what must be there, and a time", CloudEvent, REQUIRED, None),
    (
        "with data in JSON",
        CloudEvent,
        {**REQUIRED, "datacontenttype": "application/json", "subject": "17"},
        {"id": "not the event's", "cents": 5},
    ),
    ("with data in bytes", CloudEvent, {**REQUIRED, "datacontenttype": "application/octet-stream"}, b"\x00\xff"),
    (
        "with an extension and a partition key",
        CloudEvent,
        {**REQUIRED, "partitionkey": "customer-3", "tenant": "t-1"},
        {"source": "not the event's"},
    ),
    ("with an id to escape", CloudEvent, {**REQUIRED, "id": 'a "quoted" \\ id ☕'}, {}),
    ("of version 0.3", CloudEventV03, {**REQUIRED, "specversion": "0.3"}, {"cents": 5}),
]


def make():
    records = []
    for name, kind, attributes, data in EVENTS:
        for mode, encode in (("binary", kafka.to_binary), ("structured", kafka.to_structured)):
            message = encode(kind(dict(attributes), data), JSONFormat())
            key = message.key.encode() if isinstance(message.key, str) else message.key
            headers = [[header, hexed(value)] for header, value in message.headers.items()]
            record = {"name": name, "mode": mode, "key": hexed(key), "value": hexed(message.value), "headers": headers}
            told = {attribute: value for attribute, value in attributes.items() if isinstance(value, str)}
            records.append({**record, "attributes": told})
    return {"records": records}
