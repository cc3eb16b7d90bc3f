"""Queues, batches, deadlines and drain, on models that are functions."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kuiper.serving.failures import Refusal
from kuiper.serving.scheduler import Job, Queue, Scheduler, batch_key

WAIT = 10.0


class Model:
    """Doubles its input, when the test lets it; records the batches and threads of its runs."""

    def __init__(self, is_open: bool = True) -> None:
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        self.entered = threading.Semaphore(0)
        self.runs: list[int] = []
        self.threads: list[int] = []
        self.values: list[float] = []

    def __call__(self, arrays, n_threads):
        self.runs.append(len(arrays[0]))
        self.threads.append(n_threads)
        self.values.extend(float(v) for v in arrays[0].reshape(len(arrays[0]), -1)[:, 0])
        self.entered.release()
        assert self.gate.wait(WAIT)
        if any(np.isnan(a).any() for a in arrays):
            raise ArithmeticError("NaN")
        return [arrays[0] * 2]


class Client:
    """Submits jobs and waits for them."""

    def __init__(self, scheduler: Scheduler, queue: Queue) -> None:
        self.scheduler, self.queue = scheduler, queue
        self.ended: list[Job] = []
        self._changed = threading.Condition()

    def submit(self, value, shape=(1, 3), deadline=None) -> Job:
        job = Job([np.full(shape, value, np.float32)], self._done, deadline)
        self.scheduler.submit(self.queue, job)
        return job

    def _done(self, job: Job) -> None:
        with self._changed:
            self.ended.append(job)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Job]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ended) >= count, WAIT)
        return self.ended


@pytest.fixture
def make():
    """Return a function that makes a scheduler, a model and a client; close them at the end."""
    made = []

    def build(is_open=True, runners=1, threads=1, max_bytes=1 << 30, **queue):
        model = Model(is_open)
        scheduler = Scheduler(runners, threads, max_bytes)
        made.append((scheduler, model))
        return scheduler, model, Client(scheduler, Queue(model, **queue))

    yield build
    for scheduler, model in made:
        model.gate.set()
        scheduler.close()


def test_results_belong_to_their_jobs(make):
    _, model, client = make(runners=2, sizes=(1, 2, 4))
    jobs = [client.submit(n, (1 + n % 3, 3)) for n in range(50)]
    client.wait(50)
    for n, job in enumerate(jobs):
        assert job.error is None
        np.testing.assert_array_equal(job.result[0], np.full((1 + n % 3, 3), 2 * n, np.float32))
    assert sum(model.runs) == sum(1 + n % 3 for n in range(50))


def test_what_waits_is_joined_and_nothing_waits_for_more(make):
    _, model, client = make(is_open=False, sizes=(1, 2, 4))
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)  # alone, at once
    for n in range(1, 8):
        client.submit(n)
    model.gate.set()
    client.wait(8)
    assert model.runs == [1, 4, 2, 1]
    assert model.values == list(range(8))  # in order


def test_only_allowed_sizes_are_made(make):
    _, model, client = make(is_open=False, sizes=(1, 4))
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    for n in range(3):
        client.submit(n)
    model.gate.set()
    client.wait(4)
    assert model.runs == [1, 1, 1, 1]


def test_only_equal_shapes_are_joined_and_the_oldest_goes_first(make):
    _, model, client = make(is_open=False, sizes=(1, 2, 4, 8))
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    for n, width in enumerate((3, 5, 3, 5, 3, 3), 1):
        client.submit(n, (1, width))
    model.gate.set()
    client.wait(7)
    assert model.values == [0, 1, 3, 5, 6, 2, 4]


@pytest.mark.parametrize(
    ("arrays", "joins"),
    [
        ([np.zeros((2, 3))], True),
        ([np.zeros((2, 3)), np.zeros(2, np.int64)], True),
        ([np.zeros((2, 3)), np.zeros(3)], False),
        ([np.float32(1).reshape(())], False),
        ([np.zeros((0, 3))], False),
        ([], False),
    ],
)
def test_what_can_be_joined(arrays, joins):
    assert (batch_key(arrays) is not None) == joins


def test_a_delay_waits_for_a_full_batch_but_not_for_ever(make):
    _, model, client = make(sizes=(1, 2), delay=WAIT)
    client.submit(1)
    assert not model.entered.acquire(timeout=0.05)
    client.submit(2)
    client.wait(2)
    assert model.runs == [2]
    _, model, client = make(sizes=(1, 2), delay=0.02)
    client.submit(1)
    client.wait(1)
    assert model.runs == [1]


def test_a_faulty_job_fails_alone(make):
    _, model, client = make(is_open=False, sizes=(1, 4))
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    jobs = [client.submit(v) for v in (1, np.nan, 2, 3)]
    model.gate.set()
    client.wait(5)
    assert [type(job.error) for job in jobs] == [type(None), ArithmeticError] + [type(None)] * 2
    assert [job.result[0][0, 0] for job in jobs if job.error is None] == [2, 4, 6]


def test_a_result_without_a_row_per_row_is_not_split():
    queue = Queue(lambda arrays, _: [arrays[0].sum(axis=0, keepdims=True)], sizes=(1, 2))
    scheduler = Scheduler()
    client = Client(scheduler, queue)
    gate = threading.Event()
    first = Queue(lambda arrays, _: [gate.wait(WAIT) and arrays[0]])
    scheduler.submit(first, Job([np.zeros((1, 1))], lambda job: None))
    jobs = [client.submit(n) for n in (1, 2)]
    gate.set()
    client.wait(2)
    assert [job.result[0].tolist() for job in jobs] == [[[1, 1, 1]], [[2, 2, 2]]]
    scheduler.close()


def test_the_queue_is_bounded_by_count(make):
    _, model, client = make(is_open=False, max_jobs=3)
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    for n in range(3):
        client.submit(n)
    with pytest.raises(Refusal, match="3 requests wait") as caught:
        client.submit(9)
    assert caught.value.status == (429, "RESOURCE_EXHAUSTED")
    assert caught.value.retry_after >= 1
    model.gate.set()
    client.wait(4)
    client.submit(9)
    client.wait(5)


def test_the_queue_is_bounded_by_bytes(make):
    scheduler, model, client = make(is_open=False, max_bytes=100)
    client.submit(0, (1, 10))
    assert model.entered.acquire(timeout=WAIT)
    client.submit(0, (1, 10))
    assert scheduler.n_bytes == 80
    with pytest.raises(Refusal, match="have 80 bytes, the limit is 100"):
        client.submit(0, (1, 10))
    model.gate.set()
    client.wait(2)
    assert scheduler.drain(WAIT)
    assert scheduler.n_bytes == 0


def test_a_job_past_its_deadline_does_not_run(make):
    scheduler, model, client = make(is_open=False)
    client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    late = client.submit(1, deadline=time.monotonic() - 1)
    client.submit(2)
    model.gate.set()
    client.wait(3)
    assert late.error.reason == "deadline"
    assert model.values == [0, 2]
    assert scheduler.drain(WAIT)
    assert scheduler.n_waiting == scheduler.n_bytes == 0


def test_a_cancelled_job_leaves_the_queue_at_once(make):
    scheduler, model, client = make(is_open=False, max_jobs=2)
    running = client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    for n in range(1, 300):  # clients that come and hang up do not fill it
        job = client.submit(n)
        assert scheduler.cancel(client.queue, job, Refusal("cancelled", "gone"))
        assert not scheduler.cancel(client.queue, job, Refusal("cancelled", "again"))
        assert job.error.args == ("gone",)
        assert job.arrays == []
    assert len(client.queue.jobs) < 100
    assert scheduler.n_bytes == 12
    client.submit(-1)
    assert scheduler.cancel(client.queue, running, Refusal("cancelled", "while it ran"))
    model.gate.set()
    client.wait(301)
    assert model.values == [0, -1]
    assert running.result is None
    assert scheduler.drain(WAIT)
    assert scheduler.n_bytes == 0


def test_models_take_turns(make):
    scheduler, model, client = make(is_open=False)
    other = Model()
    second = Client(scheduler, Queue(other))
    order = []
    client.queue.run = lambda arrays, n: order.append("a") or model(arrays, n)
    second.queue.run = lambda arrays, n: order.append("b") or other(arrays, n)
    for _ in range(4):
        client.submit(1)
    assert model.entered.acquire(timeout=WAIT)
    for _ in range(2):
        second.submit(2)
    model.gate.set()
    client.wait(4)
    second.wait(2)
    assert "".join(order) in ("aababa", "ababaa")


def test_one_model_does_not_exceed_its_instances(make):
    scheduler, model, client = make(is_open=False, runners=3, limit=1)
    other = Client(scheduler, Queue(Model()))
    client.submit(1)
    assert model.entered.acquire(timeout=WAIT)
    client.submit(2)
    other.submit(3)
    other.wait(1)
    assert not model.entered.acquire(timeout=0.05)
    model.gate.set()
    client.wait(2)


def test_a_run_alone_uses_all_threads_and_runs_side_by_side_share_them(make):
    _, model, client = make(is_open=False, runners=2, threads=4)
    client.submit(1)
    assert model.entered.acquire(timeout=WAIT)
    client.submit(2)
    assert model.entered.acquire(timeout=WAIT)
    client.submit(3)
    model.gate.set()
    client.wait(3)
    assert model.threads[:2] == [4, 2]


def test_drain_answers_what_is_there_and_refuses_the_rest(make):
    scheduler, model, client = make(is_open=False)
    for n in range(3):
        client.submit(n)
    assert not scheduler.drain(0.01)
    with pytest.raises(Refusal, match="shuts down") as caught:
        client.submit(9)
    assert caught.value.status == (503, "UNAVAILABLE")
    model.gate.set()
    assert scheduler.drain(WAIT)
    assert [job.error for job in client.wait(3)] == [None] * 3


def test_close_ends_what_waits(make):
    scheduler, model, client = make(is_open=False)
    running = client.submit(0)
    assert model.entered.acquire(timeout=WAIT)
    late = client.submit(1)
    threading.Timer(0.05, model.gate.set).start()
    scheduler.close()
    client.wait(2)
    assert late.error.reason == "unavailable"
    assert running.error.reason == "unavailable"
    assert model.values == [0]


def test_idle_runners_keep_nothing_alive(make):
    import gc
    import weakref

    _, _, client = make()
    job = client.submit(1)
    client.wait(1)
    seen = weakref.ref(job.result[0])
    client.ended.clear()
    del job
    for _ in range(100):
        gc.collect()
        if seen() is None:
            break
        time.sleep(0.01)
    assert seen() is None
