"""Requests with photos: classify, detect, segment, and photos instead of a tensor.

``kuiper.vision`` prepares the photo and, of the first three, reads the result; the network runs in
the queue of its model, with the limits and batches of all requests.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kuiper.errors import KuiperError
from kuiper.serving.failures import Refusal
from kuiper.serving.protocol import InferRequest
from kuiper.serving.served import ServedModel
from kuiper.serving.service import Service

__all__ = ["MAX_PIXELS", "TASKS", "Pictures", "picture_size", "pictures_of"]

TASKS = ("classify", "detect", "segment")
# A few kilobytes of JPEG can hold a picture that fills the memory when it is decoded.
MAX_PIXELS = 50_000_000
_FORMS = ("mask", "overlay", "cutout")


class _Queued:
    """A model whose calls wait in its queue; for threads other than the event loop's."""

    def __init__(self, service: Service, served: ServedModel, deadline: float | None) -> None:
        self._service, self._served, self._deadline = service, served, deadline
        self.inputs, self.outputs = served.model.inputs, served.model.outputs

    def __call__(self, *arrays: np.ndarray) -> Any:
        results = self._service.call(self._served, list(arrays), self._deadline)
        return results[0] if len(results) == 1 else tuple(results)


class Pictures:
    """Answers requests about photos.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = concurrent.futures.ThreadPoolExecutor(
            2 * service.scheduler.runners + 2, thread_name_prefix="kuiper-picture"
        )
        self._n_waiting = 0
        self._made: dict[tuple[str, str, str], tuple[ServedModel, Any]] = {}
        self._making = threading.Lock()

    async def answer(
        self, model: ServedModel, task: str, data: bytes, query: Mapping[str, str]
    ) -> tuple[bytes, bytes]:
        """Return the content type and the content of the response.

        Parameters
        ----------
        model : ServedModel
        task : str
            One of :data:`TASKS`.
        data : bytes
            A JPEG or a PNG.
        query : mapping
            ``count`` for classify; ``form``, one of mask, overlay and cutout, for segment.

        Raises
        ------
        Refusal
            If the data is no picture, the model does not fit the task, or the queue is full.
        """
        _check_size(data)
        timeout = self._service.limits.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        return await self._in_pool(model, self._work, model, task, data, dict(query), deadline)

    async def decoded(self, model: ServedModel, request: InferRequest) -> InferRequest:
        """Return a request for inference with the tensor that its photos stand for.

        Parameters
        ----------
        model : ServedModel
            One whose input is pictures; its task says how a photo is prepared.
        request : InferRequest
            Its input is of BYTES: each element is a JPEG or a PNG, and becomes a row.

        Raises
        ------
        Refusal
            If an element is no picture, the model does not take any, or the queue is full.
        """
        if not model.tasks:
            raise Refusal("invalid", f"model '{model.name}' has no input for pictures in BYTES")
        (name,) = [tensor["name"] for tensor in model.inputs]
        if list(request.inputs) != [name]:
            given = ", ".join(map(repr, request.inputs))
            raise Refusal("invalid", f"inputs {given}, expected '{name}' alone")
        photos = [bytes(photo) for photo in request.inputs[name].reshape(-1)]
        if not photos:
            raise Refusal("invalid", f"input '{name}' has no picture")
        for photo in photos:
            _check_size(photo)
        rows = await self._in_pool(model, self._rows, model, photos)
        return replace(request, inputs={name: rows})

    async def _in_pool(
        self, model: ServedModel, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call a function in a thread for photos, unless too many wait."""
        if self._service.is_draining:
            raise Refusal("unavailable", "the server shuts down", 1.0)
        if self._n_waiting >= model.queue.max_jobs:
            raise Refusal("busy", f"{self._n_waiting} photos wait, the limit", 1.0)
        self._n_waiting += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, function, *arguments)
        finally:
            self._n_waiting -= 1

    def _rows(self, model: ServedModel, photos: list[bytes]) -> np.ndarray:
        """Return photos as a tensor, a row each."""
        from kuiper.vision import load_image

        limit, rows = self._service.limits.max_body, []
        task = model.tasks[0]
        try:
            tool = self._tool(model, task)
            for photo in photos:
                row = tool.preprocess(load_image(io.BytesIO(photo)))
                row = row[0] if task == "detect" else row  # the other is where its picture lies
                if len(photos) * row.nbytes > limit:
                    raise Refusal(
                        "too large",
                        f"{len(photos)} pictures become {len(photos) * row.nbytes} bytes, up to "
                        f"{limit}",
                    )
                rows.append(row)
        except KuiperError:
            raise
        except ValueError as error:  # kuiper.vision: no picture, another kind of network
            raise Refusal("invalid", str(error)) from None
        return np.stack(rows)

    def _work(
        self,
        model: ServedModel,
        task: str,
        data: bytes,
        query: dict[str, str],
        deadline: float | None,
    ) -> tuple[bytes, bytes]:
        try:
            tool = copy.copy(self._tool(model, task))
            tool.model = _Queued(self._service, model, deadline)
            from kuiper.vision import load_image

            image = load_image(io.BytesIO(data))
            return getattr(self, f"_{task}")(model, tool, image, query)
        except KuiperError:
            raise
        except ValueError as error:  # kuiper.vision: no picture, another kind of network
            raise Refusal("invalid", str(error)) from None

    def _tool(self, model: ServedModel, task: str) -> Any:
        """Return the classifier, detector or segmenter of a model."""
        key = (model.name, model.version, task)
        with self._making:
            found = self._made.get(key)
            if found is None or found[0] is not model:
                found = self._made[key] = (model, _make(model, task))
            return found[1]

    def _classify(
        self, model: ServedModel, tool: Any, image: np.ndarray, query: dict[str, str]
    ) -> tuple[bytes, bytes]:
        text = query.get("count", "5")
        if not text.isdecimal() or not 0 < int(text[:9]) <= 10_000:
            raise Refusal("invalid", f"count is {text!r}, expected an integer from 1 to 10000")
        (guesses,) = tool([image], int(text))
        return _json(model, image, guesses=[vars(guess) for guess in guesses])

    def _detect(
        self, model: ServedModel, tool: Any, image: np.ndarray, query: dict[str, str]
    ) -> tuple[bytes, bytes]:
        (found,) = tool([image])
        return _json(model, image, detections=[vars(one) for one in found])

    def _segment(
        self, model: ServedModel, tool: Any, image: np.ndarray, query: dict[str, str]
    ) -> tuple[bytes, bytes]:
        from kuiper.vision import cut_out, overlay
        from kuiper.vision._opencv import cv2

        form = query.get("form", "mask")
        if form not in _FORMS:
            raise Refusal("invalid", f"form is {form!r}, expected one of {', '.join(_FORMS)}")
        (mask,) = tool([image])
        if form == "mask":
            picture = np.rint(mask * 255).astype(np.uint8)
        elif form == "overlay":
            picture = overlay(image, mask)
        else:
            picture = cut_out(image, mask)
        _, content = cv2.imencode(".png", picture)
        return b"image/png", content.tobytes()


