"""Count, on a CPU, the operations at which a program would wait for another device."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# The size of their result depends on values, or the result is a number of Python.
WAITING = {
    *(aten._local_scalar_dense, aten.bincount, aten.equal, aten.masked_select, aten.nonzero, aten.repeat_interleave),
    *(aten._unique2, aten.unique_consecutive, aten.unique_dim, aten._coalesce),
}
# Do, if one of their indices is boolean.
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
# Methods that read a tensor without an operation, where it is on a CPU.
READING = {Tensor.tolist: "tolist", Tensor.cpu: "cpu", Tensor.numpy: "numpy"}


class SyncCounter(TorchDispatchMode):
    """Counts by name, in `counts`, what would wait for the device of all tensors, in both passes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.methods = _Methods(self.counts)

    def __enter__(self) -> "SyncCounter":
        self.methods.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.methods.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        is_masked = packet in INDEXING and any(i is not None and i.dtype == torch.bool for i in args[1])
        if packet in WAITING or is_masked:
            self.counts[packet.__name__] += 1
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            self.counts[READING[func]] += 1
        return func(*args, **(kwargs or {}))


def on_host(function: Any) -> Any:
    """Let a function, which works on tensors of the CPU by intention, go uncounted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return call
