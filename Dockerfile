# Image of the worker. It has the binary and its libraries, but no build tools, and runs as an unprivileged user. Any other
# user in group 0 works, too.
#
# The image needs a configuration at /etc/unseen/unseen.toml, with `state.dir` in /var/lib/unseen. The worker writes to no other
# directory, so everything else can be read-only.

# The compiler version is exact, but tags can move. Therefore, scripts/containers, which also builds the release image, pulls both images,
# prints their digests, and builds with these digests. The system packages are the latest of bookworm.
ARG BUILD_IMAGE=rust:1.95.0-bookworm
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev libssl-dev pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# The image needs no debug information, and the binary is smaller without it.
ENV CARGO_PROFILE_RELEASE_DEBUG=false
# Some ARM kernels have pages of 64 KiB. The allocator supports any page size up to the size that it was built for.
RUN if [ "$(uname -m)" = aarch64 ]; then echo 'env.JEMALLOC_SYS_WITH_LG_PAGE = "16"' >>"$CARGO_HOME/config.toml"; fi

# Builds the dependencies in a separate layer, because RocksDB and librdkafka take many minutes to build and rarely change.
# The sources of tests, benchmarks, and examples are missing here, so this step removes their tables from the manifest. A table ends
# where the next one begins.
COPY Cargo.toml Cargo.lock ./
RUN awk '/^\[/ { drop = /^\[\[(bench|example|test)\]\]/ } !drop' Cargo.toml > kept.toml \
    && mv kept.toml Cargo.toml \
    && mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked \
    && rm -r src

COPY src src
# Makes the sources newer than the build of the empty sources, so that cargo builds them.
RUN touch src/lib.rs src/main.rs && cargo build --release --locked --lib
# The commit that `unseen --version` prints. The layers above can be shared by other commits with the same sources.
ARG UNSEEN_COMMIT
RUN cargo build --release --locked --bin unseen
# The notices that the licenses of linked libraries require.
COPY scripts/notices scripts/notices
RUN scripts/notices > THIRD-PARTY.txt

FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 libstdc++6 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    # Also writable for other users in group 0, because OpenShift runs containers with an arbitrary user id.
    && install -d -o 65532 -g 0 -m 0775 /var/lib/unseen /etc/unseen
COPY --from=build /src/target/release/unseen /usr/local/bin/unseen
COPY --from=build /src/THIRD-PARTY.txt /usr/share/doc/unseen/

LABEL org.opencontainers.image.title="unseen" \
      org.opencontainers.image.description="Emits each Kafka record once: a stream deduplication worker" \
      org.opencontainers.image.licenses="Apache-2.0"

USER 65532:65532
VOLUME /var/lib/unseen
WORKDIR /var/lib/unseen
ENTRYPOINT ["unseen"]
CMD ["run", "-c", "/etc/unseen/unseen.toml"]
