"""``kuiper serve`` with onnxruntime in it, which runs the ``model.onnx`` beside each file.

What differs from kuiper's server is the network alone; `compare` starts it.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

from kuiper.cli import main as kuiper_main
from kuiper.serving.served import ServedModel

SESSIONS: dict[tuple[str, int], onnxruntime.InferenceSession] = {}


def run(self: ServedModel, arrays: list[np.ndarray], n_threads: int) -> list[np.ndarray]:
    """Take the method of a model that runs it."""
    file = str(self.path.with_name("model.onnx"))
    session = SESSIONS.get((file, n_threads))
    if session is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
        # Threads that wait by spinning would count as processor time.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = SESSIONS[file, n_threads] = onnxruntime.InferenceSession(
            file, options, ["CPUExecutionProvider"]
        )
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def main() -> None:
    """Serve; the command line is that of ``kuiper serve``."""
    ServedModel._run = run  # type: ignore[method-assign]
    sys.exit(kuiper_main(["serve", *sys.argv[1:]]))
