"""The log of a decode: steps, traces, files, metrics, tables. Light to import: numpy alone."""

from .header import Header, TraceError
from .step import KINDS, LEVELS, REASONS, Clusters, Commit, ParamChange, Step
from .trace import Trace

__all__ = ["KINDS", "LEVELS", "REASONS", "Clusters", "Commit", "Header", "ParamChange", "Step", "Trace", "TraceError"]
