"""Draw the pictures of the tutorial.

python docs/tutorial/make_pictures.py
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

import kuiper
from kuiper import report, vision
from kuiper.expression import parse, to_svg

FOLDER = Path(__file__).with_name("pictures")
EXAMPLES = FOLDER.parents[2] / "examples"
COLOURS = ("#b8d4f0", "#f7d8b5", "#c4e6c4")


def document(width: float, height: float, parts: list[str]) -> str:
    """Return an SVG document on white, so that it can be read on a dark page."""
    style = (
        "<style>text{font:13px sans-serif;text-anchor:middle}.s{font-size:11px;fill:#555}"
        ".l{text-anchor:start}.e{text-anchor:end}rect{stroke:#666}path{fill:none;stroke:#666}</style>"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    white = f'<rect width="{width}" height="{height}" fill="#fff" style="stroke:none"/>'
    return "\n".join([head, style, white, *parts, "</svg>\n"])


def box(x: float, y: float, w: float, h: float, fill: str, text: str = "") -> str:
    """Return a rectangle with a text in its middle."""
    label = f'<text x="{x + w / 2}" y="{y + h / 2 + 4}">{text}</text>' if text else ""
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}"/>{label}'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}">{words}</text>'


def layouts() -> str:
    """Draw three channels of 2 x 2 pixels, and both orders in memory."""
    parts = []
    for channel in range(3):
        for pixel in range(4):
            x, y = 40 + 26 * (pixel % 2) + 14 * channel, 30 + 26 * (pixel // 2) + 14 * channel
            parts.append(box(x, y, 26, 26, COLOURS[channel], f"{pixel}"))
    parts.append(text(80, 140, "3 channels, 2 x 2 pixels", "s"))
    for row, (name, order) in enumerate(
        (
            ("planar (NCHW): channel after channel", [(c, p) for c in range(3) for p in range(4)]),
            (
                "channels last (NHWC): pixel after pixel",
                [(c, p) for p in range(4) for c in range(3)],
            ),
        )
    ):
        y = 40 + 66 * row
        parts.append(text(190, y - 8, name, "l"))
        for index, (channel, pixel) in enumerate(order):
            parts.append(box(190 + 30 * index, y, 30, 26, COLOURS[channel], f"{pixel}"))
    return document(580, 155, parts)


def residual() -> str:
    """Draw the block of chapter 3."""
    graph = kuiper.ir.Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    graph.add_operator("nn.ReLU", "first", ["x"], ["a"])
    graph.add_operator("nn.Tanh", "second", ["a"], ["b"])
    graph.add_operator("pnnx.Expression", "plus", ["b", "x"], ["s"], params={"expr": "add(@0,@1)"})
    graph.add_operator("pnnx.Output", "out", ["s"])
    return report.svg(graph) + "\n"


def im2col() -> str:
    """Draw a receptive field as a row, and as pointers."""
    parts = [text(90, 22, "image, channels last")]
    for row in range(5):
        for column in range(5):
            inside = row < 3 and 1 <= column < 4
            fill = COLOURS[0] if inside else "#eee"
            label = f"{3 * row + column}" if inside else ""
            parts.append(box(25 + 26 * column, 35 + 26 * row, 26, 26, fill, label))
    parts.append(text(340, 22, "im2col: the field is copied into a row"))
    for tap in range(9):
        parts.append(box(215 + 28 * tap, 35, 28, 26, COLOURS[0], f"{tap // 3 * 3 + tap % 3 + 1}"))
    parts.append(text(340, 78, "... one row for each output pixel: 9 times the image", "s"))
    parts.append(text(340, 112, "implicit GEMM: nine pointers into the image"))
    for tap in range(9):
        x = 215 + 28 * tap
        parts.append(f'<circle cx="{x + 14}" cy="134" r="7" fill="#fff" stroke="#2b6cb0"/>')
        row, column = divmod(tap, 3)
        end = (38 + 26 * (column + 1), 48 + 26 * row)
        parts.append(
            f'<path d="M{x + 14},141C{x + 14},200 {end[0] + 60},190 {end[0]},{end[1]}" '
            'style="stroke:#2b6cb0;opacity:.45"/>'
        )
    return document(490, 200, parts)


def winograd() -> str:
    """Draw the stages of F(4x4, 3x3)."""
    parts = []

    def grid(x: float, y: float, n: int, size: float, fill: str) -> None:
        for i in range(n * n):
            parts.append(box(x + size * (i % n), y + size * (i // n), size, size, fill))

    grid(20, 30, 6, 15, COLOURS[0])
    parts.append(text(65, 138, "6 x 6 of the image", "s"))
    grid(190, 10, 6, 15, COLOURS[1])
    parts.append(text(235, 116, "B&#8242; d B", "s"))
    grid(190, 130, 6, 15, COLOURS[1])
    parts.append(text(235, 236, "G g G&#8242;, computed once", "s"))
    grid(20, 160, 3, 15, COLOURS[0])
    parts.append(text(42, 222, "filter 3 x 3", "s"))
    grid(370, 70, 6, 15, COLOURS[2])
    parts.append(text(415, 176, "36 products, not 144", "s"))
    grid(530, 85, 4, 15, COLOURS[0])
    parts.append(text(560, 160, "4 x 4 outputs", "s"))
    for path in ("M115,75L182,60", "M70,182L182,175", "M285,55L362,105", "M285,175L362,130",
                 "M465,115L522,115"):  # fmt: skip
        parts.append(f'<path d="{path}"/>')
    parts.append(text(345, 64, "multiply", "s"))
    parts.append(text(494, 105, "A&#8242; m A", "s"))
    return document(620, 245, parts)


def letterbox() -> str:
    """Draw a photo inside the input, and the way back."""
    parts = [
        box(20, 60, 180, 120, COLOURS[0], "photo 451 x 300"),
        box(330, 20, 200, 200, "#333"),
        box(330, 53, 200, 133, COLOURS[0], "227 high"),
        text(430, 42, '<tspan fill="#fff">bar of 53</tspan>', "s"),
        text(430, 208, '<tspan fill="#fff">bar of 54</tspan>', "s"),
        text(430, 238, "input 320 x 320", "s"),
        '<path d="M205,110H325"/><path d="M325,135H205" stroke-dasharray="4 3"/>',
        text(265, 102, "x * 0.7095 + bar", "s"),
        text(265, 152, "(x - bar) / 0.7095", "s"),
    ]
    return document(550, 250, parts)


def serving() -> str:
    """Draw eight requests, the queue, and the batches that a runner makes of them."""
    names = (("requests", 40), ("queue", 95), ("runner", 150))
    parts = [text(20, y, name, "l") for name, y in names]
    starts, widths = (90, 210, 340, 420), (110, 120, 70, 50)
    batches = ((0,), (1, 2, 3, 4), (5, 6), (7,))
    for number in range(8):
        x = 90 + 13 * number
        parts.append(box(x, 25, 12, 22, COLOURS[number % 3], str(number)))
    for row, numbers in enumerate(batches):
        x, wide = starts[row], widths[row]
        parts.append(box(x, 130, wide, 30, "#eee"))
        for column, number in enumerate(numbers):
            left = x + wide / 2 - 13 * len(numbers) / 2 + 13 * column
            parts.append(box(left, 134, 12, 22, COLOURS[number % 3], str(number)))
        waiting = [n for later in batches[row + 1 :] for n in later]
        for column, number in enumerate(waiting):
            parts.append(box(x + 13 * column, 80, 12, 22, COLOURS[number % 3], str(number)))
        parts.append(text(x + wide / 2, 178, f"batch of {len(numbers)}", "s"))
    parts.append('<path d="M90,200H480"/><path d="M474,196L480,200L474,204"/>')
    parts.append(text(285, 218, "time", "s"))
    return document(500, 228, parts)


def times() -> str:
    """Draw the table of chapter 5 as bars; each bar ten times as fast is one step longer."""
    chapter = FOLDER.with_name("05-convolution.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.,]+) \|$", chapter, re.MULTILINE)
    parts = []
    for number, (name, speed, ms) in enumerate(rows):
        y = 20 + 34 * number
        length = 80 * (3 + math.log10(float(speed)))
        parts.append(f'<text x="190" y="{y + 16}" style="text-anchor:end">{name}</text>')
        parts.append(box(200, y, length, 24, COLOURS[number % 3]))
        parts.append(text(206 + length, y + 16, f"{speed} GFLOP/s, {ms} ms", "l"))
    for power in range(-2, 3):
        x = 200 + 80 * (3 + power)
        parts.append(f'<path d="M{x},12V{20 + 34 * len(rows)}" stroke-dasharray="2 4"/>')
        parts.append(text(x, 36 + 34 * len(rows), f"{10.0**power:g}", "s"))
    return document(860, 50 + 34 * len(rows), parts)


def memory() -> str:
    """Draw the memory plan of NanoDet-m."""
    path = EXAMPLES / "models" / "nanodet_m.f16.pnnx.param"
    model = kuiper.load(path)
    model(np.zeros((1, 3, 320, 320), np.float32))
    drawn = report.memory_svg(model.plan((1, 3, 320, 320)), 900, 360)
    style = (
        "<style>text{font:11px sans-serif;text-anchor:middle}.lane{text-anchor:end}"
        "rect{stroke:#556;stroke-width:.4}.grid{stroke:#ddd}</style>"
    )
    return drawn.replace(">", f">{style}", 1) + "\n"


def bits() -> str:
    """Draw the bits of float32, bfloat16, float16 and a byte: sign, exponent and fraction."""
    types = (
        ("float32", 1, 8, 23, "1e-38 to 3e38, steps of 1e-7 of the number"),
        ("bfloat16", 1, 8, 7, "the same range, steps of 1/128"),
        ("float16", 1, 5, 10, "6e-5 to 65504, steps of 1/1024"),
        ("byte", 0, 0, 8, "256 equidistant numbers"),
    )
    parts = []
    for row, (name, *counts, about) in enumerate(types):
        y, column = 30 + 48 * row, 0
        parts.append(text(15, y + 14, name, "l"))
        for count, fill in zip(counts, (COLOURS[2], COLOURS[1], COLOURS[0]), strict=True):
            for _ in range(count):
                parts.append(box(95 + 13 * column, y, 13, 20, fill))
                column += 1
        parts.append(text(95, y + 34, about, "l s"))
    for x, fill, name in ((370, 2, "sign"), (430, 1, "exponent"), (520, 0, "fraction")):
        parts.append(box(x, 196, 13, 13, COLOURS[fill]) + text(x + 18, 207, name, "l s"))
    return document(600, 222, parts)


def picture(name: str) -> np.ndarray:
    """Return a photo of the examples as the input of a network for ImageNet."""
    photo = vision.load_image(EXAMPLES / "photos" / name)
    return vision.preprocess(photo, replace(vision.PRESETS["imagenet"], size=(224, 224)))[None]


def byte_range() -> str:
    """Draw the values that a layer reads, with the widest range and that of least error."""
    model = kuiper.load(EXAMPLES / "models" / "mobilenet_v2.f16.pnnx.param")
    layer = [op for op in model.graph if op.type == "nn.Conv2d"][1]
    values = model.trace(picture("chelsea.png"), [layer.inputs[0].name])[layer.inputs[0].name]
    widest = float(values.max())

    def squares(limit: float) -> float:
        scale = limit / 255
        return float(np.mean((np.clip(np.rint(values / scale), 0, 255) * scale - values) ** 2))

    limits = np.linspace(0.2, 1, 161) * widest
    best = float(min(limits, key=squares))
    counts, edges = np.histogram(values[values > 0], 100, (0, widest))
    heights = 110 * np.log10(1 + counts) / np.log10(1 + counts.max())
    parts = []
    for height, left in zip(heights, edges, strict=False):
        x = 20 + 540 * left / widest
        parts.append(box(round(x, 1), round(140 - height, 1), 5.4, round(height, 1), COLOURS[0]))
    gain = squares(best) / squares(widest)
    for y, limit, words in (
        (158, widest, f"all values: 0 to {widest:.1f}"),
        (186, best, f"least squares of errors: 0 to {best:.1f}, {gain:.2f} of the squares"),
    ):
        end = 20 + 540 * limit / widest
        parts.append(f'<path d="M20,{y}H{end:.1f}M20,{y - 4}v8M{end:.1f},{y - 4}v8"/>')
        parts.append(text(24, y + 15, words, "l s"))
    parts.append(text(555, 24, "number of values, logarithmic", "s e"))
    return document(580, 212, parts)


def errors() -> str:
    """Draw the signal-to-noise ratio of the results of real networks in two precisions."""
    photos = [picture(name) for name in ("astronaut.png", "coffee.png", "rocket.jpg")]
    x = picture("chelsea.png")
    parts = []
    for row, name in enumerate(("squeezenet_v1.1", "mobilenet_v2")):
        path = EXAMPLES / "models" / f"{name}.f16.pnnx.param"
        model = kuiper.load(path)
        y = model(x)
        parts.append(text(130, 44 + 62 * row, name, "e"))
        for line, (kind, other) in enumerate(
            (
                ("bfloat16", kuiper.load(path, precision="bfloat16")),
                ("bytes", kuiper.quantize(model, photos)),
            )
        ):
            noise = float(np.linalg.norm(other(x) - y) / np.linalg.norm(y))
            decibels = -20 * math.log10(noise)
            top = 20 + 62 * row + 24 * line
            parts.append(box(140, top, round(6 * decibels, 1), 20, COLOURS[line]))
            words = f"{kind}: {decibels:.0f} dB, {100 * noise:.1f} %"
            parts.append(text(round(146 + 6 * decibels, 1), top + 15, words, "l s"))
    parts += [f'<path d="M{140 + 6 * n},12V142" stroke-dasharray="2 4"/>' for n in (0, 20, 40, 60)]
    parts += [text(140 + 6 * n, 156, f"{n} dB", "s") for n in (0, 20, 40, 60)]
    return document(660, 166, parts)


PICTURES = {
    "layouts": layouts,
    "residual": residual,
    "im2col": im2col,
    "winograd": winograd,
    "expression": lambda: to_svg(parse("add(@0,div(@1,@2))")) + "\n",
    "letterbox": letterbox,
    "serving": serving,
    "times": times,
    "memory": memory,
    "bits": bits,
    "range": byte_range,
    "errors": errors,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
