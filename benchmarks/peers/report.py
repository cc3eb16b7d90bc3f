"""Tables, a Markdown page and a picture from the figures of :mod:`peers` and :mod:`cold`."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

from common import table


def is_kuiper(cell: dict) -> bool:
    """Tell kuiper, of any checkout and precision, from a peer."""
    return cell["runtime"].partition("@")[0].partition("-")[0] == "kuiper"


def column(runtime: str) -> str:
    """Return the heading of a runtime; a checkout is named by its folder."""
    name, at, folder = runtime.partition("@")
    return f"{name}@{Path(folder).resolve().name}" if at else name


def milliseconds(value: float) -> str:
    """Format a time with three significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def fastest_peer(cells: list[dict]) -> dict | None:
    """Return the cell of the fastest runtime other than kuiper; None if no peer has a figure."""
    peers = [cell for cell in cells if "ms" in cell and not is_kuiper(cell)]
    return min(peers, key=lambda cell: cell["ms"], default=None)


def groups(results: dict) -> dict[tuple[int, int], dict[str, list[dict]]]:
    """Sort the cells by (threads, batch) and then by model, in the order of measurement."""
    sorted_cells: dict = {}
    for cell in results["cells"]:
        of_setting = sorted_cells.setdefault((cell["threads"], cell["batch"]), {})
        of_setting.setdefault(cell["model"], []).append(cell)
    return sorted_cells


def ratios(models: dict[str, list[dict]], runtime: str) -> dict[str, float]:
    """Return time / time of the fastest peer of `runtime` for each model that has both."""
    found = {}
    for model, cells in models.items():
        fastest = fastest_peer(cells)
        for cell in cells:
            if cell["runtime"] == runtime and "ms" in cell and fastest is not None:
                found[model] = cell["ms"] / fastest["ms"]
    return found


def geometric_mean(values) -> float:
    """Return the geometric mean of positive numbers."""
    values = list(values)
    return exp(sum(log(value) for value in values) / len(values))


def setting_title(threads: int, batch: int) -> str:
    """Name a setting, e.g. "2 threads, batch 1"."""
    return f"{threads} thread{'s' if threads > 1 else ''}, batch {batch}"


def setting_table(models: dict[str, list[dict]]) -> str:
    """Lay out one setting: milliseconds per call, and in brackets the ratio to the best peer.

    "-" is a missing figure (see the notes); "~" precedes a figure if other processes disturbed at
    least half of its bursts.
    """
    runtimes = list(dict.fromkeys(c["runtime"] for cells in models.values() for c in cells))
    rows = []
    for model, cells in models.items():
        fastest = fastest_peer(cells)
        by_runtime = {cell["runtime"]: cell for cell in cells}
        row = [model]
        for runtime in runtimes:
            cell = by_runtime.get(runtime, {})
            if "ms" not in cell:
                row.append("-")
                continue
            text = ("~" if cell["disturbed"] else "") + milliseconds(cell["ms"])
            if fastest is not None:
                text += f" ({cell['ms'] / fastest['ms']:.2f})"
            row.append(text)
        row.append(fastest["runtime"] if fastest else "-")
        rows.append(row)
    means = []
    for runtime in runtimes:
        of_runtime = ratios(models, runtime)
        means.append(f"{geometric_mean(of_runtime.values()):.2f}" if of_runtime else "-")
    rows.append(["geometric mean of the ratios", *means, ""])
    return table(["model", *(column(r) for r in runtimes), "fastest peer"], rows)


def error_table(models: dict[str, list[dict]]) -> str:
    """Lay out the largest differences to PyTorch in float32, in % of the largest result."""
    runtimes = list(dict.fromkeys(c["runtime"] for cells in models.values() for c in cells))
    rows = []
    for model, cells in models.items():
        errors = {c["runtime"]: f"{100 * c['error']:.2g}" for c in cells if "ms" in c}
        rows.append([model, *(errors.get(runtime, "-") for runtime in runtimes)])
    return table(["model", *(column(r) for r in runtimes)], rows)


