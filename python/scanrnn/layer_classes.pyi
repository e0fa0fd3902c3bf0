# SPDX-License-Identifier: Apache-2.0
"""The classes of layers, from the registry of cells. `make stubs` writes this file."""

from typing import Any, Literal

from .layers import Layer

class MinGRU(Layer):
    """MinGRU (linear recurrence), row blocks of the weights: z, h. candidate: one of 'g', 'linear',
    'tanh'.
    """

    candidate: Literal["g", "linear", "tanh"]
    input_dropout: float
    zoneout: float
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        candidate: Literal["g", "linear", "tanh"] = "g",
        input_dropout: float = 0.0,
        zoneout: float = 0.0,
        domain: Literal["log", "linear"] = "log",
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class MinLSTM(Layer):
    """MinLSTM (linear recurrence), row blocks of the weights: f, i, h. candidate: one of 'g',
    'linear', 'tanh'.
    """

    candidate: Literal["g", "linear", "tanh"]
    input_dropout: float
    zoneout: float
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        candidate: Literal["g", "linear", "tanh"] = "g",
        input_dropout: float = 0.0,
        zoneout: float = 0.0,
        domain: Literal["log", "linear"] = "log",
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class SRU(Layer):
    """SRU (linear recurrence), row blocks of the weights: x, f, r. activation: one of 'identity',
    'tanh', 'relu'. peephole=True: diagonal recurrence. weight_ch [2*H]: one value a unit for each
    vector.
    """

    activation: Literal["identity", "tanh", "relu"]
    peephole: bool
    input_dropout: float
    state_dropout: float
    zoneout: float
    projection_size: int
    rescale: bool
    highway_bias: float
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        activation: Literal["identity", "tanh", "relu"] = "identity",
        peephole: bool = False,
        input_dropout: float = 0.0,
        state_dropout: float = 0.0,
        zoneout: float = 0.0,
        projection_size: int = 0,
        rescale: bool = False,
        highway_bias: float = 0.0,
        domain: Literal["log", "linear"] = "log",
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class QRNN(Layer):
    """QRNN (linear recurrence), row blocks of the weights: z, f, o."""

    input_dropout: float
    state_dropout: float
    zoneout: float
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_dropout: float = 0.0,
        state_dropout: float = 0.0,
        zoneout: float = 0.0,
        domain: Literal["log", "linear"] = "log",
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class RGLRU(Layer):
    """RGLRU (linear recurrence), row blocks of the weights: r, i. input_size is hidden_size.
    weight_a [H]: one value a unit for each vector.
    """

    input_dropout: float
    zoneout: float
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_dropout: float = 0.0,
        zoneout: float = 0.0,
        domain: Literal["log", "linear"] = "log",
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class IndRNN(Layer):
    """IndRNN (diagonal recurrence), row blocks of the weights: h. weight_hh [H]: one value a unit
    for each vector. nonlinearity: one of 'relu', 'tanh'.
    """

    nonlinearity: Literal["relu", "tanh"]
    input_dropout: float
    zoneout: float
    layer_norm: bool
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        nonlinearity: Literal["relu", "tanh"] = "relu",
        input_dropout: float = 0.0,
        zoneout: float = 0.0,
        layer_norm: bool = False,
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class RNN(Layer):
    """RNN (dense recurrence), row blocks of the weights: h. nonlinearity: one of 'tanh', 'relu'."""

    nonlinearity: Literal["tanh", "relu"]
    input_dropout: float
    dropconnect: float
    zoneout: float
    num_heads: int
    layer_norm: bool
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        input_dropout: float = 0.0,
        dropconnect: float = 0.0,
        zoneout: float = 0.0,
        num_heads: int = 1,
        layer_norm: bool = False,
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class LSTM(Layer):
    """LSTM (dense recurrence), row blocks of the weights: i, f, g, o. peephole=True: dense
    recurrence. weight_ch [3*H]: one value a unit for each vector.
    """

    peephole: bool
    input_dropout: float
    dropconnect: float
    zoneout: float | tuple[float, float]
    num_heads: int
    layer_norm: bool
    proj_size: int
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        peephole: bool = False,
        input_dropout: float = 0.0,
        dropconnect: float = 0.0,
        zoneout: float | tuple[float, float] = 0.0,
        num_heads: int = 1,
        layer_norm: bool = False,
        proj_size: int = 0,
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class GRU(Layer):
    """GRU (dense recurrence), row blocks of the weights: r, z, n."""

    input_dropout: float
    dropconnect: float
    zoneout: float
    num_heads: int
    reset_after: bool
    layer_norm: bool
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_dropout: float = 0.0,
        dropconnect: float = 0.0,
        zoneout: float = 0.0,
        num_heads: int = 1,
        reset_after: bool = True,
        layer_norm: bool = False,
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...

class SLSTM(Layer):
    """SLSTM (dense recurrence), row blocks of the weights: i, f, z, o."""

    input_dropout: float
    dropconnect: float
    zoneout: float
    num_heads: int
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_dropout: float = 0.0,
        dropconnect: float = 0.0,
        zoneout: float = 0.0,
        num_heads: int = 1,
        dtype: Any = "float32",
        device: str = "auto",
        seed: int | None = None,
    ) -> None: ...
