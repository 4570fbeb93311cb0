"""alphac.ir: see docs/architecture.md."""

if __name__ != "alphac.ir":
    raise ImportError(f"import this package as `alphac.ir`, not `{__name__}`")