def pictures_of(service: Service) -> Pictures:
    """Return what answers photos in a server; both protocols share its threads and limits."""
    if service.pictures is None:
        service.pictures = Pictures(service)
    return service.pictures


def _check_size(data: bytes) -> None:
    """Refuse a picture that would fill the memory."""
    width, height = picture_size(data)
    if width * height > MAX_PIXELS:
        raise Refusal("too large", f"the picture has {width} x {height} pixels, up to {MAX_PIXELS}")


def _json(model: ServedModel, image: np.ndarray, **found: Any) -> tuple[bytes, bytes]:
    document = {
        "model_name": model.name,
        "model_version": model.version,
        "width": image.shape[1],
        "height": image.shape[0],
        **found,
    }
    return b"application/json", json.dumps(document).encode()


def _make(model: ServedModel, task: str) -> Any:
    from kuiper.vision import PRESETS, Classifier, Detector, Segmenter

    settings = model.settings
    if task == "classify":
        preset = settings.get("preset", "imagenet")
        if preset not in PRESETS:
            raise Refusal("internal", f"preset {preset!r}, expected one of {', '.join(PRESETS)}")
        return Classifier(model.model, PRESETS[preset], settings.get("labels"))
    if task == "detect":
        options = {key: settings[key] for key in ("labels", "threshold", "iou") if key in settings}
        return Detector(model.model, **options)
    return Segmenter(model.model, settings.get("kind"))


def picture_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG or PNG, from its header alone.

    Raises
    ------
    Refusal
        If the data is neither.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:2] == b"\xff\xd8":
        offset = 2
        while offset + 9 < len(data) and data[offset] == 0xFF:
            marker = data[offset + 1]
            if marker == 0xFF:  # padding
                offset += 1
                continue
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                height = int.from_bytes(data[offset + 5 : offset + 7], "big")
                return int.from_bytes(data[offset + 7 : offset + 9], "big"), height
            offset += 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
        raise Refusal("invalid", "the body begins like a JPEG, but it is damaged or incomplete")
    what = "it is empty" if not data else f"it begins with {data[:8]!r}"
    raise Refusal("media type", f"the body is no JPEG or PNG: {what}")
