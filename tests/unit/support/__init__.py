"""Tests of what every other package of kuiper rests on."""
