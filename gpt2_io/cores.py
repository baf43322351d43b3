"""How many threads a version may use."""
import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def count_threads():
    """OMP_NUM_THREADS if it is a number, as in other libraries; otherwise the cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else count_cores()


def count_cores():
    """Cores that this process may use, at least 1: those it is bound to, and no more than a container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(bound, math.ceil(min(bound, read_quota()))))


def read_quota():
    """Cores' worth of time that the control groups of Linux leave to this process; infinite without any."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").rpartition("0::/")[2].split("\n")[0]
    except OSError:
        own = ""
    quotas = [math.inf]
    for group in (CGROUPS / own, *(CGROUPS / own).parents):  # a group has no more than the one it is in
        quotas.append(quota_of(group, ["cpu.max"]))
    quotas.append(quota_of(CGROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]))  # version 1, in a container
    return min(quotas)


def quota_of(group, names):
    """Microseconds of time in each so many microseconds -> cores; infinite where these files say nothing, or "max"."""
    try:
        quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):
        return math.inf
