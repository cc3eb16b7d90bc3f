"""Read and write pictures, and convert them to network inputs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kuiper.errors import InputError
from kuiper.pnnx._messages import recognise
from kuiper.vision._opencv import cv2

__all__ = [
    "PICTURE_SUFFIXES",
    "PRESETS",
    "VIDEO_SUFFIXES",
    "Preprocessing",
    "as_image",
    "as_images",
    "find_pictures",
    "is_video",
    "load_image",
    "preprocess",
    "resize_antialiased",
    "resize_bicubic",
    "resize_lanczos",
    "save_image",
]

PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}
VIDEO_SUFFIXES = {".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v"}
MAX_PIXELS = 1 << 22  # limit for an intermediate picture that is larger than the original


# -- files ---------------------------------------------------------------------------------


def load_image(path: str | Path | BinaryIO) -> np.ndarray:
    """Read a picture and orient it by its EXIF tag.

    Parameters
    ----------
    path : str, Path or binary file object
        JPEG, PNG, BMP, WebP, TIFF, or another format that OpenCV reads.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
        Blue first.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If OpenCV cannot decode the file.
    """
    # Not cv2.imread: it cannot open every file name on Windows, and gives no reason for failures.
    if isinstance(path, str | Path):
        data = np.fromfile(path, np.uint8)
    else:
        data, path = np.frombuffer(path.read(), np.uint8), getattr(path, "name", "<file>")
    try:
        _check_pixels(data, path)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    except cv2.error as error:  # such as more pixels than OpenCV allows
        raise ValueError(f"{path}: OpenCV cannot read it: {error.err}") from error
    if image is None:
        what = _diagnosis(data[:256].tobytes())
        raise ValueError(f"{path}: not an image in a format that OpenCV can read{what}")
    return image


# The first bytes of formats that may hold floats: TIFF, Radiance, portable float map.
_MAYBE_FLOATS = (b"II*\0", b"MM\0*", b"#?RADIANCE", b"#?RGBE", b"PF", b"Pf")


def _check_pixels(data: np.ndarray, path: Any) -> None:
    """Raise ValueError if an intact file holds pixels whose scale to 0..255 is unknown."""
    if not data[:10].tobytes().startswith(_MAYBE_FLOATS):
        return
    image = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if image is not None and image.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"{path}: its pixels are {image.dtype}, expected integers of 8 or 16 bits; scale them "
            "to 0..255"
        )


def _diagnosis(head: bytes) -> str:
    """Return what the first bytes of an unreadable file tell about the cause."""
    if not head:
        return ": it is empty"
    if head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"BM", b"II*\0", b"MM\0*")):
        return ", although it begins like one: it is damaged or incomplete"
    what = recognise(head)
    return f": {what}" if what else ""


def save_image(path: str | Path, image: np.ndarray) -> None:
    """Write a picture in the format of the path's suffix; create missing folders.

    Parameters
    ----------
    path : str or Path
    image : numpy.ndarray of uint8, shape (height, width), (height, width, 3) or (height, width, 4)
        Grey, blue-green-red, or blue-green-red-opacity.

    Raises
    ------
    OSError
        If the file cannot be written.
    ValueError
        If OpenCV has no format for the suffix.
    """
    path = Path(path)
    try:
        good, data = cv2.imencode(path.suffix, image)
    except cv2.error:
        good = False
    if not good:
        raise ValueError(f"{path}: OpenCV cannot write a picture with the suffix '{path.suffix}'")
    path.parent.mkdir(parents=True, exist_ok=True)
    data.tofile(path)


def find_pictures(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Yield files unchanged, and the pictures and videos below folders in sorted order.

    Parameters
    ----------
    paths : iterable of (str or Path)
        Files and folders.

    Yields
    ------
    Path
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from (
                file
                for file in sorted(path.rglob("*"))
                if file.suffix.lower() in PICTURE_SUFFIXES | VIDEO_SUFFIXES and file.is_file()
            )
        else:
            yield path


def is_video(path: str | Path) -> bool:
    """Tell whether a path names a video or is the number of a camera."""
    return str(path).isdecimal() or Path(path).suffix.lower() in VIDEO_SUFFIXES


# -- from what a caller has to a picture ---------------------------------------------------------

# The modes of Pillow whose values are 0..255 and which it converts to RGB.
_PIL_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")


def as_image(source: Any, channels: str = "bgr") -> np.ndarray:
    """Return a picture as an OpenCV image, blue first.

    Parameters
    ----------
    source : str, Path, binary file object, PIL.Image.Image or numpy.ndarray of uint8
        An array has the shape (height, width, 3), or (height, width, 4) with opacity, or (height,
        width) or (height, width, 1) if it is grey.  Opacity is ignored, as OpenCV and Pillow's
        ``convert("RGB")`` do; grey becomes three equal channels.  A file is oriented by its EXIF
        tag; the pixels of a ``PIL.Image`` are taken as they are.
    channels : str, default="bgr"
        The order of an array's channels, ``"bgr"`` or ``"rgb"``; files and ``PIL.Image`` know
        theirs.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)

    Raises
    ------
    InputError
        If the source is none of these.
    OSError, ValueError
        If a file cannot be read.
    """
    return _as_image(source, channels, "the picture")


def as_images(sources: Any, channels: str = "bgr") -> tuple[list[np.ndarray], bool]:
    """Return one or many pictures as OpenCV images, and whether `sources` is a single one.

    Raises
    ------
    InputError
        If there is none, or one is none; see :func:`as_image`.
    """
    if _is_single(sources):
        return [as_image(sources, channels)], True
    try:
        many = list(sources)
    except TypeError:
        return [as_image(sources, channels)], True  # raises
    if not many:
        raise InputError("got no pictures, expected at least one")
    return [_as_image(one, channels, f"picture {n}") for n, one in enumerate(many)], False


def _is_single(source: Any) -> bool:
    """Tell whether an object is one picture, or at least not a collection of them."""
    # A set has no order, so its results could not be told apart.
    kinds = (str, bytes, bytearray, memoryview, dict, set, frozenset, os.PathLike, np.ndarray)
    return isinstance(source, kinds) or hasattr(source, "read") or hasattr(source, "__array__")


def _is_pil(source: Any) -> bool:
    """Tell whether an object is a PIL.Image, which exists only if the caller has imported PIL."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(source, module.Image)


