"""Two devices on a machine that has none: tensors that know where they are and refuse to be mixed with others.

`place(model, {"char_encoder": 1, ...})` puts modules on them as accelerate's device maps do, with its kind of hook:
what a module is called with moves to the module. Run the model inside `TwoDevices()`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class PlacedTensor(Tensor):
    """A CPU tensor that claims to be on the device `meta:index`."""

    @staticmethod
    def __new__(cls, held: Tensor, index: int) -> "PlacedTensor":
        placed = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=torch.device("meta", index)
        )
        placed.held = held
        return placed

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with TwoDevices():
            return func(*args, **(kwargs or {}))


class TwoDevices(TorchDispatchMode):
    """Runs every operation on the held tensors, and refuses those on tensors of several devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        found: set[Any] = set()

        def hold(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.dim() and func not in MOVES:  # a number may come from anywhere
                found.add(value.device)
            return value.held if isinstance(value, PlacedTensor) else value

        held_args, held_kwargs = tree_map(hold, args), tree_map(hold, kwargs)
        if len(found) > 1:
            raise RuntimeError(f"{func} got tensors on {sorted(map(str, found))}")
        device = kwargs.get("device")
        if device is None:
            device = next(iter(found), None)
            if device is None:
                tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, PlacedTensor)]
                device = tensors[0].device if tensors else torch.device("cpu")
        else:
            device = torch.device(device)
            held_kwargs["device"] = torch.device("cpu")
        output = func(*held_args, **held_kwargs)
        if func._schema.is_mutable and func._schema.name.endswith("_"):
            return args[0]

        def wrap(value: Any) -> Any:
            if isinstance(value, Tensor) and device.type == "meta":
                return PlacedTensor(value, device.index)
            return value

        return tree_map(wrap, output)


def place(model: nn.Module, devices: dict[str, int]) -> nn.Module:
    """Put the named modules on their devices; inputs move to the module that is called."""
    for name, index in devices.items():
        module = model.get_submodule(name)
        for part in module.modules():
            for key, parameter in list(part._parameters.items()):
                if parameter is not None:
                    part._parameters[key] = nn.Parameter(PlacedTensor(parameter.detach(), index), requires_grad=False)

        def move(module: nn.Module, args: Any, kwargs: Any, index: int = index) -> Any:
            def send(value: Any) -> Any:
                return value.to(torch.device("meta", index)) if isinstance(value, Tensor) else value

            return tree_map(send, args), tree_map(send, kwargs)

        module.register_forward_pre_hook(move, with_kwargs=True)
    return model
