"""A terminal that controls a process."""

import fcntl
import signal
import termios


def take_terminal() -> None:
    """Make standard input the controlling terminal of this process, which leads its session, and hear its Ctrl-C.

    A shell has the jobs in its background ignore Ctrl-C, and all that they start inherits this: a test run may be one.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
