"""alphac.backends: see docs/architecture.md."""

if __name__ != "alphac.backends":
    raise ImportError("import this package as `alphac.backends`, not `{}`".format(__name__))
