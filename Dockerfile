ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
# The version that uv.lock holds.
ARG UV_VERSION=0.13.9
ENV UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir "uv==${UV_VERSION}"
WORKDIR /srv/caseworker
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY clients/python clients/python
COPY app/caseworker_cases/pyproject.toml app/caseworker_cases/
# The database is a service of its own here, so the extra with one stays out.
ARG EXTRAS="--extra cases --extra otel"
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-dev ${EXTRAS} --no-install-workspace
COPY app app
COPY docs/extending.md docs/extending.md
COPY migrations migrations
# Editable packages would not be compiled, and the user of the image cannot write bytecode.
# Without the refresh, the cache returns packages of an earlier source with the same version.
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-dev --no-editable --refresh-package caseworker \
    --refresh-package caseworker-cases ${EXTRAS}

FROM python:${PYTHON_VERSION}-slim
# --build-arg REVISION=$(git rev-parse HEAD) --build-arg SOURCE=URL say where the image comes from.
ARG VERSION=0.2.0
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="caseworker" \
    org.opencontainers.image.description="Runs agents for other services inside hard budgets, stoppable at any moment, with a trace of every call." \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --home-dir /tmp --shell /usr/sbin/nologin caseworker
COPY --from=build /srv/caseworker/.venv /srv/caseworker/.venv
WORKDIR /srv/caseworker
ENV PATH=/srv/caseworker/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SERVER_HOST=0.0.0.0
# By number, so that Kubernetes can check runAsNonRoot.
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client, os; port = os.environ.get('CASEWORKER_SERVER_PORT') or os.environ.get('SERVER_PORT') or '8080'; ask = http.client.HTTPConnection('127.0.0.1', int(port), timeout=2); ask.request('GET', '/readyz'); raise SystemExit(ask.getresponse().status != 200)"]
# The exec form: SIGTERM reaches the service itself, which then hands its runs over.
ENTRYPOINT ["caseworker"]
CMD ["serve"]
