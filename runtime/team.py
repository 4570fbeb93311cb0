"""A fixed team of threads: all but the first wait inside one native call each; a segment is one call for all."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

from alphac.runtime.arena import TEAM_BYTES, Arena
from alphac.runtime.devices import Library
from alphac.runtime.errors import KernelFailed

STOP, YIELD, SLEEP = 192 // 8, 256 // 8, 264 // 8  # entries of the team's memory, in i64s
BASIC_INFO, BASIC_INFO_COUNT = 3, 10  # of Mach's threads
# ctypes lets go of the interpreter's lock for the time of such a call.
WORKER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class Team:
    """`threads` threads: the caller of `run`, and threads − 1 that are started here. Call `close` at the end.

    The code and the memory that they use live as long as the team, and the team as long as they run."""

    def __init__(self, library: Library, arena: Arena) -> None:
        self.threads = arena.threads
        self._held = (library, arena)
        self._run = RUN(library.address("team_run"))
        self._address = arena.address("team")
        self._memory = arena.integers("team", TEAM_BYTES // 8)
        self._memory[:] = 0
        self._memory[YIELD] = libc_function("sched_yield")
        self._memory[SLEEP] = libc_function("usleep")
        self._lead = (threading.get_ident(), time.thread_time())
        self._ended: dict[int, float] = {}
        worker = WORKER(library.address("team_worker"))
        self._workers = [
            threading.Thread(target=self._work, args=(worker, k), name=f"team-{k}", daemon=True)
            for k in range(1, self.threads)
        ]
        for thread in self._workers:
            try:
                thread.start()
            except RuntimeError:
                self.close()
                raise KernelFailed(f"this host cannot start {self.threads} threads") from None

    def _work(self, worker: ctypes._CFunctionType, number: int) -> None:  # pyright: ignore[reportPrivateUsage]
        worker(self._address, number)
        self._ended[number] = time.thread_time()

    def run(self, function: int, table: int, threads: int = 0) -> int:
        """Call a segment on all threads, or on 1, the caller's; its result: 0, or the number of the guard that stopped
        it."""
        return self._run(self._address, function, table, threads or self.threads)

    def cpu_seconds(self) -> list[float]:
        """CPU time of each thread so far, the caller's (since the team was made) first."""
        ident, start = self._lead
        found = [_clock(ident) - start]
        for number, thread in enumerate(self._workers, 1):
            if number in self._ended:
                found.append(self._ended[number])
            elif thread.ident is not None and thread.is_alive():
                found.append(_clock(thread.ident))
            else:
                found.append(0.0)
        return found

    def close(self) -> None:
        """Stop the workers and wait for them. May be called twice."""
        self._memory[STOP] = 1
        for thread in self._workers:
            if thread.ident is not None:
                thread.join()


def libc_function(name: str) -> int:
    """The address of a function of libc."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _clock(ident: int) -> float:
    """CPU seconds of a thread of this process."""
    if sys.platform == "darwin":
        return _darwin_clock(ident)
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def _darwin_clock(ident: int) -> float:
    """The same where threads have no clocks: Mach's `thread_info` begins with seconds and microseconds for the user,
    then for the system."""
    libc = ctypes.CDLL(None)
    libc.pthread_mach_thread_np.argtypes = [ctypes.c_void_p]
    numbers, count = (ctypes.c_int32 * BASIC_INFO_COUNT)(), ctypes.c_uint32(BASIC_INFO_COUNT)
    port = ctypes.c_uint32(libc.pthread_mach_thread_np(ident))
    if libc.thread_info(port, BASIC_INFO, numbers, ctypes.byref(count)):
        return 0.0
    return numbers[0] + numbers[2] + (numbers[1] + numbers[3]) * 1e-6
