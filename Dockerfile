# One image for everything of Turnpoint that runs in a container: Ray head, Gym servers, vLLM on a
# CPU, worker. The commands stand in docker-compose.yml.
FROM python:3.11-slim

# Address of PyTorch's wheel index for CPUs, where pip does not find torch's CPU build by itself.
ARG TORCH_INDEX_URL=""

# libgomp and libnuma: vLLM on a CPU.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.lock ./
RUN pip install --no-cache-dir --no-deps -r requirements.lock \
        ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    && pip install --no-cache-dir --no-deps --ignore-requires-python nemo-gym==0.7.0

COPY pyproject.toml README.md LICENSE turnpoint_program.py ./
COPY activities activities
COPY gym gym
COPY rl rl
COPY workers workers
COPY workflows workflows
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    # Its working folder must not hold folders of the packages' names.
    && useradd --create-home turnpoint \
    && mkdir --parents /state /snapshots \
    && chown turnpoint:turnpoint /state /snapshots

USER turnpoint
WORKDIR /state
