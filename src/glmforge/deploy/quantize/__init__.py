"""Weights in 8 and 4 bits: streamed by ourselves where no calibration is needed, by llm-compressor where it is."""
