# Images of Ballast. Targets: runtime (the inference server), operator, sbom (what both hold, as files). `make image` and
# `make sbom` build them with docker, podman or buildah.
#
# The kernels choose their instruction set at run time: one image for every x86-64 host.
#
# BASE_IMAGE    Debian 12 or newer, with python3 of its own or none; pin it by digest where images are released:
#               docker.io/library/debian@sha256:...
# REQUIREMENTS  what the runtime installs: requirements/runtime.txt; requirements/cpu.txt without CUDA's libraries;
#               requirements/cuda.txt with flashinfer too, and the compilers for its kernels
# VERSION, REVISION         for the images' labels
# PIP_CERT, PIP_INDEX_URL   for builds behind a proxy with its own authority or a mirror of the package index
ARG BASE_IMAGE=docker.io/library/debian:12-slim

FROM ${BASE_IMAGE} AS base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 ca-certificates \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old \
 && useradd --uid 10001 --user-group --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ballast
ENV PATH=/opt/ballast/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM base AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
ARG PIP_CERT
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/ballast
WORKDIR /src

FROM build AS wheel
COPY requirements/wheel.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --require-hashes -r requirements/wheel.txt
COPY pyproject.toml README.md ./
COPY csrc csrc
COPY runtime runtime
COPY operator operator
RUN PATH=/opt/tools/bin:$PATH /opt/tools/bin/pip wheel --quiet --no-build-isolation --no-deps --no-index \
    --wheel-dir /wheels .

FROM build AS dependencies
ARG REQUIREMENTS=requirements/runtime.txt
COPY requirements requirements
COPY tools/image tools/image
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ballast/bin/pip install --quiet --require-hashes --no-deps --no-compile -r "$REQUIREMENTS" \
 && python3 tools/image/trim.py /opt/ballast \
 && python3 tools/image/compile.py /opt/ballast/lib

FROM dependencies AS runtime-files
COPY --from=wheel /wheels /wheels
RUN /opt/ballast/bin/pip install --quiet --no-deps --no-index --no-compile /wheels/*.whl \
 && rm -rf /opt/ballast/lib/python3*/site-packages/ballast_operator \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/ballast/lib/python3*/site-packages/ballast \
 && /opt/ballast/bin/pip uninstall --quiet --yes pip setuptools \
 && python3 tools/image/isolate.py /opt/ballast/bin

FROM build AS operator-files
COPY requirements requirements
COPY tools/image tools/image
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ballast/bin/pip install --quiet --require-hashes --no-deps --no-compile -r requirements/operator.txt \
 && /opt/ballast/bin/pip uninstall --quiet --yes pip setuptools
# The generated client of every Kubernetes API is half of the image: it is kept compiled only, without docstrings.
RUN cd /opt/ballast/lib/python3*/site-packages/kubernetes \
 && python3 -m compileall -q -b -o 2 --invalidation-mode unchecked-hash . \
 && find . '(' -name '*.py' -o -path '*/__pycache__/*' ')' -delete
COPY operator/ballast_operator /opt/ballast/packages/ballast_operator
RUN echo /opt/ballast/packages > "$(echo /opt/ballast/lib/python3*/site-packages)/ballast_operator.pth" \
 && printf '#!/bin/sh\nexec /opt/ballast/bin/python3 -IBu -m ballast_operator "$@"\n' > /opt/ballast/bin/ballast-operator \
 && chmod 755 /opt/ballast/bin/ballast-operator \
 && python3 tools/image/compile.py /opt/ballast/lib \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/ballast/packages

FROM base AS operator
COPY --from=operator-files /opt/ballast /opt/ballast
USER 10001:10001
ENTRYPOINT ["ballast-operator"]
CMD ["run"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Ballast operator" \
      org.opencontainers.image.description="Turns InferenceServices into pods, and says what is true of them." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM base AS runtime
# With torch: Triton compiles its link to the GPU's driver when it starts; with flashinfer: its kernels, once.
ARG REQUIREMENTS=requirements/runtime.txt
RUN case "$REQUIREMENTS" in \
      requirements/cpu.txt) exit ;; \
      requirements/cuda.txt) compiler=g++ ;; \
      *) compiler=gcc ;; \
    esac \
 && apt-get update \
 && apt-get install --yes --no-install-recommends "$compiler" libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*
COPY --from=runtime-files /opt/ballast /opt/ballast
USER 10001:10001
EXPOSE 10002 10003
ENTRYPOINT ["ballast"]
CMD ["serve", "--host", "0.0.0.0"]
# Last, so that a new revision does not write the layers above anew.
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Ballast runtime" \
      org.opencontainers.image.description="Serves mixture-of-experts models behind an OpenAI endpoint." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM operator AS operator-contents
ARG VERSION=unknown
USER root
COPY tools/image/sbom.py /tmp/sbom.py
RUN python3 /tmp/sbom.py ballast-operator "$VERSION" /opt/ballast > /sbom.json

FROM runtime AS runtime-contents
ARG VERSION=unknown
USER root
COPY tools/image/sbom.py /tmp/sbom.py
RUN python3 /tmp/sbom.py ballast-runtime "$VERSION" /opt/ballast > /sbom.json

FROM scratch AS sbom
COPY --from=operator-contents /sbom.json /ballast-operator.cdx.json
COPY --from=runtime-contents /sbom.json /ballast-runtime.cdx.json
