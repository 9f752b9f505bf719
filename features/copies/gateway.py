"""What copies add to the gateway."""

from collections.abc import Iterable

from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.copies.copying import SessionCopier
from turnkeeper.features.copies.exporting import SessionExporter
from turnkeeper.features.copies.routes import router


class _Copies(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        exporter = SessionExporter(services.settings, services.reader, services.stores)
        yield exporter
        yield SessionCopier(
            services.settings, services.reader, services.sessions, services.transcripts, exporter, services.stores
        )


GATEWAY = _Copies()
