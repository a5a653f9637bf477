"""A trace on disk: one safetensors file, readable anywhere, that holds no code.

Contract: `save` writes atomically (a temporary file beside the target, then a rename), so a failed save leaves what was there.
`load` reads through a memory map, trusts nothing, and raises TraceError with one sentence on anything that is no sound trace; it
never unpickles. Metadata keys: "format" and "format_version"; "trace" (JSON: header, tables, notes), "vocab" (JSON: token texts,
so that a trace opens without its model), "checksum"; and, about times alone, "created" and "times". Arrays are described in
`columns.py`. Two equal runs give equal files apart from "created", "times" and the arrays under "times/".
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import pack
from .header import TraceError, short
from .step import Step
from .trace import Trace
from .unpacking import parse, unpack
from .wire import token_entry

if TYPE_CHECKING:
    from typing import Self

FORMAT, FORMAT_VERSION = "polestar-trace", 1
SUFFIX = ".safetensors"
MAX_BYTES = 4 << 30
MAX_HEADER = 100_000_000  # safetensors' own limit
MAX_TOKEN_TEXT = 4096
MAX_ARRAYS = 1000
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def digest(trace: Trace) -> str:
    """sha256 (hex) of everything in the trace but times and token texts: two equal runs have equal digests."""
    arrays, meta, _ = pack(trace)
    return _digest(arrays, _json(meta))


def save(trace: Trace, path: str | os.PathLike, *, codec: Any = None) -> Path:
    """Write `trace` to `path` and return the path.

    With a `codec` (see `polestar.trace.wire.token_entry`) the texts of all tokens that the trace mentions are kept too. Raises
    TraceError when a value cannot be kept or the file cannot be written; then nothing at `path` has changed.
    """
    path = Path(path)
    blob = to_bytes(trace, codec=codec)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "xb") as f:
                f.write(blob)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise TraceError(f"cannot write {path}: {e.strerror or e}; choose a folder that exists and may be written to") from e
    return path


def to_bytes(trace: Trace, *, codec: Any = None) -> bytes:
    """The file's bytes, as `save` writes them."""
    from safetensors.numpy import save as to_safetensors

    arrays, meta, times = pack(trace)
    vocab = dict(trace.vocab)
    if codec is not None:
        vocab.update({i: token_entry(codec, i) for i in trace.used_ids() if i not in vocab})
    metadata = {
        "format": FORMAT, "format_version": str(FORMAT_VERSION), "trace": _json(meta), "times": _json(times),
        "vocab": _json({str(i): vocab[i] for i in sorted(vocab)}),
    }  # fmt: skip
    metadata["checksum"] = _checksum(_digest(arrays, metadata["trace"]), metadata["vocab"])
    if trace.header.created is not None:
        metadata["created"] = trace.header.created.encode("ascii", "replace").decode("ascii")
    return _in_order(to_safetensors(arrays, metadata))


def load(path: str | os.PathLike) -> Trace:
    """Read a trace. Raises TraceError (one sentence) when `path` holds none, or a damaged, truncated or too large one."""
    path = Path(path)
    try:
        _look(path)
        arrays, metadata = _read(path)
        return _assemble(arrays, metadata)
    except TraceError as e:
        raise TraceError(f"cannot open {path.name}: {e}") from e
    except OSError as e:
        raise TraceError(f"cannot open {path.name}: {e.strerror or e}") from e
    except (
        MemoryError,
        OverflowError,
        RecursionError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
    ) as e:
        raise TraceError(f"cannot open {path.name}: it is damaged ({type(e).__name__}: {short(str(e))})") from e


