"""What a relocatable object says of itself: ELF and Mach-O, 64-bit, little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator

ELF, MACH_O = b"\x7fELF\x02\x01", b"\xcf\xfa\xed\xfe"
ELF_MACHINES = {62: "x86-64", 183: "aarch64"}  # e_machine
MACH_O_MACHINES = {0x01000007: "x86-64", 0x0100000C: "aarch64"}  # cputype
ELF_SYMBOLS, MACH_O_SYMBOLS = 2, 2  # a section's kind; a load command


def machine(data: bytes) -> tuple[str, str]:
    """The format of an object and the processor that it is for; `unknown` for what is none of those named here."""
    if data.startswith(ELF):
        return "ELF", ELF_MACHINES.get(struct.unpack_from("<H", data, 18)[0], "unknown")
    if data.startswith(MACH_O):
        return "Mach-O", MACH_O_MACHINES.get(struct.unpack_from("<I", data, 4)[0], "unknown")
    return "unknown", "unknown"


def undefined_symbols(data: bytes) -> set[str]:
    """Names that an object uses and does not define; of another format none are seen."""
    if data.startswith(ELF):
        return set(_undefined_elf(data)) - {"_GLOBAL_OFFSET_TABLE_"}
    return set(_undefined_mach_o(data)) if data.startswith(MACH_O) else set()


def _undefined_elf(data: bytes) -> Iterator[str]:
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * size) for i in range(count)]
    for section in sections:
        kind, offset, length, link = section[1], section[4], section[5], section[6]
        if kind != ELF_SYMBOLS:
            continue
        for at in range(offset + 24, offset + length, 24):
            name, _, _, home = struct.unpack_from("<IBBH", data, at)
            if home == 0:
                yield _name(data, sections[link][4] + name)


def _undefined_mach_o(data: bytes) -> Iterator[str]:
    (commands,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == MACH_O_SYMBOLS:
            symbols, count, names, _ = struct.unpack_from("<IIII", data, at + 8)
            for symbol in range(symbols, symbols + 16 * count, 16):
                name, kind = struct.unpack_from("<IB", data, symbol)
                if not kind & 0xEE:  # neither for debuggers nor of a section or a value
                    yield _name(data, names + name)
        at += size


def _name(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
