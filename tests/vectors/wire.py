"""Bytes by hand, from the specifications: what no encoder would write. Only odd.py and invalid.py may use them."""


def varint(number, length=0):
    """A varint, with `length` bytes if its shortest form has fewer."""
    out = bytearray()
    while number > 0x7F or len(out) + 1 < length:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def long(number, length=0):
    """A number of Avro: zigzag, then a varint."""
    return varint((number << 1) ^ (number >> 63), length)


def text(content):
    """A text or bytes of Avro: the length, then the bytes."""
    data = content if isinstance(content, bytes) else content.encode()
    return long(len(data)) + data


def tag(number, kind):
    """What is before a field of Protobuf. Kinds: 0 varint, 1 64 bits, 2 with a length, 3 and 4 a group's ends, 5 32 bits."""
    return varint(number << 3 | kind)


def field(number, content):
    """A field with a length."""
    data = content if isinstance(content, bytes) else content.encode()
    return tag(number, 2) + varint(len(data)) + data
