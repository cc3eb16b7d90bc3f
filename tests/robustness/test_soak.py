"""A run of the soak program for seconds; ``soak.py`` describes the long run."""

import sys

import pytest

from . import soak


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_short_soak(capsys):
    options = "--minutes 0.05 --reloads 100 --shapes 12 --threads 3 --slack 100"
    assert soak.main(options.split()) == 0
    assert "calls from 3 threads" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_growth_and_open_files_are_detected(tmp_path):
    watch = soak.Watch("phase", slack=8)
    for _ in range(4):
        watch.note()
    kept = bytearray(b"x") * (64 << 20)
    path = tmp_path / "file"
    path.touch()
    with open(path):
        faults = watch.verdict()
    assert len(kept) == 64 << 20
    assert "grew to" in faults[0]
    assert faults[1] == "phase: 1 more files are open"