def _as_image(source: Any, channels: str, where: str) -> np.ndarray:
    if channels not in ("bgr", "rgb"):
        raise InputError(f"channels is {channels!r}, expected 'bgr' or 'rgb'")
    if isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        return load_image(source if hasattr(source, "read") else Path(source))
    if _is_pil(source):
        if source.mode not in _PIL_MODES:
            raise InputError(
                f"{where}: got a PIL.Image of mode {source.mode!r}, expected one of "
                f"{', '.join(_PIL_MODES)}; scale its values to 0..255 first"
            )
        source, channels = np.asarray(source.convert("RGB")), "rgb"
    if not hasattr(source, "__array__"):
        hint = ""
        if isinstance(source, bytes | bytearray | memoryview):
            hint = "; io.BytesIO(data) reads the bytes of a file"
        raise InputError(
            f"{where}: got {type(source).__name__}, expected a path, a PIL.Image or an array of "
            f"uint8 (height, width, 3){hint}"
        )
    return _from_array(np.asarray(source), channels, where)


def _from_array(image: np.ndarray, channels: str, where: str) -> np.ndarray:
    """Check an array of pixels and convert it to three channels, blue first."""
    got = f"{where}: got {image.dtype} {image.shape}, expected uint8 (height, width, 3)"
    if image.ndim == 4:
        raise InputError(f"{got}; list(x) passes its pictures one by one")
    if image.ndim not in (2, 3) or 0 in image.shape:
        raise InputError(f"{got}, or (height, width) for grey")
    if image.ndim == 3 and image.shape[2] not in (1, 3, 4):
        hint = ", or 1 or 4 channels"
        if image.shape[0] in (1, 3, 4):
            hint = "; the channels are the first axis: pass x.transpose(1, 2, 0)"
        raise InputError(f"{got}{hint}")
    if image.dtype != np.uint8:
        hint = "scale its values to 0..255"
        if image.dtype.kind == "f":
            hint = "pass the pixels 0..255, which the preprocessing scales"
            if np.nanmax(image) <= 1:
                hint += ": np.uint8(np.rint(x * 255))"
        raise InputError(f"{got}; {hint}")
    if image.ndim == 2 or image.shape[2] == 1:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    image = image[:, :, :3]
    return np.ascontiguousarray(image if channels == "bgr" else image[:, :, ::-1])


