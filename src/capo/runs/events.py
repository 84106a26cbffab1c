"""TensorBoard event files, written without TensorFlow.

An event file is a row of TFRecords, each holding one protobuf ``Event``. Only two kinds are needed, the
file's version and a ``Summary`` of scalars, so both are encoded by hand:

    TFRecord   uint64 length | masked crc32c of the length | data | masked crc32c of the data
    Event      1: double wall_time   2: int64 step   3: string file_version   5: Summary
    Summary    1: repeated Value     Value  1: string tag   2: float simple_value
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

VERSION = "brain.Event:2"


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli's polynomial, reflected
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> bytes:
    """TFRecord's variant: rotated and shifted, so that a checksum of checksums stays useful."""
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def file_start(wall_time: float) -> bytes:
    """The record every event file starts with."""
    return _record(struct.pack("<Bd", 1 << 3 | 1, wall_time) + _field(3, VERSION.encode()))


def scalars(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """One record with the ``values`` of a step."""
    summary = b"".join(
        _field(1, _field(1, tag.encode()) + struct.pack("<Bf", 2 << 3 | 5, value)) for tag, value in values.items()
    )
    return _record(
        struct.pack("<Bd", 1 << 3 | 1, wall_time) + bytes([2 << 3]) + _varint(step) + _field(5, summary)
    )
