# syntax=docker/dockerfile:1
# refold and all that a deployment of it needs, the native kernel too. To build: docker build -t refold:0.1.0 .
# What the containers of helm/refold run: no shell, no root, nothing written but /data and /tmp.

# Its cargo builds the native kernel; Debian's is too old.
FROM rust:1.88-slim-bookworm AS rust


FROM python:3.12-slim-bookworm AS build

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH

WORKDIR /build
COPY kernel kernel
RUN pip wheel --no-deps --wheel-dir /wheels ./kernel

COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
COPY avro avro
COPY reducers reducers
COPY streams streams
COPY agents agents
COPY sinks sinks
COPY explorer explorer

RUN pip wheel --no-deps --wheel-dir /wheels .

# The extras of pyproject.toml that are in the image.
ARG EXTRAS=kafka,registry,postgres,parquet,s3,otlp
RUN python -m venv /opt/refold \
    && wheel="$(echo /wheels/refold-*.whl)" \
    && /opt/refold/bin/pip install "${wheel}[${EXTRAS}]" /wheels/refold_kernel-*.whl \
    && /opt/refold/bin/refold --version


FROM python:3.12-slim-bookworm

ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="refold" \
      org.opencontainers.image.description="Replayable state of agents on Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"

# A worker's threads allocate and free for each other, which jemalloc does with a fifth less of the processor's time than
# glibc (docs/OPERATIONS.md, Scale).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libjemalloc2 \
    && rm -rf /var/lib/apt/lists/*
ENV LD_PRELOAD=libjemalloc.so.2

RUN groupadd --gid 10001 refold \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin refold \
    && install --directory --owner 10001 --group 10001 /data
COPY --from=build /opt/refold /opt/refold

# Nobody's working folder is on sys.path; bytecode was compiled there, and the root is read-only.
ENV PATH=/opt/refold/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# By number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["refold"]
CMD ["--help"]
