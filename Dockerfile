# The worker as an image: the binary alone, run by a user without privileges. Any other user works, too, if it is in group 0.
#
# Needs a configuration at /etc/unseen/unseen.toml, with `state.dir` in /var/lib/unseen. The worker writes nowhere else, so the
# rest can be read-only.

# The compiler has an exact version. Tags can move all the same: scripts/containers, which also makes a release's image,
# names both images by the digest that it has pulled, and its log (image.log) says which. The system's packages are the
# newest of bookworm.
ARG BUILD_IMAGE=rust:1.95.0-bookworm
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev libssl-dev pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# Without debug information, most of it RocksDB's, the binary is a twentieth of the size.
ENV CARGO_PROFILE_RELEASE_DEBUG=false
# Some kernels for ARM have pages of 64 KiB: the allocator takes any that are no larger than it was built for.
RUN if [ "$(uname -m)" = aarch64 ]; then echo 'env.JEMALLOC_SYS_WITH_LG_PAGE = "16"' >>"$CARGO_HOME/config.toml"; fi

# The dependencies in a layer of their own: RocksDB and librdkafka take many minutes, and change seldom.
# Tests and benchmarks are no part of the image, so the manifest here names none. A table ends where the next one begins.
COPY Cargo.toml Cargo.lock ./
RUN awk '/^\[/ { drop = /^\[\[(bench|example|test)\]\]/ } !drop' Cargo.toml > kept.toml \
    && mv kept.toml Cargo.toml \
    && mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked \
    && rm -r src

COPY src src
# Newer than what was built of the empty sources.
RUN touch src/lib.rs src/main.rs && cargo build --release --locked --lib
# What `unseen --version` says of the sources. Below the layers that another commit of the same sources can share.
ARG UNSEEN_COMMIT
RUN cargo build --release --locked --bin unseen
# What the licences of linked libraries ask for.
COPY scripts/notices scripts/notices
RUN scripts/notices > THIRD-PARTY.txt

FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 libstdc++6 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    # For any user of group 0, too: OpenShift runs containers as a user id of its own choice.
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
