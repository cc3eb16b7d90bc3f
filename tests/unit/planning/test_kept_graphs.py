"""Plans that start from what earlier plans have left are those of a new model, to the last bit."""

import copy
import gc
import pickle
import threading
import tracemalloc

import numpy as np
import pytest

import kuiper
from kuiper.expression import forget_parsed, functions
from kuiper.passes import PASSES
from kuiper.planning.kept_graph import KeptGraphs

from ...support import assert_same_bits, load_cases, uniform
from ...support.encoder import encoder, tokens
from ...support.engine import run
from ...support.shipped import MODELS, SHIPPED
from ...support.textgraph import NETWORK, conv, files_of, text, user_operator
from ...support.workbench import ISAS, isa
from .test_lengths import description

CASES = load_cases("operators")
NETWORKS = load_cases("models")


def variants(inputs):
    """Return lists of inputs in which all axes of one extent have another extent."""
    extents = sorted({n for array in inputs for n in array.shape})
    found = [inputs]
    for old in extents:
        for new in {old + 1, 2 * old, 2 * old + 3, max(old - 1, 1), 1} - {old}:
            found.append([resized(a, [new if n == old else n for n in a.shape]) for a in inputs])
    for new in (2, 3, 5):  # the batch alone
        found.append([resized(a, [new, *a.shape[1:]]) if a.ndim else a for a in inputs])
    for d in (1, 2, 3):
        for new in (4, 7, 9):  # one axis alone
            found.append(
                [
                    resized(a, [*a.shape[:d], new, *a.shape[d + 1 :]]) if a.ndim > d else a
                    for a in inputs
                ]
            )
    return found


def resized(array, shape):
    """Return values of `array` in another shape."""
    if tuple(shape) == array.shape:
        return array
    return np.resize(array, shape).astype(array.dtype)


def outcome(model, arrays):
    """Return the outputs, what the plan runs and the reports of the passes, or the error."""
    try:
        outputs = run(model, arrays)
    except kuiper.KuiperError as error:
        return type(error), str(error)
    plan = model.plan(*[a.shape for a in arrays])
    return [outputs, repr(description(plan)), model.passes]


def assert_plans_are_new(load, sequence, what):
    """Plan for a sequence of inputs on one model, and for each on a new model."""
    used = load(plans=1)
    planned = 0
    for number, arrays in enumerate(sequence):
        where = f"{what}, plan {number}: {[a.shape for a in arrays]}"
        expected, actual = outcome(load(plans=1), arrays), outcome(used, arrays)
        assert type(expected) is type(actual), where
        if isinstance(expected, tuple):
            assert actual == expected, where
        else:
            assert_same_bits(actual[0], expected[0], where)
            assert actual[1:] == expected[1:], where
            planned += 1
    return planned


def shuffled(items, key):
    """Return the items three times, each time in another order."""
    random = np.random.default_rng(len(key))
    return [items[i] for _ in range(3) for i in random.permutation(len(items))]


# -- many graphs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES[::16], ids=lambda case: case.id)
def test_operators(case):
    def load(**options):
        return kuiper.load(case.param, case.bin, max_memory=1 << 26, **options)

    some = [a for a in variants(list(case.inputs)) if sum(x.size for x in a) < 1 << 16]
    assert_plans_are_new(load, shuffled(some[:8], case.id), case.id)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("case", NETWORKS[::3], ids=lambda case: case.name)
def test_networks(case, variant):
    def load(**options):
        return kuiper.load(case.param, case.bin, max_memory=1 << 26, **options)

    some = [a for a in variants(list(case.inputs)) if sum(x.size for x in a) < 1 << 16]
    with isa(variant):
        assert_plans_are_new(load, shuffled(some[:5], case.name)[:10], case.name)


