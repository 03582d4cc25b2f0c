"""Bytes that no encoder would write, according to the specifications. Only odd.py and invalid.py may use this module."""


def varint(number, length=0):
    """A varint, padded to `length` bytes."""
    out = bytearray()
    while number > 0x7F or len(out) + 1 < length:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def long(number, length=0):
    """An Avro number: zigzag encoding in a varint."""
    return varint((number << 1) ^ (number >> 63), length)


def text(content):
    """An Avro text or bytes: the length, and the bytes."""
    data = content if isinstance(content, bytes) else content.encode()
    return long(len(data)) + data


def tag(number, kind):
    """The tag of a Protobuf field. Kinds: 0 varint, 1 64 bits, 2 with a length, 3 and 4 start and end of a group, 5 32 bits."""
    return varint(number << 3 | kind)


def field(number, content):
    """A length-delimited field."""
    data = content if isinstance(content, bytes) else content.encode()
    return tag(number, 2) + varint(len(data)) + data
