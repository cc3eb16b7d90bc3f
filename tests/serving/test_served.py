"""Models as the server runs them: joined batches with the same bits, sizes that pay."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.serving.failures import Refusal
from kuiper.serving.protocol import InferRequest, WantedOutput
from kuiper.serving.served import Options, ServedModel, choose_sizes, joins_batches

from ..support.textgraph import NETWORK, graph_of, text, values

IMAGES = NETWORK.replace("pnnx.Input in 0 1 x", "pnnx.Input in 0 1 x #x=(1,3,16,16)f32")


def write(folder, graph: str, name: str = "net", key: str = "text"):
    """Write a model; return the path of its .param file."""
    path = folder / f"{name}.pnnx.param"
    kuiper.save(graph_of(graph, key), path)
    return path


def test_views_share_the_weights_and_the_plans(tmp_path):
    model = kuiper.load(write(tmp_path, IMAGES), threads=2)
    one = model.with_threads(1)
    x = values(1, 3, 16, 16)
    for a, b in zip(model(x), one(x), strict=True):
        assert a.tobytes() == b.tobytes()
    assert (model.threads, one.threads) == (2, 1)
    assert one._plans is model._plans
    assert one.graph is model.graph
    with pytest.raises(kuiper.InputError, match="number of threads"):
        model.with_threads(0)


def test_a_network_joins_batches_with_the_same_bits(tmp_path):
    served = ServedModel("n", "1", write(tmp_path, IMAGES), Options(threads=2, batch=4))
    assert served.joins
    assert served.queue.sizes == (1, 2, 4)
    assert served.tensors("inputs") == [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 16, 16]}]
    assert served.config()["max_batch_size"] == 4
    assert served.config()["input"][0]["dims"] == [3, 16, 16]


@pytest.mark.parametrize(
    "lines",
    [
        ["F.softmax s 1 1 x y dim=0"],
        ["torch.sum s 1 1 x y dim=(0) keepdim=True"],
        ["torch.flip s 1 1 x y dims=(0)"],
        ["torch.sum s 1 1 x y dim=(0,1) keepdim=False"],
    ],
)
def test_a_model_that_mixes_the_members_of_a_batch_is_not_joined(tmp_path, lines):
    graph = text(*lines).replace("in_x 0 1 x", "in_x 0 1 x #x=(?,5)f32")
    served = ServedModel("n", "1", write(tmp_path, graph), Options(batch=8))
    assert not served.joins
    assert served.queue.sizes == (1,)
    assert served.tensors("inputs")[0]["shape"] == [-1, 5]
    assert served.config()["max_batch_size"] == 0


def test_results_must_have_the_bits_of_calls_alone():
    x = [np.ones((1, 3), np.float32)]
    assert joins_batches(lambda a: [a[0] * 3], x)
    assert not joins_batches(lambda a: [a[0] * (1 + len(a[0]) * np.float32(1e-7))], x)
    assert not joins_batches(lambda a: [a[0], a[0].sum(axis=1).sum()], x)


def test_sizes_that_save_time_are_chosen():
    spent = {"now": 0.0}

    def model(cost):
        def run(arrays):
            spent["now"] += cost(len(arrays[0]))
            return arrays

        return run

    def chosen(cost):
        return choose_sizes(model(cost), [np.ones((1, 3))], lambda: spent["now"], 100.0)[0]

    assert chosen(lambda n: n) == (1,)
    assert chosen(lambda n: n + 1) == (1, 2, 4, 8)
    assert chosen(lambda n: n * (1.0 if n == 1 else 0.9 if n == 2 else 0.89)) == (1, 2)
    assert chosen(lambda n: n * (1.0 if n < 4 else 0.8)) == (1, 4)
    assert chosen(lambda n: n * (1 + n / 50)) == (1,)


def test_sizes_are_measured_at_the_start(tmp_path):
    served = ServedModel("n", "1", write(tmp_path, IMAGES), Options())
    assert 1 in served.measured
    assert all(seconds > 0 for seconds in served.measured.values())


def test_requests_are_checked_with_the_messages_of_the_engine(tmp_path):
    served = ServedModel("n", "1", write(tmp_path, IMAGES), Options(finite_only=True))
    for inputs, words in (
        ({"z": values(1, 3, 16, 16)}, "missing: .'x'.; unknown: .'z'."),
        ({"x": values(1, 3, 16, 16).astype(np.float64)}, "got float64"),
        ({"x": values(3, 16, 16)}, "expected rank 4"),
        ({"x": np.full((1, 3, 16, 16), np.nan, np.float32)}, "NaN or infinite"),
    ):
        with pytest.raises(kuiper.KuiperError, match=words):
            served.check(inputs)
    with pytest.raises(Refusal, match="no output 'q', expected 'o', 'v'"):
        served.check_outputs(InferRequest({}, [WantedOutput("q")]))


def test_any_subset_of_outputs(tmp_path):
    path = write(tmp_path, IMAGES)
    served = ServedModel("n", "1", path, Options())
    x = values(1, 3, 16, 16)
    results = kuiper.load(path)(x)
    for wanted, numbers in ((None, [0, 1]), (["v"], [1]), (["v", "o"], [1, 0])):
        outputs = None if wanted is None else [WantedOutput(name) for name in wanted]
        found = served.named(InferRequest({}, outputs), results)
        assert [array.tobytes() for _, array, _ in found] == [results[k].tobytes() for k in numbers]


def test_what_a_model_can_do_with_a_photo(tmp_path):
    def tasks(result, shape="(1,3,8,8)"):
        graph = text("nn.ReLU r 1 1 x y").replace("in_x 0 1 x", f"in_x 0 1 x #x={shape}f32")
        graph = graph.replace("r 1 1 x y", f"r 1 1 x y #y={result}f32")
        return ServedModel("n", "1", write(tmp_path, graph), Options(batch=1)).tasks

    assert tasks("(1,1000)") == ["classify"]
    assert tasks("(1,7,1,1)") == ["classify"]
    assert tasks("(1,2100,112)") == ["detect"]
    assert tasks("(1,1,8,8)") == ["segment"]
    assert tasks("(1,5)", "(1,5)") == []
