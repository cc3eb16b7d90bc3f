"""The clients of a server, in a process of their own: each sends one request after the other.

Reads commands as lines of JSON and answers with lines of JSON; `compare` starts it.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from kuiper.serving.messages import SERVICE, messages
from kuiper.serving.protocol import datatype_of

WAIT = 60.0
# A request: returns its status, and the values of its outputs if it was answered.
Send = Callable[[int], tuple[str, list[bytes]]]


class Case:
    """Inputs of a network, with the results of ``model(x)``.

    Parameters
    ----------
    file : str
        An npz file of `engine`: ``input``, ``output``, ``x0``, ``y0``, ``x1``, ...
    """

    def __init__(self, file: str) -> None:
        with np.load(file) as data:
            self.input, self.output = str(data["input"]), str(data["output"])
            count = sum(name.startswith("x") for name in data.files)
            self.inputs = [data[f"x{number}"] for number in range(count)]
            self.results = [data[f"y{number}"].tobytes() for number in range(count)]


def http_requests(case: Case, timeout_us: int = 0) -> list[tuple[bytes, dict[str, str]]]:
    """Return the body and headers of a request for each input."""
    requests = []
    for array in case.inputs:
        data = array.tobytes()
        tensor = {"name": case.input, "shape": array.shape, "datatype": datatype_of(array.dtype),
                  "parameters": {"binary_data_size": len(data)}}  # fmt: skip
        document: dict[str, Any] = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        if timeout_us:
            document["parameters"]["timeout"] = timeout_us
        head = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)),
                   "Content-Type": "application/octet-stream"}  # fmt: skip
        requests.append((head + data, headers))
    return requests


def http_sender(address: str, model: str, case: Case, timeout_us: int = 0) -> Send:
    """Return a function that sends a request over a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=WAIT)
    path, requests = f"/v2/models/{model}/infer", http_requests(case, timeout_us)

    def send(number: int) -> tuple[str, list[bytes]]:
        body, headers = requests[number % len(requests)]
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return type(error).__name__, []
        if response.status != 200:
            return str(response.status), []
        length = response.getheader("Inference-Header-Content-Length")
        if length is not None:
            return "200", [answer[int(length) :]]
        outputs = json.loads(answer)["outputs"]
        return "200", [np.float32(output["data"]).tobytes() for output in outputs]

    return send


def grpc_sender(address: str, model: str, case: Case, timeout_us: int = 0) -> Send:
    """Return a function that makes a call over a connection of its own."""
    import grpc

    kinds, requests = messages(), []
    for array in case.inputs:
        request = kinds.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
        request.inputs.add(
            name=case.input, datatype=datatype_of(array.dtype), shape=list(array.shape)
        )
        requests.append(request.SerializeToString())
    channel = grpc.insecure_channel(
        address,
        [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
         ("grpc.use_local_subchannel_pool", 1)],
    )  # fmt: skip
    call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    timeout = timeout_us / 1e6 if timeout_us else WAIT

    def send(number: int) -> tuple[str, list[bytes]]:
        try:
            answer = call(requests[number % len(requests)], timeout=timeout)
        except grpc.RpcError as error:
            return error.code().name, []
        response = kinds.ModelInferResponse.FromString(answer)
        if response.raw_output_contents:
            return "OK", list(response.raw_output_contents)
        return "OK", [np.float32(o.contents.fp32_contents).tobytes() for o in response.outputs]

    return send


SENDERS = {"http": http_sender, "grpc": grpc_sender}


def burst(
    address: dict[str, str],
    protocol: str,
    model: str,
    case: str,
    clients: int,
    seconds: float,
    timeout_us: int = 0,
    pause: float = 0.0,
) -> dict[str, Any]:
    """Let clients send requests for some seconds.

    Parameters
    ----------
    address : dict of str to str
        By protocol.
    protocol : str
        ``"http"`` or ``"grpc"``.
    model, case : str
        Name of the model, and the file of its inputs.
    clients : int
    seconds : float
    timeout_us : int
        The timeout of each request in microseconds, 0 for none.
    pause : float
        Seconds that a client waits after a refusal.

    Returns
    -------
    dict
        ``seconds``, ``statuses`` with counts, ``ms`` of the requests that were answered, and
        ``wrong``, the number of answers with other bits than ``model(x)``.
    """
    known = Case(case)
    senders = [SENDERS[protocol](address[protocol], model, known, timeout_us)
               for _ in range(clients)]  # fmt: skip
    statuses: Counter[str] = Counter()
    latencies: list[float] = []
    wrong = [0]
    begin = time.perf_counter()

    def work(client: int) -> None:
        send, number = senders[client], client
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            status, outputs = send(number)
            end = time.perf_counter()
            statuses[status] += 1
            if status in ("200", "OK"):
                latencies.append(1e3 * (end - start))
                if outputs != [known.results[number % len(known.results)]]:
                    wrong[0] += 1
            elif pause:
                time.sleep(pause)
            number += 1

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "seconds": time.perf_counter() - begin,
        "statuses": dict(statuses),
        "ms": latencies,
        "wrong": wrong[0],
    }


def main() -> None:
    """Answer commands until the input ends."""
    for line in sys.stdin:
        print(json.dumps(burst(**json.loads(line))), flush=True)
