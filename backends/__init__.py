"""alphac.backends: see docs/architecture.md."""

if __name__ != "alphac.backends":
    raise ImportError(f"import this package as `alphac.backends`, not `{__name__}`")
