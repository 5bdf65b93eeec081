"""Memory.fit inside shard_map and pmap and on explicit meshes: a plan for what one device holds."""

from programs import report_of


def test_a_budget_is_for_one_device():
    """One test for all modes: two workers would each run the process."""
    report = report_of("plans_on_devices.py", flags=["-W", "ignore"])
    assert report["names kept"] > report["budget"]
    for mode in ("shard_map", "pmap", "explicit"):
        assert report[mode]["difference"] < 2e-6, mode
        assert report[mode]["needed"] <= report["budget"], mode
