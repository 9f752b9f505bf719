# One image for worker and gateway; the command selects one: `worker` or `api`.

FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE cli.py worker.py ./
COPY activities activities
COPY api api
COPY clients clients
COPY features features
COPY models models
COPY ops ops
COPY stores stores
COPY testing testing
COPY turnkeeper turnkeeper
COPY workflows workflows
RUN python -m venv /opt/turnkeeper \
    && /opt/turnkeeper/bin/pip install --no-cache-dir --constraint constraints.txt \
        '.[anthropic,openai,postgres,prices,redis,server,worker]'

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home turnkeeper \
    && install --directory --owner turnkeeper /workspace /var/lib/turnkeeper
COPY --from=build /opt/turnkeeper /opt/turnkeeper
ENV PATH=/opt/turnkeeper/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TURNKEEPER_LOG_FORMAT=json \
    TURNKEEPER_STATE_DIR=/var/lib/turnkeeper \
    TURNKEEPER_WORKSPACE_ROOT=/workspace
USER turnkeeper
WORKDIR /workspace
ENTRYPOINT ["turnkeeper"]
CMD ["--help"]
