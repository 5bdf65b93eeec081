"""trace(): the values inside of scans, and their cotangents."""
