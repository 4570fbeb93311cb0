"""alphac.ir: see docs/architecture.md."""

if __name__ != "alphac.ir":
    raise ImportError("import this package as `alphac.ir`, not `{}`".format(__name__))
