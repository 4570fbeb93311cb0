"""alphac.runtime: see docs/architecture.md."""

if __name__ != "alphac.runtime":
    raise ImportError(f"import this package as `alphac.runtime`, not `{__name__}`")
