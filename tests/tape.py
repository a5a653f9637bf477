"""Recordings without a GPU: a recorder that takes down PyTorch operations on the CPU and refuses what a CUDA graph could not hold.

As capturing does on a GPU, recording leaves no trace: memory that the work writes is put back, and memory that it makes holds 0xFF bytes (NaN, -1) until the
first replay. A replay runs the operations again, each on the memory it was recorded on. Kernels that are one launch on a GPU, but look at
their data in PyTorch, are taken down as they are called, unseen from within.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from kernels import nvfp4
from polestar.cache import offload, refresh, residual

WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "bincount"}
READS = ("cpu", "numpy", "tolist")  # of a tensor; on a CPU no operation tells of them
KERNELS = ((refresh, "scatter_kv"), (offload, "store_rows"), (residual, "quantize_residual"), (residual, "quantize_nvfp4"))
CHECKS = ((nvfp4, "require_finite"),)  # made on a CPU only


class NotRecordable(RuntimeError):
    """The work cannot be held by a CUDA graph. One sentence."""


@dataclass(slots=True)
class Entry:
    """One operation: how it is called, and which of its results are memory of their own."""

    call: Callable
    args: tuple
    kwargs: dict
    fresh: list[tuple[int, torch.Tensor, torch.Size]]  # by place among the results, with the shape they came in
    writes: bool


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # its address may change: some operations begin with nothing and grow it


class Tape(TorchDispatchMode):
    """The operations of one piece of work; holds on to every tensor of theirs."""

    def __init__(self):
        super().__init__()
        self.entries: list[Entry] = []
        self.made: dict[int, torch.UntypedStorage] = {}
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # memory written that was there already, and its copy
        self.paused = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        masks = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in WAITS or any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in masks):
            raise NotRecordable(f"{func} within a recorded pass waits for the device, whose answer a recording cannot know; decide on the device instead")
        if name == "lift_fresh":
            raise NotRecordable(f"{func} within a recorded pass copies numbers from the host, which a recording would not do again; make them before it")
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        written = [
            value for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
            for value in tensors_of(args[i] if i < len(args) else kwargs.get(a.name))
        ]  # fmt: skip
        self.keep(written)
        results = func(*args, **kwargs)
        self.take(func, args, kwargs, results, writes=bool(written))
        return results

    def keep(self, written: list[torch.Tensor]) -> None:
        """Copy memory that is about to be written, to be put back."""
        for tensor in written:
            at = memory_of(tensor)
            if at not in self.made and at not in self.before:
                self.before[at] = (tensor.untyped_storage(), tensor.untyped_storage().clone())

    def take(self, call: Callable, args: tuple, kwargs: dict, results: Any, *, writes: bool) -> None:
        known = {memory_of(t) for t in tensors_of((args, kwargs))}
        fresh = [(i, t, t.shape) for i, t in enumerate(tensors_of(results)) if memory_of(t) not in known]
        self.made |= {memory_of(t): t.untyped_storage() for _, t, _ in fresh}
        if fresh or writes:
            self.entries.append(Entry(call, args, kwargs, fresh, writes))

    def kernel(self, call: Callable) -> Callable:
        """A kernel's entry point, taken down whole."""

        def taken(*args, **kwargs):
            if self.paused:
                return call(*args, **kwargs)
            self.paused = True
            try:
                self.keep(tensors_of((args, kwargs)))
                results = call(*args, **kwargs)
            finally:
                self.paused = False
            self.take(call, args, kwargs, results, writes=True)
            return results

        return taken

    def read(self, name: str) -> Callable:
        """A tensor's method that brings it to the host."""
        method = getattr(torch.Tensor, name)

        def refused(*args, **kwargs):
            if self.paused:
                return method(*args, **kwargs)
            raise NotRecordable(f"Tensor.{name} within a recorded pass waits for the device, whose answer a recording cannot know; read it after the pass")

        return refused

    @contextmanager
    def taking(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name in KERNELS + CHECKS:
                stack.enter_context(mock.patch.object(module, name, self.kernel(getattr(module, name))))
            for name in READS:
                stack.enter_context(mock.patch.object(torch.Tensor, name, self.read(name)))
            stack.enter_context(self)
            try:
                yield
            finally:
                self.paused = True
                for storage, copy in self.before.values():
                    storage.copy_(copy)
                for storage in self.made.values():
                    storage.fill_(255)
        self.before.clear()

    def replay(self) -> None:
        for entry in self.entries:
            results = tensors_of(entry.call(*entry.args, **entry.kwargs))
            for i, recorded, shape in entry.fresh:
                assert results[i].shape == shape, f"{entry.call} gives {tuple(results[i].shape)} now, and gave {tuple(shape)}"
                if recorded.shape == shape:  # else it was nothing then, and grew later
                    recorded.copy_(results[i])


class TapeRecorder:
    """Records on tapes. `tapes`: all of them."""

    def __init__(self):
        self.tapes: list[Tape] = []

    def record(self, work: Callable[[], None]) -> Tape:
        """Raises NotRecordable."""
        tape = Tape()
        with tape.taking():
            work()
        self.tapes.append(tape)
        return tape

    def nbytes(self) -> int:
        """Bytes that the recorded work made."""
        return sum(storage.nbytes() for tape in self.tapes for storage in tape.made.values())
