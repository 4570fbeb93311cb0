"""GPU kernels as text in a language like C: `printer.py` reads the kernels' dialect, as translate.py does, and writes
functions; `forms.py` says what each intrinsic becomes, `language.py` in what OpenCL C and Metal differ.

Whatever compiles the text must round every operation, contract none, and keep subnormal numbers: a target that uses
this says how it asks for that."""
