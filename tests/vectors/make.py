"""Writes tests/data/formats: records in schema formats, written by other projects' encoders. scripts/vectors runs this script.

The output is deterministic for the same versions: it depends on no clock, no randomness, and no order of a set.
"""

import json
import os
import sys

import events
import evolution
import framed
import invalid
import odd
import places
import registry
import values
from common import PROTO_FILES, descriptors, hexed, proto_text

OUT = os.path.join(registry.ROOT, "tests", "data", "formats")


def lines(value, indent=0):
    """JSON with one line per object without lists, and per line of a schema."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or (len(flat) < 100 and "[" not in flat) or not value or is_flat(value):
        return flat
    pad = "\n" + " " * (indent + 1)
    if isinstance(value, dict):
        members = [f"{json.dumps(name, ensure_ascii=False)}: {lines(member, indent + 1)}" for name, member in value.items()]
    else:
        members = [lines(member, indent + 1) for member in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return start + pad + f",{pad}".join(members) + "\n" + " " * indent + end


def is_flat(value):
    members = value.values() if isinstance(value, dict) else value
    return (
        isinstance(value, dict)
        and "record" in value
        or not any(isinstance(member, (dict, list)) for member in members)
        and len(value) < 2
    )


def write(name, content):
    path = os.path.join(OUT, name)
    if not isinstance(content, bytes):
        content = (lines(content) + "\n").encode()
    with open(path, "wb") as file:
        file.write(content)
    print(f"{len(content):7} {os.path.relpath(path, registry.ROOT)}")


def main():
    os.makedirs(OUT, exist_ok=True)
    for name, module in [("values.json", values), ("framed.json", framed), ("evolution.json", evolution)]:
        with registry.running() as client:
            content = module.make(client)
            write(name, {"registry": registry.dump(client), **content})
    write(
        "schemas.json",
        {"protobuf": {name: {"text": proto_text(name), "descriptors": hexed(descriptors(name))} for name in PROTO_FILES}},
    )
    write("places.json", places.make())
    write("odd.json", odd.make())
    write("invalid.json", invalid.make())
    write("cloudevents.json", events.make())
    write("shop.descriptors", descriptors("shop.proto"))


if __name__ == "__main__":
    sys.exit(main())
