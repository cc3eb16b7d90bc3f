"""One class per runtime: load an exported model, run it on numpy arrays.

Every runtime is configured as its documentation recommends for the lowest latency in true float32,
with a fixed number of threads. Imports are in the constructors, so that an interpreter with only
one of the packages can load this module. :mod:`cold.measure` reads the packages of a runtime here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common import images, read_input_shape

CALIBRATION_IMAGES = 16


class Runtime:
    """A model loaded into one runtime.

    Parameters
    ----------
    folder : Path
        The exports of one model at one batch size, see :func:`common.model_folder`.
    threads : int
        Number of threads of the computation.
    batch : int
        Leading extent of the input.
    """

    #: Distribution that a user installs to have this runtime.
    package = ""
    #: Whether a batch of 1 is left to another class.
    batched_only = False

    def __init__(self, folder: Path, threads: int, batch: int):
        raise NotImplementedError

    def prepare(self, shape: tuple[int, ...]) -> None:
        """Make all preparations for many runs on inputs of this shape."""

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        """Run on `x`, float32 (n, c, h, w); the outputs may be views valid until the next run."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the version of the package and details of the build."""
        from importlib.metadata import version

        return version(self.package)


class Kuiper(Runtime):
    """kuiper, from the pnnx files."""

    package = "kuiper"

    def __init__(self, folder: Path, threads: int, batch: int):
        import kuiper

        self._kuiper = kuiper
        kuiper.set_num_threads(threads)
        self._model = kuiper.load(folder / "model.pnnx.param")

    def prepare(self, shape: tuple[int, ...]) -> None:
        self._model.plan(shape)

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        y = self._model(x)
        return list(y) if isinstance(y, tuple) else [y]

    def version(self) -> str:
        config = self._kuiper.show_config()
        return f"{config['version']} ({config['isa']})"


class KuiperDynamic(Kuiper):
    """kuiper, with Linear layers in bytes by dynamic quantization."""

    def __init__(self, folder: Path, threads: int, batch: int):
        super().__init__(folder, threads, batch)
        self._model = self._kuiper.quantize(self._model)


class KuiperBfloat16(Kuiper):
    """kuiper in bfloat16."""

    def __init__(self, folder: Path, threads: int, batch: int):
        super().__init__(folder, threads, batch)
        self._model = self._kuiper.load(folder / "model.pnnx.param", precision="bfloat16")


class KuiperInt8(Kuiper):
    """kuiper, quantized with calibration images."""

    def __init__(self, folder: Path, threads: int, batch: int):
        super().__init__(folder, threads, batch)
        file = folder / "model.int8.pnnx.param"
        if not file.exists():
            model = self._kuiper.quantize(self._model, calibration_images(folder))
            self._kuiper.save(model, file)
        self._model = self._kuiper.load(file)


class KuiperMixed(KuiperInt8):
    """kuiper, quantized, with 3x3 convolutions in bfloat16 where that is faster."""

    def __init__(self, folder: Path, threads: int, batch: int):
        super().__init__(folder, threads, batch)
        file = folder / "model.int8.pnnx.param"
        self._model = self._kuiper.load(file, precision="bfloat16")


