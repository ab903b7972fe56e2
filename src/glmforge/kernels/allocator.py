"""Keep large freed blocks in the process instead of giving them back to Linux after every step.

glibc maps every block beyond some 32 MiB afresh and unmaps it when freed. A training step on the CPU frees and asks for
the same large temporaries again and again, and each time the kernel zeroes their pages again. Raising the two
thresholds (mallopt(3)) keeps them, and the process holds on to its peak memory.
"""

import ctypes
import platform

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_INT = 2**31 - 1


def keep_large_blocks() -> bool:
    """Tells glibc's malloc to reuse large freed blocks. Returns whether it was done (Linux with glibc only)."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL("libc.so.6")
    mmap_set = libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)
    trim_set = libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    return bool(mmap_set and trim_set)
