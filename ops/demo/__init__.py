"""`turnkeeper demo`: a scenario with crashes, played on a stack of its own, and a check of every promise (OPS-3).

Its modules, each of which only knows those above it:

    promises      the log of a session, and which promises it breaks
    report        what people see
    environment   the processes, and how they are killed
    observer      the client that watches
    scenario      what is played, step by step
    run           the demo from start to end: temporary folder, scenario, promises, exit code
"""
