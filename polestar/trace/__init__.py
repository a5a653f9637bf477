"""The log of a decode: steps, traces, files, metrics, tables, comparison, export. Light to import: numpy alone."""

from .compare import align, compare_traces, differing, first_divergence
from .file import Recorder, digest, load, save
from .frames import export_tables, to_pandas
from .header import Header, TraceError
from .metrics import rates
from .step import KINDS, LEVELS, REASONS, Clusters, Commit, ParamChange, Step
from .trace import Trace

__all__ = [
    "KINDS", "LEVELS", "REASONS", "Clusters", "Commit", "Header", "ParamChange", "Recorder", "Step", "Trace", "TraceError",
    "align", "compare_traces", "differing", "digest", "export_tables", "first_divergence", "load", "rates", "save", "to_pandas",
]  # fmt: skip
