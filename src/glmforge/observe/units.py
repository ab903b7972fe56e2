"""Numbers for people: counts, bytes and durations in the few digits that a line or a table has room for."""


def format_count(value: float, *, trim: bool = False) -> str:
    """12 345 678 -> '12.3M': three significant digits from 1,000 on; `trim` drops closing zeros ('2M')."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            digits = _three_digits(value / factor)
            return (f"{float(digits):g}" if trim else digits) + suffix
    return f"{value:.0f}" if float(value).is_integer() else _three_digits(value)


def counted(number: int, noun: str) -> str:
    """(1, 'document') -> '1 document', (2345, 'document') -> '2,345 documents'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(value: float) -> str:
    """1 536 -> '1.50 KiB'."""
    if value < 1024:
        return f"{value:.0f} B"
    for power, suffix in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB"), start=1):
        scaled = value / 1024**power
        if scaled < 999.5 or suffix == "PiB":
            return f"{_three_digits(scaled)} {suffix}"
    raise AssertionError("unreachable: the last suffix takes every value")


def gigabytes(value: float) -> str:
    """1 500 000 000 -> '1.50 GB': as makers and planners count memory."""
    return f"{_three_digits(value / 1e9)} GB"


def format_duration(seconds: float) -> str:
    """3 725 -> '1h 02m', 200 -> '3m 20s', 4.2 -> '4.2s'."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86400}d {total % 86400 // 3600:02d}h"


def format_seconds(seconds: float) -> str:
    """Of what takes seconds or less, in three digits: 0.0123 -> '12.3 ms', 33.28 -> '33.3 s'."""
    if seconds == 0:
        return "0 s"
    factor, unit = (1e6, "us") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{_three_digits(seconds * factor)} {unit}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
