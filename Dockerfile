# The agent or the search server, as docs/deploy.md says. No torch unless EXTRAS asks for it.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG EXTRAS=serve,mcp
# llama.cpp's threads, for EXTRAS with `llama`.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /constraints.txt
COPY --from=build /wheels /wheels
# The wheel by its path: nothing of that name is looked for in an index.
RUN pip install --no-cache-dir --constraint /constraints.txt "$(echo /wheels/*.whl)[${EXTRAS}]" \
    && rm -r /wheels /constraints.txt \
    && useradd --create-home --uid 10001 agent \
    && install --directory --owner agent /data /kept
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PARALLELSEARCH_CACHE=/kept/cache
USER 10001
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["parallelsearch"]
CMD ["serve", "agent", "--host", "0.0.0.0", "--port", "8080"]
