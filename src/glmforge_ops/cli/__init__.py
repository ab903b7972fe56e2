"""The commands of `glmforge` that operate a cluster: parse, call, print."""
