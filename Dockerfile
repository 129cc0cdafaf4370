# One image for the service, the pipeline and Spark's workers: the same Python, packages and Spark
# on driver and executors. Versions are those of the lock file, with their hashes.
FROM python:3.11-slim-bookworm

ARG UV_VERSION=0.13.8

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 penstock \
    && install --directory --owner=penstock /lake /workspace /workspace/.penstock /opt/penstock

COPY --chown=penstock . /opt/penstock
RUN pip install --no-cache-dir "uv==${UV_VERSION}" \
    && uv pip install --system --no-cache --verify-hashes \
        --constraint /opt/penstock/requirements.lock --editable /opt/penstock

ENV PENSTOCK_WORKSPACE=/workspace \
    PENSTOCK_CACHE=/opt/penstock-cache \
    PYTHONUNBUFFERED=1
# Spark's connectors for Kafka, Delta and S3, by the same lock and checksums as the local stack.
RUN python -c "from stack.jars import resolve; resolve('spark', 's3')" \
    && chown --recursive penstock /opt/penstock-cache

USER penstock
WORKDIR /workspace
EXPOSE 7070 7071
ENTRYPOINT ["/opt/penstock/deploy/entrypoint.sh"]
CMD ["python", "-m", "apps.service"]
