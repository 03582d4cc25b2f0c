// A program of its own: it never is part of unseen.
module unseen.test/registry

go 1.24.0

require github.com/twmb/franz-go/pkg/sr v1.8.0
