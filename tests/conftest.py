"""What all tests share. Fast tests need nothing of it; the real Temporal server is started once, when first asked for."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "turnkeeper",
    deadline=None,  # a loaded machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("turnkeeper")
