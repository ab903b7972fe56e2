"""Everything that is to be learnt from one GPU: does it compute the right thing, how fast, in how much memory.

`scripts/gpu.sh` is the command; `docs/gpu.md` says how to run it and how to read what it writes. One module for each
part (`PARTS`), each with a function `run(bench)` that measures one figure after another, the most valuable first:

- `tests`: the CUDA tests;
- `kernels`: each implementation of each kernel against the others; a kernel is a file in `cases/`;
- `step`: training steps of slices of the published models, against transformers and a plain compiled composition;
- `memory`: peaks against what `glmforge plan` says, copies to the host, several ranks on one GPU;
- `engine`: generation.

A part is a process of its own (`runner.py`): a kernel that hangs or takes the CUDA context with it costs one figure.
"""

PARTS = ("tests", "kernels", "step", "memory", "engine")
