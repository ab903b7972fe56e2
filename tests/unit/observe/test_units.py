import pytest

from glmforge.observe.units import counted, format_bytes, format_count, format_duration


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (999.6, "1.00k"), (1000, "1.00k"), (12_345, "12.3k"), (99_960, "100k"),
     (999_700, "1.00M"), (2.5e9, "2.50B"), (15e12, "15.0T"), (0.25, "0.25"), (-1500, "-1.50k")],
)  # fmt: skip
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(("value", "text"), [(2e6, "2M"), (2.5e6, "2.5M"), (200e3, "200k"), (0, "0")])
def test_trimmed_counts(value: float, text: str) -> None:
    assert format_count(value, trim=True) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1023 * 1024, "1.00 MiB"), (24 << 30, "24.0 GiB"),
     (1 << 62, "4096 PiB")],
)  # fmt: skip
def test_bytes(value: float, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (4.2, "4.2s"), (9.97, "10s"), (59.6, "1m 00s"), (200, "3m 20s"), (3599.7, "1h 00m"),
     (3725, "1h 02m"), (90_000, "1d 01h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 documents"), (1, "1 document"), (2, "2 documents"), (12_345, "12,345 documents")]
)
def test_counted_nouns(number: int, text: str) -> None:
    assert counted(number, "document") == text
