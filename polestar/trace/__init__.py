"""The log of a decode: steps, traces, files, metrics, tables."""
