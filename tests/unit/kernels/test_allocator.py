import platform

import pytest

from glmforge.kernels import allocator


@pytest.mark.parametrize(("system", "libc"), [("Darwin", ""), ("Windows", ""), ("Linux", "musl")])
def test_other_systems_are_left_alone(monkeypatch, system, libc):
    monkeypatch.setattr(allocator.platform, "system", lambda: system)
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(allocator.ctypes, "CDLL", None)  # calling it would fail
    assert allocator.keep_large_blocks() is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_glibc_accepts_the_setting():
    assert allocator.keep_large_blocks() is True
