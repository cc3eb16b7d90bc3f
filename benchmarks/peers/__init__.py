"""kuiper beside other runtimes: exports, one process each, interleaved bursts, the page."""
