"""A function of one tensor as a CUDA graph: its kernels are recorded once and then launched all together.

For work that the GPU does in less time than Python takes to launch it, such as a decode step of few tokens.

A replay runs the recorded kernels on the addresses, sizes and numbers of the recording. So all that the function reads
and writes has to keep its place and shape, what changes from call to call has to be in tensors that are written in
place, and nothing may be read on the host (CUDA refuses to record that).
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """`function(x)`, replayed from its third call on.

    The first call runs it, so that kernels are loaded and tuned; the second records it. `x` has to keep its shape. The
    result of a call is overwritten by the next. Without gradients.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._input: Tensor | None = None
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._input is None:
            self._input = x.clone()
            return self._function(self._input)
        static = self._input.copy_(x)
        if self._replay is None:
            self._replay = record(lambda: self._function(static), x.device)
        return self._replay()


def record(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """What `function` does on `device`, without doing it yet: each call of the result does it and gives its tensor."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
        result = function()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
