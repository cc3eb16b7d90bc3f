"""Whole models against PyTorch's stored outputs."""

import numpy as np
import pytest

import kuiper

from ..reference import read_graph, run_graph, trace_graph
from ..support import (
    Golden,
    assert_close,
    assert_outputs,
    assert_same_bits,
    load_cases,
    uniform,
)
from ..support.cases import sample_positions
from ..support.engine import n_threads, run
from ..support.paths import DATA
from ..support.shipped import (
    GOLDENS,
    MODELS,
    SAMPLE_OF_SHIPPED,
    SHIPPED,
    picture_input,
)
from ..support.weights import fill_archive
from ..support.workbench import ISAS, isa

NETWORKS = load_cases("models")

by_name = pytest.mark.parametrize("network", NETWORKS, ids=lambda case: case.name)


# -- small networks --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ISAS)
@by_name
def test_network(network, variant):
    with isa(variant):
        model = kuiper.load(network.param, network.bin)
        with n_threads(1):
            outputs = run(model, network.inputs)
        with n_threads(2):
            parallel = run(model, network.inputs)
    network.assert_matches(outputs)
    assert_outputs(outputs, network.reference, network.rtol, f"{network.name} against numpy")
    assert_same_bits(parallel, outputs, f"{network.name}: two threads against one")


@by_name
def test_every_intermediate_operand(network):
    """Tracing keeps passes from fusing the operand away; the outputs must agree both ways."""
    model = kuiper.load(network.param, network.bin)
    graph = read_graph(network.param, network.bin)
    values = trace_graph(graph, network.inputs)
    expected = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    traced = model.trace(network.inputs, list(expected))
    for name, value in expected.items():
        assert_close(traced[name], value, network.rtol, f"{network.name}: operand {name}")


@pytest.mark.parametrize("variant", ISAS)
@by_name
def test_batch_equals_single_images(network, variant):
    (x,) = network.inputs
    batch = uniform(f"batch for {network.name}", (3, *x.shape[1:]), -2, 2)
    with isa(variant):
        model = kuiper.load(network.param, network.bin)
        outputs = run(model, [batch])
        for i in range(len(batch)):
            single = run(model, [batch[i : i + 1]])
            assert_same_bits([y[i : i + 1] for y in outputs], single, f"{network.name}: image {i}")


OTHER_SIZES = {
    "resnet18": [(2, 3, 47, 81), (1, 3, 32, 32)],
    "mobilenet_v2": [(1, 3, 96, 40)],
    "mobilenet_v3": [(2, 3, 50, 35)],
    "shufflenet_v2": [(1, 3, 33, 65)],
    "densenet": [(1, 3, 64, 96)],
    "squeezenet": [(1, 3, 80, 49)],
    "repvgg": [(2, 3, 47, 80)],
    "convnext": [(2, 3, 48, 80)],
    "unet": [(1, 3, 64, 64), (2, 3, 20, 36)],
    "yolo": [(1, 3, 96, 32)],
}


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        pytest.param(case, shape, id=f"{case.name}-{'x'.join(map(str, shape))}")
        for case in NETWORKS
        for shape in OTHER_SIZES[case.name]
    ],
)
def test_other_sizes_of_the_same_export(network, shape):
    x = uniform(f"{network.name} at {shape}", shape, -2, 2)
    expected = run_graph(read_graph(network.param, network.bin), [x])
    model = kuiper.load(network.param, network.bin)
    for _ in range(2):
        # Alternating, since plans for several sizes are cached together.
        assert_outputs(run(model, [x]), expected, network.rtol, f"{network.name} at {shape}")
        network.assert_matches(run(model, network.inputs))


# -- the course's graph ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def course_files() -> tuple[bytes, bytes]:
    """Return the graph that the course of 2022 distributes, with weights made from names."""
    param = (DATA / "course" / "resnet18_batch1.pnnx.param").read_bytes()
    return param, fill_archive(param, "course")


@pytest.mark.parametrize("variant", ISAS)
def test_course_resnet18(course_files, variant):
    x = uniform("course input", (1, 3, 224, 224), -2, 2)
    with isa(variant):
        model = kuiper.load(*course_files)
        logits = model(x)
    with np.load(DATA / "course" / "resnet18_batch1.npz") as golden:
        assert_close(logits, golden["logits"], 2e-5, "logits")
    mixed = np.concatenate([uniform("another", x.shape, -2, 2), x])
    with isa(variant):
        assert_same_bits([model(mixed)[1:]], [logits], "second image of a batch")


# -- the models in examples/models -----------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_model(name):
    """Half-precision weights, computed in float32, against PyTorch in float64."""
    if not (MODELS / f"{name}.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    with np.load(GOLDENS) as stored:
        x = picture_input(SHIPPED[name], stored["picture"])
        shape = tuple(stored[f"{name}.shape"])
        values, moments = stored[f"{name}.values"], stored[f"{name}.moments"]
    y = kuiper.load(MODELS / f"{name}.f16.pnnx.param")(x)
    whole = values.size == y.size
    positions = None if whole else sample_positions(int(np.prod(shape)), SAMPLE_OF_SHIPPED)
    Golden(shape, positions, values).assert_matches(y, SHIPPED[name].rtol, name)
    wide = y.astype(np.float64)
    measured = np.array([wide.mean(), wide.std(), wide.min(), wide.max()])
    assert np.abs(measured - moments).max() <= SHIPPED[name].rtol * np.abs(values).max()


# -- a model zoo -----------------------------------------------------------------------------


def test_zoo(zoo_param):
    """float32 files must reproduce PyTorch's numbers, float16 files its classes."""
    model = kuiper.load(zoo_param)
    half = zoo_param.name.endswith(".f16.pnnx.param")
    with np.load(zoo_param.parent / "golden.npz") as golden:
        photos = [key[2:] for key in golden if key.startswith("x_")]
        assert photos
        for photo in photos:
            y, expected = model(golden[f"x_{photo}"]), golden[f"y_{photo}"]
            assert expected.std() > 0
            if not half:
                assert_close(y, expected, 1e-4, photo)
            elif expected.ndim == 2:
                assert y.argmax() == expected.argmax(), photo
            else:
                assert np.abs(y - expected).mean() <= 0.01 * np.abs(expected).max(), photo
