"""The log of a decode: steps, traces, files, metrics, tables. Light to import: numpy alone."""

from .step import KINDS, LEVELS, REASONS, Clusters, Commit, ParamChange, Step
from .trace import Header, Trace, TraceError

__all__ = ["KINDS", "LEVELS", "REASONS", "Clusters", "Commit", "Header", "ParamChange", "Step", "Trace", "TraceError"]
