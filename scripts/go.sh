# Sourced by scripts that build a tool with Go: finds a Go that is new enough, or fetches one.
#
# A distribution's Go may be older than what these tools ask for (Debian 12 has 1.19), and need not fetch a newer one by
# itself. But any of them can get modules, and the newer Go is one.
# shellcheck shell=bash

readonly GO_MIN=26 # of 1.x: what Helm asks for; Kubernetes and Docker Compose ask for less
readonly GO_FETCHED=1.26.8

# Where Go's own archive is unpacked.
PATH=$PATH:/usr/local/go/bin

# Puts a Go that is new enough onto PATH. Ends with a sentence where it cannot be had. Call it before `go`.
new_go() {
    local minor module source name there=${XDG_CACHE_HOME:-$HOME/.cache}/unseen/go-$GO_FETCHED
    minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    ((${minor:-0} < GO_MIN)) || return 0
    if [[ ! -x $there/bin/go ]]; then
        echo "Fetching Go $GO_FETCHED, for the one here is 1.${minor:-?}: half a minute, the first time only." >&2
        module=golang.org/toolchain@v0.0.1-go$GO_FETCHED.$(go env GOOS)-$(go env GOARCH)
        source=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        if [[ -z $source ]]; then
            echo "$0: the Go module proxy does not give $module: install Go 1.$GO_MIN or newer" >&2
            exit 1
        fi
        rm -rf "$there.new" && mkdir -p "${there%/*}"
        cp -r "$source" "$there.new"
        chmod -R u+w "$there.new"
        # A module keeps neither which files are programs, nor a go.mod of another module in it.
        chmod +x "$there.new"/bin/* "$there.new"/pkg/tool/*/*
        while read -r name; do
            mv "$name" "${name%_go.mod}go.mod"
        done < <(find "$there.new/src" -maxdepth 2 -name _go.mod)
        mv "$there.new" "$there"
    fi
    unset GOROOT
    PATH=$there/bin:$PATH
}
