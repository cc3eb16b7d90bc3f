"""kuiper's ASGI application on Ray Serve: ``serving-ray NAME=FILE... HTTP GRPC``.

Two replicas with one thread each; Ray's proxy stands before them.
"""

from __future__ import annotations

import os
import sys
import time

import ray
from ray import serve


def main() -> None:
    """Serve until a signal."""
    *models, web, _ = sys.argv[1:]
    host, port = web.split(":")
    files = dict(model.split("=", 1) for model in models)
    path = os.environ["PYTHONPATH"]

    def builder():  # type: ignore[no-untyped-def]
        import kuiper.serving

        return kuiper.serving.asgi(files, threads=1)

    @serve.deployment(num_replicas=2, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
    @serve.ingress(builder)
    class Networks:
        """The application in a replica."""

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": path}})  # fmt: skip
    serve.start(http_options={"host": host, "port": int(port)})
    serve.run(Networks.bind())
    while True:
        time.sleep(1)
