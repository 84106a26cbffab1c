"""Reading TensorBoard event files that capo wrote."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from capo.runs.events import masked_crc


def decode(data: bytes) -> Iterator[tuple[int, dict[str, float]]]:
    """The (step, values) of an event file of capo, checksums verified.

    Raises:
        ValueError: if a record is cut short or a checksum does not match.
    """
    position = 0
    while position < len(data):
        head = data[position : position + 12]
        if len(head) < 12 or masked_crc(head[:8]) != head[8:]:
            raise ValueError(f"damaged record length at byte {position}")
        (length,) = struct.unpack("<Q", head[:8])
        body = data[position + 12 : position + 12 + length]
        if len(body) < length or masked_crc(body) != data[position + 12 + length : position + 16 + length]:
            raise ValueError(f"damaged record at byte {position}")
        position += 16 + length
        fields = dict(_fields(body))
        if 5 in fields:
            summary = [dict(_fields(value)) for _, value in _fields(bytes(fields[5]))]
            yield (
                int.from_bytes(fields[2], "little"),
                {value[1].decode(): struct.unpack("<f", value[2])[0] for value in summary},
            )


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The (number, raw bytes) of a protobuf message's fields; a varint as little-endian bytes."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint().to_bytes(8, "little")
            continue
        length = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        yield tag >> 3, message[position : position + length]
        position += length
