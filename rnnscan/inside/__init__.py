"""Look inside scans: values and cotangents, where a NaN began, where time goes, and how far a scan is."""
