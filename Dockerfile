# docker build --tag glassgpt .
# docker run --rm -it --volume "$PWD:/work" --user "$(id -u):$(id -g)" glassgpt train my.txt
# docker run --rm -it --volume "$PWD:/work" --publish 127.0.0.1:8000:8000 glassgpt serve --host 0.0.0.0
# On an ARM machine, build and run with --platform linux/amd64: wheels are built on x86-64.
# Runs, corpora and texts are in the folder that is mounted as /work. --build-arg TORCH=cu130, or another that uv knows
# as --torch-backend, makes an image for GPUs.

FROM python:3.13.14-slim-trixie@sha256:6771159cd4fa5d9bba1258caf0b82e6b73458c694d178ad97c5e925c2d0e1a91 AS packages
ARG TORCH=cpu
RUN pip install --no-cache-dir --root-user-action ignore uv==0.13.9
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN uv pip install --system --no-cache --torch-backend "$TORCH" -c constraints.txt torch
RUN uv pip install --system --no-cache -c constraints.txt -r pyproject.toml --extra serve --extra plot

FROM packages AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN uv pip install --system --no-cache -c constraints.txt -r pyproject.toml --extra compiler
COPY . .
RUN PYTHONPATH=. python packaging/wheels.py --unchecked linux-x86_64

FROM packages
RUN --mount=type=bind,from=wheel,source=/build/dist,target=/dist uv pip install --system --no-cache --no-deps /dist/*.whl
RUN useradd --create-home gpt && mkdir /work && chown gpt /work
USER gpt
WORKDIR /work
# The user of --user may have no home.
ENV XDG_CACHE_HOME=/tmp/cache MPLCONFIGDIR=/tmp/matplotlib
EXPOSE 8000
# Of a server at its usual port; a container that does something else is well as long as it runs.
HEALTHCHECK --start-period=120s CMD ! tr '\0' '\n' < /proc/1/cmdline | grep -qx serve || python -c \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"
ENTRYPOINT ["gpt"]
CMD ["--help"]
