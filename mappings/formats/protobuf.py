"""The wire format of Protocol Buffers, as far as MindSpore's files need it: varints and length-delimited fields.

A message is a sequence of fields, each a key (field number and wire type) and a value. Nothing here knows any schema;
`mappings/formats/strategy.py` and `mappings/formats/mindspore_ckpt.py` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
FIXED = {FIXED64: 8, FIXED32: 4}


class ProtobufError(ValueError):
    """Bytes that are no message, or not of the expected schema."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint, and the position behind it.

    Raises:
        ProtobufError: the data ends inside it, or it is longer than 64 bits.
    """
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if position + count >= len(data):
            raise ProtobufError(f"ends inside a number at byte {position}")
        byte = data[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + count + 1
    raise ProtobufError(f"number of more than 64 bits at byte {position}")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message, in stored order; fixed-width values are given as their bytes.

    Raises:
        ProtobufError: the bytes are no message.
    """
    position = 0
    while position < len(data):
        number, kind, behind = read_key(data, position)
        if kind == VARINT:
            value, position = read_varint(data, behind)
            yield number, value
            continue
        if kind == BYTES:
            length, behind = read_varint(data, behind)
        else:
            length = FIXED[kind]
        position = behind + length
        if position > len(data):
            raise ProtobufError(f"field {number} at byte {behind} ends {position - len(data)} bytes behind the data")
        yield number, data[behind:position]


def read_key(data: bytes, position: int) -> tuple[int, int, int]:
    """Field number, wire type, and the position behind both.

    Raises:
        ProtobufError: no key that this format has; groups, long out of use, are refused.
    """
    key, behind = read_varint(data, position)
    number, kind = key >> 3, key & 7
    if not 0 < number < 1 << 29 or kind not in (VARINT, BYTES, *FIXED):
        raise ProtobufError(f"no field starts at byte {position}")
    return number, kind, behind


def signed(value: int) -> int:
    """The int32 or int64 that a varint stands for."""
    return value - (1 << 64) if value >> 63 else value


def integers(value: int | bytes) -> list[int]:
    """Numbers of a repeated field, whose writer may have packed them into one value.

    Raises:
        ProtobufError: the packed form is malformed.
    """
    if isinstance(value, int):
        return [value]
    result, position = [], 0
    while position < len(value):
        number, position = read_varint(value, position)
        result.append(number)
    return result


def varint(value: int) -> bytes:
    """A number as a varint; negative ones take ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds bytes, text in UTF-8, or a message."""
    return bytes_prefix(number, len(value)) + value


def bytes_prefix(number: int, length: int) -> bytes:
    """What stands before the `length` bytes of a field."""
    return varint(number << 3 | BYTES) + varint(length)


def number_fields(number: int, values: Iterable[int]) -> bytes:
    """A repeated field of numbers, not packed, as proto2 writes it."""
    return b"".join(number_field(number, value) for value in values)
