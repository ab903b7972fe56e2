"""The collector rests while something heavy is imported, and not for longer."""

import gc
import importlib

import pytest

from glmforge.runtime.heavy import heavy_imports


def test_the_collector_goes_on_afterwards() -> None:
    assert gc.isenabled()
    with heavy_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), heavy_imports():
        importlib.import_module("glmforge.no_such_module")
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    try:
        with heavy_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