# -- from a picture to the network's input ---------------------------------------------------


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of pixels to the input of a network.

    Attributes
    ----------
    mean, std : tuple of float
        One number per channel, in the channel order of the network:
        value = (pixel * scale - mean) / std.
    scale : float
        Factor on the pixels 0..255.
    bgr : bool
        Channel order blue, green, red, instead of red, green, blue.
    crop : bool
        Resize in proportion and crop the centre; otherwise distort to `size`.
    antialias : bool
        Average over all pixels when shrinking, as Pillow and torchvision do, instead of
        interpolating the nearest ones, as OpenCV does.
    size : tuple of int, optional
        Height and width of the network's input; None means those of the model file.
    resize : int, optional
        Short side before the crop in pixels; None means size / `crop_ratio`.
    filter : str
        ``"bilinear"`` or ``"bicubic"``.
    crop_ratio : float
        Extent of the crop by the short side before it, unless `resize` is given: 0.875 resizes to
        256 for 224.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    bgr: bool = False
    crop: bool = True
    antialias: bool = True
    size: tuple[int, int] | None = None
    resize: int | None = None
    filter: str = "bilinear"
    crop_ratio: float = 0.875

    def __post_init__(self) -> None:
        if self.filter not in _OPENCV_FILTERS:
            raise InputError(
                f"filter is {self.filter!r}, expected one of {', '.join(_OPENCV_FILTERS)}"
            )


_OPENCV_FILTERS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}

_IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

PRESETS = {
    "imagenet": _IMAGENET,
    "course": replace(_IMAGENET, crop=False, antialias=False),
    "caffe": Preprocessing(
        mean=(104, 117, 123), std=(1, 1, 1), scale=1, bgr=True, crop=False, antialias=False
    ),
    "tf": Preprocessing(mean=(1, 1, 1), std=(1, 1, 1), scale=1 / 127.5),
    # Networks that were trained on pictures resized by Pillow's BICUBIC.
    "bicubic": replace(_IMAGENET, filter="bicubic"),
    # timm resizes to 248 for 224: int(224 / 0.9).
    "vit": Preprocessing(
        mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), filter="bicubic", crop_ratio=224 / 248
    ),
    "openai_clip": Preprocessing(
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        filter="bicubic",
        crop_ratio=1,
    ),
}


