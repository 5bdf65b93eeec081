"""A cache that forgets the entry that was used least recently."""

from collections.abc import Hashable
from threading import Lock
from typing import Any


class BoundedCache:
    """Values by key. Threads may share it.

    Args:
        most: the most values that it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Hashable, Any] = {}
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """A value; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values[key] = self._values.pop(key)
            return self._values[key]

    def __setitem__(self, key: Hashable, value: Any) -> None:
        """Keep a value."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]

    def __len__(self) -> int:
        """The number of values."""
        return len(self._values)
