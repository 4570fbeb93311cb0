"""The threads of a role: how they wait for work, share it, and meet. LLVM IR as text, one copy in every object.

docs/architecture.md, "Native interface", says what the team, the table and the barrier hold.
"""

from __future__ import annotations

from alphac.backends.burst import BURST
from alphac.backends.target import Target

# A wait looks at a word, and pauses for a short while (some microseconds), as the others are about to come. Then it
# lets other threads run, since there may be fewer cores than threads. A worker without work sleeps at last.
#
# At the barrier every thread has a cache line of its own, in which it counts its meetings, and looks at the others'
# lines: the way from one thread to another is one transfer of a line. A thread may be one meeting ahead, not two.
#
# Many processors show a thread's writes to others in any order. What must be seen behind a meeting is written before a
# count that is stored with `release`, or added to with `acq_rel`, and read after a look at the count with `acquire`: a
# line's meetings, the team's generation (the call's function, table, threads), and how many have finished (all that the
# call wrote). `monotonic` is a thread's look at a word that only itself writes.
_TEAM = """
declare void @{pause}({pause_types})

define internal void @alphac_wait(ptr %word, i64 %goal, ptr %give_way) noinline {{
entry:
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i64, ptr %word acquire, align 8
  %over = icmp uge i64 %now, %goal
  br i1 %over, label %done, label %patient
patient:
  %early = icmp ult i64 %turn, 100
  br i1 %early, label %pausing, label %yielding
pausing:
  call void @{pause}({pause_arguments})
  br label %again
yielding:
  call i32 %give_way()
  br label %again
again:
  %next = add i64 %turn, 1
  br label %look
done:
  ret void
}}

define internal void @alphac_await_others(ptr %table, i64 %thread, i64 %threads, i64 %goal) noinline {{
entry:
  %place = getelementptr i64, ptr %table, i64 5
  %lines = load ptr, ptr %place
  %yields = getelementptr i64, ptr %table, i64 6
  %give_way = load ptr, ptr %yields
  br label %each
each:
  %other = phi i64 [ 0, %entry ], [ %next, %met ]
  %own = icmp eq i64 %other, %thread
  br i1 %own, label %met, label %wait
wait:
  %offset = shl i64 %other, 6
  %line = getelementptr i8, ptr %lines, i64 %offset
  call void @alphac_wait(ptr %line, i64 %goal, ptr %give_way)
  br label %met
met:
  %next = add i64 %other, 1
  %all = icmp eq i64 %next, %threads
  br i1 %all, label %done, label %each
done:
  ret void
}}

define internal ptr @alphac_line(ptr %table, i64 %thread) {{
  %place = getelementptr i64, ptr %table, i64 5
  %lines = load ptr, ptr %place
  %offset = shl i64 %thread, 6
  %line = getelementptr i8, ptr %lines, i64 %offset
  ret ptr %line
}}

define internal void @alphac_barrier(ptr %table, i64 %thread, i64 %threads) noinline {{
  %line = call ptr @alphac_line(ptr %table, i64 %thread)
  %before = load atomic i64, ptr %line monotonic, align 8
  %goal = add i64 %before, 1
  store atomic i64 %goal, ptr %line release, align 8
  call void @alphac_await_others(ptr %table, i64 %thread, i64 %threads, i64 %goal)
  ret void
}}

define i64 @team_worker(ptr %team, i64 %thread) {{
entry:
  %function_at = getelementptr i8, ptr %team, i64 64
  %table_at = getelementptr i8, ptr %team, i64 72
  %threads_at = getelementptr i8, ptr %team, i64 80
  %finished = getelementptr i8, ptr %team, i64 128
  %stop = getelementptr i8, ptr %team, i64 192
  %yield_at = getelementptr i8, ptr %team, i64 256
  %sleep_at = getelementptr i8, ptr %team, i64 264
  %give_way = load ptr, ptr %yield_at
  %sleep = load ptr, ptr %sleep_at
  br label %serve
serve:
  %seen = phi i64 [ 0, %entry ], [ %now, %run ]
  br label %look
look:
  %turn = phi i64 [ 0, %serve ], [ %next, %again ]
  %now = load atomic i64, ptr %team acquire, align 8
  %called = icmp ne i64 %now, %seen
  br i1 %called, label %run, label %idle
idle:
  %stopping = load atomic i64, ptr %stop acquire, align 8
  %stopped = icmp ne i64 %stopping, 0
  br i1 %stopped, label %leave, label %patient
patient:
  %early = icmp ult i64 %turn, 500
  br i1 %early, label %pausing, label %tired
pausing:
  call void @{pause}({pause_arguments})
  br label %again
tired:
  %soon = icmp ult i64 %turn, 700
  br i1 %soon, label %yielding, label %sleeping
yielding:
  call i32 %give_way()
  br label %again
sleeping:
  call i32 %sleep(i32 50)
  br label %again
again:
  %next = add i64 %turn, 1
  br label %look
run:
  %function = load ptr, ptr %function_at
  %table = load ptr, ptr %table_at
  %threads = load i64, ptr %threads_at
  call i64 %function(ptr %table, i64 %thread, i64 %threads)
  atomicrmw add ptr %finished, i64 1 acq_rel
  br label %serve
leave:
  ret i64 0
}}

define i64 @team_run(ptr %team, i64 %address, ptr %table, i64 %threads) {{
entry:
  %function_at = getelementptr i8, ptr %team, i64 64
  %table_at = getelementptr i8, ptr %team, i64 72
  %threads_at = getelementptr i8, ptr %team, i64 80
  %finished = getelementptr i8, ptr %team, i64 128
  %yield_at = getelementptr i8, ptr %team, i64 256
  %result_at = getelementptr i8, ptr %team, i64 320
  %function = inttoptr i64 %address to ptr
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %together, label %alone
together:
  store ptr %function, ptr %function_at
  store ptr %table, ptr %table_at
  store i64 %threads, ptr %threads_at
  store atomic i64 0, ptr %finished monotonic, align 8
  %generation = load atomic i64, ptr %team monotonic, align 8
  %following = add i64 %generation, 1
  store atomic i64 %following, ptr %team release, align 8
  %shared = call i64 %function(ptr %table, i64 0, i64 %threads)
  %workers = sub i64 %threads, 1
  %give_way = load ptr, ptr %yield_at
  call void @alphac_wait(ptr %finished, i64 %workers, ptr %give_way)
  br label %done
alone:
  %own = call i64 %function(ptr %table, i64 0, i64 1)
  br label %done
done:
  %result = phi i64 [ %shared, %together ], [ %own, %alone ]
  store i64 %result, ptr %result_at
  ret i64 %result
}}
"""


def support(target: Target) -> str:
    """The barrier, `team_worker`, `team_run` and bursts. With 1 thread `team_run` works alone; otherwise every worker
    takes part, of which there must be `threads` - 1."""
    name, arguments = target.pause
    values = ", ".join(f"i32 {a}" for a in arguments)
    types = ", ".join("i32" for _ in arguments)
    return _TEAM.format(pause=name, pause_types=types, pause_arguments=values) + BURST
