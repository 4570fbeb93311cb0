"""What all GPUs have in common: kernels written for one thread of a grid (blocks of `THREADS` threads that share fast
memory and meet at barriers), and the list of launches that a segment becomes. A target, such as `alphac.backends.cuda`,
says what a thread's number, a barrier and shared memory are in its own LLVM IR."""

THREADS = 256  # of a block
