"""Under load: full queues, deadlines, hang-ups, shutdown, reload, killed workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT
from ..support.textgraph import text, values
from .conftest import IMAGES, has_packages, write_model
from .process import WAIT, Server, ask, serving
from .test_http import request_of

if not has_packages():
    pytest.skip("needs the extra `serve`", allow_module_level=True)

import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.filterwarnings("default")

# A model whose first value says how long it runs; the noise of the server's own calls is no time.
PLUGIN = """
import time
import kuiper

@kuiper.operator("tests.Sleep")
def sleep(x):
    time.sleep(max(0.0, float(x.flat[0]) - 1000.0))
    return x
"""
SLEEP = text("tests.Sleep s 1 1 x y").replace("in_x 0 1 x", "in_x 0 1 x #x=(1,4)f32")


@pytest.fixture(scope="module")
def sleeping(tmp_path_factory):
    """Return the arguments of a server whose model sleeps."""
    folder = tmp_path_factory.mktemp("sleep")
    (folder / "plugin.py").write_text(PLUGIN)
    param = folder / "sleep.pnnx.param"
    lines = SLEEP.splitlines()
    param.write_text(f"7767517\n{len(lines)} 2\n" + "\n".join(lines) + "\n")
    return (param, "--plugin", folder / "plugin.py", "--poll", "0", "--runners", "1",
            "--batch", "1", "--threads", "1", "--grpc", "127.0.0.1:0")  # fmt: skip


def sleep(address: str, seconds: float, **parameters) -> tuple[int, dict, bytes]:
    """Ask for a run that takes some seconds."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1000 + seconds, 1, 2, 3]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return ask(address, "POST", "/v2/models/sleep/infer", body)


def sleep_by_grpc(client, seconds: float, **more):
    x = np.float32([[1000 + seconds, 1, 2, 3]])
    tensor = grpc_client.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer("sleep", [tensor], **more).as_numpy("y")


def waiting(server: Server) -> int:
    for line in ask(server.http, "GET", "/metrics")[2].decode().splitlines():
        if line.startswith("kuiper_queue_requests "):
            return int(float(line.split()[1]))
    raise AssertionError("no such metric")


def until(condition) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_queue_refuses_and_the_rest_is_answered(sleeping):
    with serving(*sleeping, "--max-queue", "8") as server, ThreadPoolExecutor(48) as pool:
        found = list(pool.map(lambda _: sleep(server.http, 0.1), range(48)))
        codes = [status for status, _, _ in found]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 9
        for status, headers, body in found:
            if status == 429:
                assert int(headers["retry-after"]) >= 1
                assert "requests wait for this model" in json.loads(body)["error"]

        def call(_) -> str:
            with grpc_client.InferenceServerClient(server.grpc) as client:
                try:
                    assert sleep_by_grpc(client, 0.1)[0, 3] == 3
                except InferenceServerException as error:
                    return error.status()
                return "OK"

        codes = list(pool.map(call, range(32)))
        assert set(codes) == {"OK", "StatusCode.RESOURCE_EXHAUSTED"}
        assert codes.count("OK") >= 9


def test_deadlines_drop_work(sleeping):
    with serving(*sleeping) as server:
        status, _, body = sleep(server.http, 0.5, timeout=30_000)
        assert status == 504
        assert "deadline" in json.loads(body)["error"]
        with grpc_client.InferenceServerClient(server.grpc) as client:
            for more in ({"client_timeout": 0.05}, {"timeout": 30_000}):
                with pytest.raises(InferenceServerException) as caught:
                    sleep_by_grpc(client, 0.5, **more)
                assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        # Jobs whose deadline passes while they wait do not run at all.
        with ThreadPoolExecutor(12) as pool:
            first = pool.submit(sleep, server.http, 0.5)
            until(lambda: not waiting(server))
            late = [pool.submit(sleep, server.http, 5.0, timeout=100_000) for _ in range(10)]
            begin = time.monotonic()
            assert [call.result()[0] for call in late] == [504] * 10
            assert first.result()[0] == 200
            assert sleep(server.http, 0)[0] == 200
            assert time.monotonic() - begin < 4


def test_a_client_that_hangs_up_frees_its_turn(sleeping):
    with serving(*sleeping, "--max-queue", "4") as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(sleep, server.http, 1.0)
        time.sleep(0.2)
        data = json.dumps(
            {
                "inputs": [
                    {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1009, 0, 0, 0]}
                ]
            }
        ).encode()
        head = f"POST /v2/models/sleep/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}"
        for _ in range(4):
            with socket.create_connection(server.http.split(":"), timeout=WAIT) as client:
                client.sendall(head.encode() + b"\r\n\r\n" + data)
                time.sleep(0.1)
        until(lambda: waiting(server) == 0)
        begin = time.monotonic()
        assert first.result()[0] == sleep(server.http, 0)[0] == 200
        assert time.monotonic() - begin < 5


