#!/usr/bin/env python3
"""Runs a command whose threads get onto a busy core sooner: scripts/short_slices.py COMMAND...

Ranks wait for one another some thousand times in a test.  Linux (6.12 and later) lets a thread that
wakes up wait while another uses up its slice of some 3 ms, unless its own slice is shorter.  What
cannot be set is left as it is.
"""
import ctypes
import os
import platform
import struct
import sys

SLICE_NS = 100_000
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # number of the system call


def shorten():
    """For this process, and for all that it starts."""
    call = SCHED_SETATTR.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
    attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(call, 0, attributes, 0)


if len(sys.argv) < 2:
    sys.exit(__doc__)
shorten()
os.execvp(sys.argv[1], sys.argv[1:])