def has_fewer_bits(results: dict) -> bool:
    """Tell whether a peer computes with fewer bits than float32, so that its errors matter."""
    runtimes = {cell["runtime"].partition("@")[0] for cell in results["cells"]}
    return any(runtime.endswith(("-bfloat16", "-int8")) for runtime in runtimes)


def scaling_tables(results: dict) -> list[tuple[str, str]]:
    """Return (title, table) of the speed of several threads relative to one, for each batch."""
    found = []
    settings = groups(results)
    for threads, batch in settings:
        if threads == 1 or (1, batch) not in settings:
            continue
        many, one = settings[threads, batch], settings[1, batch]
        runtimes = list(dict.fromkeys(c["runtime"] for cells in many.values() for c in cells))
        rows = []
        for model in many:
            ms = [
                {c["runtime"]: c["ms"] for c in of.get(model, ()) if "ms" in c}
                for of in (one, many)
            ]
            rows.append([model])
            for runtime in runtimes:
                both = runtime in ms[0] and runtime in ms[1]
                rows[-1].append(f"{ms[0][runtime] / ms[1][runtime]:.2f}" if both else "-")
        title = f"{threads} threads over 1 thread, batch {batch}"
        found.append((title, table(["model", *(column(r) for r in runtimes)], rows)))
    return found


def notes(results: dict) -> list[str]:
    """Return a note per runtime and reason for missing figures."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in results["cells"]:
        if "note" in cell:
            key = column(cell["runtime"]), cell["note"]
            models = reasons.setdefault(key, [])
            if cell["model"] not in models:
                models.append(cell["model"])
    return [
        f"{runtime}: {reason} ({', '.join(models)})"
        for (runtime, reason), models in reasons.items()
    ]


def versions(results: dict) -> list[str]:
    """List the runtimes with their versions and the largest difference to PyTorch."""
    lines = []
    for runtime in dict.fromkeys(cell["runtime"] for cell in results["cells"]):
        cells = [c for c in results["cells"] if c["runtime"] == runtime and "version" in c]
        if cells:
            measured = [c for c in cells if "ms" in c]
            worst = max(measured, key=lambda c: c["error"], default=None)
            text = f"{column(runtime)} {cells[-1]['version']}"
            if worst is not None:
                text += f", at most {worst['error']:.1e} from PyTorch ({worst['model']})"
            lines.append(text)
    return lines


def describe_machine(results: dict) -> str:
    """Return the machine, the date and the variant of kuiper in one line."""
    facts = [*results["machine"].values(), results["date"]]
    if results["isa"]:
        facts.append(f"KUIPER_ISA={results['isa']}")
    return ", ".join(facts)


def progress(cells: list[dict]) -> str:
    """Return one line on a model just measured."""
    first = cells[0]
    parts = [
        f"{column(c['runtime'])} {milliseconds(c['ms'])}" if "ms" in c else f"{c['runtime']} -"
        for c in cells
    ]
    setting = setting_title(first["threads"], first["batch"])
    return f"{first['model']}, {setting}: " + "  ".join(parts)


def text(results: dict) -> str:
    """Return all tables and notes, for the terminal."""
    parts = []
    for (threads, batch), models in groups(results).items():
        unit = "ms of processor time" if results["clock"] == "cpu" else "ms"
        title = setting_title(threads, batch)
        parts += ["", f"{title}: {unit} per call (ratio to the fastest peer)"]
        parts.append(setting_table(models))
        if has_fewer_bits(results):
            parts += ["", f"{title}: largest error, %", error_table(models)]
    for title, laid_out in scaling_tables(results):
        parts += ["", title, laid_out]
    parts.append("")
    parts += versions(results)
    parts += [f"no figure: {note}" for note in notes(results)]
    facts = results["machine"]
    parts.append(
        ", ".join(facts.values()) + (f", KUIPER_ISA={results['isa']}" * bool(results["isa"]))
    )
    return "\n".join(parts)


def cold_tables(rows: list[dict]) -> str:
    """Lay out the figures of :mod:`cold`, a table per model."""

    def number(row: dict, key: str, scale: float, digits: int = 0) -> str:
        return f"{row[key] * scale:.{digits}f}" if key in row else "-"

    header = [
        "runtime",
        "first result, ms",
        "import and load, ms",
        "first run, ms",
        "whole process, ms",
        "peak memory, MB",
        "installed, MB",
        "with requirements, MB",
    ]
    parts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        cells = [
            [
                row["runtime"],
                number(row, "first_result", 1e3),
                number(row, "import_and_load", 1e3),
                number(row, "run", 1e3),
                number(row, "whole_process", 1e3),
                number(row, "peak_bytes", 1e-6),
                number(row, "alone", 1e-6, 1),
                number(row, "with_requirements", 1e-6, 1),
            ]
            for row in of_model
        ]
        lines = [f"{model}, {of_model[0]['threads']} threads", "", table(header, cells)]
        lines += [f"\nno figure: {r['runtime']}: {r['note']}" for r in of_model if "note" in r]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


PAGE = """\
# How fast is kuiper?

