"""The choice of implementations: what a configuration gets, on which device, and what is refused."""

import importlib.util

import pytest
import torch

from glmforge.config import KernelsConfig, load_config, load_model_config
from glmforge.errors import ConfigError
from glmforge.kernels import choice
from glmforge.kernels.choice import UNMEASURED, ChoosesKernels, choose
from glmforge.kernels.target import kernels_of
from glmforge.model.transformer import GlmMoe

CPU = torch.device("cpu")
PLAIN = UNMEASURED.model_dump()
TRITON = [operation for operation in PLAIN if "triton" in KernelsConfig.implementations(operation)]


@pytest.mark.parametrize(
    ("device_type", "dtype", "attention", "experts"),
    [
        ("cpu", torch.bfloat16, "documents", "sliced"),
        ("cuda", torch.bfloat16, "varlen", "grouped"),
        ("cuda", torch.float32, "flex", "grouped"),
    ],
)
def test_auto_without_a_measurement(device_type, dtype, attention, experts):
    with kernels_of(device_type):
        chosen = choose(KernelsConfig(), CPU, dtype)
    assert chosen.model_dump() == PLAIN | {"attention": attention, "experts": experts}
    with kernels_of(device_type):
        assert choose(chosen, CPU, dtype) == chosen


def test_auto_takes_what_was_measured_on_the_device(monkeypatch):
    measured = {"NVIDIA H200": {"swiglu": {"implementation": "triton", "speedup": 1.4}}}
    monkeypatch.setattr(choice, "_measurements", lambda: measured)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(choice, "kernel_device", lambda device: "cuda")
    cuda = torch.device("cuda")
    chosen = choose(KernelsConfig(permute="triton"), cuda, torch.bfloat16)
    assert (chosen.swiglu, chosen.permute, chosen.router) == ("triton", "triton", "plain")
    assert choose(KernelsConfig(swiglu="plain"), cuda, torch.bfloat16).swiglu == "plain"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert choose(KernelsConfig(), cuda, torch.bfloat16).swiglu == "plain"


def test_committed_measurements_name_implementations():
    for device, entries in choice._measurements().items():
        for operation, name in choice.fastest_on(device).items():
            assert name in KernelsConfig.implementations(operation), (device, entries)


@pytest.mark.parametrize("operation", TRITON)
def test_triton_without_cuda_is_refused(operation, monkeypatch):
    kernels = KernelsConfig(**{operation: "triton"})
    monkeypatch.setattr(choice, "interpreted", lambda: False)
    with pytest.raises(ConfigError, match=rf"kernels\.{operation}: 'triton' needs a CUDA device, and .* is cpu"):
        choose(kernels, CPU, torch.float32)


def test_triton_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"kernels\.router: .* not installed: pip install 'triton>=3\.6'"):
        choose(KernelsConfig(router="triton"), CPU, torch.float32)


def test_attention_that_the_device_or_type_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"kernels\.attention: 'varlen' needs a CUDA device"):
        choose(KernelsConfig(attention="varlen"), CPU, torch.bfloat16)
    with kernels_of("cuda"), pytest.raises(ConfigError, match=r"kernels\.attention: 'varlen' needs precision"):
        choose(KernelsConfig(attention="varlen"), CPU, torch.float32)


def test_flash_attention_3_is_refused_where_it_is_not_installed(monkeypatch):
    with kernels_of("cuda"), pytest.raises(ConfigError, match=r"'flash3' needs FlashAttention 3 .* not installed; set"):
        choose(KernelsConfig(attention="flash3"), CPU, torch.bfloat16)
    monkeypatch.setattr(choice.flash3, "is_installed", lambda: True)
    with kernels_of("cuda"):
        assert choose(KernelsConfig(attention="flash3"), CPU, torch.bfloat16).attention == "flash3"
        with pytest.raises(ConfigError, match=r"'flash3' needs precision\.compute: bf16"):
            choose(KernelsConfig(attention="flash3"), CPU, torch.float32)


def test_unknown_implementation_names_the_nearest():
    small = "name: x\nmodel: tiny\ndata: {tokenizer: t, sources: [{name: a, path: b}]}\n"
    small += "phases: [{name: main, steps: 1, seq_len: 8, batch_size: 1}]\n"
    with pytest.raises(ConfigError, match=r"kernels\.router: unknown 'tritn'; did you mean 'triton'\?$"):
        load_config(small, ["kernels.router=tritn"])
    with pytest.raises(ConfigError, match=r"kernels\.attention: should be 'auto', 'dense', .*, not 'zzz'"):
        load_config(small, ["kernels.attention=zzz"])


def test_every_module_carries_the_choice():
    config = load_model_config("tiny")
    with torch.device("meta"):
        first, second = GlmMoe(config), GlmMoe(config)
    chosen = UNMEASURED.model_copy(update={"attention": "dense"})
    first.set_kernels(chosen)
    modules = [module for module in first.modules() if isinstance(module, ChoosesKernels)]
    assert modules
    assert all(module.kernels is chosen for module in modules)
    assert second.layers[0].self_attn.kernels is UNMEASURED
