"""Names of inputs and outputs: kept in the file, accepted by calls, ignored by other readers."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

import kuiper
from kuiper.errors import GraphError, InputError
from kuiper.planning.names import INPUT, OUTPUT, names_at, write_names

from ...support.textgraph import model_of, values

NAMED = """pnnx.Input first 0 1 0 names=(input_ids) #0=(2,3)f32
    pnnx.Input second 0 1 1 names=(mask) #1=(2,3)f32
    pnnx.Expression sub 2 1 0 1 2 expr=sub(@0,@1)
    prim::TupleConstruct pair 2 1 2 0 3
    prim::TupleConstruct both 2 1 3 1 4
    pnnx.Output out 1 0 4 names=(logits,past.0,past.1)"""


def refusal(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_names_are_shown_and_taken():
    model = model_of(NAMED)
    assert [info.name for info in model.inputs] == ["input_ids", "mask"]
    assert [info.name for info in model.outputs] == ["logits", "past.0", "past.1"]
    assert "input_ids (2, 3)" in repr(model)
    x, y = values(2, 3), values(2, 3, seed=1)
    for results in (
        model(x, y),
        model(mask=y, input_ids=x),
        model(x, mask=y),
        model({"mask": y, "input_ids": x}),
        model({"input_ids": x}, mask=y),
        model({"0": x, "1": y}),
        model({"first": x, "second": y}),
        tuple(model(x, y, as_dict=True).values()),
    ):
        for result, expected in zip(results, (x - y, x, y), strict=True):
            np.testing.assert_array_equal(result, expected)
    assert [*model(x, y, as_dict=True)] == ["logits", "past.0", "past.1"]
    out = [np.empty((2, 3), np.float32) for _ in range(3)]
    assert model(x, y, out=out, as_dict=True)["logits"] is out[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model, x: model(x, input_ids=x),
            "got inputs ['input_ids', 'input_ids'], expected ['input_ids', 'mask']; "
            "missing: ['mask']; given twice: ['input_ids']",
        ),
        (
            lambda model, x: model(x, attention_mask=x),
            "got inputs ['attention_mask', 'input_ids'], expected ['input_ids', 'mask']; "
            "missing: ['mask']; unknown: ['attention_mask']",
        ),
        (lambda model, x: model(x, x, x, mask=x), "got 4 inputs, expected 2: 'input_ids', 'mask'"),
        (
            lambda model, x: model({"mask": x}, mask=x),
            "got ['mask'] both in the mapping and as keyword arguments",
        ),
    ],
)
def test_wrong_keywords(call, message):
    assert refusal(InputError, lambda: call(model_of(NAMED), values(2, 3))) == message


def test_a_name_precedes_the_name_of_another_operand():
    model = model_of(
        """pnnx.Input a 0 1 0 names=(1)
        pnnx.Input b 0 1 1 names=(0)
        pnnx.Expression sub 2 1 0 1 2 expr=sub(@0,@1)
        pnnx.Output out 1 0 2"""
    )
    x, y = values(3), values(3, seed=1)
    np.testing.assert_array_equal(model({"1": x, "0": y}), x - y)


def test_unnamed_outputs_as_a_dict():
    cut = "pnnx.Input in 0 1 x\ntorch.chunk cut 1 1 x list chunks=2 dim=1\npnnx.Output out 1 0 list"
    x = values(2, 4)
    found = model_of(cut)(x, as_dict=True)
    assert [*found] == ["list.0", "list.1"]
    np.testing.assert_array_equal(found["list.1"], x[:, 2:])
    two = cut.replace("out 1 0 list", "out 2 0 list x")
    message = refusal(InputError, lambda: model_of(two)(x, as_dict=True))
    assert message.startswith("as_dict: the outputs list, x hold lists, 3 tensors in all")


@pytest.mark.parametrize(
    "name",
    ["x", "a b", "0", "-1", "1e5", "None", "inf", "x,y", "(z)", "a%b", "\\x41", "été", "a=b"],
)
def test_every_name_survives_saving(name):
    model = model_of("pnnx.Input in 0 1 0 #0=(3)f32\nnn.ReLU r 1 1 0 1\npnnx.Output out 1 0 1")
    write_names(model.graph, INPUT, [name])
    write_names(model.graph, OUTPUT, [name])
    param = BytesIO()
    kuiper.save(model.graph, param)
    loaded = kuiper.load(param.getvalue())
    assert [loaded.inputs[0].name, loaded.outputs[0].name] == [name, name]
    x = values(3)
    np.testing.assert_array_equal(loaded({name: x}), np.maximum(x, 0))


def test_names_that_do_not_fit():
    text = NAMED.replace("(logits,past.0,past.1)", "(logits,past)")
    assert refusal(GraphError, lambda: model_of(text)).endswith(
        "operator 'out' (pnnx.Output): names has 2 names, expected 3, one per tensor"
    )
    text = NAMED.replace("(mask)", "(input_ids)")
    assert refusal(GraphError, lambda: model_of(text)).endswith(
        "operator 'second' (pnnx.Input): a second tensor is called 'input_ids'; rename one"
    )
    graph = model_of(NAMED).graph
    assert refusal(InputError, lambda: write_names(graph, INPUT, ["x"])) == (
        "input_names: got 1 name (x), expected 2, one per input"
    )
    assert refusal(InputError, lambda: write_names(graph, OUTPUT, ["x", "", "x"])) == (
        "output_names: got '' for output 1, expected a string that no other output has"
    )
    assert names_at(graph, INPUT) == ["input_ids", "mask"]
