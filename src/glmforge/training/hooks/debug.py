"""What a misbehaving run is asked to tell: where a NaN was made, each layer's gradient norm, debug messages."""

import logging
from collections import defaultdict

import torch
from torch import Tensor

from glmforge.config.observe import DebugConfig
from glmforge.optim.sharding import local_part, num_copies
from glmforge.parallel.model import ParallelModel
from glmforge.training.order import Priority
from glmforge.training.trainer import Hook, Trainer


class DebugHook(Hook):
    """Switches on what `observe.debug` asks for, and off again at the end."""

    name = "debug"
    priority = Priority.COLLECT

    def __init__(self, config: DebugConfig) -> None:
        self.config = config
        self._before: tuple[bool, bool, int] | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        log = logging.getLogger("glmforge")
        self._before = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), log.level)
        log.setLevel(self.config.log_level.upper())
        if self.config.detect_anomaly:
            torch.autograd.set_detect_anomaly(True)

    def on_gradients(self, trainer: Trainer) -> None:
        due = (trainer.state.step + 1) % trainer.config.observe.log_every == 0
        if self.config.layer_grad_norms and due:
            trainer.record(layer_grad_norms=layer_grad_norms(trainer.model))

    def close(self) -> None:
        if self._before is not None:
            enabled, check_nan, level = self._before
            torch.autograd.set_detect_anomaly(enabled, check_nan)
            logging.getLogger("glmforge").setLevel(level)
            self._before = None


@torch.no_grad()
def layer_grad_norms(model: ParallelModel) -> Tensor:
    """fp32 [L]: the L2 norm of each layer's gradient over all ranks, MTP layers last. All ranks call this together.

    Parts that several ranks hold count once, as in `glmforge.optim.clip.global_norm`; one sum serves all layers.
    """
    world, config = model.world, model.config
    parts: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        layer = model.table[name].layer
        if layer is not None and parameter.grad is not None:
            copies = num_copies(parameter.grad, world.layout)
            parts[layer, copies].append(local_part(parameter.grad))
    num_layers = config.num_hidden_layers + config.num_nextn_predict_layers
    squares_L = torch.zeros(num_layers, device=world.device)
    for (number, copies), gradients in parts.items():
        norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32))
        squares_L[number] += (norms.square().sum() / copies).to(world.device)
    return world.sum(squares_L).sqrt()
