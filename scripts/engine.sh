# Sourced by scripts/containers: finds a Docker engine with Compose v2 and the images that the repository builds upon.
#
# An engine that answers is used, if it has these images or can pull them. Else one of our own is started: as root, from
# what is installed, with data and socket in the user's cache directory, and without a rule in this machine's firewall.
# What it cannot pull is made of this machine: debootstrap, its Rust toolchain, Kafka's jars, the distribution's
# Prometheus. Such stand-ins never leave that engine's data. Its layers stay for the next run: some 4 GB.
#
# Needs scripts/setup.sh before it.
# shellcheck shell=bash

BUILD_TAG=$(sed -n 's/^ARG BUILD_IMAGE=//p' Dockerfile)
BASE_TAG=$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)
KAFKA_TAG=$(sed -n 's/^ *image: \(apache\/kafka:.*\)/\1/p' docker-compose.yml | head -n 1)
PROMETHEUS_TAG=$(sed -n 's/^ *image: \(prom\/prometheus:.*\)/\1/p' docker-compose.yml)
readonly BUILD_TAG BASE_TAG KAFKA_TAG PROMETHEUS_TAG
readonly COMPOSE_VERSION=v2.40.3 # built where there is none
readonly PULL_PATIENCE=60        # seconds, for the smallest image: to see whether a registry answers

# shellcheck source=scripts/go.sh
source scripts/go.sh

PATH=$PATH:/usr/sbin:/sbin

engine_dir=${XDG_CACHE_HOME:-$HOME/.cache}/unseen/containers
engine_owned=
registry=unknown

has_compose() {
    docker compose version || [[ -x $engine_dir/cli/cli-plugins/docker-compose ]] || has go
}

# The package that has Compose v2; Debian 12 has none, but the way to build it.
compose_package() {
    if [[ -n $(apt-cache madison docker-compose-v2 2>/dev/null) ]]; then
        echo docker-compose-v2
    elif apt-cache madison docker-compose 2>/dev/null | grep -q '| 2'; then
        echo docker-compose
    else
        echo golang-go
    fi
}

