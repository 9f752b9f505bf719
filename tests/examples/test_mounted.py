"""A gateway in somebody's own application: its login counts, and its prefix (AGN-5)."""

from pathlib import Path

from httpx import ASGITransport, AsyncClient
from temporalio.client import Client

from tests.examples.test_examples import load
from tests.harness import environment, patient
from tests.waiting import until
from turnkeeper import create_app
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import InProcessCarrier


async def test_agn_5_a_mounted_gateway_has_the_users_of_its_host(temporal: Client, tmp_path: Path, monkeypatch) -> None:
    example = load("mounted")
    async with environment(temporal, partials=InProcessCarrier()) as env:
        settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir)

        def build(settings: Settings, **options):
            return create_app(settings, client=temporal, partials=env.partials, timeouts=patient(), **options)

        monkeypatch.setattr(example, "create_app", build)
        app = example.build(settings)
        async with app.router.lifespan_context(app):
            anna, ben, nobody = (
                AsyncClient(transport=ASGITransport(app=app), base_url="http://localhost") for _ in range(3)
            )
            for client, name in ((anna, "anna"), (ben, "ben")):
                client.cookies = (await client.post(f"/login/{name}")).cookies
            assert (await nobody.post("/agents/workflow", json={})).status_code == 401
            behind = {"x-forwarded-for": "192.0.2.1"}
            started = await anna.post("/agents/workflow", json={"id": tmp_path.name, "prompt": "hi"}, headers=behind)
            assert started.status_code == 201, started.text
            session = f"/agents/workflow/{tmp_path.name}"

            async def answer() -> str | None:
                turns = (await anna.get(f"{session}/conversation/full")).json()["messages"]
                return turns[0]["agent_message"] if turns else None

            assert await until(answer) == "echo: hi"
            assert (await anna.get(session)).json()["user"] == "anna"
            assert (await ben.get(session)).status_code == 404
            assert (await anna.delete(session)).status_code == 403
