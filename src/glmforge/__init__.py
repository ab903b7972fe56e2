"""Train GLM-4.5/4.6-class Mixture-of-Experts language models end to end on PyTorch.

    import glmforge

    config = glmforge.load_config("configs/demo.yaml", ["optim.lr=1e-3"])
    glmforge.train(config)
    engine = glmforge.Engine.load("runs/my_demo")
    ((answer,),) = engine.generate(["def main():"], glmforge.SamplingParams(max_new_tokens=16))
    print(answer.text)

This is the whole stable interface. Nothing heavy is imported before it is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.checkpoint.pretrained import load_pretrained, load_tokenizer
    from glmforge.config import load_config
    from glmforge.generate.admission import QueueFullError
    from glmforge.generate.asynchronous import AsyncEngine
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import RequestError, SamplingParams
    from glmforge.recipes.train import train

__version__ = "0.1.0"
__all__ = [
    "AsyncEngine",
    "Engine",
    "EngineConfig",
    "QueueFullError",
    "RequestError",
    "SamplingParams",
    "load_config",
    "load_pretrained",
    "load_tokenizer",
    "train",
]

_HOMES = {
    "AsyncEngine": "glmforge.generate.asynchronous",
    "Engine": "glmforge.generate.engine",
    "EngineConfig": "glmforge.generate.config",
    "QueueFullError": "glmforge.generate.admission",
    "RequestError": "glmforge.generate.params",
    "SamplingParams": "glmforge.generate.params",
    "load_config": "glmforge.config",
    "load_pretrained": "glmforge.checkpoint.pretrained",
    "load_tokenizer": "glmforge.checkpoint.pretrained",
    "train": "glmforge.recipes.train",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'glmforge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