# Adds to `missing` and `packages` what an engine of our own needs for the images $@.
need_engine() {
    need 'a Docker engine' docker.io has dockerd
    need 'the command docker' docker.io has docker
    need 'debootstrap' debootstrap has debootstrap
    need 'Docker Compose v2, or Go to build it' "$(compose_package)" has_compose
    if [[ " $* " == *" apache/kafka:"* && ! -s $(kafka_libs)/kafka-tools-${KAFKA_TAG#*:}.jar ]]; then
        need "Java $JAVA_MIN or newer" java has_java
        need 'Maven' maven has mvn
    fi
}

kafka_libs() {
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/unseen/kafka-${KAFKA_TAG#*:}/libs"
}

# Pulls what is not there; says nothing of it. The first pull is short: without a registry, that is known soon.
pull() {
    local image
    for image; do
        ! docker image inspect "$image" >/dev/null 2>&1 || continue
        [[ $registry != none ]] || return 1
        if [[ $registry == unknown ]]; then
            timeout "$PULL_PATIENCE" docker pull -q "$BASE_TAG" >/dev/null 2>&1 || {
                registry=none
                return 1
            }
            registry=answers
        fi
        echo "Pulling $image"
        docker pull -q "$image" >/dev/null || return 1
    done
}

# The name of an image by its digest, so that what is built of it can be told. A stand-in has none: then its tag.
pinned() {
    local digest
    digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$1" 2>/dev/null | head -n 1) || true
    echo "${digest:-$1}"
}

# Starts the engine of our own, or takes over one that a killed script left.
engine_start() {
    local dir=$engine_dir/engine tick
    mkdir -p "$dir"
    export DOCKER_HOST=unix://$dir/docker.sock DOCKER_BUILDKIT=0
    exec 8>"$engine_dir/lock"
    flock -w 1800 8 || fail 'another scripts/containers uses the engine; wait until it has ended'
    engine_owned=1
    if ! docker info >/dev/null 2>&1; then
        rm -f "$dir/docker.pid"
        # In a session of its own, or an interrupt would stop it before its containers. Without rules in the firewall and
        # without forwarding, its networks reach this machine alone, through the ports that they publish.
        setsid dockerd --data-root "$dir/data" --exec-root "$dir/run" --host "$DOCKER_HOST" --pidfile "$dir/docker.pid" \
            --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
            --containerd-namespace unseen --containerd-plugins-namespace unseen-plugins --log-level warn \
            >"$dir/log" 2>&1 </dev/null 8>&- &
        for ((tick = 0; ; tick++)); do
            ! docker info >/dev/null 2>&1 || break
            if ((tick == 120)) || ! kill -0 $! 2>/dev/null; then
                fail "the Docker engine did not start; its log says why: $dir/log" "$dir/log"
            fi
            sleep 0.5
        done
    fi
    # What a killed script left.
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
    docker network prune --force >/dev/null
    docker volume ls --quiet | xargs --no-run-if-empty docker volume rm >/dev/null
    if ! docker compose version >/dev/null 2>&1; then
        export DOCKER_CONFIG=$engine_dir/cli
        docker compose version >/dev/null 2>&1 || build_compose
    fi
}

# Stops the engine of our own.
engine_stop() {
    [[ -n $engine_owned ]] || return 0
    local dir=$engine_dir/engine pid tick
    engine_owned=
    pid=$(cat "$dir/docker.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || true
    for ((tick = 0; tick < 120; tick++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.5
    done
    ! kill -0 "$pid" 2>/dev/null || echo "The Docker engine (process $pid) does not stop; end it by hand" >&2
    # The network of the machine itself stays mounted there.
    umount "$dir"/run/netns/* 2>/dev/null || true
    rm -rf "$dir/run" "$dir/docker.sock" "$dir/docker.pid" || true
}

# Inside the module's own directory, where its go.sum and its exclusions hold.
build_compose() {
    local module
    new_go
    echo "Building Docker Compose $COMPOSE_VERSION: some minutes, the first time only."
    # shellcheck disable=SC2015 # either step may fail
    module=$(cd / && go mod download -json "github.com/docker/compose/v2@$COMPOSE_VERSION" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') &&
        mkdir -p "$engine_dir/cli/cli-plugins" &&
        go -C "$module" build -buildvcs=false -trimpath \
            -ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=$COMPOSE_VERSION" \
            -o "$engine_dir/cli/cli-plugins/docker-compose" ./cmd >"$engine_dir/compose.log" 2>&1 ||
        fail 'Docker Compose could not be built; put Compose v2 on this machine, or see above' "$engine_dir/compose.log"
}

# Makes the image $1, whose build directory is $2. Its Dockerfile comes by stdin.
stand_in() {
    local tag=$1 dir=$2
    echo "Making a stand-in for $tag, which cannot be pulled: a minute or two, the first time only."
    cat >"$dir/Dockerfile"
    docker build --network host -t "$tag" "$dir" >"$engine_dir/stand-in.log" 2>&1 ||
        fail "the stand-in for $tag could not be made; see above" "$engine_dir/stand-in.log"
}

# Debian as small as it goes, with this machine's ways to Debian's packages.
make_base() {
    local dir=$1 mirror file
    echo "Making a stand-in for $BASE_TAG, which cannot be pulled: a minute or two, the first time only."
    # shellcheck disable=SC2016 # the placeholders are apt's
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        sed -n 's/^Debian bookworm //p' | head -n 1 || true)
    debootstrap --variant=minbase bookworm "$dir/root" "${mirror:-http://deb.debian.org/debian}" >"$engine_dir/stand-in.log" 2>&1 ||
        fail "debootstrap could not make $BASE_TAG; see above" "$engine_dir/stand-in.log"
    rm -rf "$dir"/root/var/cache/apt/archives/*.deb "$dir"/root/var/lib/apt/lists/*
    # An option of how to fetch may be what makes the mirror reached from here.
    while read -r file; do
        cp "$file" "$dir/root/etc/apt/apt.conf.d/"
    done < <(grep -rl 'Acquire::' /etc/apt/apt.conf /etc/apt/apt.conf.d 2>/dev/null)
    printf '%s\n' 'APT::Install-Recommends "false";' 'Dir::Cache::pkgcache "";' 'Dir::Cache::srcpkgcache "";' \
        'DPkg::Post-Invoke {"rm -f /var/cache/apt/archives/*.deb";};' >"$dir/root/etc/apt/apt.conf.d/slim"
    tar -C "$dir/root" -c . | docker import - "$BASE_TAG" >/dev/null
}

# A compiler, and this machine's Rust with its ways to crates.
make_build() {
    local dir=$1 file version
    version=$(rust_version || true)
    ((${version:-0} >= RUST_MIN)) || fail "$BUILD_TAG cannot be pulled, and to make one please install Rust 1.$RUST_MIN or newer (https://rustup.rs)"
    mkdir -p "$dir/toolchain" "$dir/cargo"
    tar -C "$(rustc --print sysroot)" -c bin lib | tar -C "$dir/toolchain" -x
    for file in "${CARGO_HOME:-$HOME/.cargo}"/{config,config.toml}; do
        [[ ! -f $file ]] || cp "$file" "$dir/cargo/"
    done
    cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$dir/ca-certificates.crt"
    stand_in "$BUILD_TAG" "$dir" <<DOCKERFILE
FROM $BASE_TAG
RUN apt-get update && apt-get install -y ca-certificates gcc g++ git libc6-dev make pkg-config && rm -rf /var/lib/apt/lists/*
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY toolchain /usr/local
COPY cargo /usr/local/cargo
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
DOCKERFILE
}

# Kafka's jars with launchers of the names that its own image has. Kafka's own class makes server.properties of the
# variables, as it does there.
make_kafka() {
    local dir=$1 libs
    libs=$(kafka_libs)
    UNSEEN_KAFKA_VERSION=${KAFKA_TAG#*:} scripts/kafka --fetch >/dev/null
    cp -r "$libs" "$dir/libs"
    cat >"$dir/tool" <<'TOOL'
#!/bin/sh
set -eu
case ${0##*/} in
kafka-broker-api-versions.sh) class=org.apache.kafka.tools.BrokerApiVersionsCommand ;;
kafka-console-consumer.sh) class=org.apache.kafka.tools.consumer.ConsoleConsumer ;;
kafka-console-producer.sh) class=org.apache.kafka.tools.ConsoleProducer ;;
kafka-topics.sh) class=org.apache.kafka.tools.TopicCommand ;;
esac
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.apache.logging.log4j.level=WARN -cp '/opt/kafka/libs/*' "$class" "$@"
TOOL
    cat >"$dir/run" <<'RUN'
#!/bin/sh
set -eu
: "${CLUSTER_ID:=5L6g3nShT-eMCtK--X86sw}"
export CLUSTER_ID
said=$(java -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1) ||
    echo "$said" | grep 'already formatted' || { echo "$said" && exit 1; }
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.apache.logging.log4j.level=INFO -cp '/opt/kafka/libs/*' \
    kafka.Kafka /opt/kafka/config/server.properties
RUN
    chmod +x "$dir/tool" "$dir/run"
    stand_in "$KAFKA_TAG" "$dir" <<DOCKERFILE
FROM $BASE_TAG
RUN apt-get update && apt-get install -y openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
RUN useradd -u 1000 -M appuser && install -d -o appuser -g appuser \
    /var/lib/kafka/data /etc/kafka/secrets /etc/kafka/docker /mnt/shared/config /opt/kafka/config /opt/kafka/bin
COPY libs /opt/kafka/libs
COPY tool run /opt/kafka/bin/
RUN cd /opt/kafka/bin && for name in broker-api-versions console-consumer console-producer topics; do ln -s tool kafka-\$name.sh; done \
    && touch /etc/kafka/docker/server.properties /etc/kafka/docker/log4j2.yaml /etc/kafka/docker/tools-log4j2.yaml
USER appuser
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/opt/kafka/bin/run"]
DOCKERFILE
}

# The distribution's Prometheus, with the paths and the user of the project's own image. Its packages' web page is not taken.
make_prometheus() {
    local dir=$1
    stand_in "$PROMETHEUS_TAG" "$dir" <<DOCKERFILE
FROM $BASE_TAG
RUN apt-get update && apt-get install -y prometheus && rm -rf /var/lib/apt/lists/* && install -d -o nobody -g nogroup /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
DOCKERFILE
}

# Makes those of the images $@ that are not there.
make_missing() {
    local image dir
    for image in "$BASE_TAG" "$@"; do
        ! docker image inspect "$image" >/dev/null 2>&1 || continue
        dir=$(mktemp -d "$engine_dir/stand-in.XXXXXX")
        case $image in
        "$BASE_TAG") make_base "$dir" ;;
        "$BUILD_TAG") make_build "$dir" ;;
        "$KAFKA_TAG") make_kafka "$dir" ;;
        "$PROMETHEUS_TAG") make_prometheus "$dir" ;;
        esac
        rm -rf "$dir"
    done
}

# An engine with the images $@. Ends with a sentence where none can be had.
engine_with() {
    if has_docker >/dev/null 2>&1; then
        ! pull "$@" || return 0
        echo 'The Docker engine that answers has not the images, and reaches no registry: starting one of our own.'
    fi
    missing=() packages=()
    need_engine "$@"
    if ((${#missing[@]})) && install_packages; then
        missing=() packages=()
        need_engine "$@"
    fi
    if ((${#missing[@]})); then
        echo 'No Docker engine answers. Start one, or to have one started here, please install:' >&2
        printf '  - %s\n' "${missing[@]}" >&2
        ((${#packages[@]} == 0)) || echo "On Debian and Ubuntu: apt-get install --no-install-recommends ${packages[*]/%java/default-jre-headless}" >&2
        exit 1
    fi
    ((EUID == 0)) || fail 'no Docker engine answers, and only root can start one: start it, or run this as root'
    engine_start
    pull "$@" || make_missing "$@"
}
