# densing on a processor.   docker build -t densing .
# With what evaluates models: docker build -t densing --build-arg EXTRAS=evals --build-arg TORCH=1 .
# TORCH_INDEX names an index with torch's build for processors alone; without, 5 GB of CUDA come along.
# A run:                      docker run --rm -v "$PWD:/work" densing density --reference qwen1.5 --scores my_scores.csv
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim AS install
ARG EXTRAS=
ARG TORCH=
ARG TORCH_INDEX=
RUN python -m venv /opt/densing
ENV PATH=/opt/densing/bin:$PATH
RUN if [ -n "$TORCH" ]; then pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch; fi
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON}-slim
COPY --from=install /opt/densing /opt/densing
ENV PATH=/opt/densing/bin:$PATH
RUN useradd --create-home --uid 1000 densing && install -d -o densing /work
# By number, so that who runs the image can tell that this is not root.
USER 1000
WORKDIR /work
ENTRYPOINT ["densing"]
CMD ["--help"]
