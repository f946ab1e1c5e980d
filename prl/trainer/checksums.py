"""Checksums of the files of a checkpoint: that what is read back is what was written, bit for bit.

- A file's checksum is the CRC-32 of the CRC-32s (4 bytes each, big-endian) of its parts of ``PART_BYTES``, as eight hex
  digits. In parts, so that several threads share one large file: the lock of the interpreter is not held meanwhile.
- It is taken right after writing, while the system still has the file in memory, by the rank that wrote it. So it finds
  what a disk, a copy or a hand changes later, not what was lost on the way to the disk: that is what fsync is for.
- It guards against accidents. Who wants to deceive can write a matching checksum.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PART_BYTES = 16 * 1024 * 1024
_NUM_THREADS = 4
_PART = struct.Struct("!I")


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The checksum of each of these files of ``folder``. Blocking, and as long as reading them takes.

    Raises:
        OSError: one cannot be read.
    """
    sizes = {name: (folder / name).stat().st_size for name in names}
    parts = [(name, at) for name, size in sizes.items() for at in range(0, size, PART_BYTES)]
    of_parts: dict[str, bytes] = dict.fromkeys(sizes, b"")
    with ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1), "prl-checksums") as threads:
        found = threads.map(lambda part: _of_part(folder / part[0], part[1]), parts)
        for (name, _), value in zip(parts, found, strict=True):
            of_parts[name] += _PART.pack(value)
    return {name: f"{zlib.crc32(values):08x}" for name, values in of_parts.items()}


def _of_part(path: Path, at: int) -> int:
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        value, left = 0, PART_BYTES
        while left and (data := file.read(min(left, 1024 * 1024))):
            value = zlib.crc32(data, value)
            left -= len(data)
    return value
