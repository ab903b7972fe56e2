"""Kernels in Triton, one file for each plain function of the same name in `glmforge.kernels`."""