def weighted(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return y[i,n,c] = sum_j weights[i,j] image[j,n,c] in float32.

    Each row of `weights` is zero outside a window, so a few rows at a time are multiplied by the
    pixels that their windows span.
    """
    result = np.empty((len(weights), *image.shape[1:]), np.float32)
    count = 8
    for first in range(0, len(weights), count):
        some = weights[first : first + count]
        seen = np.flatnonzero(some.any(axis=0))
        span = slice(seen[0], seen[-1] + 1)
        pixels = image[span].astype(np.float32, order="C")
        result[first : first + count] = np.tensordot(some[:, span], pixels, axes=1)
    return result


def _transposed(image: np.ndarray) -> np.ndarray:
    """Return a view of a picture with swapped rows and columns."""
    return image.transpose(1, 0, 2)


def _resize_weights(
    length: int, new_length: int, kernel: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the (new_length, length) matrix that resizes one axis with a filter kernel."""
    step = length / new_length
    centres = (np.arange(new_length) + 0.5) * step
    weights = kernel((np.arange(length) + 0.5 - centres[:, None]) / max(step, 1))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def triangle_weights(length: int, new_length: int) -> np.ndarray:
    """Return the (new_length, length) matrix of antialiased bilinear resizing along one axis."""
    return _resize_weights(length, new_length, lambda x: np.maximum(0, 1 - np.abs(x)))


def resize_antialiased(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize like Pillow's BILINEAR and torchvision's antialias=True, which OpenCV lacks.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    height, width : int
        Size of the result in pixels.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    # Average a much larger photo by an integer factor first: that keeps all that passes the filter
    # and saves most of its work.
    factor = int(min(image.shape[0] / height, image.shape[1] / width) / 3)
    if factor > 1:
        smaller = (image.shape[1] // factor, image.shape[0] // factor)
        image = cv2.resize(image, smaller, interpolation=cv2.INTER_AREA)
    half = weighted(triangle_weights(image.shape[0], height), image)  # (height, old width, 3)
    columns = triangle_weights(image.shape[1], width)
    return np.rint(_transposed(weighted(columns, _transposed(half)))).astype(np.uint8)


def lanczos_weights(length: int, new_length: int) -> np.ndarray:
    """Return the (new_length, length) matrix of Lanczos-3 resizing along one axis."""
    return _resize_weights(
        length, new_length, lambda x: np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
    )


def bicubic_weights(length: int, new_length: int) -> np.ndarray:
    """Return the (new_length, length) matrix of antialiased bicubic resizing along one axis."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return _resize_weights(length, new_length, kernel)


def _resize_as_pillow(
    image: np.ndarray, height: int, width: int, weights: Callable[[int, int], np.ndarray]
) -> np.ndarray:
    """Resize along the rows, round to 0..255, then along the columns."""
    columns = weights(image.shape[1], width)
    half = np.clip(np.rint(weighted(columns, _transposed(image))), 0, 255)  # (width, old height, 3)
    rows = weights(image.shape[0], height)
    return np.clip(np.rint(weighted(rows, _transposed(half))), 0, 255).astype(np.uint8)


def resize_lanczos(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize like Pillow's LANCZOS."""
    return _resize_as_pillow(image, height, width, lanczos_weights)


def resize_bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize like Pillow's BICUBIC, with which many networks were trained; OpenCV lacks it.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    height, width : int
        Size of the result in pixels.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    return _resize_as_pillow(image, height, width, bicubic_weights)


def preprocess(image: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Convert a picture to the input of a network for one image.

    Parameters
    ----------
    image : path, PIL.Image.Image or numpy.ndarray of uint8, shape (height, width, 3)
        Blue first, of any size; see :func:`as_image`.
    how : Preprocessing
        Its `size` must be given.

    Returns
    -------
    numpy.ndarray of float32, shape (3, height, width)

    Raises
    ------
    ValueError
        If `how` has no size, or resizes to less than the crop.
    """
    if how.size is None:
        raise ValueError("preprocess needs how.size, the height and width of the network's input")
    image = as_image(image)
    old_height, old_width = image.shape[:2]
    height, width = how.size
    if not how.crop:
        new_height, new_width = height, width
    else:
        if how.resize is None:
            ratio = max(height / old_height, width / old_width) / how.crop_ratio
        else:
            ratio = how.resize / min(old_height, old_width)
        # Like torchvision: the short side is rounded, the long side truncated.
        new_height, new_width = (
            round(n * ratio) if n == min(old_height, old_width) else int(n * ratio)
            for n in (old_height, old_width)
        )
    if how.crop and new_height * new_width > max(MAX_PIXELS, old_height * old_width):
        # An extreme aspect ratio: crop first, since most of the enlarged picture would be cropped.
        return preprocess(_middle(image, math.ceil(max(height, width) / ratio) + 2), how)
    if new_height < height or new_width < width:
        raise ValueError(
            f"cannot crop {height}x{width} pixels from {new_height}x{new_width}; "
            f"set --resize to {max(height, width)} or more"
        )
    if not how.antialias:
        order = _OPENCV_FILTERS[how.filter]
        image = cv2.resize(image, (new_width, new_height), interpolation=order)
    elif how.filter == "bicubic":
        image = resize_bicubic(image, new_height, new_width)
    else:
        image = resize_antialiased(image, new_height, new_width)
    top, left = round((new_height - height) / 2), round((new_width - width) / 2)
    return normalised(image[top : top + height, left : left + width], how)


def _middle(image: np.ndarray, extent: int) -> np.ndarray:
    """Return the centre of a picture, at most `extent` pixels high and wide."""
    top, left = (max(0, (n - extent) // 2) for n in image.shape[:2])
    return image[top : top + extent, left : left + extent]


def normalised(image: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Apply channel order, scale, mean and deviation; (height, width, 3) -> (3, height, width)."""
    if not how.bgr:
        image = image[:, :, ::-1]
    mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
    values = (image * np.float32(how.scale) - mean) / std
    return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)


# -- the input of a model ----------------------------------------------------------------------


def input_shape(model: Any) -> tuple[int | None, ...]:
    """Return the shape of the first input, with None for open extents."""
    return model.inputs[0].shape or (None, 3, None, None)


def input_size(model: Any, default: int = 224) -> tuple[int, int]:
    """Return height and width of the first input, `default` for open extents."""
    height, width = input_shape(model)[2:]
    return height or default, width or default
