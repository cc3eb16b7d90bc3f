"""docs/models.md: the tables of the zoo's results, and the analysis of exports that differ."""

from __future__ import annotations

import re
from collections import Counter

from zoo.survey import BATCH, FAMILIES, TOLERANCE

# Manual analysis of exports that differ, by family: names and cause.
FINDINGS = {
    "torchvision": (
        (
            "swin_v2_t, swin_v2_s, swin_v2_b",
            "they set a part of a bias to zero in place; in the file the bias of `F.linear` is "
            "only that part, a third of the bias.",
        ),
    ),
    "timm": (
        (
            "mobilevitv2_050",
            "the file has a pixel shuffle instead of the merging of patches, on an input of "
            "another shape.",
        ),
    ),
    "text": (
        (
            "gpt2, gpt2_tied, translator",
            "their `nn.MultiheadAttention` (also inside PyTorch's Transformer layers) is called "
            "with `is_causal=True`; then PyTorch's trace does not use the mask, and the operator "
            "in the file has neither. Without that hint the mask is an input of the operator.",
        ),
        (
            "gpt2_by_hand",
            "the file has the written-out tanh GELU as `F.gelu` without `approximate=tanh`, which "
            "is the exact GELU. The file does not tell the two apart; to correct it, add "
            "` approximate=tanh` to those lines of the .param.",
        ),
    ),
    "modern": (
        (
            "centernet",
            '`torch.div(x, y, rounding_mode="floor")` is a plain `div` in the file. kuiper rounds '
            "if the annotated type of the result is an integer; for floats it cannot know.",
        ),
    ),
    "transformers": (
        (
            "albert, fnet, funnel, gpt_neo, gptj, phi",
            "`NewGELUActivation`, a written-out tanh GELU, is `F.gelu` without `approximate=tanh` "
            "in the file, which is the exact GELU.",
        ),
        (
            "modernbert, moonshine, mpt",
            "each `nn.LayerNorm` without bias is exported with `elementwise_affine=False`, and its "
            "weight is missing in the archive.",
        ),
        (
            "deepseek_v3",
            "`group_mask.scatter_(...)` writes into zeros that the model makes; the file has these "
            "(`pnnx_fold_group_mask`) as they were after the trace, including its ones.",
        ),
        (
            "longformer",
            "the strides of `torch.as_strided` refer to a transposed view, which the file does not "
            "record; read in the order of the axes they give other numbers.",
        ),
        (
            "vilt",
            "it orders the patches of an image randomly with `torch.multinomial`: two calls of "
            "PyTorch differ as much as the export, which has the order of the trace.",
        ),
        (
            "timesformer",
            "it reads the class tokens of a batch by `embeddings[:batch_size, 0]`: in the file the "
            "traced batch size is the end of a slice and looks like any other number.",
        ),
        (
            "dpt, blip_caption",
            "pnnx crashes if a module is called more than once and the result of one of the calls "
            "is unused: `y = norm(x); norm(y); return y` is enough.",
        ),
    ),
    "vision": (
        (
            "ssdlite320_mobilenet_v3_large, fcos_resnet50_fpn",
            "torchvision scripts its `batched_nms` when it is traced, so the file has a branch "
            "(`prim::If`), which kuiper does not support. `kuiper.from_torch` traces the Python "
            "code instead: see [the comparison](#detectors-by-kuiperfrom_torch).",
        ),
    ),
    "ultralytics": (
        (
            "rtdetr-l",
            "its encoder calls `nn.MultiheadAttention` with one tensor as query and key, another "
            "as value; the file has both tensors but not which one is used twice, and pnnx's "
            "module and kuiper read them as query, and key and value. `kuiper.from_torch` clones "
            "the key: then the encoder agrees to 1e-5 and the same 300 queries are chosen. The "
            "decoder with seeded weights is ill-conditioned. Given the same inputs, each of its "
            "six layers is within 1.1e-6 of float64, in kuiper as in PyTorch's float32; but even "
            "in float64, noise of 1e-7 on their inputs grows to 5e-5 after the sixth layer. So "
            "the last scores of kuiper are 1.1e-3 from float64, PyTorch's 3.5e-4; and the 300 "
            "best of 24000 scores, some of which are 1e-7 apart, change rows: kuiper's boxes "
            "differ by 0.64, PyTorch's float32 from its float64 by 0.51.",
        ),
    ),
    "forms": (
        (
            "swin_t with two input shapes",
            "pnnx aborts. The plain export runs at other batches.",
        ),
        (
            "gpt2, gpt2_by_hand",
            "as above, under text.",
        ),
    ),
}

