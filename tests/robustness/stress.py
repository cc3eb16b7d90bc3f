"""Load, run and reshape models in many Python threads at once, and compare every bit.

::

    python -m tests.robustness.stress                             # a minute, 16 threads
    python -m tests.robustness.stress --seconds 600 --threads 32 --seed 7

Threads start together, round after round, on models that have not been called yet, so that several
threads plan, pack weights and take contexts at the same time.  In a round, each thread repeatedly

* calls a model that all threads share, or one that it loads from bytes, files or a pickle;
* with one of several shapes, more than a model keeps plans for;
* with its own arrays for the results, or through `trace`, `profile` or `plan`;
* or computes an expression that all threads share;
* meanwhile one thread changes the number of threads of a run.

Every result must have the bits that a separate model gives on one thread.  Under the GIL this finds
races between bytecodes; on a free-threaded Python, or one built with ThreadSanitizer, races between
any two instructions.

The exit code is 1 if a result differs, an exception is raised, or too many arenas or plans are
kept.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import kuiper
from kuiper.expression import compile as compile_expression

from ..support import load_cases
from ..support.engine import n_threads, run
from ..support.textgraph import files_of, values

# Takes any shape: uses Winograd, the few-input-channel convolution and the depthwise kernels.
IMAGES = """pnnx.Input in 0 1 x
    nn.Conv2d a 1 1 x p bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=16 padding=(1,1) padding_mode=zeros stride=(2,2) @bias=(16)f32 @weight=(16,3,3,3)f32
    nn.ReLU6 b 1 1 p q
    nn.Conv2d c 1 1 q r bias=False dilation=(1,1) groups=1 in_channels=16 kernel_size=(1,1) out_channels=48 padding=(0,0) padding_mode=zeros stride=(1,1) @weight=(48,16,1,1)f32
    nn.Conv2d d 1 1 r s bias=True dilation=(1,1) groups=48 in_channels=48 kernel_size=(3,3) out_channels=48 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(48)f32 @weight=(48,1,3,3)f32
    nn.SiLU e 1 1 s t
    nn.Conv2d f 1 1 t u bias=True dilation=(1,1) groups=1 in_channels=48 kernel_size=(3,3) out_channels=16 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(16)f32 @weight=(16,48,3,3)f32
    pnnx.Expression g 2 1 u q v expr=add(@0,mul(@1,tanh(@0)))
    torch.flip h 1 1 v w dims=(3)
    torch.cat i 2 1 v w y dim=1
    nn.AdaptiveAvgPool2d j 1 1 y z output_size=(1,1)
    torch.flatten k 1 1 z o end_dim=-1 start_dim=1
    nn.Linear l 1 1 o n bias=True in_features=32 out_features=7 @bias=(7)f32 @weight=(7,32)f32
    pnnx.Output out0 1 0 n
    pnnx.Output out1 1 0 y"""  # noqa: E501

# Data-dependent: a new segment begins when the number of rows is known.
ROWS = """pnnx.Input in 0 1 x
    Tensor.select first 1 1 x s dim=1 index=0 $input=x
    torch.gt above 1 1 s m other=0 $input=s
    pnnx.Expression list 1 1 m l expr=[@0]
    Tensor.index picked 2 1 x l p $input=x $expr=l
    nn.Linear fc 1 1 p q in_features=4 out_features=33 bias=True @bias=(33)f32 @weight=(33,4)f32
    F.softmax act 1 1 q y dim=1 $input=q
    pnnx.Output end 1 0 y"""

SEQUENCES = """pnnx.Input in 0 1 x
    nn.LayerNorm a 1 1 x p elementwise_affine=True eps=1e-05 normalized_shape=(24) @bias=(24)f32 @weight=(24)f32
    nn.GRU b 1 2 p q h batch_first=True bias=True bidirectional=False hidden_size=20 input_size=24 num_layers=1 @bias_hh_l0=(60)f32 @bias_ih_l0=(60)f32 @weight_hh_l0=(60,20)f32 @weight_ih_l0=(60,24)f32
    nn.MultiheadAttention c 1 1 q y batch_first=True bias=True embed_dim=20 num_heads=4 @in_proj_bias=(60)f32 @in_proj_weight=(60,20)f32 @out_proj.bias=(20)f32 @out_proj.weight=(20,20)f32
    pnnx.Output end 1 0 y"""  # noqa: E501

# Recurrent cells that threads share at each time step.
STATES = """pnnx.Input in 0 1 x
    nn.GRU a 1 1 x p batch_first=True bias=True bidirectional=False hidden_size=160 input_size=24 num_layers=1 @bias_hh_l0=(480)f32 @bias_ih_l0=(480)f32 @weight_hh_l0=(480,160)f32 @weight_ih_l0=(480,24)f32
    nn.LSTM b 1 3 p q h c batch_first=True bias=True bidirectional=True hidden_size=128 input_size=160 num_layers=1 proj_size=0 @bias_hh_l0=(512)f32 @bias_hh_l0_reverse=(512)f32 @bias_ih_l0=(512)f32 @bias_ih_l0_reverse=(512)f32 @weight_hh_l0=(512,128)f32 @weight_hh_l0_reverse=(512,128)f32 @weight_ih_l0=(512,160)f32 @weight_ih_l0_reverse=(512,160)f32
    pnnx.Output out0 1 0 q
    pnnx.Output out1 1 0 c"""  # noqa: E501

# Volumes, strides and integers.
PLANES = """pnnx.Input in 0 1 x
    nn.Conv3d a 1 1 x p bias=True dilation=(1,1,1) groups=1 in_channels=32 kernel_size=(3,3,3) out_channels=64 padding=(1,1,1) padding_mode=zeros stride=(1,1,1) @bias=(64)f32 @weight=(64,32,3,3,3)f32
    torch.max b 1 2 p q i dim=2 keepdim=False
    nn.Conv2d c 1 1 q r bias=True dilation=(1,1) groups=1 in_channels=64 kernel_size=(3,3) out_channels=64 padding=(1,1) padding_mode=zeros stride=(2,2) @bias=(64)f32 @weight=(64,64,3,3)f32
    pnnx.Expression d 1 1 i j expr=add(mul(@0,3),floor_divide(@0,2))
    nn.MaxPool2d e 1 2 r s k ceil_mode=False dilation=(1,1) kernel_size=(2,2) padding=(0,0) return_indices=True stride=(2,2)
    nn.MaxUnpool2d f 2 1 s k y kernel_size=(2,2) padding=(0,0) stride=(2,2)
    pnnx.Output out0 1 0 y
    pnnx.Output out1 1 0 j"""  # noqa: E501

EXPRESSION = "add(@0,mul(sigmoid(@1),sub(@0,2)))"


def rows(total: int, seed: int) -> np.ndarray:
    """Return an input of ROWS of which about half the rows are selected, at least one."""
    x = values(total, 4, seed=seed)
    x[0, 0] = 1
    return x


@dataclass
class Job:
    """A model, inputs for it, and the expected results."""

    name: str
    param: bytes
    bin: bytes
    inputs: list[tuple[np.ndarray, ...]]
    path: Path
    expected: list[tuple[np.ndarray, ...]] = field(default_factory=list)


def make_jobs(folder: Path, stored: int) -> list[Job]:
    """Return the jobs: models of many shapes, and every `stored`-th of the operator fixtures."""
    images = [
        (values(1 + k % 2, 3, 9 + k, 12 + k % 5, seed=k),)
        for k in range(kuiper.model.DEFAULT_PLANS)
    ]
    images += [(values(1, 3, 8, 8 + k, seed=k),) for k in range(3)]
    texts = {
        "images": (IMAGES, images),
        "rows": (ROWS, [(rows(5 + k, k),) for k in range(12)]),
        "states": (STATES, [(values(1 + k % 2, 2 + k, 24, seed=k),) for k in range(4)]),
        "planes": (PLANES, [(values(1, 32, 2 + k, 16 + 4 * k, 20, seed=k),) for k in range(3)]),
        "sequences": (SEQUENCES, [(values(1 + k % 3, 4 + k, 24, seed=k),) for k in range(6)]),
    }
    jobs = [
        Job(name, *files_of(text), inputs, folder / f"{name}.pnnx.param")
        for name, (text, inputs) in texts.items()
    ]
    for number, case in enumerate(load_cases("operators")[::stored]):
        path = folder / f"case{number}.pnnx.param"
        jobs.append(Job(case.id, case.param, case.bin, [tuple(case.inputs)], path))
    for job in jobs:
        job.path.write_bytes(job.param)
        job.path.with_suffix(".bin").write_bytes(job.bin)
        with n_threads(1):
            job.expected = [run(kuiper.load(job.param, job.bin), inputs) for inputs in job.inputs]
    return jobs


class Round:
    """One round: models that have not been called yet, and threads that call them at once.

    Attributes
    ----------
    calls : int
        Number of compared results.
    faults : list of str
        Descriptions of what went wrong.
    """

    def __init__(self, jobs: list[Job], n_threads: int, turns: int, seed: int) -> None:
        self.jobs, self.n_threads, self.turns, self.seed = jobs, n_threads, turns, seed
        self.models = [kuiper.load(job.param, job.bin) for job in jobs]
        self.expression = compile_expression(EXPRESSION)
        self.start = threading.Barrier(n_threads)
        self.calls = 0
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all threads until each has had its turns."""
        threads = [
            threading.Thread(target=self._work, args=(rank,)) for rank in range(self.n_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job, model in zip(self.jobs, self.models, strict=True):
            arenas, plans = len(model._plans.arenas), len(model._plans)
            if arenas > self.n_threads or plans > model.max_plans:
                self.faults.append(f"{job.name}: keeps {arenas} arenas and {plans} plans")

    def _work(self, rank: int) -> None:
        random = np.random.default_rng([self.seed, rank])
        self.start.wait()
        for turn in range(self.turns):
            # All threads spend their first turn on the same model.
            number = (
                self.seed % len(self.jobs) if turn == 0 else int(random.integers(len(self.jobs)))
            )
            job = self.jobs[number]
            try:
                self._turn(rank, job, self.models[number], random)
            except Exception:
                self._fault(f"{job.name}, thread {rank}, turn {turn}:\n{traceback.format_exc()}")
            if self.faults:
                return

    def _turn(self, rank: int, job: Job, model: kuiper.Model, random: np.random.Generator) -> None:
        k = int(random.integers(len(job.inputs)))
        inputs, expected = job.inputs[k], job.expected[k]
        action = int(random.integers(12))
        if action == 0:
            model = kuiper.load(job.param, job.bin, threads=1 + int(random.integers(2)))
        elif action == 1:
            model = kuiper.load(job.path)
        elif action == 2:
            model = pickle.loads(pickle.dumps(model))
        elif action == 3:
            model.profile(*inputs, runs=1)
        elif action == 4 and model.inputs:
            model.trace(inputs, [model.inputs[0].name])
        elif action == 5:
            model.plan(*(x.shape for x in inputs))
        elif action == 6:
            self._compute_expression(random)
        elif action == 7 and rank == 0:
            kuiper.set_num_threads(1 + int(random.integers(3)))
        out = None
        if action == 8:
            out = tuple(np.empty_like(y, order="C") for y in expected)
            model(*inputs, out=out)
        results = out or run(model, inputs)
        self._compare(f"{job.name}, inputs {k}, thread {rank}", results, expected)

    def _compute_expression(self, random: np.random.Generator) -> None:
        x = values(3, 1 + int(random.integers(80)), seed=1)
        with np.errstate(all="ignore"):
            expected = compile_expression(EXPRESSION)(x, x[:1])
        self._compare("the expression", (self.expression(x, x[:1]),), (expected,))

    def _compare(self, what: str, results, expected) -> None:
        for number, (result, right) in enumerate(zip(results, expected, strict=True)):
            if result.dtype != right.dtype or result.tobytes() != right.tobytes():
                self._fault(f"{what}: output {number} differs from that of one thread alone")
        with self._lock:
            self.calls += 1

    def _fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)


def stress(
    seconds: float, threads: int, turns: int = 12, stored: int = 64, seed: int = 0
) -> tuple[int, list[str]]:
    """Run rounds until the time is up or a fault occurs.

    Returns
    -------
    calls : int
    faults : list of str
    """
    until = time.monotonic() + seconds
    calls = 0
    chosen = kuiper.get_num_threads()
    # Switch threads often under the GIL.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with tempfile.TemporaryDirectory() as folder:
            jobs = make_jobs(Path(folder), stored)
            while True:
                one = Round(jobs, threads, turns, seed)
                one.run()
                calls += one.calls
                seed += 1
                if one.faults or time.monotonic() > until:
                    return calls, one.faults
    finally:
        sys.setswitchinterval(interval)
        kuiper.set_num_threads(chosen)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--turns", type=int, default=12, help="of each thread in a round")
    parser.add_argument("--stored", type=int, default=16, help="every how many-th operator case")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    begin = time.monotonic()
    calls, faults = stress(args.seconds, args.threads, args.turns, args.stored, args.seed)
    for fault in faults:
        print("FAULT:", fault)
    gil = "without the GIL" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "with it"
    print(
        f"{calls} results of {args.threads} threads {gil} in {time.monotonic() - begin:.0f} s, "
        + ("failed" if faults else "all the same bits")
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
