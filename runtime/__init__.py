"""alphac.runtime: see docs/architecture.md."""

if __name__ != "alphac.runtime":
    raise ImportError("import this package as `alphac.runtime`, not `{}`".format(__name__))