@pytest.mark.parametrize("variant", ISAS)
def test_lengths_and_masks(variant):
    sequence = []
    for length in (16, 5, 1, 24, 5, 128, 31, 2, 64):
        ids = tokens(length)
        mask = np.ones_like(ids)
        mask[1, length // 2 + 1 :] = 0
        sequence.append([ids, mask])
    with isa(variant):
        assert assert_plans_are_new(encoder, sequence, "encoder") == len(sequence)


def images(*shapes):
    return [[uniform(f"image {shape}", shape)] for shape in shapes]


@pytest.mark.parametrize("variant", ISAS)
def test_batches_and_sizes(variant):
    files = files_of(NETWORK.replace("0 1 x", "0 1 x #x=(1,3,12,12)f32"))
    shapes = [(1, 3, 12, 12), (2, 3, 12, 12), (5, 3, 12, 12), (1, 3, 20, 12), (1, 3, 12, 9)]
    sequence = shuffled(images(*shapes, (4, 3, 15, 11), (2, 3, 33, 64)), "network")

    def load(**options):
        return kuiper.load(*files, **options)

    with isa(variant):
        assert assert_plans_are_new(load, sequence, "network") == len(sequence)


SIZES = {
    "pooling with ceil": [
        "nn.MaxPool2d p 1 1 x a ceil_mode=True dilation=(1,1) kernel_size=(3,3) padding=(1,1) "
        "return_indices=False stride=(2,2)",
        "nn.AvgPool2d q 1 1 a y ceil_mode=True count_include_pad=False divisor_override=None "
        "kernel_size=(2,2) padding=(0,0) stride=(2,2)",
    ],
    "sizes in an expression": [
        "pnnx.Expression e 1 1 x y expr=div(mul(@0,2.0),size(@0,3))",
    ],
    "a slice of half the rows": [
        "pnnx.Expression e 1 1 x n expr=floor_divide(size(@0,2),2)",
        "Tensor.slice s 2 1 x n a dim=2 start=0 step=1 $input=x $end=n",
        "nn.ReLU r 1 1 a y",
    ],
    "rows as columns": [
        "pnnx.Expression e 1 1 x n expr=[int(size(@0,0)),int(mul(size(@0,1),size(@0,2))),-1]",
        "Tensor.reshape s 2 1 x n a $input=x $shape=n",
        "Tensor.permute t 1 1 a y dims=(0,2,1)",
    ],
    "a sum that is square for some sizes alone": [
        "Tensor.permute t 1 1 x a dims=(0,1,3,2)",
        "nn.AdaptiveAvgPool2d p 1 1 a b output_size=(6,8)",
        conv("c", "x", "d", o=3),
        "pnnx.Expression e 2 1 d b y expr=add(@0,@1)",
    ],
    "same padding": [
        conv("c", "x", "a", o=4, kernel=3).replace("padding=(0,0)", "padding=same"),
        "pnnx.Expression e 1 1 a y expr=add(mul(@0,1),0.5)",
    ],
    "constants": [
        "pnnx.Attribute c 0 1 k @data=(1,3,1,1)f32",
        "pnnx.Expression e 1 1 k l expr=exp(mul(@0,2.0))",
        "pnnx.Expression f 2 1 x l y expr=add(@0,@1)",
    ],
}


@pytest.mark.parametrize("name", SIZES)
def test_what_depends_on_sizes(name):
    files = files_of(text(*SIZES[name]))
    sizes = [(6, 8), (8, 6), (7, 7), (6, 6), (9, 4), (24, 8), (6, 16), (12, 12)]
    sequence = shuffled(images(*[(2, 3, *size) for size in sizes]), name)

    def load(**options):
        return kuiper.load(*files, **options)

    assert assert_plans_are_new(load, sequence, name)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_models(name):
    path = MODELS / f"{name}.f16.pnnx.param"
    inputs = kuiper.load(path).inputs
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        pytest.skip("no model of images")
    sides = [64, 96, 32]
    sequence = images(*[(n, 3, side, side) for side in sides for n in (1, 3, 2)])
    assert_plans_are_new(lambda **options: kuiper.load(path, **options), sequence, name)


# -- what is kept ----------------------------------------------------------------------------------


def runs_of_passes(monkeypatch):
    """Return a list that grows by one with each run of the passes."""
    seen = []
    call = type(PASSES[0]).__call__

    def counted(self, *arguments, **options):
        if self is PASSES[2]:
            seen.append(self)
        return call(self, *arguments, **options)

    monkeypatch.setattr(type(PASSES[0]), "__call__", counted)
    return seen


def test_lengths_batches_and_sizes_run_the_passes_twice(monkeypatch):
    seen = runs_of_passes(monkeypatch)
    model = encoder()
    for length in range(2, 30):
        model.plan((2, length), (2, length))
    assert len(seen) == 2
    seen.clear()
    model = kuiper.load(*files_of(NETWORK.replace("0 1 x", "0 1 x #x=(1,3,12,12)f32")))
    for n in range(2, 12):
        model.plan((n, 3, 12, 12))
        model.plan((1, 3, 12 + n, 30))
    assert len(seen) == 2


def test_one_plan_keeps_no_graph():
    model = encoder()
    model.plan((2, 5), (2, 5))
    assert list(model._plans._kept._kept.values()) == [None]


def test_few_graphs_are_kept():
    model = kuiper.load(*files_of(text("Tensor.reshape r 1 1 x y shape=(2,-1)")), plans=2)
    for n in range(2, 80):
        model.plan((2, n, 3))
        model.plan((2, 2, n))
        model.trace([np.zeros((2, n), np.float32)], ["x"])
    kept = model._plans._kept
    assert len(kept._kept) <= kept.MAX_KEPT
    graphs = [len(k._graphs) for k in kept._kept.values() if k is not None]
    assert max(graphs) <= KeptGraphs.MAX_GRAPHS


def test_memory_is_bounded():
    model = encoder(plans=2)
    lengths = np.random.default_rng(0).permutation(np.arange(1, 129, 4)).tolist()
    for length in lengths:
        model.plan((2, length), (2, length))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for length in lengths:
            model.plan((2, length), (2, length))
        gc.collect()
        grown = tracemalloc.take_snapshot().compare_to(before, "filename")
    finally:
        tracemalloc.stop()
    assert sum(one.size_diff for one in grown if "tracemalloc" not in str(one)) < 400_000


def test_a_replaced_operator_is_not_kept():
    graph = text("my.scale a 1 1 x p", "nn.ReLU b 1 1 p y")
    x = uniform("x", (1, 4))
    with user_operator("my.scale", lambda x: 2 * x):
        model = kuiper.load(*files_of(graph), plans=1)
        for n in (1, 2, 3):
            assert_same_bits([model(x[:, :n])], [np.maximum(2 * x[:, :n], 0)], str(n))
    with user_operator("my.scale", lambda x: 3 * x):
        assert_same_bits([model(x)], [np.maximum(3 * x, 0)], "replaced")


def test_a_function_that_is_registered_later_takes_effect():
    x = uniform("x", (1, 9))
    model = kuiper.load(*files_of(text("pnnx.Expression a 1 1 x y expr=neg(@0)")), plans=1)
    for n in (1, 2, 3):
        assert_same_bits([model(x[:, :n])], [-x[:, :n]], str(n))
    before = dict(functions.CUSTOM)
    try:
        kuiper.expression.function("neg", replace=True)(lambda a: a + np.float32(1))
        for n in (4, 5, 6):
            assert_same_bits([model(x[:, :n])], [x[:, :n] + np.float32(1)], str(n))
    finally:
        functions.CUSTOM.clear()
        functions.CUSTOM.update(before)
        forget_parsed()


# -- threads and copies ----------------------------------------------------------------------------


def test_threads_that_plan_for_many_lengths():
    model = encoder(plans=2)
    lengths = [1, 2, 3, 5, 8, 13, 21, 34, 55]
    arrays = {length: (tokens(length), np.ones_like(tokens(length))) for length in lengths}
    expected = {length: encoder()(*arrays[length]) for length in lengths}
    failures = []

    def work(seed):
        try:
            for length in np.random.default_rng(seed).choice(lengths, 25).tolist():
                assert_same_bits([model(*arrays[length])], [expected[length]], str(length))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_of_a_model_with_plans(twin):
    model = encoder()
    for length in (3, 4, 5, 6):
        model.plan((2, length), (2, length))
    other = twin(model)
    for length in (7, 3, 9):
        ids = tokens(length)
        expected = encoder()(ids, np.ones_like(ids))
        assert_same_bits([other(ids, np.ones_like(ids))], [expected], f"copy {length}")
        assert_same_bits([model(ids, np.ones_like(ids))], [expected], f"model {length}")
