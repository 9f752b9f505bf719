"""`turnkeeper demo`: plays a scenario with crashes on its own stack and checks every promise (OPS-3)."""
