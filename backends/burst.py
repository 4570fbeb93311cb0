"""Bursts: many steps of a role that owns all shards in one native call, and the feeding of a single one.

    alphac_burst    per step: point the columns at its batch, copy what must be, run the segment, keep its scalars
    alphac_load     the first batch only, for a role whose steps are cut by exchanges

LLVM IR as text, one copy in every object. Both have a segment's signature, so that a team runs them. A batch whose
rows lie side by side in the file is not copied: the table's entry of its buffer points there. What is copied is shared
among the threads row by row. docs/architecture.md, "Native interface", says what the burst holds.
"""

from __future__ import annotations

# A copy goes by 64 bytes, then by 16, then one by one. Vectors of 16 bytes are what every target has.
BURST = """
define internal void @alphac_copy(ptr %to, ptr %from, i64 %bytes) {
entry:
  %large = and i64 %bytes, -64
  %medium = and i64 %bytes, -16
  br label %large_test
large_test:
  %i = phi i64 [ 0, %entry ], [ %i_next, %large_turn ]
  %i_more = icmp ult i64 %i, %large
  br i1 %i_more, label %large_turn, label %medium_test
large_turn:
  %from0 = getelementptr i8, ptr %from, i64 %i
  %from1 = getelementptr i8, ptr %from0, i64 16
  %from2 = getelementptr i8, ptr %from0, i64 32
  %from3 = getelementptr i8, ptr %from0, i64 48
  %to0 = getelementptr i8, ptr %to, i64 %i
  %to1 = getelementptr i8, ptr %to0, i64 16
  %to2 = getelementptr i8, ptr %to0, i64 32
  %to3 = getelementptr i8, ptr %to0, i64 48
  %x0 = load <16 x i8>, ptr %from0, align 1
  %x1 = load <16 x i8>, ptr %from1, align 1
  %x2 = load <16 x i8>, ptr %from2, align 1
  %x3 = load <16 x i8>, ptr %from3, align 1
  store <16 x i8> %x0, ptr %to0, align 1
  store <16 x i8> %x1, ptr %to1, align 1
  store <16 x i8> %x2, ptr %to2, align 1
  store <16 x i8> %x3, ptr %to3, align 1
  %i_next = add i64 %i, 64
  br label %large_test
medium_test:
  %j = phi i64 [ %large, %large_test ], [ %j_next, %medium_turn ]
  %j_more = icmp ult i64 %j, %medium
  br i1 %j_more, label %medium_turn, label %small_test
medium_turn:
  %from_j = getelementptr i8, ptr %from, i64 %j
  %to_j = getelementptr i8, ptr %to, i64 %j
  %x_j = load <16 x i8>, ptr %from_j, align 1
  store <16 x i8> %x_j, ptr %to_j, align 1
  %j_next = add i64 %j, 16
  br label %medium_test
small_test:
  %k = phi i64 [ %medium, %medium_test ], [ %k_next, %small_turn ]
  %k_more = icmp ult i64 %k, %bytes
  br i1 %k_more, label %small_turn, label %done
small_turn:
  %from_k = getelementptr i8, ptr %from, i64 %k
  %to_k = getelementptr i8, ptr %to, i64 %k
  %x_k = load i8, ptr %from_k, align 1
  store i8 %x_k, ptr %to_k, align 1
  %k_next = add i64 %k, 1
  br label %small_test
done:
  ret void
}

; Point every column's entry of the table at the batch of the burst's step %k, and say which step it is.
define internal void @alphac_aim(ptr %burst, i64 %k) {
entry:
  %count_at = getelementptr i64, ptr %burst, i64 4
  %count = load i64, ptr %count_at
  %columns_at = getelementptr i64, ptr %burst, i64 5
  %columns = load ptr, ptr %columns_at
  %begin_at = getelementptr i64, ptr %burst, i64 9
  %begin = load i64, ptr %begin_at
  %number_at = getelementptr i64, ptr %burst, i64 10
  %number = load ptr, ptr %number_at
  %step = add i64 %begin, %k
  store i64 %step, ptr %number
  br label %test
test:
  %c = phi i64 [ 0, %entry ], [ %next, %aimed ]
  %more = icmp ult i64 %c, %count
  br i1 %more, label %turn, label %done
turn:
  %offset = shl i64 %c, 3
  %column = getelementptr i64, ptr %columns, i64 %offset
  %entry_at = getelementptr i64, ptr %column, i64 3
  %table_entry = load ptr, ptr %entry_at
  %copied_at = getelementptr i64, ptr %column, i64 6
  %copied = load i64, ptr %copied_at
  %copies = icmp ne i64 %copied, 0
  br i1 %copies, label %buffer, label %direct
buffer:
  %own_at = getelementptr i64, ptr %column, i64 4
  %own = load i64, ptr %own_at
  store i64 %own, ptr %table_entry
  br label %aimed
direct:
  %source = load i64, ptr %column
  %pitch_at = getelementptr i64, ptr %column, i64 1
  %pitch = load i64, ptr %pitch_at
  %firsts_at = getelementptr i64, ptr %column, i64 5
  %firsts = load ptr, ptr %firsts_at
  %first_at = getelementptr i64, ptr %firsts, i64 %k
  %first = load i64, ptr %first_at
  %distance = mul i64 %first, %pitch
  %address = add i64 %source, %distance
  store i64 %address, ptr %table_entry
  br label %aimed
aimed:
  %next = add i64 %c, 1
  br label %test
done:
  ret void
}

; Copy this thread's rows of the batch of step %k.
define internal void @alphac_feed(ptr %burst, i64 %k, i64 %thread, i64 %threads) {
entry:
  %count_at = getelementptr i64, ptr %burst, i64 4
  %count = load i64, ptr %count_at
  %columns_at = getelementptr i64, ptr %burst, i64 5
  %columns = load ptr, ptr %columns_at
  %size_at = getelementptr i64, ptr %burst, i64 11
  %size = load i64, ptr %size_at
  %rows_at = getelementptr i64, ptr %burst, i64 12
  %rows = load ptr, ptr %rows_at
  %scattered = icmp ne ptr %rows, null
  %before = mul i64 %k, %size
  %low_work = mul i64 %size, %thread
  %low = udiv i64 %low_work, %threads
  %behind = add i64 %thread, 1
  %high_work = mul i64 %size, %behind
  %high = udiv i64 %high_work, %threads
  br label %test
test:
  %c = phi i64 [ 0, %entry ], [ %next, %fed ]
  %more = icmp ult i64 %c, %count
  br i1 %more, label %turn, label %done
turn:
  %offset = shl i64 %c, 3
  %column = getelementptr i64, ptr %columns, i64 %offset
  %copied_at = getelementptr i64, ptr %column, i64 6
  %copied = load i64, ptr %copied_at
  %copies = icmp ne i64 %copied, 0
  br i1 %copies, label %copying, label %fed
copying:
  %source = load ptr, ptr %column
  %pitch_at = getelementptr i64, ptr %column, i64 1
  %pitch = load i64, ptr %pitch_at
  %bytes_at = getelementptr i64, ptr %column, i64 2
  %bytes = load i64, ptr %bytes_at
  %buffer_at = getelementptr i64, ptr %column, i64 4
  %buffer = load ptr, ptr %buffer_at
  %firsts_at = getelementptr i64, ptr %column, i64 5
  %firsts = load ptr, ptr %firsts_at
  %first_at = getelementptr i64, ptr %firsts, i64 %k
  br label %row_test
row_test:
  %r = phi i64 [ %low, %copying ], [ %r_next, %row_copy ]
  %r_more = icmp ult i64 %r, %high
  br i1 %r_more, label %row_turn, label %fed
row_turn:
  br i1 %scattered, label %row_listed, label %row_run
row_listed:
  %listed_place = add i64 %before, %r
  %listed_at = getelementptr i64, ptr %rows, i64 %listed_place
  %listed = load i64, ptr %listed_at
  br label %row_copy
row_run:
  %first = load i64, ptr %first_at
  %running = add i64 %first, %r
  br label %row_copy
row_copy:
  %row = phi i64 [ %listed, %row_listed ], [ %running, %row_run ]
  %from_offset = mul i64 %row, %pitch
  %from = getelementptr i8, ptr %source, i64 %from_offset
  %to_offset = mul i64 %r, %bytes
  %to = getelementptr i8, ptr %buffer, i64 %to_offset
  call void @alphac_copy(ptr %to, ptr %from, i64 %bytes)
  %r_next = add i64 %r, 1
  br label %row_test
fed:
  %next = add i64 %c, 1
  br label %test
done:
  ret void
}

; Keep the scalars of step %k: 8 bytes each in the trace.
define internal void @alphac_keep(ptr %burst, i64 %k) {
entry:
  %count_at = getelementptr i64, ptr %burst, i64 6
  %count = load i64, ptr %count_at
  %scalars_at = getelementptr i64, ptr %burst, i64 7
  %scalars = load ptr, ptr %scalars_at
  %trace_at = getelementptr i64, ptr %burst, i64 8
  %trace = load ptr, ptr %trace_at
  %before = mul i64 %k, %count
  br label %test
test:
  %s = phi i64 [ 0, %entry ], [ %next, %turn ]
  %more = icmp ult i64 %s, %count
  br i1 %more, label %turn, label %done
turn:
  %offset = shl i64 %s, 1
  %scalar = getelementptr i64, ptr %scalars, i64 %offset
  %from = load ptr, ptr %scalar
  %bytes_at = getelementptr i64, ptr %scalar, i64 1
  %bytes = load i64, ptr %bytes_at
  %place = add i64 %before, %s
  %to = getelementptr i64, ptr %trace, i64 %place
  call void @alphac_copy(ptr %to, ptr %from, i64 %bytes)
  %next = add i64 %s, 1
  br label %test
done:
  ret void
}

define i64 @alphac_load(ptr %burst, i64 %thread, i64 %threads) {
entry:
  %leads = icmp eq i64 %thread, 0
  br i1 %leads, label %aim, label %feed
aim:
  call void @alphac_aim(ptr %burst, i64 0)
  br label %feed
feed:
  call void @alphac_feed(ptr %burst, i64 0, i64 %thread, i64 %threads)
  ret i64 0
}

; Between two steps thread 0 comes to the meeting last: what it does before that, the others see and wait for.
define i64 @alphac_burst(ptr %burst, i64 %thread, i64 %threads) {
entry:
  %function = load ptr, ptr %burst
  %table_at = getelementptr i64, ptr %burst, i64 1
  %table = load ptr, ptr %table_at
  %steps_at = getelementptr i64, ptr %burst, i64 2
  %steps = load i64, ptr %steps_at
  %done_at = getelementptr i64, ptr %burst, i64 3
  %copies_at = getelementptr i64, ptr %burst, i64 13
  %copied = load i64, ptr %copies_at
  %copies = icmp ne i64 %copied, 0
  %leads = icmp eq i64 %thread, 0
  %several = icmp ugt i64 %threads, 1
  br label %begin
begin:
  %k = phi i64 [ 0, %entry ], [ %following, %met ]
  %finished = phi i1 [ false, %entry ], [ %over, %met ]
  br i1 %leads, label %others, label %meet
others:
  br i1 %several, label %gather, label %lead
gather:
  %line = call ptr @alphac_line(ptr %table, i64 0)
  %meetings = load atomic i64, ptr %line monotonic, align 8
  %goal = add i64 %meetings, 1
  call void @alphac_await_others(ptr %table, i64 0, i64 %threads, i64 %goal)
  br label %lead
lead:
  %any = icmp ne i64 %k, 0
  br i1 %any, label %keep, label %kept
keep:
  %last = sub i64 %k, 1
  call void @alphac_keep(ptr %burst, i64 %last)
  store i64 %k, ptr %done_at
  br label %kept
kept:
  br i1 %finished, label %release, label %aim
aim:
  call void @alphac_aim(ptr %burst, i64 %k)
  br label %release
release:
  br i1 %several, label %open, label %go
open:
  %opened = call ptr @alphac_line(ptr %table, i64 0)
  %met_before = load atomic i64, ptr %opened monotonic, align 8
  %met_now = add i64 %met_before, 1
  store atomic i64 %met_now, ptr %opened release, align 8
  br label %go
meet:
  call void @alphac_barrier(ptr %table, i64 %thread, i64 %threads)
  br label %go
go:
  br i1 %finished, label %done, label %work
work:
  br i1 %copies, label %feed, label %fed
feed:
  call void @alphac_feed(ptr %burst, i64 %k, i64 %thread, i64 %threads)
  br i1 %several, label %together, label %fed
together:
  call void @alphac_barrier(ptr %table, i64 %thread, i64 %threads)
  br label %fed
fed:
  %guard = call i64 %function(ptr %table, i64 %thread, i64 %threads)
  %stopped = icmp ne i64 %guard, 0
  br i1 %stopped, label %done, label %met
met:
  %following = add i64 %k, 1
  %over = icmp eq i64 %following, %steps
  br label %begin
done:
  %result = phi i64 [ 0, %go ], [ %guard, %fed ]
  ret i64 %result
}
"""
