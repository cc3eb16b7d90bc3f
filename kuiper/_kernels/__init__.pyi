from typing import Any

# The compiled modules take tensor views and pointers; their Python side is checked by tests.
def __getattr__(name: str) -> Any: ...