Milliseconds per call, lower is better; in brackets the ratio to the fastest runtime other than
kuiper: below 1 in kuiper's column, kuiper is the fastest. `~` marks a figure disturbed by other
programs, `-` a missing figure (see the notes).

{pictures}{tables}{precisions}{others}{kinds}{machines}{variants}{cold}{kernels}
## The machine and the runtimes

{facts}

## How it is measured

- The same seeded PyTorch module is exported for every runtime: pnnx for kuiper, ONNX for
  onnxruntime and OpenVINO, pnnx's ncnn files for ncnn, TorchScript for PyTorch. Shapes are fixed.
- All compute in float32: OpenVINO gets `INFERENCE_PRECISION_HINT=f32`, ncnn has 16-bit storage
  off. Everything else is at the setting that each recommends for latency.
- Each runtime has a separate process, which sleeps while another is timed, because spinning
  thread pools in one process disturb each other. Bursts of {seconds} s are interleaved over
  {rounds} rounds in a rotating order; a burst counts by its median call, a runtime by the median
  of its bursts.
- The timed call is that of a Python user: numpy array in, numpy array out. Preparations for many
  runs are made before (kuiper: `Model.plan`).
- Outputs of every burst are compared with eager PyTorch in the same run, on two inputs. A result
  with an error above 1e-4 (kuiper) or 1e-3 (the others), relative to the largest value, does not
  count.
- Start and memory: new processes, files in the page cache, medians; "numpy" is the lower bound, a
  process that only loads the input. Requirements do not include numpy.

`benchmarks/README.md` has the commands. `python benchmarks peers --write` writes this page.
"""

PRECISIONS = """\
kuiper, and its peers at the precision of the table; "kuiper" is float32. Errors are the largest
differences to PyTorch in float32, in % of the largest result.

"""

OTHERS = """\
One or two networks of many families of timm. Parallel branches of training (MobileOne, RepVGG,
RepViT) are exported as they are; kuiper merges their filters.

"""

KINDS = """\
Networks for text, sound, video, volumes and sequences, and for tasks on pictures other than
classification (`benchmarks/networks/kinds.py`).

"""

MACHINES = """\
The same networks and runtimes on other machines.

"""

VARIANTS = """\
kuiper with the micro-kernels for older processors (`KUIPER_ISA`); the other runtimes use all
instructions of this one. `baseline` is any x86-64: vectors of four floats, no fused multiply-add.

