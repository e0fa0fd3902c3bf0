# SPDX-License-Identifier: Apache-2.0
"""The extension module (src/bindings.cpp). Private: scanrnn's other modules are what to use."""

from collections.abc import Sequence
from typing import Any, overload

from .arguments import Array

class Error(RuntimeError): ...
class CudaError(RuntimeError): ...

class Device:
    def __init__(self, name: str) -> None: ...
    @property
    def units(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...

class Buffer:
    def __init__(self, device: Device, nbytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...

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

class Parameters:
    def __init__(self, device: Device, arrays: Sequence[Array]) -> None: ...

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
        dtype: str = "float32",
    ) -> None: ...
    @property
    def directions(self) -> int: ...
    def parameters(self) -> list[tuple[str, tuple[int, ...]]]: ...
    def plan(
        self, device: Device, steps: int, batch: int, training: bool, strategy: str | None
    ) -> Plan: ...
    def forward(
        self,
        plan: Plan,
        params: Parameters,
        x: Array,
        h_0: Sequence[Array | None],
        y: Array,
        h_n: Sequence[Array],
        reserve: Buffer | None,
        seed: int,
    ) -> None: ...
    def step(
        self,
        plan: Plan,
        params: Parameters,
        x: Array,
        h_0: Sequence[Array | None],
        y: Array,
        h_n: Sequence[Array],
        reserve: Buffer | None,
        seed: int,
    ) -> None: ...
    def backward(
        self,
        plan: Plan,
        params: Parameters,
        x: Array,
        h_0: Sequence[Array | None],
        y: Array,
        dy: Array | None,
        dh_n: Sequence[Array | None],
        dx: Array,
        dh_0: Sequence[Array],
        dparams: Sequence[Array],
        reserve: Buffer | None,
        seed: int,
    ) -> None: ...

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

Bytes = tuple[int, int]  # address, count

def from_dlpack(name: str, capsule: Any, writable: bool) -> Tensor: ...
def from_interface(name: str, interface: Any) -> Tensor: ...
def from_address(
    name: str,
    address: int,
    dtype: str,
    device: Device,
    shape: Sequence[int],
    strides: Sequence[int] | None,
) -> Tensor: ...
def order_streams(device: Device, before: int, after: int) -> None: ...
def forward(
    layer: Layer,
    plan: Plan,
    stream: int,
    params: Sequence[Tensor | None],
    x: Tensor,
    h_0: Sequence[Tensor | None],
    y: Tensor,
    h_n: Sequence[Tensor | None],
    workspace: Bytes,
    reserve: Bytes | None,
    seed: int,
    one_step: bool,
) -> None: ...
def backward(
    layer: Layer,
    plan: Plan,
    stream: int,
    params: Sequence[Tensor | None],
    x: Tensor,
    h_0: Sequence[Tensor | None],
    y: Tensor,
    dy: Tensor | None,
    dh_n: Sequence[Tensor | None],
    dx: Tensor | None,
    dh_0: Sequence[Tensor | None],
    dparams: Sequence[Tensor | None],
    workspace: Bytes,
    reserve: Bytes,
    seed: int,
) -> None: ...
def jax_targets() -> dict[str, tuple[Any, Any]]: ...
def scan_tensors(
    plan: Plan,
    stream: int,
    a: Tensor,
    b: Tensor,
    sign_b: Tensor | None,
    h_0: Tensor | None,
    h: Tensor,
    workspace: Bytes,
    log_form: bool,
    reverse: bool,
) -> None: ...

Rule = tuple[str, str, bool, float, list[float], list[float]]
ProblemClass = tuple[str, int, int, bool, bool]
Cost = tuple[ProblemClass, str, bool, list[float]]

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
) -> tuple[ProblemClass, list[float]]: ...
def after_fork() -> None: ...
def profile(device: Device) -> Profile: ...
def set_profile(device: Device, profile: Profile) -> None: ...
def scan_plan(
    device: Device, steps: int, rows: int, dtype: str, log_form: bool, strategy: str | None
) -> Plan: ...
def scan(
    plan: Plan,
    a: Array,
    b: Array,
    sign_b: Array | None,
    h_0: Array | None,
    h: Array,
    log_form: bool,
    reverse: bool,
) -> None: ...
def set_float32_matmul_precision(precision: str) -> None: ...
def get_float32_matmul_precision() -> str: ...
def cells() -> list[tuple[Any, ...]]: ...
def devices() -> list[tuple[Any, ...]]: ...
def build_info() -> str: ...
def cuda_available() -> bool: ...
