"""One file per kernel, found by itself; see `gpu.case` for what it holds."""
