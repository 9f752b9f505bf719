"""`turnkeeper demo`: plays a scenario with crashes on its own stack and checks every promise (OPS-3).

Its modules; each imports only those above it:

    promises      a session's log, and the promises that it must keep
    report        the output
    environment   the processes
    observer      a client that watches the session
    scenario      the steps
    run           runs the demo in a temporary folder and returns the exit code
"""
