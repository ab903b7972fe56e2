"""Kernels of glmforge in C++ for steps of few tokens on a CPU, where a model is bound by reading its weights.

- `build.py`: compiles the sources of this folder when they are first wanted, and loads them.
- `calls.py`: single operations: paged attention, writing pages, the experts' linear map.
- `layers.py`: all decoder layers of a step in one call, and the head.
- `vectors.h`, `matmul.h`, `attention.h`, `layers.h`, `library.cpp`: the kernels, from the bottom up.

They take float32 and bfloat16, and sum in float32. Every sum is taken in an order of its own, independent of what else
is in the batch and however many threads there are, so a token's values do not depend on the tokens that share its step.
"""
