"""Long steps run in slices between which a run can be interrupted; the bits do not change."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper._kernels.spatial import pool
from kuiper._runtime.executor import Context, Program

from ...support.engine import n_threads
from ...support.workbench import N_THREADS, Workbench, image_windows, noise
from ...support.workgraph import model_of, recurrent_layers


@pytest.mark.parametrize("threads", [1, N_THREADS])
@pytest.mark.parametrize("seconds", [2.5, 9, 1e6])
def test_a_step_in_slices(threads, seconds):
    """A few slices, some, and as many as the step has shards."""
    x = noise((2, 5, 21, 17))
    bench = Workbench()
    steps, outputs = [], []
    for flops in (0, seconds * 150e9, 0):
        y = bench.output((2, 5, 11, 9), "channels_last")
        step = pool.PoolStep(
            bench.put_channels_last(x), y, image_windows(x, 3, 2, 1), "max", bench.scratch(4096)
        )
        assert step.max_shards > 10
        step.flops = flops
        steps.append(step)
        outputs.append(y)
    slots = [
        (memory, bench.per_thread[slot]) if slot in bench.per_thread else memory
        for slot, memory in enumerate(bench.memory)
    ]
    program, context = Program(steps, dispatch.lanes()), Context(slots, threads)
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
    expected = np.max([wide[:, :, i : i + 21 : 2, j : j + 17 : 2] for i, j in np.ndindex(3, 3)], 0)
    for run in (program.run, program.run_timed):
        for y in outputs:
            bench.view(y)[...] = np.nan
        times = run(context, threads)
        for y in outputs:
            assert np.array_equal(bench.view(y), expected)
    assert times.shape == (3,)
    assert (times >= 0).all()


@pytest.mark.parametrize(("cell", "proj_size"), [("nn.LSTM", 0), ("nn.GRU", 0), ("nn.LSTM", 96)])
def test_a_long_sequence_in_phases(cell, proj_size):
    """Any number of phases gives the bits of a single one."""
    params, weights = recurrent_layers(cell, 256, 1, False, proj_size)
    length = 11000 if proj_size else 6000
    x = [noise((length, 1, 24)), 0.1 * noise((1, 1, proj_size or 256))]
    if cell == "nn.LSTM":
        x.append(0.1 * noise((1, 1, 256), 1))

    def run(x):
        model = model_of(cell, x, params, weights, n_outputs=len(x))
        with n_threads(1):
            rounds = max(step.n_phases for step in model.plan(*(a.shape for a in x)).steps)
            return *model(*x), rounds

    y, *states, rounds = run(x)
    first, *between, few = run([x[0][:2000], *x[1:]])
    second, *ends, _ = run([x[0][2000:], *between])
    assert rounds > few == 1
    assert np.array_equal(y, np.concatenate([first, second]))
    for state, end in zip(states, ends, strict=True):
        assert np.array_equal(state, end)