HEAD = """\
# Models

Whole networks with seeded weights, exported by pnnx from a batch of 1 and compared with PyTorch on
other inputs: max |a - b| over max |b|. `python benchmarks zoo --write` writes this page; do not
edit it.

- *equal*: at most {tolerance:.0e} apart
- *differs*: further apart; *refused*: kuiper cannot run the file
- *export differs*: the Python module that pnnx writes beside the model differs from PyTorch too;
  *no use*: neither kuiper nor that module can run the file
- *no export*: pnnx cannot convert it; *no test*: with seeded weights its output is meaningless
- *mended*: a plain export gives one of these results, but `kuiper.from_torch` and `kuiper export`
  trace the module without losses, and then it is equal; the error and batch {batch} are those of
  that model, and the result of the plain export is noted below the table

*batch {batch}* tells whether the same file, exported with one input, gives PyTorch's numbers for
{batch} inputs at once; *frozen* means that the file contains the traced batch as a number that
cannot be distinguished from others (the error names the operator). *ms* is one run at batch 1 on a
busy machine, a rough estimate; see [benchmarks.md](benchmarks.md) for measurements. *PyTorch* is
the version that a row was made with: 2.15 with torchvision 0.29 and pnnx 20261020, 2.13 with the
versions of that time.
"""


def _mended(facts: dict) -> dict:
    """Return the results of a network for the better of its exports."""
    whole = facts.get("whole")
    if not whole or whole["status"] != "equal":
        return facts
    reason = f"exported plainly, {facts['status']}: {facts.get('reason', '')}"
    return facts | whole | {"status": "mended", "reason": reason}


def page(results: dict) -> str:
    """Return the text of docs/models.md."""
    results = {
        family: {name: _mended(facts) for name, facts in found.items()}
        for family, found in results.items()
    }
    parts = [HEAD.format(tolerance=TOLERANCE, batch=BATCH)]
    rows = []
    for family, (title, *_) in FAMILIES.items():
        found = results.get(family, {})
        if found:
            sums = Counter(facts["status"] for facts in found.values())
            other = Counter(outcome(facts) for facts in found.values() if facts.get("others"))
            anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
            rows.append(f"| [{title}](#{anchor}) | {len(found)} | {_sums(sums)} | {_sums(other)} |")
    parts.append(
        f"| family | networks | at batch 1 | batch {BATCH}, or other sizes |\n"
        "| --- | --: | --- | --- |\n" + "\n".join(rows) + "\n"
    )
    for family, (title, *_) in FAMILIES.items():
        found = results.get(family, {})
        if not found:
            continue
        parts.append(f"## {title}\n")
        other = "other shapes" if family == "forms" else f"batch {BATCH}"
        parts.append(
            f"| model | input | operators | types | error | {other} | ms | PyTorch | |\n"
            "| --- | --- | --: | --: | --: | --- | --: | --: | --- |"
        )
        notes = []
        for name, facts in sorted(found.items()):
            parts.append(_row(family, name, facts, notes))
        parts.append("")
        seen = [finding for finding in FINDINGS.get(family, ()) if _applies(finding[0], notes)]
        if seen:
            parts.append("Causes:\n")
            parts.extend(f"- {names}: {text}" for names, text in seen)
            parts.append("")
        if notes:
            parts.append("Notes:\n")
            parts.extend(f"- {name}: {note}" for name, note in notes)
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def shapes_page(results: dict) -> str:
    """Return the results of `shapes.py` as a section of the page; "" if there are none."""
    rows, notes, counts = [], [], {}
    for family, networks in results.items():
        for name, found in sorted(networks.items()):
            if "failed" in found:
                rows.append(f"| {family} | {name} | - | - | - | - |")
                notes.append(f"- {name}: {found['failed']}")
                continue
            batches, others, errors = [], [], []
            (square,) = (label.split("x", 2)[2] for label in found if label.startswith("1x"))
            for label, facts in found.items():
                batch, _, size = label.split("x", 2)
                told = facts["status"]
                if facts.get("way", "plain") != "plain":
                    told += f" ({facts['way']})"
                kind = "batches" if size == square else "sizes"
                counts.setdefault(kind, Counter())[told] += 1
                (batches if size == square else others).append((batch, size, told))
                errors.append(facts.get("error") or 0.0)
                if facts.get("reason"):
                    again = facts.get("again", "")
                    again = again if isinstance(again, str) else again.get("reason", "")
                    second = f"; with a second size: {again}" if again else ""
                    notes.append(f"- {name} at {label}: {facts['reason']}{second}")
            cells = [
                _grouped([(batch, told) for batch, _, told in batches]),
                _grouped([(size, told) for _, size, told in others]),
                f"{max(errors):.1e}",
            ]
            rows.append(f"| {family} | {name} | {square} | {' | '.join(cells)} |")
    if not rows:
        return ""
    return (
        "\n## Batches and image sizes\n\n"
        f"{len(rows)} networks, each exported once from one image and run with batches of "
        "1, 2 and 8 and with two\nimages of two other sizes, compared with PyTorch "
        "(`benchmarks/zoo/shapes.py`): one size 32 taller and\nnarrower, one odd. *not "
        "in PyTorch*: PyTorch refuses the size. *(inputshape2)*: the plain file contains the\n"
        "traced size, one exported with a second size does not. *(from_torch)*: pnnx alone loses "
        "something\nthat `kuiper.from_torch` keeps, see above.\n\n"
        + "".join(f"- {kind}: {_sums(counter)}\n" for kind, counter in counts.items())
        + "\n| family | model | exported at | batches | other sizes | worst error |\n"
        "| --- | --- | --- | --- | --- | --: |\n"
        + "\n".join(rows)
        + "\n"
        + ("\nNotes:\n\n" + "\n".join(notes) + "\n" if notes else "")
    )