def test_a_slow_client_is_refused(sleeping):
    with serving(*sleeping, "--read-timeout", "0.2") as server:
        with socket.create_connection(server.http.split(":"), timeout=WAIT) as client:
            client.sendall(
                b"POST /v2/models/sleep/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"
            )
            assert b" 408 " in client.recv(4096)
            until(lambda: client.recv(4096) == b"")
        assert sleep(server.http, 0)[0] == 200


def test_sigterm_answers_what_is_there_and_refuses_the_rest(sleeping):
    with serving(*sleeping) as server, ThreadPoolExecutor(16) as pool:
        client = grpc_client.InferenceServerClient(server.grpc)
        calls = [pool.submit(sleep, server.http, 1.0 if n == 0 else 0.1) for n in range(8)]
        calls += [pool.submit(sleep_by_grpc, client, 0.1) for _ in range(8)]
        until(lambda: waiting(server) == 15)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(InferenceServerException) as caught:
            sleep_by_grpc(client, 0)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        with pytest.raises(ConnectionError):
            sleep(server.http, 0)
        for call in calls[:8]:
            assert call.result()[0] == 200
        for call in calls[8:]:
            assert call.result()[0, 3] == 3
        assert server.stop() == 0
        assert "all requests were answered" in server.text
        client.close()


def test_a_drain_that_takes_too_long_ends_with_an_error(sleeping):
    with serving(*sleeping, "--drain", "0.2") as server, ThreadPoolExecutor(1) as pool:
        call = pool.submit(sleep, server.http, 30.0)
        time.sleep(0.3)
        assert server.stop() == 1
        assert call.result()[0] == 503
    assert "were not answered" in server.text


def test_a_changed_model_is_reloaded_without_a_lost_request(tmp_path):
    param = tmp_path / "net" / "1" / "net.pnnx.param"
    write_model(param, IMAGES, "before")
    x = values(1, 3, 16, 16)
    body, headers = request_of(x)
    results = {}

    def learn(param, name: str) -> None:
        results[b"".join(y.tobytes() for y in kuiper.load(param)(x))] = name

    learn(param, "before")
    end = threading.Event()
    seen: list[str] = []
    with serving(tmp_path, "--poll", "0.1", "--batch", "4") as server:

        def keep_asking(_) -> None:
            while not end.is_set():
                status, found, answer = ask(
                    server.http, "POST", "/v2/models/net/infer", body, headers
                )
                assert status == 200, answer
                seen.append(results[answer[int(found["inference-header-content-length"]) :]])

        with ThreadPoolExecutor(6) as pool:
            try:
                asking = [pool.submit(keep_asking, n) for n in range(6)]
                until(lambda: len(seen) > 20)
                # As a deployment does: written beside, then renamed.
                write_model(tmp_path / "new.pnnx.param", IMAGES, "after")
                learn(tmp_path / "new.pnnx.param", "after")
                for suffix in (".bin", ".param"):
                    os.replace(tmp_path / f"new.pnnx{suffix}", param.with_suffix(suffix))
                until(lambda: seen[-1] == "after")
                # A file that is no model leaves the one before in service.
                param.write_text("damaged")
                until(lambda: "failed" in server.text)
                count = len(seen)
                until(lambda: len(seen) > count + 20)
                assert seen[-1] == "after"
                # A new version becomes the default, and goes again.
                write_model(tmp_path / "net" / "3" / "net.pnnx.param", IMAGES, "before")
                until(lambda: seen[-1] == "before")
                for file in (tmp_path / "net" / "3").iterdir():
                    file.unlink()
                until(lambda: seen[-1] == "after")
            finally:
                end.set()
            for one in asking:
                one.result()
    assert str(tmp_path) not in server.text.partition("damaged")[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_worker_is_replaced(repository):
    arguments = ("--workers", "2", "--grpc", "127.0.0.1:0", "--batch", "4")
    x = values(1, 3, 16, 16)
    expected = kuiper.load(repository / "net" / "2" / "net.pnnx.param")(x)[0].tobytes()
    body, headers = request_of(x)
    with serving(repository, *arguments) as server:
        assert server.next_ready() is not None
        answers: list[str] = []
        end = threading.Event()

        def keep_asking(_) -> None:
            while not end.is_set():
                try:
                    status, found, answer = ask(
                        server.http, "POST", "/v2/models/net/infer", body, headers
                    )
                except (OSError, EOFError):  # its connection died with the worker
                    answers.append("connection")
                    continue
                except Exception as error:  # of http.client
                    answers.append(type(error).__name__)
                    continue
                start = int(found["inference-header-content-length"])
                good = answer[start : start + len(expected)] == expected
                answers.append("good" if status == 200 and good else "wrong")

        workers = {entry["worker"] for entry in server.lines if "worker" in entry}
        assert len(workers) == 2
        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking, n) for n in range(4)]
            until(lambda: answers.count("good") > 20)
            os.kill(min(workers), signal.SIGKILL)
            assert server.next_ready() is not None
            count = answers.count("good")
            until(lambda: answers.count("good") > count + 20)
            end.set()
            for one in asking:
                one.result()
        assert "wrong" not in answers
        assert len(answers) - answers.count("good") <= 4
        assert f"worker {min(workers)} ended with -9" in server.text
        with grpc_client.InferenceServerClient(server.grpc) as client:
            assert client.is_model_ready("net")
        # The counts of all workers, also of the one that was killed.
        metrics = ask(server.http, "GET", "/metrics")[2].decode()
        (line,) = (
            entry for entry in metrics.splitlines()
            if entry.startswith('kuiper_requests_total{model="net"') and '"200"' in entry
        )  # fmt: skip
        assert float(line.split()[1]) >= answers.count("good")
        assert server.stop() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_load_and_unload_reach_every_worker(repository, tmp_path):
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)

    def states(count: int = 16) -> set[int]:
        """Ask over new connections, which reach both workers."""
        path = "/v2/models/two/ready"
        return {ask(server.http, "GET", path)[0] for _ in range(count)}

    def change(what: str, name: str = "two") -> tuple[int, dict, bytes]:
        return ask(server.http, "POST", f"/v2/repository/models/{name}/{what}", b"{}")

    arguments = ("--workers", "2", "--control", "--poll", "0", "--batch", "1")
    with serving(tmp_path, *arguments) as server:
        assert server.next_ready() is not None
        assert change("unload")[0] == 200
        assert states() == {503}
        # The worker that replaces a killed one begins with the same models.
        workers = {entry["worker"] for entry in server.lines if "worker" in entry}
        os.kill(min(workers), signal.SIGKILL)
        assert server.next_ready() is not None
        assert states() == {503}
        assert change("load")[0] == 200
        assert states() == {200}
        status, _, answer = change("unload", "none")
        assert (status, b"no model 'none'" in answer) == (404, True)
        # All at once, of one model: whatever is last, both workers agree.
        with ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                assert {found[0] for found in pool.map(change, ["load", "unload"] * 3)} == {200}
                assert len(states()) == 1
        (tmp_path / "two" / "1" / "two.pnnx.param").write_text("damaged")
        status, _, answer = change("load")
        assert (status, b"failed to load 'two'" in answer) == (400, True)
        assert server.stop() == 0


