"""Traces of scans on several devices."""

import pytest

from programs import report_of


@pytest.mark.parametrize("way", ["auto", "explicit", "shard_map"])
@pytest.mark.parametrize("steps", ["all steps", "chosen steps"])
def test_several_devices_trace_what_one_does(way, steps):
    assert report_of("traced_on_devices.py", flags=("-W", "ignore"))[f"{way}, {steps}"] < 1e-12


@pytest.mark.parametrize("way", ["auto", "explicit"])
def test_several_devices_trace_the_rows_of_one(way):
    assert report_of("traced_on_devices.py", flags=("-W", "ignore"))[f"{way}, chosen rows"] < 1e-12