class OnnxRuntime(Runtime):
    """onnxruntime's CPU provider with all graph optimisations, one operator at a time."""

    package = "onnxruntime"
    file = "model.onnx"

    def __init__(self, folder: Path, threads: int, batch: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = onnxruntime.InferenceSession(
            str(folder / self.file), options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        return self._session.run(None, {self._input: x})


class OnnxRuntimeDynamic(OnnxRuntime):
    """onnxruntime, with matrix products in bytes by dynamic quantization."""

    file = "model.dynamic.onnx"

    def __init__(self, folder: Path, threads: int, batch: int):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        if not (folder / self.file).exists():
            quantize_dynamic(
                folder / "model.onnx", folder / self.file, weight_type=QuantType.QInt8,
                per_channel=True, op_types_to_quantize=["MatMul", "Gemm", "Attention"],
            )  # fmt: skip
        super().__init__(folder, threads, batch)


class OnnxRuntimeInt8(OnnxRuntime):
    """onnxruntime, quantized as its documentation recommends for x86: U8S8, QDQ, per channel."""

    file = "model.int8.onnx"

    def __init__(self, folder: Path, threads: int, batch: int):
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        if not (folder / self.file).exists():
            prepared = folder / "model.prepared.onnx"
            quant_pre_process(str(folder / "model.onnx"), str(prepared))
            quantize_static(
                prepared, folder / self.file, _Reader(prepared, calibration_images(folder)),
                quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
            prepared.unlink()
        super().__init__(folder, threads, batch)


class _Reader:
    """Calibration images in the form that onnxruntime reads."""

    def __init__(self, file: Path, images: list[np.ndarray]):
        import onnx

        name = onnx.load(str(file), load_external_data=False).graph.input[0].name
        self._feeds = iter([{name: image} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


class OpenVino(Runtime):
    """OpenVINO's CPU plugin: latency hint, one stream, float32 arithmetic, no copies."""

    package = "openvino"
    file = "model.onnx"
    precision = "f32"

    def __init__(self, folder: Path, threads: int, batch: int):
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": self.precision,
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        core = openvino.Core()
        compiled = core.compile_model(str(folder / self.file), "CPU", settings)
        self._request = compiled.create_infer_request()

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        result = self._request.infer([x], share_inputs=True, share_outputs=True)
        return list(result.to_tuple())


class OpenVinoBfloat16(OpenVino):
    """OpenVINO in bfloat16, its default on processors that compute it."""

    precision = "bf16"


class OpenVinoInt8(OpenVino):
    """OpenVINO, quantized by nncf with its default settings."""

    file = "model.int8.xml"

    def __init__(self, folder: Path, threads: int, batch: int):
        if not (folder / self.file).exists():
            import nncf
            import openvino

            images = calibration_images(folder)
            model = openvino.Core().read_model(str(folder / "model.onnx"))
            quantized = nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))
            openvino.save_model(quantized, str(folder / self.file))
        super().__init__(folder, threads, batch)


class Ncnn(Runtime):
    """ncnn from pnnx's ncnn files: float32 storage, packed layout and Winograd as by default."""

    package = "ncnn"

    def __init__(self, folder: Path, threads: int, batch: int):
        import ncnn

        self._ncnn = ncnn
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = threads
        options.use_vulkan_compute = False
        options.use_fp16_packed = False
        options.use_fp16_storage = False
        options.use_fp16_arithmetic = False
        options.use_bf16_packed = False
        options.use_bf16_storage = False
        home = self.exports(folder)
        for load, suffix in ((self._net.load_param, "param"), (self._net.load_model, "bin")):
            status = load(str(home / f"model.ncnn.{suffix}"))
            if status:
                raise RuntimeError(f"ncnn cannot load model.ncnn.{suffix}: status {status}")
        self._input = self._net.input_names()[0]
        self._outputs = self._net.output_names()

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        # As users of ncnn process several images: a loop, one extractor per image.
        results = [[np.array(y) for y in self._extract(self._ncnn.Mat(image))] for image in x]
        return [np.stack(images) for images in zip(*results, strict=True)]

    def exports(self, folder: Path) -> Path:
        """Return the folder of the exports of batch 1, since images are passed one by one."""
        single = folder.parent / "b1"
        return single if single.is_dir() else folder

    def _extract(self, x) -> list:
        extractor = self._net.create_extractor()
        extractor.input(self._input, x)
        results = []
        for name in self._outputs:
            status, result = extractor.extract(name)
            if status:
                raise RuntimeError(f"ncnn: extracting {name} ended with status {status}")
            results.append(result)
        return results


class NcnnBatch(Ncnn):
    """ncnn with all images of a batch in one of its new batched tensors."""

    batched_only = True

    def exports(self, folder: Path) -> Path:
        return folder

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        results = self._extract(self._ncnn.Mat(x, 0))
        return [np.stack([np.array(y.batch(i)) for i in range(len(x))]) for y in results]


class Torch(Runtime):
    """PyTorch, eager, in inference mode; also the reference for the others."""

    package = "torch"

    def __init__(self, folder: Path, threads: int, batch: int):
        import torch

        from networks import models

        torch.set_num_threads(threads)
        home = folder.parent
        # Not on the device "meta": tables that are in no file are built too.
        module = models.spec_of(home.name).build()
        weights = torch.load(home / "weights.pt", weights_only=True)
        module.load_state_dict(weights, assign=True)
        self._torch = torch
        self._module = module.eval()

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        torch = self._torch
        with torch.inference_mode():
            y = self._module(torch.from_numpy(x))
        return [t.numpy() for t in (y if isinstance(y, tuple | list) else [y])]


class TorchBfloat16(Torch):
    """PyTorch, eager, in bfloat16 by autocast."""

    def run(self, x: np.ndarray) -> list[np.ndarray]:
        torch = self._torch
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            y = self._module(torch.from_numpy(x))
        return [t.float().numpy() for t in (y if isinstance(y, tuple | list) else [y])]


class TorchScript(Torch):
    """PyTorch's TorchScript, frozen and with ``torch.jit.optimize_for_inference``."""

    def __init__(self, folder: Path, threads: int, batch: int):
        import warnings

        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            frozen = torch.jit.load(str(folder / "model.torchscript.pt")).eval()
            self._module = torch.jit.optimize_for_inference(frozen)


class TorchCompile(Torch):
    """PyTorch through ``torch.compile`` (needs a C++ compiler, compiles for minutes)."""

    def __init__(self, folder: Path, threads: int, batch: int):
        super().__init__(folder, threads, batch)
        # Constant weights may be laid out in advance, which is off by default.
        self._module = self._torch.compile(self._module, options={"freezing": True})


def calibration_images(folder: Path) -> list[np.ndarray]:
    """Return the images that all runtimes are quantized with; none of them is measured."""
    shape = (1, *read_input_shape(folder.parent.parent, folder.parent.name))
    return [images(shape, seed) for seed in range(1000, 1000 + CALIBRATION_IMAGES)]


RUNTIMES = {
    "kuiper": Kuiper,
    "kuiper-dynamic": KuiperDynamic,
    "kuiper-bfloat16": KuiperBfloat16,
    "kuiper-int8": KuiperInt8,
    "kuiper-mixed": KuiperMixed,
    "onnxruntime": OnnxRuntime,
    "onnxruntime-dynamic": OnnxRuntimeDynamic,
    "onnxruntime-int8": OnnxRuntimeInt8,
    "openvino": OpenVino,
    "openvino-bfloat16": OpenVinoBfloat16,
    "openvino-int8": OpenVinoInt8,
    "ncnn": Ncnn,
    "ncnn-batch": NcnnBatch,
    "torch": Torch,
    "torch-bfloat16": TorchBfloat16,
    "torchscript": TorchScript,
    "torch-compile": TorchCompile,
}
