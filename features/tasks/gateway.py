"""What tasks add to the gateway."""

from collections.abc import Iterable

from turnkeeper.api.gateway_feature import GatewayFeature
from turnkeeper.api.services import Services
from turnkeeper.features.listing.lists import SessionLists
from turnkeeper.features.tasks.api.routes import router
from turnkeeper.features.tasks.api.task_reader import TaskReader
from turnkeeper.features.tasks.api.tasks import Tasks


class _Tasks(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        reader = TaskReader(services.settings, services.reader, services.texts, services.approvals, services.closing)
        yield Tasks(
            services.settings,
            services.reader,
            services.sessions,
            services.new_sessions,
            services.sender,
            services.transcripts,
            services.stores,
            services.get(SessionLists),
            reader,
        )


GATEWAY = _Tasks()
