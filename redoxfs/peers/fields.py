"""Samples' bytes in a protobuf message, without a copy by protobuf.

A message with bytes has them in its last field, number 15, after fields that the generated class reads and writes. To
write a message, the class writes it without the bytes and this appends the field. To read one, this splits the field
off first. The bytes on the wire are exactly those that the generated class would write.
"""

from collections.abc import Sequence

PAYLOAD_FIELD = 15
PAYLOAD_TAG = bytes([PAYLOAD_FIELD << 3 | 2])
"""Field 15, length-delimited. Field numbers up to 15 take one byte."""

MOST_FIELDS = 64
"""The limit for a message with a payload, which has a few: a megabyte of tiny ones would take seconds to parse."""

VARINT_BYTES = 10
"""The longest varint: 64 bits, seven in a byte."""

VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
"""The wire types of proto3."""

Bytes = bytes | bytearray | memoryview


def with_payload(head: bytes, pieces: Sequence[Bytes]) -> bytes:
    """``head``, a message without its payload, with the payload ``pieces``, which are copied once."""
    size = sum([len(piece) for piece in pieces])
    if not size:
        return head
    return b"".join((head, PAYLOAD_TAG, _varint(size), *pieces))


def split_payload(message: bytes) -> tuple[memoryview, memoryview]:
    """The message without its payload, and the payload; neither is a copy.

    Raises:
        ValueError: ``message`` is malformed, or its payload is not its last field.
    """
    whole = memoryview(message)
    at, end, fields = 0, len(message), 0
    while at < end:
        fields += 1
        if fields > MOST_FIELDS:
            raise ValueError(f"a message of more than {MOST_FIELDS} fields")
        began = at
        key, at = _read_varint(message, at)
        field, kind = key >> 3, key & 7
        if field == 0:
            raise ValueError(f"field 0 at byte {began} of a message")
        if kind == VARINT:
            _, at = _read_varint(message, at)
        elif kind == FIXED_64:
            at += 8
        elif kind == FIXED_32:
            at += 4
        elif kind == LENGTH:
            size, start = _read_varint(message, at)
            at = start + size
            if field == PAYLOAD_FIELD and at == end:
                return whole[:began], whole[start:]
        else:
            raise ValueError(f"a field of unknown kind {kind} at byte {began} of a message")
        if at > end:
            raise ValueError(f"a field of a message of {end} bytes ends at byte {at}")
        if field == PAYLOAD_FIELD:
            raise ValueError("the payload of a message is not its last field")
    return whole, whole[end:]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that starts at byte ``at``, and the offset after it."""
    value = 0
    for i, byte in enumerate(message[at : at + VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + i + 1
    raise ValueError(f"no whole number at byte {at} of a message")
