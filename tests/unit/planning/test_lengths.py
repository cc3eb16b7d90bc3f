"""Plans for many lengths: what is kept from earlier plans does not change later ones."""

import numpy as np

from kuiper.ops.core import schema

from ...support import assert_same_bits
from ...support.encoder import encoder, tokens

LENGTHS = [*range(1, 25), 31, 32, 33, 63, 64, 128]


def description(plan) -> list[object]:
    """Return what a plan runs: steps with their operands, and the memory of each buffer."""
    steps = [
        (s.name, type(s).__name__, s.kind, list(s.slots), s.flops, s.bytes) for s in plan.steps
    ]
    buffers = [(b.kind, b.n_bytes, b.offset, b.first, b.last) for b in plan.buffers]
    return [steps, buffers, plan.arena_bytes, plan.inputs, plan.outputs]


def test_thirty_lengths_on_one_model_and_on_new_ones():
    model = encoder(plans=len(LENGTHS))
    for length in np.random.default_rng().permutation(LENGTHS).tolist():
        ids = tokens(length)
        mask = np.ones_like(ids)
        mask[1, length // 2 + 1 :] = 0
        fresh = encoder()
        assert_same_bits([model(ids, mask)], [fresh(ids, mask)], str(length))
        again, first = (m.plan(ids.shape, ids.shape) for m in (model, fresh))
        assert repr(description(again)) == repr(description(first))
        assert model.passes == fresh.passes


def test_literals_of_a_file_are_converted_once(monkeypatch):
    model = encoder()
    converted = []
    convert = schema._integer

    def count(value, minimum=None):
        converted.append(value)
        return convert(value, minimum)

    monkeypatch.setattr(schema, "_integer", count)
    model.plan((2, 5), (2, 5))
    first = len(converted)
    model.plan((2, 6), (2, 6))
    model.plan((2, 7), (2, 7))
    per_plan = (len(converted) - first) / 2
    # What is left: operators that passes have changed, and numbers computed from shapes.
    assert per_plan < 10, converted
