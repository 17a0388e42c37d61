# syntax=docker/dockerfile:1
# Sojourn with what a node in a cluster needs: metrics and encryption, no server, no compiler, no pip cache.
# Your app is an image of its own on top of this one: examples/Dockerfile.
#
# The base is named by version here; pin it by digest in your registry: make image IMAGE_BASE=python@sha256:...
ARG BASE=docker.io/library/python:3.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# First the dependencies, each with its hash, so that a change of the code leaves this layer as it is.
COPY requirements/image.lock requirements/
RUN python3 -m venv /opt/sojourn \
    && /opt/sojourn/bin/pip install --no-cache-dir --require-hashes --requirement requirements/image.lock
COPY pyproject.toml README.md LICENSE ./
COPY codecs/ codecs/
COPY broker/ broker/
COPY actors/ actors/
COPY cluster/ cluster/
COPY sojourn/ sojourn/
COPY examples/ examples/
RUN /opt/sojourn/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/sojourn/bin/python -m compileall -q /opt/sojourn/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="sojourn" \
      org.opencontainers.image.description="Durable workflows that store the suspended coroutine, on NATS JetStream" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/sojourn /opt/sojourn
ENV PATH=/opt/sojourn/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
# A number, since runAsNonRoot cannot judge a name. No home and nothing of its own on the disk: it writes to /tmp alone.
USER 10001:10001
# `sojourn node` is process 1: it handles SIGTERM (drain) and a second one (leave at once) itself, and starts no children.
STOPSIGNAL SIGTERM
ENTRYPOINT ["sojourn"]
CMD ["--help"]
