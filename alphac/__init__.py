"""alphac: compiles a description of a learning system into one executable per role. See docs/architecture.md."""
