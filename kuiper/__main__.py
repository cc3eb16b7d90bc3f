"""``python -m kuiper``: the command line."""

from kuiper.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
