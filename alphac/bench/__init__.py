"""`alphac bench`: how fast a bundle is, where its time goes, and how others do on the same work.

command.py      the whole of it, read top to bottom
contest.py      processes that take turns: ours, and a peer's per variant      worker.py  what runs in each of them
ours.py torch_peer.py jax_peer.py   how each of them trains                    peers.py   a peer's file, found by name
startup.py      compile time and cold start      machine.py   which machine this is
roofline.py     what it can do                   costs.py     flops and bytes of a schedule
kernels.py      time per kernel                  profile.py   all of that together
report.py       what was measured, as data       table.py plot.py   for people

Modules that a measured process loads (worker, ours, peers and the peers' own) import no compiler: its memory would be
taken for theirs.
"""
