"""The networks as an ONNX graph, which runs without jax: a method per layer, which returns its output's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capo.arrays import NDArray
from capo.errors import CapoError
from capo.neural.parts.encoders import Encoder
from capo.neural.parts.images import NATURE
from capo.neural.parts.layer_norm import EPSILON
from capo.neural.parts.layers import KERNEL
from capo.neural.parts.networks import Layer, NetworkSpec, Params
from capo.neural.parts.normaliser import LIMIT
from capo.neural.parts.units import factor

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 9  # what runtimes of 2023 and later read
_OWN = "_capo_"  # begins the names of nodes, which must differ from those of inputs


class Graph:
    """An ONNX graph under construction.

    Raises:
        CapoError: if onnx is not installed.
    """

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise CapoError("export needs the extra 'onnx': pip install 'capo-rl[onnx]'") from error
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: Any, shape: tuple[int | str, ...], default: NDArray | None = None) -> str:
        """An input; one with a default may be left out."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))
        if default is not None:
            self._constants.append(self._onnx.numpy_helper.from_array(default, name))
        return name

    def output(self, name: str, found: str, dtype: Any, shape: tuple[int | str, ...]) -> None:
        """Call the output ``found`` of a node ``name``, and return it from the graph."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [found], [name]))
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def constant(self, value: ArrayLike, dtype: Any = np.float32) -> str:
        """An array in the file."""
        name = f"{_OWN}constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operation of ONNX."""
        name = f"{_OWN}{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """``x`` in another shape; -1 stands for what is left."""
        return self.node("Reshape", x, self.constant(shape, np.int64))

    def cast(self, x: str, dtype: Any) -> str:
        """``x`` in another number format."""
        return self.node("Cast", x, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def finish(self, name: str, notes: dict[str, str]) -> Any:
        """The model, checked by onnx."""
        graph = self._onnx.helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opset = self._onnx.helper.make_opsetid("", OPSET)
        model = self._onnx.helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="capo"
        )
        self._onnx.helper.set_model_props(model, notes)
        self._onnx.checker.check_model(model, full_check=True)
        return model

    def normalised(self, x: str, mean: ArrayLike, scale: ArrayLike) -> str:
        """Observations (N, ...) normalised by running statistics, as :mod:`capo.neural.parts.normaliser` does."""
        centred = self.node("Sub", x, self.constant(mean))
        scaled = self.node("Mul", centred, self.constant(scale))
        return self.node("Clip", scaled, self.constant(-LIMIT), self.constant(LIMIT))

    def cut(self, x: str, start: int, end: int, axis: int = -1) -> str:
        """The entries ``start`` to ``end`` of an axis."""
        return self.node("Slice", x, *(self.constant([number], np.int64) for number in (start, end, axis)))

    def joined(self, parts: list[str], axis: int = -1) -> str:
        """Arrays side by side."""
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=axis)

    # Layers, as in capo.neural.parts.networks ---------------------------------------------------------------

    def head(self, layer: Layer, features: str) -> str:
        """Features (N, width) to a head's outputs."""
        product = self.node("MatMul", features, self.constant(layer["kernel"]))
        outputs = self.node("Add", product, self.constant(layer["bias"]))
        return outputs if "unit" not in layer else self.node("Mul", outputs, self.constant(factor(layer["unit"])))

    def body(self, spec: NetworkSpec, layers: Params, parts: Mapping[str, str]) -> str:
        """The parts (N, *part.shape) of observations, by name, to features (N, width).

        Numbers are float32, categories int64.
        """
        if spec.own is not None:
            raise CapoError(
                "a network of your own can't be exported: it is a function of jax, not a list of layers"
            )
        if spec.kind == "parts":
            every = zip(spec.encoders, layers["parts"], strict=True)
            x = self.joined([self._encoded(spec, one, own, parts[one.part.name]) for one, own in every])
        else:
            x = parts[spec.plain_name]
            if spec.kind == "conv":
                x = self._convolve(spec, layers["conv"], x, spec.observation_shape[2], spec.conv_features)
            x = self.reshape(x, -1, spec.n_flat)
        for layer in layers["dense"]:
            x = self._dense(spec, layer, x)
        return x

    def _encoded(self, spec: NetworkSpec, encoder: Encoder, params: Params, x: str) -> str:
        """What an encoder makes of its part, (N, n_outputs)."""
        if encoder.kind == "vector":
            return self.reshape(x, -1, encoder.n_outputs)
        if encoder.kind == "embedding":
            return self.reshape(self.node("Gather", self.constant(params["table"]), x), -1, encoder.n_outputs)
        channels = encoder.part.shape[2]
        if encoder.kind == "conv":
            x = self._convolve(spec, params["conv"], x, channels, encoder.features)
        elif encoder.kind == "nature":
            x = self._nature(spec, params["conv"], x, channels)
        else:
            x = self._impala(spec, params["conv"], x, encoder.part.shape)
        x = self.reshape(x, -1, encoder.n_convolved)
        for layer in params["dense"]:
            x = self._dense(spec, layer, x)
        return x

    def _dense(self, spec: NetworkSpec, layer: Layer, x: str) -> str:
        return self._activate(spec, layer, self.node("MatMul", x, self.constant(layer["kernel"])))

    def _convolve(self, spec: NetworkSpec, layer: Layer, x: str, channels: int, features: int) -> str:
        """3x3 without padding, (N, H, W, C) to (N, H-2, W-2, F)."""
        kernel = np.asarray(layer["kernel"]).reshape(KERNEL, KERNEL, channels, features)
        return self._activate(spec, layer, self._last(self._conv(kernel, self._first(x))))

    def _nature(self, spec: NetworkSpec, layers: list[Layer], x: str, channels: int) -> str:
        """Nature's three layers; see :mod:`capo.neural.parts.images` for the order of a kernel's rows."""
        for (size, stride, features), layer in zip(NATURE, layers, strict=True):
            blocks, each = size // stride, (stride, stride)
            kernel = np.asarray(layer["kernel"]).reshape(blocks, blocks, *each, channels, features)
            kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, channels, features)
            x = self._activate(spec, layer, self._last(self._conv(kernel, self._first(x), strides=each)))
            channels = features
        return x

    def _impala(self, spec: NetworkSpec, stages: Params, x: str, shape: tuple[int, ...]) -> str:
        """IMPALA's stages of residual blocks, channels first until the end."""

        def linear(layer: Layer, x: str, channels: int) -> str:
            kernel = np.asarray(layer["kernel"]).reshape(KERNEL, KERNEL, channels, -1)
            product = self._conv(kernel, x, pads=(1, 1, 1, 1))
            return self.node("Add", product, self.constant(np.asarray(layer["bias"])[:, None, None]))

        x, (height, width, channels) = self._first(x), shape
        for stage in stages:
            x = linear(stage["conv"], x, channels)
            before = [0 if side % 2 == 0 else 1 for side in (height, width)]
            x = self.node("MaxPool", x, kernel_shape=(KERNEL, KERNEL), strides=(2, 2), pads=(*before, 1, 1))
            height, width, channels = -(-height // 2), -(-width // 2), len(stage["conv"]["bias"])
            for first, second in stage["blocks"]:
                inner = linear(first, self._nonlinear(spec, x), channels)
                x = self.node("Add", x, linear(second, self._nonlinear(spec, inner), channels))
        return self._last(self._nonlinear(spec, x))

    def _conv(self, kernel: NDArray, x: str, **attributes: Any) -> str:
        """A convolution, channels first, by a kernel (rows, columns, C, F)."""
        return self.node("Conv", x, self.constant(kernel.transpose(3, 2, 0, 1)), **attributes)

    def _first(self, x: str) -> str:
        """Channels first, as ONNX wants them."""
        return self.node("Transpose", x, perm=[0, 3, 1, 2])

    def _last(self, x: str) -> str:
        """Channels last."""
        return self.node("Transpose", x, perm=[0, 2, 3, 1])

    def _activate(self, spec: NetworkSpec, layer: Layer, product: str) -> str:
        """Bias, LayerNorm if any, activation."""
        x = self.node("Add", product, self.constant(layer["bias"]))
        if "scale" in layer:
            scale, shift = self.constant(layer["scale"]), self.constant(layer["shift"])
            x = self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)
        return self._nonlinear(spec, x)

    def _nonlinear(self, spec: NetworkSpec, x: str) -> str:
        if spec.activation == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        return self.node({"relu": "Relu", "tanh": "Tanh"}[spec.activation], x)