def test_tls(repository, tmp_path):
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl to make a certificate")
    import http.client
    import ssl

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with serving(
        repository, "--cert", cert, "--key", key, "--grpc", "127.0.0.1:0", "--poll", "0"
    ) as server:
        host, port = server.http.split(":")
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=WAIT)
        connection.request("GET", "/v2")
        assert connection.getresponse().status == 200
        connection.close()
        client = grpc_client.InferenceServerClient(
            f"localhost:{server.grpc.split(':')[1]}", ssl=True, root_certificates=str(cert)
        )
        assert client.is_model_ready("net")
        client.close()


def refused(*arguments) -> tuple[int, str]:
    """Start a server that must fail; return its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "kuiper", "serve", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=WAIT,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_what_keeps_a_server_from_starting(repository, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments in (("--http", address), ("--http", "off", "--grpc", address)):
            code, said = refused(repository, *arguments)
            assert code == 4
            assert f"{address}: cannot listen" in said
    (tmp_path / "bad.param").write_text("no model")
    (tmp_path / "empty").mkdir()
    for arguments, code, words in (
        ((tmp_path / "bad.param",), 3, "bad.param"),
        ((tmp_path / "empty",), 3, "no model; expected NAME/VERSION/*.pnnx.param"),
        ((tmp_path / "none.param",), 4, "none.param"),
        ((f"a/b={tmp_path / 'bad.param'}",), 3, "a model cannot be called 'a/b'"),
        ((repository, "--http", "1.2.3.4"), 3, "expected HOST:PORT"),
        ((repository, "--http", "off"), 2, "both --http and --grpc are off"),
        ((repository, "--cert", "c.pem"), 2, "--cert and --key belong together"),
        ((repository, "--max-body", "big"), 2, "'big' is not a size"),
        ((repository, "--max-memory", "80M"), 3, "--max-memory is 80 MiB"),
        ((repository, "--token-file", tmp_path / "no"), 4, "no"),
    ):
        found, said = refused(*arguments)
        assert (found, words in said) == (code, True), said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_max_memory_refuses_large_runs(repository):
    with serving(repository, "--max-memory", "400M", "--max-body", "200M") as server:
        body, headers = request_of(values(1, 3, 16, 16))
        assert ask(server.http, "POST", "/v2/models/net/infer", body, headers)[0] == 200
        body, headers = request_of(np.zeros((1, 3, 900, 900), np.float32))
        status, _, answer = ask(server.http, "POST", "/v2/models/net/infer", body, headers)
        assert status == 400
        assert "max_memory" in json.loads(answer)["error"]
        body, headers = request_of(np.zeros((11, 3, 900, 900), np.float32))
        status, _, answer = ask(server.http, "POST", "/v2/models/net/infer", body, headers)
        assert status == 429