def detectors_page(results: dict) -> str:
    """Return the results of `detectors.py` as a section of the page; "" if there are none."""
    rows = []
    for name, pictures in sorted(results.items()):
        for label, facts in pictures.items():
            if "failed" in facts:
                rows.append(f"| {name} | {label} | - | - | - | - | {facts['failed']} |")
                continue
            numbers = (str(facts[key]) for key in ("wanted", "found", "same"))
            worst = (f"{facts[key]:.1e}" for key in ("score", "corner"))
            rows.append(f"| {name} | {label} | {' | '.join((*numbers, *worst))} |")
    if not rows:
        return ""
    return (
        "\n## Detectors by kuiper.from_torch\n\n"
        "Detectors of torchvision with seeded weights, traced with picture 1 and run with that,\n"
        "two others and a black one, from normalising the image to suppressing boxes\n"
        "(`benchmarks/zoo/detectors.py`). Scores that differ only in their last bits change the\n"
        "order of boxes, so boxes are compared as sets: *same* counts PyTorch's boxes that match\n"
        "a different box of kuiper's with the same label, a score at most 1e-4 and corners at\n"
        "most 1e-3 of the image's extent away; the largest of these distances follow. Not\n"
        "checked: the order of rows, masks, other sizes of image, trained weights.\n\n"
        "| model | image | boxes of PyTorch | of kuiper | same | score | corner |\n"
        "| --- | --- | --: | --: | --: | --: | --: |\n" + "\n".join(rows) + "\n"
    )


def _grouped(results: list[tuple[str, str]]) -> str:
    """Return labels with their results; labels with the same result are listed together."""
    groups: dict[str, list[str]] = {}
    for label, what in results:
        groups.setdefault(what, []).append(label)
    return "; ".join(f"{', '.join(labels)} {what}" for what, labels in groups.items())


def _applies(names: str, notes: list) -> bool:
    """Tell whether one of the names of a finding has a note."""
    noted = [name for name, _ in notes]
    return any(
        name == wanted or name.startswith(f"{wanted} (")
        for wanted in re.split(r", | with ", names)
        for name in noted
    )


def _sums(counter: Counter) -> str:
    return ", ".join(f"{count} {what}" for what, count in counter.most_common())


def outcome(facts: dict) -> str:
    """Return the worst result with other shapes, in a word."""
    found = [other["status"] for other in facts["others"].values()]
    for status in ("differs", "refused", "no test"):
        if status in found:
            return "frozen" if status == "refused" else status
    return "equal"


def _row(family: str, name: str, facts: dict, notes: list) -> str:
    shape = ", ".join("x".join(map(str, shape)) for shape in facts.get("shapes", ())) or "-"
    error = facts.get("error")
    others = []
    for label, other in facts.get("others", {}).items():
        text = outcome({"others": {label: other}})
        others.append(f"{label} {text}" if family == "forms" else text)
        if other.get("reason"):
            notes.append((name, f"{label}: {other['reason']}"))
        elif text == "differs":
            notes.append((name, f"{label}: {other['error']:.1e} from PyTorch"))
    if facts.get("reason"):
        notes.append((name, facts["reason"]))
    cells = [
        name,
        shape,
        str(facts.get("operators", "-")),
        str(len(facts.get("types", ())) or "-"),
        "-" if error is None else f"{error:.1e}",
        ", ".join(others) or "-",
        f"{facts['ms']:.0f}" if "ms" in facts else "-",
        facts.get("torch", "-"),
        facts["status"],
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
