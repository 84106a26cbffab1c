"""The networks as an ONNX graph, which runs without jax: a method per layer, which returns its output's name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capo.arrays import NDArray
from capo.errors import CapoError
from capo.neural.parts.layer_norm import EPSILON
from capo.neural.parts.layers import KERNEL
from capo.neural.parts.networks import Layer, NetworkSpec, Params
from capo.neural.parts.normaliser import LIMIT

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 9  # what runtimes of 2023 and later read


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
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operation of ONNX."""
        name = f"{kind.lower()}_{len(self._nodes)}"
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

    # Layers, as in capo.neural.parts.networks ---------------------------------------------------------------

    def head(self, layer: Layer, features: str) -> str:
        """Features (N, width) to a head's outputs."""
        product = self.node("MatMul", features, self.constant(layer["kernel"]))
        return self.node("Add", product, self.constant(layer["bias"]))

    def body(self, spec: NetworkSpec, layers: Params, x: str) -> str:
        """Observations (N, *observation_shape), float32, to features (N, width)."""
        if spec.kind not in ("mlp", "conv"):
            raise CapoError(f"a network of kind {spec.kind!r} can't be exported: only mlp and conv can")
        if spec.kind == "conv":
            x = self._convolve(spec, layers["conv"], x)
        x = self.reshape(x, -1, spec.n_flat)
        for layer in layers["dense"]:
            x = self._activate(spec, layer, self.node("MatMul", x, self.constant(layer["kernel"])))
        return x

    def _convolve(self, spec: NetworkSpec, layer: Layer, x: str) -> str:
        """3x3 without padding: ONNX wants channels first, and kernels (F, C, 3, 3)."""
        channels = spec.observation_shape[2]
        kernel = np.asarray(layer["kernel"]).reshape(KERNEL, KERNEL, channels, spec.conv_features)
        moved = self.node("Transpose", x, perm=[0, 3, 1, 2])
        product = self.node("Conv", moved, self.constant(kernel.transpose(3, 2, 0, 1)))
        return self._activate(spec, layer, self.node("Transpose", product, perm=[0, 2, 3, 1]))

    def _activate(self, spec: NetworkSpec, layer: Layer, product: str) -> str:
        """Bias, LayerNorm if any, activation."""
        x = self.node("Add", product, self.constant(layer["bias"]))
        if "scale" in layer:
            scale, shift = self.constant(layer["scale"]), self.constant(layer["shift"])
            x = self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)
        if spec.activation == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        return self.node({"relu": "Relu", "tanh": "Tanh"}[spec.activation], x)
