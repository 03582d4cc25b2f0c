"""The registry for the serializers, and their frames.

Runs scripts/registry. The registry assigns all ids, unless a vector needs a special one.
"""

import contextlib
import json
import os
import subprocess
import urllib.request

from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer, topic_subject_name_strategy
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from common import compact

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONF = {"subject.name.strategy": topic_subject_name_strategy}
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Value",
    "type": "object",
    "properties": {"before": {"type": "string"}, "id": {}, "after": {"type": "integer"}},
}


@contextlib.contextmanager
def running(*options):
    """A client of a registry that stops at the end of the block or of this process."""
    command = [os.path.join(ROOT, "scripts", "registry"), "--until-eof", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        word, _, url = process.stdout.readline().strip().partition(" ")
        if word != "ready":
            raise SystemExit("scripts/registry did not start")
        with SchemaRegistryClient({"url": url}) as client:
            yield client
        process.stdin.close()


def get(client, path):
    with urllib.request.urlopen(client.config()["url"] + path) as answer:
        return json.load(answer)


def put(client, schemas):
    """Registers schemas with ids that a registry would not assign."""
    request = urllib.request.Request(client.config()["url"] + "/test/schemas", json.dumps(schemas).encode(), method="POST")
    urllib.request.urlopen(request).close()


def dump(client):
    """All schemas in the order of their ids, as the registry returns them for their subject and version."""
    schemas = get(client, "/schemas")
    return sorted(schemas, key=lambda schema: (schema["id"], schema["subject"]))


def context(topic, field=MessageField.VALUE, headers=None):
    return SerializationContext(topic, field, headers)


def frame_json(client, topic, value, schema=JSON_SCHEMA, serializer=prefix_schema_id_serializer):
    encode = JSONSerializer(compact(schema), client, conf={**CONF, "schema.id.serializer": serializer})
    return encode(value, context(topic))
