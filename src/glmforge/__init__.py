"""Train GLM-4.5/4.6-class Mixture-of-Experts language models end to end on PyTorch.

    import glmforge

    config = glmforge.load_config("configs/demo.yaml", ["optim.lr=1e-3"])
    glmforge.train(config)
    model = glmforge.load_pretrained("runs/my_demo")
    tokenizer = glmforge.load_tokenizer("runs/my_demo")
    (ids,) = model.generate([tokenizer.encode("def main():")], max_new_tokens=16)
    print(tokenizer.decode(ids))

This is the whole stable interface. Nothing heavy is imported before it is used.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.checkpoint.pretrained import load_pretrained, load_tokenizer
    from glmforge.config import RunConfig, load_config
    from glmforge.train.state import TrainState
    from glmforge.train.trainer import Hook

__version__ = "0.1.0"
__all__ = ["load_config", "load_pretrained", "load_tokenizer", "train"]

_HOMES = {
    "load_config": "glmforge.config",
    "load_pretrained": "glmforge.checkpoint.pretrained",
    "load_tokenizer": "glmforge.checkpoint.pretrained",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "train":
        return importlib.import_module("glmforge.train")
    raise AttributeError(f"module 'glmforge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class TrainPackage(ModuleType):
    """The package `glmforge.train` is also the function `glmforge.train(config)`: one name for both."""

    def __call__(self, config: "RunConfig", hooks: Sequence["Hook"] = ()) -> "TrainState":
        """Run `config` to its end; see `glmforge.recipes.pretrain.train`."""
        from glmforge.recipes.pretrain import train

        return train(config, hooks)
