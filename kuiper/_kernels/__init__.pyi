from typing import Any

# The compiled modules take plan values and pointers; their Python side is checked by tests.
def __getattr__(name: str) -> Any: ...
