# SPDX-License-Identifier: Apache-2.0
"""The extension module (src/bindings.cpp). Private: scanrnn's other modules are what to use."""

from collections.abc import Sequence
from typing import Any, overload

import numpy.typing as npt

class Error(RuntimeError): ...
class CudaError(RuntimeError): ...

class Device:
    def __init__(self, name: str) -> None: ...
    @property
    def units(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...

class Plan:
    @property
    def strategy(self) -> str: ...
    @property
    def runner_up(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def tile_steps(self) -> int: ...
    @property
    def chunk_steps(self) -> int: ...
    @property
    def profile(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def reserve_bytes(self) -> int: ...

class Layer:
    def __init__(
        self,
        *,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        variant: str = "",
        domain: str = "log",
        options: str = "",
        dtype: str = "float32",
    ) -> None: ...
    @property
    def directions(self) -> int: ...
    def parameters(self) -> list[tuple[str, tuple[int, ...]]]: ...
    def plan(
        self,
        device: Device,
        steps: int,
        batch: int,
        training: bool,
        strategy: str | None,
        batch_layout: str = "rectangular",
        longest: int = 0,
    ) -> Plan: ...

class Tensor:
    """A view of another library's memory, and what keeps that alive."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def address(self) -> int: ...

class Tensors:
    """Many of them, such as parameters, which are looked at once for all calls."""

    def __init__(self, name: str, values: Sequence[Argument]) -> None: ...

class Buffer:
    """The library's own memory."""

    def __init__(self, device: Device, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...

class Copy(Tensor):
    """A contiguous NumPy array's copy on a device; empty until it is uploaded or a call writes."""

    def __init__(self, device: Device, array: npt.NDArray[Any]) -> None: ...
    def upload(self, array: npt.NDArray[Any]) -> None: ...
    def download(self, array: npt.NDArray[Any]) -> None: ...
    def walked(self, sizes: Sequence[int], strides: Sequence[int]) -> Tensor: ...

class Exported:
    """A Tensor for other libraries to take: `owner` lives as long as anyone has it."""

    def __init__(self, tensor: Tensor, owner: Any, stream: int) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

# None (absent), a Tensor, an array of NumPy's, or one of a library with DLPack's functions in C:
# torch's tensors.
Argument = Any
# None (the call's own), a Buffer, bytes as an Argument, or (address, count, what keeps them).
Memory = Any
# None (a rectangular batch), or lengths, cu_seqlens, reset and state_indices.
Steps = Sequence[Argument] | None

def from_dlpack(name: str, capsule: Any, writable: bool) -> Tensor: ...
def from_interface(name: str, interface: Any) -> Tensor: ...
def order_streams(device: Device, before: int, after: int) -> None: ...
def forward(
    layer: Layer,
    plan: Plan,
    stream: int,
    params: Tensors | Sequence[Argument],
    x: Argument,
    h_0: Sequence[Argument],
    y: Argument,
    h_n: Sequence[Argument],
    workspace: Memory,
    reserve: Memory,
    seed: int,
    one_step: bool,
    ragged: Steps,
) -> None: ...
def backward(
    layer: Layer,
    plan: Plan,
    stream: int,
    params: Tensors | Sequence[Argument],
    x: Argument,
    h_0: Sequence[Argument],
    y: Argument,
    dy: Argument,
    dh_n: Sequence[Argument],
    dx: Argument,
    dh_0: Sequence[Argument],
    dparams: Sequence[Argument],
    workspace: Memory,
    reserve: Memory,
    seed: int,
    ragged: Steps,
) -> None: ...
def jax_targets() -> dict[str, tuple[Any, Any]]: ...
def scan(
    plan: Plan,
    stream: int,
    form: str,
    reverse: bool,
    a: Argument,
    b: Argument,
    sign_b: Argument,
    reset: Argument,
    h_0: Argument,
    sign_h_0: Argument,
    h: Argument,
    sign_h: Argument,
    workspace: Memory,
) -> None: ...
def scan_backward(
    plan: Plan,
    stream: int,
    form: str,
    reverse: bool,
    a: Argument,
    b: Argument,
    sign_b: Argument,
    reset: Argument,
    h_0: Argument,
    sign_h_0: Argument,
    h: Argument,
    sign_h: Argument,
    dh: Argument,
    da: Argument,
    db: Argument,
    dh_0: Argument,
    workspace: Memory,
) -> None: ...

Rule = tuple[str, str, bool, float, list[float], list[float]]
ProblemClass = tuple[str, int, int, bool, bool]
Cost = tuple[ProblemClass, str, bool, list[float], list[float]]

class Profile:
    def __init__(
        self, name: str, origin: str, rules: Sequence[Rule], costs: Sequence[Cost]
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def rules(self) -> list[Rule]: ...
    @property
    def costs(self) -> list[Cost]: ...

class Recorded:
    @property
    def strategy(self) -> str: ...
    @property
    def across_blocks(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def again(self, times: int) -> Recorded: ...
    def milliseconds(self) -> float: ...

class Workload:
    @overload
    def __init__(
        self, layer: Layer, device: Device, steps: int, batch: int, training: bool
    ) -> None: ...
    @overload
    def __init__(
        self, dtype: str, device: Device, steps: int, rows: int, log_form: bool
    ) -> None: ...
    def record(self, strategy: str | None, across_blocks: bool | None) -> Recorded: ...
    def errors(self, exact: Workload) -> tuple[float, float]: ...

def built_in_profile(name: str) -> Profile | None: ...
def features() -> list[str]: ...
def terms() -> list[str]: ...
def trends() -> int: ...
def most_rules() -> int: ...
def shared_terms() -> list[str]: ...
def strategies() -> list[str]: ...

class Problem: ...

def layer_problem(layer: Layer, steps: int, batch: int, training: bool) -> Problem: ...
def scan_problem(dtype: str, steps: int, rows: int, log_form: bool) -> Problem: ...
def pick(
    profile: Profile, cuda: bool, units: int, shared_bytes: int, problem: Problem
) -> tuple[str, bool, str, float]: ...
def counted(
    units: int, shared_bytes: int, problem: Problem, strategy: str, across_blocks: bool
) -> tuple[ProblemClass, list[float], list[float]]: ...
def after_fork() -> None: ...
def settings(device: Device) -> int: ...
def wants_plans() -> bool: ...
def profile(device: Device) -> Profile: ...
def set_profile(device: Device, profile: Profile) -> None: ...
def scan_plan(
    device: Device,
    steps: int,
    lines: int,
    rows: int,
    dtype: str,
    form: str,
    training: bool,
    time_contiguous: bool,
    strategy: str | None,
) -> Plan: ...
def set_float32_matmul_precision(precision: str) -> None: ...
def get_float32_matmul_precision() -> str: ...
def use_matmul_precision(precision: str) -> None: ...
def cells() -> list[tuple[Any, ...]]: ...
def devices() -> list[tuple[Any, ...]]: ...
def build_info() -> str: ...
def cuda_available() -> bool: ...