"""

COLOURS = {
    "kuiper": "#d62728",
    "onnxruntime": "#1f77b4",
    "openvino": "#7048b0",
    "ncnn": "#2ca02c",
    "ncnn-batch": "#98c93c",
    "torch": "#9a9a9a",
    "torchscript": "#e08a1e",
    "torch-compile": "#17a2b8",
}


def picture(models: dict[str, list[dict]], title: str) -> str:
    """Draw one setting as SVG: a row per model, a dot per runtime, logarithmic to the right.

    The position is the time relative to the fastest peer; dots beyond the axis are at its end.
    """
    left, right, top, row_height = 150, 40, 74, 24
    width = 820
    low, high = 0.35, 4.0
    height = top + row_height * len(models) + 34

    def x_of(ratio: float) -> float:
        share = log(min(max(ratio, low), high) / low) / log(high / low)
        return left + share * (width - left - right)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="22" font-size="15" font-weight="bold">Time relative to the fastest '
        f"runtime besides kuiper ({title}); left is faster</text>",
    ]
    bottom = top + row_height * len(models)
    for tick in (0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0):
        colour, thickness = ("#000000", 1.5) if tick == 1.0 else ("#dddddd", 1)
        x = x_of(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" '
            f'stroke-width="{thickness}"/><text x="{x:.1f}" y="{bottom + 18}" '
            f'text-anchor="middle" fill="#555555">{tick:g}</text>'
        )
    runtimes = list(dict.fromkeys(c["runtime"] for cells in models.values() for c in cells))
    x = left
    for runtime in runtimes:
        colour = COLOURS[runtime.partition("@")[0]]
        parts.append(f'<circle cx="{x + 6}" cy="44" r="6" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="49">{column(runtime)}</text>')
        x += 34 + 8 * len(column(runtime))
    for number, (model, cells) in enumerate(models.items()):
        y = top + row_height * (number + 0.5)
        parts.append(f'<text x="{left - 12}" y="{y + 4:.0f}" text-anchor="end">{model}</text>')
        fastest = fastest_peer(cells)
        # kuiper last, so that its dot is on top.
        for cell in sorted(cells, key=is_kuiper):
            if "ms" in cell and fastest is not None:
                ratio = cell["ms"] / fastest["ms"]
                colour = COLOURS[cell["runtime"].partition("@")[0]]
                radius = 7 if is_kuiper(cell) else 5
                parts.append(
                    f'<circle cx="{x_of(ratio):.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" '
                    f'fill-opacity="0.85"><title>{column(cell["runtime"])}: '
                    f"{milliseconds(cell['ms'])} ms, {ratio:.2f}</title></circle>"
                )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def kernel_table(kernels: dict) -> str:
    """Lay out the figures of :mod:`kernels`."""
    rows = [
        [
            f["layer"],
            f["kernels"].replace("+", ", "),
            f"{f['seconds'] * 1e6:.0f}",
            f"{f['gflop'] / f['seconds']:.0f}",
            f"{f['gbyte'] / f['seconds']:.0f}",
            f"{f['share']:.0%}",
        ]
        for f in kernels["layers"]
    ]
    ceiling = kernels["ceiling"]
    return (
        f"The ceilings with {ceiling['threads']} threads: {ceiling['gflops']:.0f} GFLOP/s in "
        f"float32 and {ceiling['gbytes']:.0f} GB/s of memory,\nmore of the caches. Winograd's and "
        "Strassen's algorithms count the operations that they do.\n\n"
        + table(["layer", "kernels", "µs", "GFLOP/s", "GB/s", "of the ceiling"], rows)
    )


def other_tables(others: dict, results: dict) -> str:
    """Lay out networks without a picture, a table for each setting.

    If they were measured separately, the text says when and on which machine.
    """
    same = describe_machine(others) == describe_machine(results)
    note = "" if same else f"Measured separately: {describe_machine(others)}.\n\n"
    return note + "\n".join(
        f"### {setting_title(threads, batch)}\n\n{setting_table(models)}\n"
        for (threads, batch), models in groups(others).items()
    )


def precision_tables(precisions: list[dict]) -> str:
    """Lay out results at fewer bits, with their errors."""
    parts = []
    for results in precisions:
        facts = [describe_machine(results), *versions(results)]
        parts.append("\n".join(f"- {line}" for line in facts) + "\n")
        for (threads, batch), models in groups(results).items():
            title = setting_title(threads, batch)
            parts.append(f"### {title}\n\n{setting_table(models)}\n")
            parts.append(f"Errors, %, {title}:\n\n{error_table(models)}\n")
    return "\n".join(parts)


def machine_tables(machines: list[dict]) -> str:
    """Lay out results that were measured on other machines."""
    parts = []
    for results in machines:
        facts = [describe_machine(results), *versions(results)]
        parts.append("\n".join(f"- {line}" for line in facts) + "\n")
        for (threads, batch), models in groups(results).items():
            parts.append(f"### {setting_title(threads, batch)}\n\n{setting_table(models)}\n")
    return "\n".join(parts)


def variant_tables(variants: list[dict]) -> str:
    """Lay out results that were measured with one of kuiper's instruction sets each."""
    parts = []
    for results in variants:
        for (threads, batch), models in groups(results).items():
            title = f"{results['isa']}, {setting_title(threads, batch)}"
            parts.append(f"### {title}\n\n{setting_table(models)}\n")
    return "\n".join(parts)


