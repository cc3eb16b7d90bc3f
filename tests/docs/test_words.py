"""Retired names and words, which docs/glossary.md and plain English replace, do not return."""

import re
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
TEXT = {".py", ".pyx", ".pxd", ".pxi", ".pyi", ".h", ".c", ".js", ".css", ".html", ".md"}
FOLDERS = ("kuiper", "tests", "benchmarks", "docs", "examples")
# Data.
ELSEWHERE = ("tests/data", "tests/robustness/fuzz/corpus")
THIS = Path(__file__).name

# Retired word -> what to say instead.
RETIRED = {
    # English
    r"[Pp]laces?": "index, offset, position or location",
    r"[Bb]ehind": "after, under or hidden by",
    r"(?i:whoever|somebody|nobody|anybody)": "the caller, the planner or a worker: name the actor",
    # shards, chunks, phases and slices of a step's work
    r"n_parts|max_parts|share_start|share_out|run_all_parts": "shard",
    r"SHARE_(?:TERMS|BYTES|FLOATS|COST)|SHARES_WANTED|ROWS_PER_SHARE": "shard",
    r"SECONDS_PER_STRETCH|WORST_PER_STRETCH": "slice",
    r"by_round|round_t|has_rounds|FLOPS_PER_ROUND": "phase",
    # the thread pool
    r"kp_(?:helper|hire|dismiss|linger|prepare_team|run_team)|run_team|prepare_team": "thread pool",
    # error slots
    r"fault_t|FAULT_BYTES|kp_note|look_for_faults|complaint": "error slot, record, message",
    # weights that are packed later
    r"finish_later|is_waiting|multiply_waiting|unsettled": "defer, is_deferred, finalize",
    # planning
    r"Host|_host_or_spec|is_host": "StaticValue",
    r"operand_value|residual_value|constant_value|input_value": "operand_view and the like",
    r"post_t|make_post|post_tile|activation_post|expand_post": "epilogue",
    r"tenants?|is_wanted|place_in_time|same_place": "alias, is_live",
    r"spaced_rows|(?:x|y|r|m|v|ring|sums|mask|offset|residual|indices)_pitch": "row stride",
    r"known_record|known_shape": "find_record, required_shape",
    r"_Stage|_Selection|STAGES_KEPT": "segment, data-dependent operator",
    # kernels
    r"panel_ahead|MAX_AHEAD|BOTH_LINES": "prefetch distance, sole tile",
    r"shallow_\w+|ShallowConvStep|SHALLOW_CHANNELS": "few inputs",
    r"conv_(?:shallow|narrow)|NARROW_CHANNELS|is_narrow": "few inputs, few outputs",
    r"walk_t|fill_walk|go_to|go_on|walk_loops|element_walk": "strided iterator, seek, advance",
    r"is_least|look_along|look_through": "is_min, argreduce_row",
    r"_?(?:MOST|LEAST)_[A-Z]\w*": "MAX_, MIN_",
    r"Any_": "AnyArgument",
    r"import Fields|\(Fields\)": "Struct",
    r"team of threads|calls? a team|idle helpers?": "thread pool, worker",
    r"is one stretch|stretches of": "slice",
    r"[Hh]ost values?|[Pp]lan values?|[Oo]wn memory for": "static value, tensor view, per-context",
}
_RETIRED = re.compile("|".join(rf"(?<!\w)(?:{word})(?![\w])" for word in RETIRED))
# Names of other projects, and phrases in which a word has another meaning.
ALLOWED = re.compile(
    r"CAP_PROP_\w+|constant_values|aten::\S+"
    r"|[Ii]n[- ]place|[Oo]ut[- ]of[- ]place|(?:decimal|last) places?|tak(?:es?|ing) place"
)


def instead_of(word: str) -> str:
    return next(new for old, new in RETIRED.items() if re.fullmatch(old, word))


def retired_in(text: str) -> list[tuple[int, str]]:
    """Return the line numbers and names of retired words."""
    return [
        (number, match.group())
        for number, line in enumerate(text.splitlines(), 1)
        for match in _RETIRED.finditer(ALLOWED.sub("", line))
    ]


def written_files() -> list[Path]:
    files = [*ROOT.glob("*.md"), ROOT / "setup.py"]
    for folder in FOLDERS:
        files += (p for p in (ROOT / folder).rglob("*") if p.suffix in TEXT)
    return [
        p
        for p in files
        if p.name != THIS
        and p.exists()
        and not p.relative_to(ROOT).as_posix().startswith(ELSEWHERE)
    ]


def test_retired_words_stay_away():
    found = [
        f"{path.relative_to(ROOT)}:{number}: '{word}': say {instead_of(word)}"
        for path in written_files()
        for number, word in retired_in(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("    cdef Py_ssize_t n_parts", "n_parts"),
        ("# see kp_helper", "kp_helper"),
        ("_MOST_ROWS = 4", "_MOST_ROWS"),
        ("def infer(a) -> Host:", "Host"),
        ("`share_start` says where", "share_start"),
        ("# Return the place of x.", "place"),
        ("# Nobody reads it.", "Nobody"),
    ],
)
def test_a_planted_word_is_found(line, word):
    assert retired_in(f"x = 1\n{line}\n") == [(2, word)]
    assert instead_of(word)


@pytest.mark.parametrize(
    "line",
    [
        "host = 'localhost'",
        "compost_t",
        "MOST",
        "the most",
        "hostname",
        "It is sorted in place.",
        "a placeholder",
        "units in the last place",
    ],
)
def test_other_words_are_not(line):
    assert retired_in(line) == []


def glossary() -> list[tuple[str, str, str]]:
    """Return the rows of the glossary: word, meaning, where it lives."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!Word|-)(.+?) \| (.+?) \| `(.+?)` \|$", text, re.M)
    assert len(rows) >= 40
    return rows


def test_the_glossary_names_each_word_once():
    words = [word for word, _, _ in glossary()]
    assert len(set(words)) == len(words)
    for word, meaning, _ in glossary():
        assert meaning.endswith("."), word


def test_what_the_glossary_names_exists():
    missing = [f"{word}: {where}" for word, _, where in glossary() if not (ROOT / where).exists()]
    assert not missing, "\n".join(missing)