def _look(path: Path) -> None:
    """Refuse what is plainly no trace, before any library touches it."""
    if not path.exists():
        raise TraceError("there is no such file")
    if not path.is_file():
        raise TraceError("it is a folder or a device, not a file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TraceError(f"it is {size / 2**30:.1f} GiB; traces of at most {MAX_BYTES >> 30} GiB are opened")
    with open(path, "rb") as f:
        start = f.read(9)
    if not start:
        raise TraceError("it is empty")
    if start[:4] == b"PK\x03\x04" or (start[0] == 0x80 and len(start) > 1 and start[1] in (2, 3, 4, 5)):
        raise TraceError("it is a pickle or an archive, which may run code when opened; only .safetensors traces are opened")
    length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if len(start) < 9 or start[8:9] != b"{":
        raise TraceError("it is no safetensors file; a trace is what `save` wrote")
    if length > min(MAX_HEADER, size - 8):
        raise TraceError(f"its header claims {length} bytes, but the file has {size - 8} after it; it is truncated or damaged")


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as f:
            metadata = f.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise TraceError("it is a safetensors file without a trace in it (perhaps a model's weights)")
            version = metadata.get("format_version", "")
            if not version.isascii() or not version.isdigit() or len(version) > 6:
                raise TraceError(f"its format version is {short(version)}; it must be a number")
            if int(version) > FORMAT_VERSION:
                raise TraceError(f"it has format version {version}, and this release reads up to {FORMAT_VERSION}; update Polestar")
            names = list(f.keys())
            if len(names) > MAX_ARRAYS:
                raise TraceError(f"it holds {len(names)} arrays; a trace has at most {MAX_ARRAYS}")
            for name in names:
                if (dtype := str(f.get_slice(name).get_dtype())) not in _DTYPES:
                    raise TraceError(f"its array {short(name)} has the type {dtype}, which no trace holds")
            return {name: f.get_tensor(name) for name in names}, metadata
    except SafetensorError as e:
        raise TraceError(f"it is truncated or damaged ({short(str(e))})") from e


def _assemble(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> Trace:
    missing = [name for name in ("trace", "times", "vocab") if name not in metadata]
    if missing:
        raise TraceError(f"its metadata lacks {missing[0]}; it is incomplete")
    if "checksum" in metadata and metadata["checksum"] != _checksum(_digest(arrays, metadata["trace"]), metadata["vocab"]):
        raise TraceError("its content does not match its checksum; it was damaged or changed after it was written")
    meta, times, vocab = (parse(metadata[name], f"its {name}") for name in ("trace", "times", "vocab"))
    if not isinstance(meta, dict) or not isinstance(times, dict):
        raise TraceError("its tables are of the wrong form")
    trace = unpack(arrays, meta, times, metadata.get("created"))
    trace.vocab = _vocab(vocab)
    return trace


def _vocab(table: Any) -> dict[int, dict[str, Any]]:
    if not isinstance(table, dict):
        raise TraceError("its token texts are of the wrong form")
    out = {}
    for key, entry in table.items():
        sound = key.isascii() and key.isdigit() and len(key) < 11 and isinstance(entry, dict) and isinstance(entry.get("t"), str)
        if not sound or len(entry["t"]) > MAX_TOKEN_TEXT or not set(entry) <= {"t", "s", "b"} or entry.get("s", 1) != 1:
            raise TraceError(f"its token text {short(key)}: {short(entry)} is of the wrong form")
        try:
            bytes.fromhex(entry.get("b", ""))
        except (TypeError, ValueError):
            raise TraceError(f"its token {key} has bytes that are no hex text: {short(entry['b'])}") from None
        out[int(key)] = entry
    return out


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(arrays: dict[str, np.ndarray], meta: str) -> str:
    h = hashlib.sha256(meta.encode("utf-8"))
    for name in sorted(arrays):
        if not name.startswith("times/"):
            a = arrays[name]
            h.update(f"\0{name}\0{a.dtype.name}\0{a.shape}\0".encode())
            h.update(np.ascontiguousarray(a).data)
    return h.hexdigest()


def _checksum(content: str, vocab: str) -> str:
    return hashlib.sha256(f"{content}\0{vocab}".encode()).hexdigest()


def _in_order(blob: bytes) -> bytes:
    """The same file with its metadata sorted: the library writes those keys in an order that changes from run to run."""
    size = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8 : 8 + size])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # data stays aligned
    return struct.pack("<Q", len(text)) + text + blob[8 + size :]


class Recorder:
    """Appends steps to a trace and keeps a file of it up to date, so that a crash loses seconds and not the run.

    A flush rewrites the whole file atomically; the next one waits at least `seconds` and at least 20 times as long as the last
    one took, which keeps the cost below 5 % of the run. Use as a context manager; leaving it flushes.
    """

    def __init__(
        self,
        trace: Trace,
        path: str | os.PathLike,
        *,
        codec: Any = None,
        seconds: float = 5.0,
    ) -> None:
        self.trace, self.path, self.codec, self.seconds = (
            trace,
            Path(path),
            codec,
            seconds,
        )
        self._next = time.monotonic() + seconds

    def append(self, step: Step) -> None:
        """Append, and flush when one is due. Raises TraceError."""
        self.trace.append(step)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Write the file now. Raises TraceError; the file of the last flush then still stands."""
        began = time.monotonic()
        save(self.trace, self.path, codec=self.codec)
        now = time.monotonic()
        self._next = now + max(self.seconds, 20 * (now - began))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.flush()