def write(
    results: dict,
    folder: Path,
    cold: list[dict],
    kernels: dict | None = None,
    variants: list[dict] | None = None,
    others: dict | None = None,
    kinds: dict | None = None,
    machines: list[dict] | None = None,
    precisions: list[dict] | None = None,
) -> list[Path]:
    """Write ``benchmarks.md`` and a picture per setting into `folder`; return the paths.

    Parameters
    ----------
    results : dict
        Results of :mod:`peers`.
    folder : Path
        Created if it does not exist.
    cold : list of dict
        Results of :mod:`cold`; [] omits that part.
    kernels : dict, optional
        Results of :mod:`kernels`.
    variants : list of dict, optional
        Results of :mod:`peers` with an instruction set chosen by ``KUIPER_ISA``.
    others : dict, optional
        Results of :mod:`.compare` for ``models.OTHERS``.
    kinds : dict, optional
        Results of :mod:`.compare` for ``kinds.KINDS``.
    machines : list of dict, optional
        Results of :mod:`peers` on other machines.
    precisions : list of dict, optional
        Results of :mod:`peers` with ``--precision``.
    """
    folder.mkdir(exist_ok=True)
    paths, pictures, tables = [], "", ""
    for (threads, batch), models in groups(results).items():
        title = setting_title(threads, batch)
        path = folder / f"benchmarks_t{threads}_b{batch}.svg"
        path.write_text(picture(models, title))
        paths.append(path)
        pictures += f"![Time relative to the fastest peer, {title}]({path.name})\n\n"
        tables += f"## {title}\n\n{setting_table(models)}\n\n"
    for title, laid_out in scaling_tables(results):
        tables += f"## {title}\n\n{laid_out}\n\n"
    facts = [f"- {describe_machine(results)}"]
    facts += [f"- {line}" for line in versions(results)]
    facts += [f"- no figure: {note}" for note in notes(results)]
    page = folder / "benchmarks.md"
    page.write_text(
        PAGE.format(
            pictures=pictures,
            tables=tables.rstrip() + "\n",
            cold=f"\n## Start, memory, size\n\n{cold_tables(cold)}\n" if cold else "",
            precisions=f"\n## Fewer bits\n\n{PRECISIONS}{precision_tables(precisions)}"
            if precisions
            else "",
            others=f"\n## Other networks\n\n{OTHERS}{other_tables(others, results)}"
            if others
            else "",
            kinds=f"\n## Other kinds of networks\n\n{KINDS}{other_tables(kinds, results)}"
            if kinds
            else "",
            machines=f"\n## Other processors\n\n{MACHINES}{machine_tables(machines)}"
            if machines
            else "",
            variants=f"\n## Older instruction sets\n\n{VARIANTS}{variant_tables(variants)}"
            if variants
            else "",
            kernels=f"\n## Layers\n\n{kernel_table(kernels)}\n" if kernels else "",
            facts="\n".join(facts),
            seconds=results["seconds"],
            rounds=results["rounds"],
        )
    )
    return [page, *paths]
