"""The command that serves models to clients: serve."""

from __future__ import annotations

import argparse
import os
import runpy
from pathlib import Path

import kuiper
from kuiper.cli._arguments import Commands, add_precision, new_command, positive
from kuiper.cli._console import Console

__all__ = ["add_commands"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_commands(commands: Commands) -> None:
    """Add the command of this module to the parser."""
    parser = new_command(
        commands,
        serve,
        "serve models over HTTP and gRPC (Open Inference Protocol)",
        """\
MODEL is a .pnnx.param or .onnx file, NAME=FILE, the name of a bundled model, or a folder with
NAME/VERSION/*.pnnx.param.  Needs pip install "kuiper-runtime[serve]"
example: kuiper serve resnet18.pnnx.param
         kuiper serve cats=resnet18.pnnx.param --grpc 127.0.0.1:8001
         kuiper serve models/ --http 0.0.0.0:8000 --token-file token --cert c.pem --key k.pem""",
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="what to serve")
    add("--http", default="127.0.0.1:8000", metavar="HOST:PORT", help="address for HTTP, or off")
    add("--grpc", default="off", metavar="HOST:PORT", help="address for gRPC (default: off)")
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file to run first, which defines operators with @kuiper.operator",
    )
    running = parser.add_argument_group("running").add_argument
    running("--threads", type=positive, metavar="N", help="threads of all runs (default: all)")
    running("--runners", type=positive, metavar="N", help="runs at a time (default: one a thread)")
    running("--instances", type=positive, metavar="N", help="runs of one model at a time")
    running(
        "--batch",
        type=_batch,
        default="auto",
        metavar="auto|N",
        help="largest batch of waiting requests; auto measures which sizes pay, 1 joins none",
    )
    running("--delay", type=_seconds, default=0.0, metavar="S", help="wait for a full batch")
    add_precision(parser)
    running("--plans", type=positive, default=32, metavar="N", help="input shapes kept planned")
    running("--workers", type=positive, metavar="N", help="processes, replaced if they die")
    limits = parser.add_argument_group("limits").add_argument
    limits("--max-queue", type=positive, default=64, metavar="N", help="waiting, per model")
    limits("--max-body", type=_size, default=64 << 20, metavar="SIZE", help="of a request (64M)")
    limits("--max-memory", type=_size, metavar="SIZE", help="of the process (default: no limit)")
    limits("--timeout", type=_seconds, metavar="S", help="give a request up (default: never)")
    limits("--read-timeout", type=_seconds, default=30.0, metavar="S", help="to send a request")
    limits("--drain", type=_seconds, default=30.0, metavar="S", help="to answer after SIGTERM")
    limits("--finite-only", action="store_true", help="refuse inputs with NaN or infinity")
    access = parser.add_argument_group("access and log").add_argument
    access("--token-file", metavar="FILE", help="bearer token; or the variable KUIPER_TOKEN")
    access("--cert", metavar="FILE", help="certificate chain for TLS, PEM")
    access("--key", metavar="FILE", help="its private key, PEM")
    access("--control", action="store_true", help="clients may load and unload models")
    access("--poll", type=_seconds, default=2.0, metavar="S", help="look for changed files; 0: no")
    access("--log", choices=["text", "json"], default="text", help="form of the log")
    access("--log-requests", action="store_true", help="log each request")


def _size(text: str) -> int:
    """Parse a number of bytes with a unit, such as 16M or 2G."""
    number, unit = text.lower().removesuffix("b"), ""
    if number and number[-1] in _UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 16M or 2G")
    return int(number) * _UNITS[unit]


def _seconds(text: str) -> float:
    """Parse a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return seconds


def _batch(text: str) -> int | None:
    return None if text == "auto" else positive(text)


def _token(options: argparse.Namespace) -> str | None:
    token = os.environ.get("KUIPER_TOKEN", "")
    if options.token_file:
        token = Path(options.token_file).read_text("utf-8")
        if not token.strip():
            raise kuiper.InputError(f"{options.token_file}: the token is empty")
    return token.strip() or None


def serve(options: argparse.Namespace, console: Console) -> int:
    """Serve models until SIGTERM or Ctrl-C."""
    from kuiper.serving import logs, server
    from kuiper.serving.served import Options
    from kuiper.serving.service import Limits

    if bool(options.cert) != bool(options.key):
        options.parser.error("--cert and --key belong together")
    http, grpc = (
        None if text == "off" else server.Address.parse(text)
        for text in (options.http, options.grpc)
    )
    if http is None and grpc is None:
        options.parser.error("both --http and --grpc are off")
    logs.configure(options.log)
    threads = options.threads or kuiper.get_num_threads()
    settings = server.Settings(
        models=options.models,
        options=Options(
            threads=threads,
            instances=options.instances,
            batch=options.batch,
            delay=options.delay,
            max_queue=options.max_queue,
            plans=options.plans,
            finite_only=options.finite_only,
        ),
        limits=Limits(
            max_body=options.max_body,
            timeout=options.timeout or None,
            read_timeout=options.read_timeout,
            token=_token(options),
            control=options.control,
        ),
        http=http,
        grpc=grpc,
        runners=options.runners,
        drain=options.drain,
        poll=options.poll,
        certificate=Path(options.cert) if options.cert else None,
        key=Path(options.key) if options.key else None,
        log_requests=options.log_requests,
    )
    for plugin in options.plugin:
        runpy.run_path(plugin)
    settings = server.within_memory(settings, options.max_memory)
    server.warn_if_exposed(settings)
    if options.workers:
        from kuiper.serving import supervisor

        return supervisor.run(settings, options.workers)
    server.check_packages(settings)
    return server.run(settings, server.load_models(settings))
